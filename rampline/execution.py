"""An execution of a study, stage by stage: started, trained, evaluated, explained, compared and closed.

No Prefect, no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import logging
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow import MlflowClient

from rampline.config import RunConfig
from rampline.credentials import first_line, mask
from rampline.data.dataset import PreparedDataset
from rampline.data.integrity import check_intact
from rampline.data.preparation import prepare_dataset
from rampline.data.quality import DataReport, read_report
from rampline.data.stored_dataset import put_dataset
from rampline.errors import DatasetError, Preempted, RunFailed, TakenOver
from rampline.explain.explanation import explain_run
from rampline.explain.replica import measure_replicas
from rampline.files import locked, read_json, write_json
from rampline.forecast.forecast import Calibration
from rampline.forecast.quote import quote_run, tell_doubled
from rampline.imports import preload
from rampline.jobs.evaluator import run_evaluation
from rampline.jobs.lock import hold_run
from rampline.jobs.supervisor import Log, supervise
from rampline.parity.check import ParityResult, check_parity, result_file
from rampline.record.delivery_state import RUNNING, End, mark_killed, mark_undelivered, read_delivery
from rampline.record.events import EventReader, EventWriter
from rampline.record.provenance import git_commit, process_identity
from rampline.record.run_directory import Goal, RunDirectory, RunIdentity
from rampline.record.units import list_names
from rampline.study import StudyRun
from rampline.study.execution_file import Execution, find_executions, resolve_weights
from rampline.study.halving import describe_rungs
from rampline.study.stored_execution import kept
from rampline.tracking.delivery import Delivery, deliver_news, is_delivered
from rampline.tracking.experiment import begin_run, continue_run, open_experiment, study_tags
from rampline.tracking.reconciliation import Known, Moment, Record, reconcile
from rampline.tracking.store import STORE_ERRORS, TrackingError, open_tracking
from rampline.tracking.sync import end_execution, find_parent, sync_execution

if TYPE_CHECKING:
    from rampline.comparison.runs import Comparison

OnEvent = Callable[[dict[str, Any]], None]

logger = logging.getLogger(__name__)


def start_execution(execution: Execution, *, command: str = "") -> None:
    """Begin an execution of a checked study in its folder, or continue it, with the settings it was started with.

    It is this process's then, here and in MLflow, so the caller holds the folder.

    Args:
        execution: has its MLflow run afterwards.
        command: what starts the same again.

    Raises:
        TrackingError: when MLflow cannot be used for a new one, which has not begun then. One that has begun goes on:
            its folder has all that MLflow gets later.
    """
    if execution.is_begun:
        execution.parent_run_id = Execution.open(execution.folder).parent_run_id
        execution.write()  # with data that was prepared anew
        _take_over(execution)
    else:
        client = open_tracking(execution.home)
        study, name = execution.study, execution.name
        experiment = open_experiment(client, study, execution.home, execution=name)
        tags = {**study_tags(study, execution.folder), "rampline.command": command}
        names, began = {"study": study.name, "execution": name}, time.time()
        execution.parent_run_id = begin_run(client, experiment, **names, tags=tags, began=began)
        try:
            execution.write(began=began)
        except OSError:  # such as a full disk: it has not begun, in MLflow neither
            with suppress(*STORE_ERRORS):
                client.delete_run(execution.parent_run_id)
            raise
    mark_undelivered(execution.folder, RUNNING)


def _take_over(execution: Execution) -> None:
    """Make its run in MLflow one of this process; where MLflow is away, the run is told of its end alone."""
    try:
        client = open_tracking(execution.home)
        find_parent(client, execution)
        continue_run(client, execution.parent_run_id)
    except (TrackingError, *STORE_ERRORS) as error:
        logger.warning("MLflow does not answer, %s goes on: %s", execution.name, first_line(error))


def command_of(study: str, only: Sequence[str], overrides: Mapping[str, str]) -> str:
    """The command that runs a study like that, without what is secret in it."""
    chosen = [part for run in only for part in ("--only", run)]
    settings = [part for key, value in overrides.items() for part in ("--set", f"{key}={value}")]
    return mask(shlex.join(["rampline", "run", study, *chosen, *settings]))


def evaluate_runs(execution: Execution, runs: Sequence[str], *, on_event: OnEvent) -> dict[str, dict[str, Any]]:
    """Score the best checkpoint of each run in one process, and log the scores; returns them by run.

    Scores that MLflow does not take stay in the run directory for `rampline sync`.

    Raises:
        RunFailed: when the evaluation process fails.
    """
    scores: dict[str, dict[str, Any]] = {}

    def on_evaluated(path: Path) -> None:
        directory = RunDirectory(path)
        scores[path.name] = read_json(directory.evaluation_file)
        _deliver(execution, directory, "evaluation")
        on_event({"event": "evaluated", "run": path.name, **scores[path.name]})

    folder = execution.folder
    with _one_evaluation(execution):
        run_evaluation([folder / run for run in runs], folder / "evaluation.log", on_evaluated=on_evaluated)
    return scores


def _one_evaluation(execution: Execution) -> AbstractContextManager[bool]:
    lock = execution.directory(execution.study.reference).evaluation_lock
    return locked(lock, lambda holder: logger.warning("waiting for %s, which evaluates it, too", holder))


def explain_runs(execution: Execution, runs: Sequence[str], *, log: Log) -> dict[str, str]:
    """Find out where the time of these complete runs went, and log it; returns the verdicts by run.

    Runs without probes (`explain.steps=0`, or fewer workers in the end) are passed over. Runs that cannot be explained
    still count: why is logged as a warning.
    """
    directories = (execution.directory(run) for run in runs)
    probed = [directory for directory in directories if directory.probes_file.is_file()]
    verdicts: dict[str, str] = {}
    with _one_evaluation(execution):
        try:
            measure_replicas(probed, execution.folder / "explain", log=log)
        except RunFailed as error:
            logger.warning("where a step's time goes is known in part only: %s", error)
        for directory in probed:
            explanation = explain_run(directory)
            explanation.write(directory.explanation_file)
            _deliver(execution, directory, "explanation")
            verdicts[directory.path.name] = explanation.verdict.sentence
    return verdicts


def _deliver(execution: Execution, directory: RunDirectory, what: str) -> None:
    if failure := deliver_news(_opening(execution), directory):
        logger.warning("%s: MLflow has not got the %s yet: %s", directory.path.name, what, failure)


def _opening(execution: Execution) -> Callable[[], MlflowClient]:
    return partial(open_tracking, execution.home)


def compare_runs(execution: Execution) -> Path:
    """Compare what MLflow holds of the execution; writes the report and logs it on the study's run.

    What MLflow has not got yet is delivered first. The execution keeps the comparison.

    Raises:
        InputError: when MLflow holds no run of it.
        TrackingError: when MLflow is away; says what to do when it is back.
    """
    study = execution.study.name
    try:
        client = open_tracking(execution.home)
        sync_execution(client, execution, log=logger.info)
        return _compare(client, execution)
    except (TrackingError, *STORE_ERRORS) as error:
        remedy = f"when MLflow answers: `rampline sync {study}`, then `rampline compare {study}`"
        raise TrackingError(f"the runs cannot be compared: {first_line(error)}; {remedy}") from error


def _compare(client: MlflowClient, execution: Execution) -> Path:
    # Here, because pandas, matplotlib and SciPy must not delay the first run.
    from rampline.comparison.errors_section import read_scores
    from rampline.comparison.report import TABLE, write_comparison
    from rampline.comparison.runs import read_comparison
    from rampline.comparison.summary import derived_metrics, summarise

    comparison = read_comparison(client, execution.study.name, execution.parent_run_id)
    comparison = dataclasses.replace(comparison, not_measured=_not_measured(execution, comparison))
    scores = read_scores(client, comparison)
    report = write_comparison(comparison, execution.reports, data=_data_reports(execution), scores=scores)
    now = time.time()
    for run_id, figures in derived_metrics(comparison).items():
        reconcile(client, Record(moments=[Moment(figures=figures, time=now)]), Known.ask(client, run_id))
    summary = summarise(comparison, (report.with_name(TABLE), report), now)
    reconcile(client, summary, Known.ask(client, execution.parent_run_id))
    execution.comparison = comparison
    return report


def _not_measured(execution: Execution, comparison: Comparison) -> tuple[str, ...]:
    """What twice as many replicas would bring, where the readings of a forecast are at hand."""
    calibration, sentences = Calibration.of(execution.home), dict[str, str]()
    for row in sorted(comparison.finished, key=lambda row: (row["replicas"], row["images_per_second"])):
        directory = execution.directory(row["run"])
        if not directory.identity_file.is_file():
            continue
        config = directory.read_config()
        with suppress(DatasetError):  # what is prepared may be deleted
            dataset = PreparedDataset.open(Path(directory.read_identity().dataset))
            said = tell_doubled(execution.home, row["run"], config, dataset, row["speedup"], calibration)
            if said:
                sentences[config.strategy] = said  # of each strategy the fastest with most replicas
    return tuple(sentences.values())


def _data_reports(execution: Execution) -> dict[str, DataReport]:
    """By the names of the runs that train on them, unless it was deleted; repeats have the data of what they repeat."""
    runs: dict[str, list[str]] = {}
    for run in execution.study.first_trainings:
        directory = execution.directory(run.name)
        if directory.identity_file.is_file():
            runs.setdefault(directory.read_identity().dataset, []).append(run.name)
    reports: dict[str, DataReport] = {}
    for dataset, names in runs.items():
        with suppress(DatasetError):
            reports[list_names(names)] = read_report(Path(dataset))
    return reports


def close_execution(execution: Execution, status: str, failure: str | None = None) -> None:
    """End the execution in MLflow, as `COMPLETE`, `FAILED`, `KILLED` or `PREEMPTED`, and its runs still RUNNING there.

    These end as their folders say, `KILLED` where those say nothing. Never fails, and never waits long: where MLflow
    does not answer, the status stays marked for `rampline sync`.
    """
    reason = end_execution(_opening(execution), execution, status, failure)
    if reason:
        remedy = f"`rampline sync {execution.study.name}` delivers it later"
        logger.warning("the end of the study is not in MLflow: %s; %s", reason, remedy)


@contextmanager
def closing(execution: Execution, guard: Callable[[Path], Callable[[], None]] | None = None) -> Iterator[None]:
    """End the execution in MLflow with the block, however it ends.

    `COMPLETE`, `FAILED` after an error, `PREEMPTED`, or `KILLED` after Ctrl-C or cancellation; not one that another
    machine has taken over. With an object store it is put there in the block.

    Args:
        execution: begun, its folder held.
        guard: starts what ends it after a `kill -9` of this process, and returns how that is dismissed.
    """
    with kept(execution, logger.warning):
        dismiss = guard(execution.folder) if guard else lambda: None
        end: End | None = End("COMPLETE")
        try:
            yield
        except BaseException as error:
            end = End.by(error, lambda: (stop := preempted_run(execution)) and str(stop))
            if isinstance(error, TakenOver):
                end = None
                mark_killed(execution.folder, process_identity(), str(error), is_taken_over=True)
            raise
        finally:
            if end:
                close_execution(execution, end.status, end.failure)
            dismiss()


def preempted_run(execution: Execution) -> Preempted | None:
    """The run that this process was training when it was asked to stop, if that saved a checkpoint first."""
    for file in execution.folder.glob("*/config.json"):
        state = read_delivery(file.parent)
        if state and state.is_ours and state.status == "PREEMPTED":
            status = RunDirectory(file.parent).read_config().cluster.preempted_exit_status
            return Preempted(f"run {file.parent.name} was {state.failure}", status)
    return None


# What the record of a run and the comparison need: as long to import as a small network needs for an epoch.
AFTERWARDS = ("rampline.comparison.report", "rampline.comparison.summary", "mlflow.models")


def train_run(execution: Execution, run: str, *, on_event: OnEvent, log: Log) -> dict[str, Any]:
    """Train a run of an execution; a complete one is skipped, an unfinished one goes on from its last checkpoint.

    Its dataset is verified first, and a scaled run is checked for parity. A run that has a goal is trained as far as
    that says: it then rests, still RUNNING in MLflow, or ends where it has rested.

    Returns:
        the content of `result.json`; nothing of a run that rests.

    Raises:
        RunFailed: when it did not complete, or its parity check failed; MLflow then says FAILED.
        Preempted: when it was asked to stop, and has saved a checkpoint.
        InputError: when another launcher runs it, its dataset was damaged, or a role found its configuration wrong.
    """
    chosen, directory = execution.study.run(run), execution.directory(run)
    if not directory.config_file.is_file():
        _create(execution, chosen, directory)
    with hold_run(directory):
        return _train(execution, directory, on_event, log)


def _create(execution: Execution, run: StudyRun, directory: RunDirectory) -> None:
    dataset = execution.study.datasets.get(run.config.data) or prepare_dataset(run.config.data, execution.home)
    identity = RunIdentity(
        study=execution.study.name,
        name=run.name,
        dataset=str(dataset.directory),
        git_commit=git_commit(),
        published=dict(run.published),
        repeat_of=run.repeat_of,
        description=run.description,
        rungs=describe_rungs(execution.study, run),
    )
    directory.create(resolve_weights(run, execution.folder), identity)
    of, executions = run.listed, find_executions(execution.home, execution.study.name)
    quote = quote_run(execution.home, executions, of, run.config, dataset, Calibration.of(execution.home))
    if quote:
        quote.write(directory.forecast_file)


def _train(execution: Execution, directory: RunDirectory, on_event: OnEvent, log: Log) -> dict[str, Any]:
    if directory.is_complete and is_delivered(_opening(execution), directory):
        log(f"{directory.path.name}: complete already: {directory.path}")
        return read_json(directory.result_file)
    if not directory.is_complete:
        dataset = PreparedDataset.open(Path(directory.read_identity().dataset))
        check_intact(dataset)
        put_dataset(dataset, log)
    tracking = Delivery(_opening(execution), directory, parent_run_id=execution.parent_run_id, log=log)
    stops = EventReader(directory.events_file, from_end=True)

    def handle(event: dict[str, Any]) -> None:
        tracking.tell()
        execution.tell_store(log)
        on_event(event)

    goal = directory.read_goal()
    try:
        if goal and goal.stopped and not directory.is_complete:
            _end_at_rung(directory, goal, on_event)
        if not directory.is_complete:
            if not directory.rungs.is_dir():
                _check_parity(directory, directory.read_config(), log)
            preload(*AFTERWARDS)  # roles that build their network leave cores idle
            supervise(directory, on_event=handle, log=log)
    except TakenOver:
        tracking.abandon()
        raise
    except BaseException as error:
        end = End.by(error, lambda: _how_stopped(stops))
        tracking.close(end.status, end.failure)
        raise
    tracking.close("COMPLETE" if directory.is_complete else RUNNING)
    return read_json(directory.result_file) if directory.is_complete else {}


def _how_stopped(events: EventReader) -> str | None:
    """How the run stopped with a checkpoint, unless it was started again after that: one that has grown was."""
    last = next(reversed([*events.read("started", "stopped")]), None)
    if last is None or last["event"] == "started":
        return None
    return f"stopped on request at step {last['step']} (epoch {last['epoch']})"


def _end_at_rung(directory: RunDirectory, goal: Goal, on_event: OnEvent) -> None:
    """What the run had come to there is its result."""
    result = read_json(directory.rung_file(goal.epoch)) | {"stopped": goal.stopped}
    reader, writer = EventReader(directory.events_file, from_end=True), EventWriter(directory.events_file)
    writer.write("decided", epoch=goal.epoch, stopped=goal.stopped)
    writer.finished(result)
    write_json(directory.result_file, result)
    for event in reader.read():
        on_event(event)


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
