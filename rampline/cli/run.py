"""Running a study: `rampline run`, `submit` as a job, one role by `worker`, and `sync` of what MLflow has not got."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from rampline.cli.arguments import OnlyOption, OverridesOption, SetOption, StudyArgument, all_overrides
from rampline.cli.console import SafeConsole, line_console, shows_bars
from rampline.cli.look import find_comparison, show_comparison
from rampline.config.sections import Launcher
from rampline.credentials import mask
from rampline.devices import available_cores
from rampline.errors import ClusterConfigError, InputError, Preempted, RamplineError, RunFailed, says_disk_full
from rampline.imports import importing
from rampline.jobs.fork_server import fork_server
from rampline.jobs.launchers import prepare_nodes
from rampline.jobs.slurm import is_running, requeue_at_exit
from rampline.progress import TERMINAL, BarProgress, LineProgress
from rampline.record.home import Home
from rampline.record.object_store import ObjectStore
from rampline.record.run_directory import RunDirectory
from rampline.servers.prefect_server import flush_logs, start_prefect
from rampline.servers.running import answers
from rampline.study import Study, load_study, study_name
from rampline.study.execution_file import Execution, at_hand, find_executions, is_begun, new_execution
from rampline.study.preflight import continue_or_check, tell_other_settings
from rampline.tracking.pages import shorten

HTTP_LIBRARIES = ("httpx", "httpcore")


def run(
    study: StudyArgument,
    only: OnlyOption = None,
    set_: SetOption = None,
    file: OverridesOption = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the study's latest execution, with the settings it was started with."),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            "--execution",
            metavar="NAME",
            help="Name of the execution: continued if there is one, else begun. "
            "For jobs that a scheduler starts again.",
        ),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Capture a TensorBoard trace of a few steps of each run's chief.")
    ] = False,
    launcher: Annotated[
        Launcher | None,
        typer.Option("--launcher", help="What starts the processes of every run: sets cluster.launcher."),
    ] = None,
) -> None:
    """Run a study: prepare its data, train its runs, evaluate and compare them."""
    home, console = Home.from_environment(), SafeConsole()
    say = partial(console.print, soft_wrap=True)
    if name and (Path(name).name != name or name == ".."):
        raise InputError(f"--execution={name}: it must be the name of a folder of {home.runs}/STUDY")
    short = [*(["profile=true"] if profile else []), *([f"cluster.launcher={launcher}"] if launcher else [])]
    overrides = all_overrides(file, [*(set_ or []), *short], only)
    _meet_store(study, name, home, say, continues=resume or name is not None)
    folder = home.runs / load_study(study).name / name if name else None
    if resume:
        execution = _unfinished(load_study(study).name, folder, home, settings_given=bool(only or overrides))
        tell_other_settings(execution, study, say)
    else:
        execution = continue_or_check(study, folder, home, say, only=only or [], overrides=overrides)
    # Not the latest one, perhaps.
    again = shlex.join(["rampline", "run", study, *(["--execution", name] if name else []), "--resume"])
    parameters = {"study": study, "only": only or [], "overrides": overrides, "execution": str(execution.folder)}
    try:
        with _telling(execution, again, say), ExitStack() as stack, at_hand(execution):
            _run_flow(home, parameters, console, stack, execution.study)
    finally:
        _show_what_there_is(execution, console)


@contextmanager
def _telling(execution: Execution, again: str, say: Callable[[str], None]) -> Iterator[None]:
    """Tell what runs in the block, and of an end that was not its own what continues it; queue a job of Slurm again."""
    is_job = any(run.config.cluster.launcher == "slurm" for run in execution.study.runs)
    requeue = requeue_at_exit(say) if is_job else None
    say(f"study {execution.study.name}, execution {execution.name}")
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted" + (f": `{again}` continues it" if execution.is_begun else ""))
        raise
    except (Preempted, SystemExit) as end:
        from rampline.execution import preempted_run

        # SystemExit: SIGTERM to this command, which Prefect has passed on.
        stop = end if isinstance(end, Preempted) else preempted_run(execution)
        if stop:
            say(f"preempted: {stop}: `{again}` continues it")
        if requeue and is_running(say):
            say("queueing the job again")
            requeue()
        if stop is None:
            raise
        raise typer.Exit(stop.exit_status) from None
    except (RunFailed, PrefectLost):
        if execution.is_begun:
            say(f"`{again}` continues what did not complete")
        raise


def _meet_store(study: str, name: str | None, home: Home, log: Callable[[str], None], *, continues: bool) -> None:
    """Refuse an object store that cannot be written to; fetch what another machine has put there of the execution.

    Raises:
        InputError: when the store cannot be used, or what it holds is damaged.
    """
    store = ObjectStore.from_environment()
    if store is None:
        return
    store.check()
    if continues:
        from rampline.study.stored_execution import fetch_execution  # NumPy: a wrong store should be told of before

        fetch_execution(store, load_study(study).name, home, name, log)


class PrefectLost(RamplineError):
    """The Prefect API went away while the flow ran, or has no room for its database."""


def _run_flow(home: Home, parameters: dict[str, Any], console: Console, stack: ExitStack, study: Study) -> None:
    forks = fork_server if study.needs_tensorflow_here else nullcontext
    prepare_nodes((run.config for run in study.runs), has_turn=False)
    bars = shows_bars(console)
    with console.status("starting Prefect") if bars else nullcontext():
        wait = start_prefect(home)
        # Prefect's server takes longest. Where it and this process have all cores, TensorFlow is imported afterwards.
        has_spare_core = wait is None or available_cores() > 2
        if has_spare_core:
            stack.enter_context(forks())
        # Here, because that takes seconds.
        with importing():
            from rampline.flows.study import study as flow

            _meet_mlflow(home)
        if not has_spare_core:
            stack.enter_context(forks())
        if wait:
            wait()
    lines = LineProgress(partial(console.print, soft_wrap=True))
    with BarProgress(console) if bars else nullcontext(lines) as progress:
        token = TERMINAL.set(progress)
        # While the API is away, Prefect's log handler would write to the terminal for every line that it cannot send.
        before, logging.raiseExceptions = logging.raiseExceptions, False
        try:
            flow(**parameters)
        except RamplineError:
            raise
        except Exception as error:
            url = os.environ["PREFECT_API_URL"]
            is_http = type(error).__module__.partition(".")[0] in HTTP_LIBRARIES
            if not is_http and answers(f"{url.rstrip('/')}/health"):
                raise
            if says_disk_full(error) or (home.root.is_dir() and not shutil.disk_usage(home.root).free):
                raise PrefectLost(f"the disk of {home.root} is full: free some space on it") from error
            why = "the step in progress was completed, no other was started"
            raise PrefectLost(f"Prefect at {mask(url)} stopped answering: {why}") from error
        finally:
            try:
                # Else it would still write of the lines that it could not send.
                if flush_logs():
                    logging.raiseExceptions = before
            finally:
                TERMINAL.reset(token)


def _meet_mlflow(home: Home) -> None:
    """Load what MLflow needs for its database while Prefect starts; the flow would wait for it."""
    from rampline.record.home import default_uri, tracking_uri
    from rampline.tracking.store import TrackingError, open_tracking

    # A server is left to the flow, which tells on its page when nobody answers. A new database is left to it, too: no
    # study may come to be.
    if tracking_uri(home) == default_uri(home) and home.tracking_database.is_file():
        with suppress(TrackingError):  # the flow meets it again
            open_tracking(home)


def _show_what_there_is(execution: Execution, console: Console) -> None:
    """The comparison also after a failure, as long as there is one."""
    if not (execution.reports / "comparison.csv").is_file():
        return
    from rampline.tracking.pages import how_to_open_tensorboard
    from rampline.tracking.store import TrackingError

    study, home = execution.study, execution.home
    try:
        # One of an earlier start of the execution is in MLflow alone.
        comparison = execution.comparison or find_comparison(study.name, home, execution.parent_run_id)
        show_comparison(comparison, home, console)
        if any(run.config.profile for run in study.runs):
            console.print(f"profile {how_to_open_tensorboard(execution.folder)}", soft_wrap=True)
    except TrackingError as error:
        console.print(f"no comparison: {error}", soft_wrap=True)


def _unfinished(study: str, folder: Path | None, home: Home, *, settings_given: bool) -> Execution:
    """The execution of a folder, or the latest, if something of it is left to do: training, evaluation or comparison.

    Raises:
        InputError: when there is none.
    """
    if settings_given:
        raise InputError(
            "--resume continues an execution with its own settings: leave out --only, --set, --overrides, --launcher "
            "and --profile"
        )
    execution = Execution.open(folder) if folder else Execution.latest(study, home)
    if execution is None:
        raise InputError(f"study {study} has no execution in {home.runs}: leave out --resume")
    runs = [execution.directory(run.name) for run in execution.study.runs]
    compared = (execution.reports / "comparison.csv").is_file()
    if compared and all(run.is_complete and run.evaluation_file.is_file() for run in runs):
        which = "" if folder else "the latest "
        raise InputError(f"{which}execution of study {study}, {execution.name}, is complete: leave out --resume")
    return execution


def submit(
    study: StudyArgument,
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- OPTION...]", help="Options of sbatch, such as --partition=gpu --time=8:00:00."),
    ] = None,
    launcher: Annotated[Literal["slurm"], typer.Option(help="Whose job it becomes.")] = "slurm",
    only: OnlyOption = None,
    set_: SetOption = None,
    file: OverridesOption = None,
    spares: Annotated[int, typer.Option(min=0, help="Further nodes, to replace those that are lost.")] = 0,
) -> None:
    """Hand a study in as a job: it runs as by `rampline run` as soon as there are nodes for it.

    A job that is preempted, or that loses a node it has no spare for, is queued again and goes on where it was.
    """
    from rampline.jobs.batch_job import BatchJob, Resources

    home, console = Home.from_environment(), line_console()
    loaded = load_study(study, only=only or [], overrides=all_overrides(file, set_ or [], only))
    folder, given = home.runs / loaded.name / new_execution(), options or []
    chosen = [part for run in only or [] for part in ("--only", run)]
    chosen += [part for assignment in set_ or [] for part in ("--set", assignment)]
    chosen += ["--overrides", str(file.absolute())] if file else []
    resources = Resources.of([run.config for run in loaded.runs], given)
    job = BatchJob(
        study=loaded.name,
        folder=folder,
        command=[
            str(Path(sys.executable).with_name("rampline")),
            *("run", study, "--launcher", launcher, "--execution", folder.name, *chosen),
        ],
        environment={"RAMPLINE_HOME": str(home.root)},
        nodes=resources.nodes + spares,
        can_lose_nodes=spares > 0 or any(run.config.cluster.min_workers for run in loaded.runs),
        cores=resources.cores,
        gpus=resources.gpus,
        options=given,
    )
    number = job.submit()
    gpus = f" and {job.gpus} GPUs" if job.gpus else ""
    console.print(f"job {number}: {job.nodes} nodes, {job.cores} cores{gpus} each")
    console.print(f"script {shorten(job.script)}")
    console.print(f"output {shorten(job.log)}")


def worker(run_directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run directory.")]) -> None:
    """Run one role of a run; TF_CONFIG says which. It is started again when it, or one of its peers, is lost."""
    from rampline.jobs.local import Local
    from rampline.jobs.supervisor import supervise
    from rampline.jobs.tf_config import parse_tf_config

    directory = RunDirectory(run_directory.absolute())
    if not directory.config_file.is_file():
        raise ClusterConfigError(f"{run_directory} is no run directory: it has no {directory.config_file.name}")
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise ClusterConfigError("TF_CONFIG is not set: it says which role of the run this is")
    task = parse_tf_config(text, directory.read_config())
    say = LineProgress(line_console().print).line
    say(f"joining the run in {run_directory} as {task.role} {task.index}")
    supervise(directory, on_event=lambda event: None, log=say, launcher=Local([task]))
    say("the run is complete")


def sync(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[STUDY | RUN_DIR | EXECUTION_DIR]", help="What to deliver; all of RAMPLINE_HOME if left out."
        ),
    ] = None,
) -> None:
    """Deliver to MLflow what it has not got of runs: params, epochs, results, evaluation, artifacts, final status."""
    # They bring in MLflow and pandas: too slow for the other commands.
    from rampline.execution import compare_runs
    from rampline.study.stored_execution import is_taken_over
    from rampline.tracking.store import TrackingError, open_tracking
    from rampline.tracking.sync import sync_execution

    home, console = Home.from_environment(), line_console()
    chosen = _executions(what, home)
    store, told, failed = ObjectStore.from_environment(), list[str](), 0

    def tell(line: str) -> None:
        told.append(line)
        console.print(line)

    for folder, runs in chosen:
        client = open_tracking(home)  # without it none of them could be delivered
        try:
            execution = Execution.open(folder)
            if store and is_taken_over(store, execution):
                tell(f"{folder.parent.name}/{folder.name}: another machine goes on with it")
                continue
            count = sync_execution(client, execution, log=tell, runs=runs)
            if count and any(RunDirectory(run.parent).is_complete for run in folder.glob("*/evaluation.json")):
                console.print(f"report  {shorten(compare_runs(execution))}")
        except RamplineError as error:
            console.print(f"{folder.parent.name}/{folder.name}: {error}")
            failed += 1
    if failed:
        raise TrackingError(f"{failed} of {len(chosen)} executions could not be delivered: see above")
    if not chosen:
        console.print(f"nothing has run in {home.root}")
    elif not told:
        console.print("MLflow has everything")


def _executions(what: str | None, home: Home) -> list[tuple[Path, tuple[str, ...]]]:
    """Folders of executions, each with the runs that are meant (none: all).

    Raises:
        InputError: when there is nothing of that name.
    """
    begun = find_executions(home)[::-1]
    if what is None:
        return [(folder, ()) for folder in begun]
    path = Path(what).absolute()
    if is_begun(path):
        return [(path, ())]
    if (path / "config.json").is_file() and is_begun(path.parent):
        return [(path.parent, (path.name,))]
    found = [(folder, ()) for folder in begun if folder.parent.name == study_name(what)]
    if not found:
        raise InputError(
            f"nothing to deliver: {what!r} is neither a study with executions in {home.runs}, "
            "nor the folder of an execution or of a run"
        )
    return found
