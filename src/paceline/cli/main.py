"""The entry point: the commands, and how errors are reported."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import paceline
from paceline.cli import (
    audit,
    bench,
    chat,
    datastore,
    demo,
    drafters,
    generate,
    interrupts,
    lesson,
    models,
    options,
    plan,
    recommend,
    replay,
    serve,
    terminal,
    train,
    tune,
)
from paceline.errors import PacelineError

# The base class of all errors in the command line itself. typer does not export it, but it exports
# its subclass BadParameter.
_UsageError: Any = typer.BadParameter.__base__


class Commands(TyperGroup):
    """The commands, with every error reported in one line: exit code 2 for invalid input."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; turn errors into a line and an exit code."""
        with terminal.library_notes():
            try:
                return super().invoke(ctx)
            except (typer.Exit, typer.Abort, _UsageError, BrokenPipeError):
                raise
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise
                raise _unexpected(ctx, error) from error
            except PacelineError as error:
                if ctx.params["debug"]:
                    raise
                terminal.error(str(error))
                raise typer.Exit(2) from error
            except Exception as error:
                if interrupts.was_interrupted():
                    raise KeyboardInterrupt from error
                raise _unexpected(ctx, error) from error

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run, and exit the process with the exit code."""
        settings = {**extra, "standalone_mode": False}
        run = partial(super().main, *args, **settings)
        return sys.exit(_exit_code(run)) if extra.get("standalone_mode", True) else run()


def _unexpected(ctx: Any, error: Exception) -> Exception:
    if ctx.params["debug"]:
        raise error
    terminal.error(
        f"unexpected {type(error).__name__}: {error}. This is a bug in Paceline; "
        "`paceline --debug ...` shows where it happened"
    )
    return typer.Exit(1)


def _exit_code(run: Callable[[], Any]) -> int:
    try:
        if sys.stdout is None:
            raise OSError("standard output is closed")
        code = run()
        sys.stdout.flush()
    except _UsageError as error:
        path = error.ctx.command_path if error.ctx else "paceline"
        message = error.format_message().rstrip(".")
        end = " See" if message.endswith("?") else "; see"
        terminal.error(f"{message}{end} `{path} --help`")
        return int(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # The reader of our output has gone. Python flushes once more at exit: discard that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        terminal.error(f"cannot write the output: {error.strerror or error}")
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    return code if isinstance(code, int) else 0


app = typer.Typer(
    name="paceline",
    cls=Commands,
    help="Exact speculative decoding for PyTorch and Hugging Face models.",
    epilog='Start with `paceline demo`, or with `paceline generate --prompt "..."`.',
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (
    demo.demo,
    generate.generate,
    chat.chat,
    serve.serve,
    recommend.recommend,
    bench.bench,
    replay.replay,
    plan.plan,
    audit.audit,
    drafters.drafters,
    lesson.lesson,
):
    app.command(help=options.paragraphs(_command))(_command)
app.add_typer(models.app, name="models")
app.add_typer(train.app, name="train", help=options.paragraphs(train.train))
app.add_typer(tune.app, name="tune")
app.add_typer(datastore.app, name="datastore")


def _print_version(value: bool) -> None:
    if value:
        terminal.out().print(f"paceline {paceline.__version__}")
        raise typer.Exit


@app.callback()
def _paceline(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar="",
            callback=_print_version,
            is_eager=True,
            help="Print the version.",
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            metavar="",
            envvar="PACELINE_DEBUG",
            help="Show where in the code an error happened.",
        ),
    ] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        terminal.out().print(ctx.get_help())


def main() -> None:
    """Run the command line of this process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character must not abort an answer.
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        # Text that is not UTF-8 is refused with the prompt, with a message.
        sys.stdin.reconfigure(errors="surrogateescape")
    # `kill` and a shutdown end a command as Ctrl-C does.
    interrupts.install()
    app()
