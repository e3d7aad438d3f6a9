#!/bin/sh
# Makes .venv and installs Paceline into it, editable, with the extras named: set_up.sh dev docs
#
# Needs Python 3.11 or newer and nothing else. PYTHON=/path/to/python picks the interpreter. Safe
# to run again: what is there already is kept.
set -eu
cd "$(dirname "$0")/.."

# `python3` first: where a machine has several, it is the one its owner chose.
find_python() {
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python}; do
        if "$candidate" -c '
import sys, venv, ensurepip
sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    cat >&2 <<END
Paceline needs Python 3.11 or newer with the venv module; ${PYTHON:-what is on the PATH} is not that.
Install one (on Debian and Ubuntu: apt-get install python3 python3-venv), or name it:
    make PYTHON=/path/to/python3.11 ...
END
    return 1
}

step() {
    label=$1
    shift
    printf '==> %s ... ' "$label"
    start=$(date +%s)
    # pip prints nothing but errors; a line a step is enough to see that it goes on.
    if ! log=$("$@" 2>&1); then
        printf 'failed\n%s\n' "$log" >&2
        return 1
    fi
    printf '%ss\n' "$(($(date +%s) - start))"
}

if ! .venv/bin/python -c 'import pip' >/dev/null 2>&1; then
    python=$(find_python)
    step "making .venv with $("$python" --version)" "$python" -m venv --clear .venv
fi

extras=$(IFS=,; printf '%s' "$*")
pip_install=".venv/bin/python -m pip install --quiet --disable-pip-version-check"

# torch first and by its exact version: asked for a range, pip takes the newest, which may be a
# build of several gigabytes for another kind of machine.
torch=$(sed -n 's/^ *"torch==\([^"]*\)",$/\1/p' pyproject.toml)
if ! .venv/bin/python -c '
import sys
from importlib.metadata import version
sys.exit(version("torch").partition("+")[0] != sys.argv[1])' "$torch" >/dev/null 2>&1; then
    step "installing torch $torch (a large download, the slowest step)" $pip_install "torch==$torch"
fi
step "installing paceline[$extras]" $pip_install --editable ".[$extras]"
