"""The command `rampline`: its subcommands, how errors are shown, and the exit status (0, 1 failed, 2 wrong input)."""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from typing import Annotated

import typer

import rampline
from rampline.cli.catalogue import init, models, nodes, studies
from rampline.cli.champion import evaluate, predict, promote
from rampline.cli.doctor import doctor
from rampline.cli.look import compare, data, plan
from rampline.cli.measure import explain, forecast, parity, tune
from rampline.cli.run import run, submit, sync, worker
from rampline.cli.stack import down, status, up
from rampline.credentials import mask
from rampline.errors import ERROR_MARK, NO_SPACE, NOT_ALLOWED, RamplineError
from rampline.jobs.parent import end_with_parent
from rampline.record.home import Home, keep_private
from rampline.record.units import escape_controls
from rampline.servers.addresses import without_proxy
from rampline.servers.environments import make_quiet
from rampline.servers.secret import log_in, take_login_out

INTERRUPTED = 128 + signal.SIGINT
# click's UsageError: typer brings its own click and does not name it.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"rampline {rampline.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Train Keras image classifiers under every tf.distribute strategy, and compare what was measured."""


for command in (
    *(run, submit, up, status, down, data, plan, forecast, parity, tune, compare, explain),
    *(evaluate, promote, predict, sync, studies, models, nodes, init, doctor, worker),
):
    app.command()(command)


def main() -> int:
    """Run the command line; returns the exit status."""
    if caller := os.environ.pop("RAMPLINE_CALLER_PID", None):  # see `rampline.result`
        end_with_parent(int(caller))
    make_quiet()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # paths may hold bytes that are no text, and a locale lack a dash
            stream.reconfigure(errors="backslashreplace")
    home = Home.from_environment()
    # What ends a command from outside must unwind it like Ctrl-C, so that executions are closed and processes ended.
    signal.signal(signal.SIGTERM, _leave)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # `nohup` has it ignored, and the command goes on
        signal.signal(signal.SIGHUP, _leave)
    try:
        keep_private(home)
        os.environ.update(without_proxy(os.environ))
        os.environ.update(take_login_out(os.environ))
        os.environ.update(log_in(home, os.environ))
        return app(standalone_mode=False) or 0
    except RamplineError as error:
        return _fail(str(error), error.exit_status)
    except OSError as error:
        if error.errno not in (*NO_SPACE, *NOT_ALLOWED):
            raise
        return _fail(_describe(error), RamplineError.exit_status)
    except UsageError as error:
        return _fail(error.format_message(), 2)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)


def _describe(error: OSError) -> str:
    """What keeps the command from its files: mostly a home that is read-only, or somebody else's, or full."""
    remedy = "free some space on its disk" if error.errno in NO_SPACE else "use a folder that you may write to"
    return (
        f"{error.filename or Home.from_environment().root}: {error.strerror}: {remedy}, or set RAMPLINE_HOME to another"
    )


def _fail(message: str, status: int) -> int:
    if message:  # none with the help that a bare `rampline` shows
        with suppress(OSError):  # nobody reads it any more
            print(f"{ERROR_MARK}{mask(escape_controls(' '.join(message.split())))}", file=sys.stderr)  # noqa: T201
    return status


def _leave(number: int, _frame: object) -> None:
    # A terminal that is closed hangs up twice, by its shell and by the kernel; a second signal ends roles unsaved.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise SystemExit(128 + number)
