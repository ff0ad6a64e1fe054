"""Training one run of an execution: what is checked before it, its roles, and its record in MLflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from rampline.cluster.lock import hold_run
from rampline.cluster.supervisor import supervise
from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.data.integrity import check_intact
from rampline.data.preparation import prepare_dataset
from rampline.errors import Preempted, RunFailed
from rampline.events import EventReader
from rampline.execution_file import Execution, read_execution, resolve_weights
from rampline.files import read_json
from rampline.imports import preload
from rampline.parity import ParityResult, check_parity, result_file
from rampline.run_directory import RunDirectory, RunIdentity
from rampline.study import StudyRun
from rampline.tracking.delivery import Delivery, is_delivered
from rampline.tracking.provenance import git_commit
from rampline.tracking.store import open_tracking

# What the record of a run and the comparison need: as long to import as a small network needs for an epoch.
AFTERWARDS = ("rampline.comparison.report", "rampline.comparison.summary", "rampline.tracking.model", "mlflow.pyfunc")

OnEvent = Callable[[dict[str, Any]], None]
Log = Callable[[str], None]


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
