"""`rampline run STUDY`: a study through its flow, with progress in the terminal and the comparison at the end."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from rampline.cli.arguments import OnlyOption, OverridesOption, SetOption, StudyArgument, all_overrides
from rampline.cli.compare import show_comparison
from rampline.cli.prefect_server import prefect_answers, start_prefect
from rampline.cluster.fork_server import fork_server
from rampline.credentials import mask
from rampline.devices import available_cores
from rampline.errors import InputError, Preempted, RamplineError, RunFailed, says_disk_full
from rampline.home import Home
from rampline.imports import importing
from rampline.progress import TERMINAL, BarProgress, LineProgress
from rampline.run_directory import RunDirectory
from rampline.stages import check_study, is_begun
from rampline.study import load_study

HTTP_LIBRARIES = ("httpx", "httpcore")

ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Continue the study's latest execution, with the settings it was started with.")
]


ProfileOption = Annotated[
    bool, typer.Option("--profile", help="Capture a TensorBoard trace of a few steps of each run's chief.")
]


def run(
    study: StudyArgument,
    only: OnlyOption = None,
    set_: SetOption = None,
    file: OverridesOption = None,
    resume: ResumeOption = False,
    profile: ProfileOption = False,
) -> None:
    """Run a study: prepare its data, train its runs, evaluate and compare them."""
    home, console = Home.from_environment(), Console()
    overrides = all_overrides(file, [*(set_ or []), *(["profile=true"] if profile else [])])
    # An execution is continued with the runs that it was started with, which are checked as it goes on.
    checked = load_study(study) if resume else check_study(study, only or [], overrides)
    if resume:
        execution = _unfinished(checked.name, home, settings_given=bool(only or overrides))
    else:
        execution = home.runs / checked.name / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    console.print(f"study {checked.name}, execution {execution.name}", highlight=False)
    parameters = {"study": study, "only": only or [], "overrides": overrides, "execution": str(execution)}
    try:
        with ExitStack() as stack:
            _run_flow(home, parameters, console, stack)
    except KeyboardInterrupt:
        remedy = f": `rampline run {study} --resume` continues it" if is_begun(execution) else ""
        console.print(f"interrupted{remedy}", highlight=False)
        raise
    except Preempted as stop:
        raise typer.Exit(_say_preempted(stop, study, console)) from None
    except SystemExit:
        from rampline.execution import preempted_run

        # SIGTERM to this command, which Prefect has passed on.
        stop = preempted_run(execution)
        if stop is None:
            raise
        raise typer.Exit(_say_preempted(stop, study, console)) from None
    except (RunFailed, PrefectLost):
        if is_begun(execution):
            console.print(f"`rampline run {study} --resume` continues what did not complete", highlight=False)
        raise
    finally:
        _show_what_there_is(checked.name, execution, home, console)


def _say_preempted(stop: Preempted, study: str, console: Console) -> int:
    text = f"preempted: {stop}: `rampline run {study} --resume` continues it"
    console.print(text, highlight=False, soft_wrap=True)
    return stop.exit_status


class PrefectLost(RamplineError):
    """The Prefect API went away while the flow ran, or has no room for its database."""


def _run_flow(home: Home, parameters: dict[str, Any], console: Console, stack: ExitStack) -> None:
    with console.status("starting Prefect") if console.is_terminal else nullcontext():
        wait = start_prefect(home)
        # Prefect's server takes longest. Where it and this process have all cores, TensorFlow is imported afterwards.
        has_spare_core = wait is None or available_cores() > 2
        if has_spare_core:
            stack.enter_context(fork_server())
        # Here, because that takes seconds.
        with importing():
            from rampline.flows.study import study as flow

            _meet_mlflow(home)
        if not has_spare_core:
            stack.enter_context(fork_server())
        if wait:
            wait()
    with BarProgress(console) if console.is_terminal else nullcontext(LineProgress(_print)) as progress:
        token = TERMINAL.set(progress)
        # While the API is away, Prefect's log handler would write to the terminal for every line that it cannot send.
        before, logging.raiseExceptions = logging.raiseExceptions, False
        try:
            flow(**parameters)
        except RamplineError:
            raise
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in HTTP_LIBRARIES and prefect_answers():
                raise
            if says_disk_full(error) or not shutil.disk_usage(home.root).free:
                raise PrefectLost(f"the disk of {home.root} is full: free some space on it") from error
            url = mask(os.environ["PREFECT_API_URL"])
            why = "the step in progress was completed, no other was started"
            raise PrefectLost(f"Prefect at {url} stopped answering: {why}") from error
        finally:
            logging.raiseExceptions = before
            TERMINAL.reset(token)


def _meet_mlflow(home: Home) -> None:
    """Load what MLflow needs for its database while Prefect starts; the flow would wait for it."""
    from rampline.tracking.address import default_uri, tracking_uri
    from rampline.tracking.store import TrackingError, open_tracking

    # A server is left to the flow, which tells on its page when nobody answers. A new database is left to it, too: no
    # study may come to be.
    if tracking_uri(home) == default_uri(home) and home.tracking_database.is_file():
        with suppress(TrackingError):  # the flow meets it again
            open_tracking(home)


def _show_what_there_is(study: str, execution: Path, home: Home, console: Console) -> None:
    """The comparison also after a failure, as long as there is one."""
    if (home.reports / study / execution.name / "comparison.csv").is_file():
        from rampline.execution_file import read_execution
        from rampline.links import how_to_open_tensorboard
        from rampline.tracking.store import TrackingError

        try:
            opened = read_execution(execution)
            show_comparison(study, home, console, opened.parent_run_id)
            if any(run.config.profile for run in opened.study.runs):
                console.print(f"profile {how_to_open_tensorboard(execution)}", highlight=False, soft_wrap=True)
        except TrackingError as error:
            console.print(f"no comparison: {error}", highlight=False, soft_wrap=True, markup=False)


def _unfinished(study: str, home: Home, *, settings_given: bool) -> Path:
    """The latest execution, if something of it is left to do: training, evaluation or comparison.

    Raises:
        InputError: when there is none.
    """
    # They bring in MLflow: too slow for the checks before them.
    from rampline.execution_file import latest_execution, read_execution

    if settings_given:
        raise InputError(
            "--resume continues an execution with its own settings: leave out --only and --set, and --overrides"
        )
    execution = latest_execution(study, home)
    if execution is None:
        raise InputError(f"study {study} has no execution in {home.runs}: leave out --resume")
    runs = [RunDirectory(execution / run.name) for run in read_execution(execution).study.runs]
    compared = (home.reports / study / execution.name / "comparison.csv").is_file()
    if compared and all(run.is_complete and run.evaluation_file.is_file() for run in runs):
        raise InputError(f"the latest execution of study {study}, {execution.name}, is complete: leave out --resume")
    return execution


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201
