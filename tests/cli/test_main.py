import json
import os
import subprocess
import sys

import pytest

import paceline
from paceline.workbench.plan import formula

HEAVY = ["torch", "transformers", "numpy", "gguf", "safetensors", "huggingface_hub", "tokenizers"]
REPORT = """
import json, sys
from paceline.cli.main import main
sys.argv[0] = "paceline"
try:
    main()
finally:
    print(json.dumps(sorted(set(sys.modules) & set({heavy}))), file=sys.stderr)
"""
PLAN = ["plan", "--alpha", ".8", "--cost", ".05"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--help"],
        ["--version"],
        ["generate", "--help"],
        ["demo", "-h"],
        PLAN,
        ["drafters"],
        ["drafters", "--json"],
        ["datastore", "--help"],
        ["datastore", "build", "--help"],
        ["models"],
        ["models", "--json"],
    ],
    ids=" ".join,
)
def test_what_needs_no_model_imports_no_model_library(arguments):
    code = REPORT.format(heavy=HEAVY)
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stderr.splitlines()[-1]) == []
    assert result.stdout.strip()


@pytest.mark.parametrize("module", ["paceline", "paceline.cli"])
def test_the_module_runs_as_the_script_does(module):
    command = [sys.executable, "-m", module, "--version"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert answer.stdout == f"paceline {paceline.__version__}\n"
    assert answer.stderr == ""


def test_without_a_command_the_help_is_shown(run):
    assert run().exit_code == 0
    assert run().stdout.split() == run("--help").stdout.split()
    for command in ("demo", "generate", "plan", "drafters", "models"):
        assert command in run().stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["generat"], "No such command 'generat'. Did you mean 'generate'? See `paceline --help`"),
        (["--loud"], "No such option: --loud; see `paceline --help`"),
        (["models", "ftch"], "Did you mean 'fetch'? See `paceline models --help`"),
        (["plan", "--alfa", "1"], "--alpha"),
        (["models", "fetch", "smollm2"], "did you mean 'smollm2-135m'?"),
        (["drafters", "ngram"], "unexpected extra argument"),
    ],
)
def test_mistakes_are_answered_in_one_line(run, arguments, line):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    (found,) = result.stderr.splitlines()
    assert found.startswith("error: ")
    assert line in found


def fail_with(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(formula, "plan_by_formula", fail)


def test_an_error_of_several_lines_is_told_in_one(run, monkeypatch):
    fail_with(monkeypatch, paceline.PacelineError("one\n  two [bold] :smile:\x1b[2J"))
    result = run(*PLAN)
    assert result.exit_code == 2
    assert result.stderr == "error: one two [bold] :smile:[2J\n"


def test_a_fault_is_told_in_one_line_that_says_what_to_do(run, monkeypatch):
    fail_with(monkeypatch, RuntimeError("no luck"))
    result = run(*PLAN)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: unexpected RuntimeError: no luck.")
    assert "--debug" in line


@pytest.mark.parametrize("error", [paceline.PacelineError("x"), RuntimeError("x")], ids=repr)
@pytest.mark.parametrize(("options", "env"), [(["--debug"], {}), ([], {"PACELINE_DEBUG": "1"})])
def test_debug_shows_where_it_happened(run, monkeypatch, error, options, env):
    fail_with(monkeypatch, error)
    result = run(*options, *PLAN, env=env)
    assert result.exception is error  # Python shows the traceback of what leaves `main`


def test_an_interruption_is_quiet(run, monkeypatch):
    fail_with(monkeypatch, KeyboardInterrupt())
    result = run(*PLAN)
    assert result.exit_code == 130
    assert result.output == ""


def test_a_command_that_is_told_to_end_does_so_as_at_ctrl_c():
    """It waits for a text, so that the signal meets it at work."""
    code = (
        "import os, signal, threading; from paceline.cli import main; "
        "threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start(); main.main()"
    )
    pipes = dict.fromkeys(("stdin", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", code, "generate"], **pipes) as process:
        assert process.wait(timeout=60) == 130
        assert process.stderr.read() == b""


@pytest.mark.parametrize("arguments", [PLAN, [*PLAN, "--json"], ["drafters"]])
def test_a_reader_that_leaves_ends_the_command_quietly(arguments):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as output:
        result = subprocess.run(
            [sys.executable, "-m", "paceline.cli", *arguments],
            check=False,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert result.stderr == ""
    assert result.returncode == 1


def test_the_log_of_the_library_is_shown_as_notes(run, monkeypatch):
    import logging

    make_plan = formula.plan_by_formula

    def tell(*arguments):
        logging.getLogger("paceline").warning("the draft model takes %d tokens", 8)
        return make_plan(*arguments)

    monkeypatch.setattr(formula, "plan_by_formula", tell)
    result = run(*PLAN)
    assert result.stderr == "note: the draft model takes 8 tokens\n"
    assert logging.getLogger("paceline").handlers == []
