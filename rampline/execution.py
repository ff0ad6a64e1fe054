"""One execution of a study, stage by stage: what the flows call. No Prefect, no TensorFlow.

An execution is the folder `runs/STUDY/EXECUTION` with `execution.json` and a run directory per run, and a parent run in
MLflow.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow import MlflowClient

from rampline.config import RunConfig
from rampline.credentials import mask
from rampline.data.dataset import PreparedDataset
from rampline.data.integrity import check_intact
from rampline.data.preparation import prepare_dataset
from rampline.data.quality import read_report
from rampline.errors import Preempted, RunFailed
from rampline.explain.explanation import explain_run
from rampline.explain.replica import measure_replicas
from rampline.files import read_json
from rampline.imports import preload
from rampline.jobs.evaluator import run_evaluation
from rampline.jobs.lock import hold, hold_run
from rampline.jobs.supervisor import supervise
from rampline.parity.check import ParityResult, check_parity, result_file
from rampline.record.delivery_state import RUNNING, mark_delivered, mark_undelivered, read_delivery
from rampline.record.events import EventReader
from rampline.record.execution_file import FILE, Execution, read_execution, resolve_weights, write_execution
from rampline.record.home import Home
from rampline.record.provenance import git_commit
from rampline.record.run_directory import RunDirectory, RunIdentity
from rampline.stages import study_of
from rampline.study import Study, StudyRun, load_study
from rampline.tracking.delivery import CLOSE_SECONDS, Delivery, deliver_later, deliver_within, is_delivered
from rampline.tracking.run_artifacts import log_evaluation, log_explanation
from rampline.tracking.store import STORE_ERRORS, TrackingError, first_line, log_figures, open_tracking
from rampline.tracking.study_log import StudyLog, open_experiment, study_tags
from rampline.tracking.sync import sync_execution

if TYPE_CHECKING:
    import pandas as pd

    from rampline.comparison.report import ComparisonFiles

OnEvent = Callable[[dict[str, Any]], None]
Log = Callable[[str], None]

logger = logging.getLogger(__name__)


def start_execution(
    study: str, *, home: Home, only: Sequence[str] = (), overrides: Mapping[str, str] | None = None, name: str
) -> Path:
    """Check a study and open an execution of it, or open an earlier one again.

    Args:
        study: name of a built-in study, or path of a YAML file.
        home: where executions lie.
        only: runs to keep; all if empty.
        overrides: dotted keys laid over every run.
        name: name of the execution; one that exists is continued, with the settings it was started with.

    Returns:
        its folder.

    Raises:
        InputError: when the study or this machine does not allow it; nothing is written then.
        TrackingError: when MLflow cannot be used.
    """
    folder = home.runs / load_study(study).name / name
    loaded = study_of(study, only, overrides or {}, str(folder))
    client = open_tracking(home)
    if (folder / FILE).is_file():
        StudyLog.reopen(client, read_execution(folder).parent_run_id)
        mark_undelivered(folder, RUNNING)
        return folder
    tags = {**study_tags(loaded), "rampline.command": _command(study, only, overrides or {})}
    experiment = open_experiment(client, loaded, home, execution=name)
    log = StudyLog.open(client, experiment, study=loaded.name, execution=name, tags=tags)
    write_execution(folder, Execution(study=loaded, home=home, parent_run_id=log.run_id))
    mark_undelivered(folder, RUNNING)
    return folder


def evaluate_runs(execution: Path, runs: Sequence[str], *, on_event: OnEvent) -> dict[str, dict[str, Any]]:
    """Score the best checkpoint of each run in one process, and log the scores; returns them by run.

    Scores that MLflow does not take stay in the run directory for `rampline sync`.

    Raises:
        RunFailed: when the evaluation process fails.
    """
    home = read_execution(execution).home
    scores: dict[str, dict[str, Any]] = {}

    def on_evaluated(path: Path) -> None:
        directory = RunDirectory(path)
        scores[path.name] = read_json(directory.evaluation_file)
        score = scores[path.name]
        failure = deliver_later(
            lambda: open_tracking(home), directory, lambda client: log_evaluation(client, directory, score)
        )
        if failure:
            logger.warning("%s: MLflow has not got the evaluation yet: %s", path.name, failure)
        on_event({"event": "evaluated", "run": path.name, **scores[path.name]})

    run_evaluation([execution / run for run in runs], execution / "evaluation.log", on_evaluated=on_evaluated)
    return scores


def explain_runs(execution: Path, runs: Sequence[str], *, log: Log) -> dict[str, str]:
    """Find out where the time of these complete runs went, and log it; returns the verdicts by run.

    Runs whose probes were left out (`explain.steps=0`) are passed over. Runs that cannot be explained still count:
    why is logged as a warning.
    """
    home = read_execution(execution).home
    probed = _probed(execution, runs)
    try:
        measure_replicas(probed, _probe_folder(execution), log=log)
    except RunFailed as error:
        logger.warning("where a step's time goes is known in part only: %s", error)
    verdicts: dict[str, str] = {}
    for directory in probed:
        explanation = explain_run(directory)
        explanation.write(directory.explanation_file)
        failure = deliver_later(
            lambda: open_tracking(home), directory, lambda client, made=directory: log_explanation(client, made)
        )
        if failure:
            logger.warning("%s: MLflow has not got the explanation yet: %s", directory.path.name, failure)
        verdicts[directory.path.name] = explanation.verdict.sentence
    return verdicts


def _probed(execution: Path, runs: Sequence[str]) -> list[RunDirectory]:
    directories = (RunDirectory(execution / run) for run in runs)
    return [directory for directory in directories if directory.probes_file.is_file()]


def _probe_folder(execution: Path) -> Path:
    return execution / "explain"


def compare_runs(execution: Path) -> ComparisonFiles:
    """Compare what MLflow holds of the execution; writes the report and logs it on the study's run.

    What MLflow has not got yet is delivered first.

    Raises:
        InputError: when MLflow holds no run of it.
        TrackingError: when MLflow is away; says what to do when it is back.
    """
    study = read_execution(execution).study.name
    try:
        client = open_tracking(read_execution(execution).home)
        sync_execution(client, execution, log=logger.info)
        return _compare(client, execution, read_execution(execution))
    except (TrackingError, *STORE_ERRORS) as error:
        remedy = f"when MLflow answers: `rampline sync {study}`, then `rampline compare {study}`"
        raise TrackingError(f"the runs cannot be compared: {first_line(error)}; {remedy}") from error


def _compare(client: MlflowClient, execution: Path, opened: Execution) -> ComparisonFiles:
    # Here, because pandas, matplotlib and SciPy must not delay the first run.
    from rampline.comparison.report import write_comparison
    from rampline.comparison.runs import read_comparison
    from rampline.comparison.summary import derived_metrics, summarise

    comparison = read_comparison(client, opened.study.name, opened.parent_run_id)
    tables = _data_tables(execution, opened.study)
    files = write_comparison(comparison, opened.home.reports / opened.study.name / execution.name, data_tables=tables)
    for run_id, figures in derived_metrics(comparison).items():
        log_figures(client, run_id, figures)
    summary = summarise(comparison)
    study_log = StudyLog(client, opened.parent_run_id)
    paths = (files.csv, files.report)
    study_log.log_comparison(params=summary.params, metrics=summary.metrics, tags=summary.tags, files=paths)
    return files


def close_execution(execution: Path, status: str, failure: str | None = None) -> None:
    """End the execution in MLflow, as `COMPLETE`, `FAILED`, `KILLED` or `PREEMPTED`, and its runs still RUNNING there.

    These end as their folders say, `KILLED` where those say nothing. Never fails, and never waits long: where MLflow
    does not answer, the status stays marked for `rampline sync`.
    """
    opened = read_execution(execution)
    mark_undelivered(execution, status, failure)

    def close() -> None:
        StudyLog(open_tracking(opened.home), opened.parent_run_id).close(status, failure, ends=_ends_of_runs(execution))
        mark_delivered(execution, status, failure)

    reason = deliver_within(CLOSE_SECONDS[status], close)
    if reason:
        logger.warning(
            "the end of the study is not in MLflow: %s; `rampline sync %s` delivers it later", reason, opened.study.name
        )


def _ends_of_runs(execution: Path) -> dict[str, tuple[str, str | None]]:
    """Status and failure of the runs that did not complete: of one that did, MLflow lacks more than its status."""
    states = {file.parent.name: read_delivery(file.parent) for file in execution.glob("*/config.json")}
    return {
        name: (state.status, state.failure)
        for name, state in states.items()
        if state and state.status not in (RUNNING, "COMPLETE")
    }


def _command(study: str, only: Sequence[str], overrides: Mapping[str, str]) -> str:
    chosen = [part for run in only for part in ("--only", run)]
    settings = [part for key, value in overrides.items() for part in ("--set", f"{key}={value}")]
    return mask(shlex.join(["rampline", "run", study, *chosen, *settings]))


def _data_tables(execution: Path, study: Study) -> dict[str, pd.DataFrame]:
    from rampline.comparison.report import make_data_tables

    directories = [RunDirectory(execution / run.name) for run in study.runs]
    datasets = dict.fromkeys(d.read_identity().dataset for d in directories if d.identity_file.is_file())
    return make_data_tables([read_report(Path(dataset)) for dataset in datasets])


@contextmanager
def closing(execution: str, guard: Callable[[Path], Callable[[], None]] | None = None) -> Iterator[None]:
    """End the execution in MLflow with the block, however it ends.

    `COMPLETE`, `FAILED` after an error, `PREEMPTED`, or `KILLED` after Ctrl-C or cancellation.

    Args:
        execution: its folder.
        guard: starts what ends it after a `kill -9` of this process, and returns how that is dismissed.

    Raises:
        InputError: when another process is at work on the execution.
    """
    with hold(Path(execution)):
        yield from _closing(Path(execution), guard(Path(execution)) if guard else lambda: None)


def _closing(execution: Path, dismiss: Callable[[], None]) -> Iterator[None]:
    status, failure = "KILLED", None
    try:
        yield
        status = "COMPLETE"
    except Preempted as stop:
        status, failure = "PREEMPTED", str(stop)
        raise
    except Exception:
        status = "FAILED"
        raise
    finally:
        stop = preempted_run(execution) if status == "KILLED" else None
        if stop:
            status, failure = "PREEMPTED", str(stop)
        close_execution(execution, status, failure)
        dismiss()


def preempted_run(execution: Path) -> Preempted | None:
    """The run that this process was training when it was asked to stop, if that saved a checkpoint first."""
    for file in execution.glob("*/config.json"):
        state = read_delivery(file.parent)
        if state and state.is_ours and state.status == "PREEMPTED":
            status = RunDirectory(file.parent).read_config().cluster.preempted_exit_status
            return Preempted(f"run {file.parent.name} was {state.failure}", status)
    return None


# What the record of a run and the comparison need: as long to import as a small network needs for an epoch.
AFTERWARDS = ("rampline.comparison.report", "rampline.comparison.summary", "rampline.tracking.model", "mlflow.pyfunc")


def train_run(execution: Path, run: str, *, on_event: OnEvent, log: Log) -> dict[str, Any]:
    """Train a run of an execution; a complete one is skipped, an unfinished one goes on from its last checkpoint.

    Its dataset is verified first, and a scaled run is checked for parity.

    Returns:
        the content of `result.json`.

    Raises:
        RunFailed: when it did not complete, or its parity check failed; MLflow then says FAILED.
        Preempted: when it was asked to stop, and has saved a checkpoint.
        InputError: when another launcher runs it, its dataset was damaged, or a role found its configuration wrong.
    """
    opened = read_execution(execution)
    chosen, directory = opened.study.run(run), RunDirectory(execution / run)
    if not directory.config_file.is_file():
        _create(opened, chosen, directory)
    with hold_run(directory):
        return _train(opened, directory, on_event, log)


def _create(opened: Execution, run: StudyRun, directory: RunDirectory) -> None:
    dataset = prepare_dataset(run.config.data, opened.home)
    identity = RunIdentity(
        study=opened.study.name,
        name=run.name,
        dataset=str(dataset.directory),
        git_commit=git_commit(),
        published=dict(run.published),
    )
    directory.create(resolve_weights(run.config, directory.path.parent), identity)


def _train(opened: Execution, directory: RunDirectory, on_event: OnEvent, log: Log) -> dict[str, Any]:
    def open_client() -> MlflowClient:
        return open_tracking(opened.home)

    if directory.is_complete and is_delivered(open_client, directory):
        log(f"{directory.path.name}: complete already: {directory.path}")
        return read_json(directory.result_file)
    if not directory.is_complete:
        check_intact(PreparedDataset.open(Path(directory.read_identity().dataset)))
    tracking = Delivery.open(open_client, directory, parent_run_id=opened.parent_run_id, log=log)
    stops = EventReader(directory.events_file, from_end=True)

    def handle(event: dict[str, Any]) -> None:
        tracking.handle(event)
        on_event(event)

    try:
        if not directory.is_complete:
            _check_parity(directory, directory.read_config(), log)
            preload(*AFTERWARDS)  # roles that build their network leave cores idle
            supervise(directory, on_event=handle, log=log)
    except Preempted as stop:
        tracking.close("PREEMPTED", str(stop))
        raise
    except Exception as error:
        tracking.close("FAILED", str(error))
        raise
    except BaseException:
        stopped = next((event for event in stops.read() if event["event"] == "stopped"), None)
        if stopped is None:
            tracking.close("KILLED", "interrupted")
            raise
        tracking.close("PREEMPTED", f"stopped on request at step {stopped['step']} (epoch {stopped['epoch']})")
        raise
    result = read_json(directory.result_file)
    tracking.close("COMPLETE", result=result)
    return result


def _parity_of(directory: RunDirectory, config: RunConfig, log: Log) -> ParityResult:
    """The result of the check; with `parity.on_failure: continue` that it could not be made is one, too."""
    try:
        return check_parity(directory, log=log)
    except RunFailed as error:
        log(f"{error}: checking again")
    try:
        return check_parity(directory, log=log)
    except RunFailed as error:
        if config.parity.on_failure == "stop":
            raise
        result = ParityResult(status="not_applicable", reason=f"the check could not be made: {error}")
    result.write(result_file(directory))
    return result


def _check_parity(directory: RunDirectory, config: RunConfig, log: Log) -> None:
    if not config.parity.steps or config.strategy == "single":
        return
    result = _parity_of(directory, config, log)
    log(f"{directory.path.name}: {result.sentence()}")
    if not result.passed and config.parity.on_failure == "stop":
        raise RunFailed(f"{result.sentence()}; see {result_file(directory)}, or --set parity.on_failure=continue")
