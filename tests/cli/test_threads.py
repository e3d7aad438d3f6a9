import os
import subprocess
import sys

import pytest

from paceline.cli import threads


@pytest.fixture
def load(monkeypatch, tmp_path):
    """Four cores without torch, under a load that the test sets, with as many that run now."""
    file = tmp_path / "loadavg"
    monkeypatch.setattr(threads, "LOAD", file)
    monkeypatch.setenv(threads.POLICY, "")  # so that what the test sets goes with the test
    monkeypatch.delenv(threads.POLICY)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)

    def set_load(value, running=None):
        now = round(value) if running is None else running
        file.write_text(f"{value} 9.00 9.00 {now + 1}/79 4711\n")
        monkeypatch.setattr(os, "getloadavg", lambda: (value, 9.0, 9.0), raising=False)

    return set_load


@pytest.mark.parametrize(("value", "expected"), [(0.0, False), (1.9, False), (2.1, True)])
def test_threads_give_way_where_less_than_half_of_the_cores_is_free(load, value, expected):
    load(value)
    assert threads.give_way_where_busy() is expected
    assert os.environ.get(threads.POLICY) == ("passive" if expected else None)


def test_a_load_that_is_gone_does_not_count(load):
    load(3.9, running=1)
    assert threads.is_busy() is False
    load(3.9, running=2)
    assert threads.is_busy() is True


@pytest.mark.parametrize("content", [None, "", "3.9 9.0 9.0 x/y 1"])
def test_where_nothing_is_told_of_this_moment_the_load_counts(load, content):
    load(3.9, running=0)
    if content is None:
        threads.LOAD.unlink()
    else:
        threads.LOAD.write_text(content)
    assert threads.is_busy() is True


def test_a_policy_of_the_user_stays(load, monkeypatch):
    load(8.0)
    monkeypatch.setenv(threads.POLICY, "active")
    assert threads.give_way_where_busy() is False
    assert os.environ[threads.POLICY] == "active"


def test_it_is_too_late_once_torch_is_there(load, monkeypatch):
    load(8.0)
    monkeypatch.setitem(sys.modules, "torch", object())
    assert threads.give_way_where_busy() is False
    assert threads.POLICY not in os.environ


def test_a_system_that_does_not_tell_is_taken_for_quiet(load, monkeypatch):
    load(8.0)
    monkeypatch.delattr(os, "getloadavg")
    assert threads.is_busy() is False


def test_torch_takes_the_policy_over():
    """The variable is read by the OpenMP that torch brings, when it is set from within Python."""
    code = (
        "import os, sys; os.environ['OMP_DISPLAY_ENV'] = 'true';"
        "from paceline.cli import threads; threads.is_busy = lambda: True;"
        "assert threads.give_way_where_busy(); import torch"
    )
    environment = {name: value for name, value in os.environ.items() if name != threads.POLICY}
    result = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in result.stderr
