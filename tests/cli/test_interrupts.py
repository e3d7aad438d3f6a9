"""Ctrl-C at any time, while libraries are imported above all.

Signals come at named imports, by an audit hook, so that no clock decides whether a test passes.
"""

import subprocess
import sys
import textwrap

import pytest

# The first import of this module, wherever it is, is met by a signal.
HOOK = """
import os, signal, sys
met = []
def meet(event, arguments):
    if event == "import" and arguments[0] == {module!r} and not met:
        met.append(True)
        os.kill(os.getpid(), signal.{name})
"""


def python(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("typer", "SIGINT"),
        ("torch", "SIGINT"),
        ("torch.nn", "SIGINT"),
        ("numpy", "SIGINT"),
        ("transformers.utils", "SIGINT"),
        ("paceline.kernels.packing", "SIGTERM"),
    ],
)
def test_a_command_ends_quietly_whatever_is_being_imported(tiny, module, name):
    code = HOOK.format(module=module, name=name) + (
        "from paceline.cli import interrupts\n"
        "interrupts.install()\n"
        "sys.addaudithook(meet)\n"
        "from paceline.cli.entry import main\n"
        "try:\n    main()\n"
        "finally:\n    assert met, 'never imported'\n"
    )
    options = ("--max-tokens", 900, "-d", "none")
    result = python(code, "generate", "-m", tiny, "-p", "the end", *options)
    assert result.stderr == ""
    assert result.stdout == ""
    assert result.returncode == 130


def test_an_import_is_finished_before_the_interruption_is_raised(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nfinished = True\n"
    )
    code = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        from paceline.cli import interrupts
        interrupts.install()
        try:
            import slow
            while True:
                pass
        except KeyboardInterrupt:
            print(sys.modules["slow"].finished, interrupts.was_interrupted())
    """
    assert python(code).stdout == "True True\n"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_first_signal_only_asks_where_steps_are_not_to_be_broken(name):
    code = f"""
        import os, signal
        from paceline.cli import interrupts
        interrupts.install()
        with interrupts.asked_to_stop() as asked:
            before = asked()
            os.kill(os.getpid(), signal.{name})
            print(before, asked())
            try:
                os.kill(os.getpid(), signal.{name})
                print("went on")
            except KeyboardInterrupt:
                print("raised")
        try:
            os.kill(os.getpid(), signal.SIGINT)
            print("lost")
        except KeyboardInterrupt:
            print("raised")
    """
    assert python(code).stdout == "False True\nraised\nraised\n"


def test_outside_of_imports_it_is_raised_at_once():
    code = """
        import os, signal
        from paceline.cli import interrupts
        interrupts.install()
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            print("not raised")
        except interrupts.Terminated:
            print("raised", interrupts.was_interrupted())
        os.kill(os.getpid(), signal.SIGTERM)  # once only
        interrupts.forget()
        print(interrupts.was_interrupted())
    """
    assert python(code).stdout == "raised True\nFalse\n"


def test_one_that_falls_into_a_destructor_is_not_lost():
    code = """
        import os, signal
        from paceline.cli import interrupts
        interrupts.install()
        class Fragile:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGINT)
        try:
            thing = Fragile()
            del thing
            while True:
                pass
        except KeyboardInterrupt:
            print("raised")
    """
    result = python(code)
    assert (result.stdout, result.stderr) == ("raised\n", "")


def test_an_error_that_an_interruption_caused_is_no_fault_of_paceline(run, monkeypatch):
    from paceline.cli import interrupts
    from paceline.workbench.plan import formula

    def fail(*_):
        raise ModuleNotFoundError("Could not import module 'x'")

    monkeypatch.setattr(formula, "plan_by_formula", fail)
    monkeypatch.setattr(interrupts, "was_interrupted", lambda: True)
    result = run("plan", "--alpha", 0.8, "--cost", 0.05, "-k", 4)
    assert result.exit_code == 130
    assert result.output == ""
