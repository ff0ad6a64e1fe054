"""The tasks of the flows: one short step of an execution each, with its retries, caching and artifacts."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from prefect import Task, get_run_logger, tags, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.events import emit_event
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from rampline.config import DataConfig
from rampline.data.dataset import PreparedDataset
from rampline.data.preparation import prepare_dataset
from rampline.data.quality import read_report
from rampline.errors import DownloadFailed, RamplineError
from rampline.execution import closing, compare_runs, evaluate_runs, explain_runs, start_execution, train_run
from rampline.files import json_digest
from rampline.jobs.device_queue import devices_of
from rampline.jobs.lock import hold
from rampline.progress import progress_to
from rampline.record.delivery_state import read_delivery
from rampline.record.home import Home
from rampline.record.provenance import process_identity
from rampline.registry.prediction import predict_folder
from rampline.servers.watchdog import start_watchdog
from rampline.study.content import study_name
from rampline.study.execution_file import Execution, at_hand
from rampline.tasks.flow_run import current_flow_run, flow_run_address, own_name
from rampline.tasks.page import (
    artifact_key,
    comparison_rows,
    epoch_rows,
    learning_rate_markdown,
    live_page,
    quote_markdown,
    section_markdown,
)
from rampline.tasks.turns import in_turn, slots
from rampline.tracking.experiment import TOLD_TAG
from rampline.tracking.pages import mlflow_links, model_version_link
from rampline.tracking.store import STORE_ERRORS, TrackingError, open_tracking
from rampline.training.model_contract import checked_models

# What the automation "train after new data" waits for (servers/automations.yaml).
PREPARED = "rampline.data.prepared"
# What the automation "notify of changes" waits for.
CHANGED = "rampline.study.changed"
# What a `rampline sync`, or the watchdog of a process that was killed, may take for a delivery.
DELIVERY_SECONDS = 30.0
STUDY_LABEL = "rampline.study"


def unless_ours(_task: Task, _task_run: TaskRun, state: State) -> bool:
    """Try again after what the world did (network, database), not after wrong input or a run that failed."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, DownloadFailed) or not isinstance(error, RamplineError)


RETRIES: dict[str, Any] = {"retries": 2, "retry_delay_seconds": 5, "retry_condition_fn": unless_ours}
# Their parameters are objects of this process: not what a result could be kept for.
STEP: dict[str, Any] = RETRIES | {"cache_policy": NO_CACHE}


def cache_key(_context: Any, parameters: dict[str, Any]) -> str | None:
    """The data settings and the folder they led to; none, and so no cached result, while that folder is not there."""
    config, present = parameters["config"], parameters["present"]
    if present is None:
        return None
    return "prepared-" + json_digest([present, dataclasses.asdict(config)])


@task(
    task_run_name="prepare {config.source}",
    cache_key_fn=cache_key,
    persist_result=True,
    result_serializer="json",
    **RETRIES,
)
def prepare_data(config: DataConfig, study: str, present: str | None) -> str:
    """Prepare the dataset, unless the folder `present` holds it; returns its folder."""
    progress, made = progress_to(get_run_logger().info), []

    def show(done: int, total: int) -> None:
        made[:] = [total]
        progress.event(config.source, {"event": "preparing", "done": done, "total": total})

    if present is not None:
        progress.line(f"prepared already: {present}")
        return present
    dataset = prepare_dataset(config, Home.from_environment(), on_progress=show, log=progress.line)
    if made:
        announce_data(dataset, study)
    return str(dataset.directory)


def announce_data(dataset: PreparedDataset, study: str) -> None:
    """Emit the event `rampline.data.prepared`, which an automation may start a study on."""
    labels = {STUDY_LABEL: study, "rampline.fingerprint": dataset.fingerprint, "rampline.source": dataset.source}
    resource = {"prefect.resource.id": f"rampline.dataset.{dataset.directory.name}", **labels}
    emit_event(PREPARED, resource=resource, payload={"splits": dataset.splits, "directory": str(dataset.directory)})


@task(task_run_name="data report of {source}")
def publish_data_report(source: str, directory: str) -> None:
    """Show the data report on the flow run's page, and warn of leaks."""
    report = read_report(Path(directory))
    for warning in report.leak_warnings():
        progress_to(get_run_logger().warning).line(warning)
    create_markdown_artifact(
        report.to_markdown(), key=artifact_key("data-report", source), description=f"Data of {source}"
    )


@task(task_run_name="train {run}", cache_policy=NO_CACHE)
def train(execution: Execution, run: str) -> dict[str, Any]:
    """Train the run in role processes, or continue it, or skip it where it is complete; returns `result.json`.

    To be called, never submitted: cancelling then raises in here, and `train_run` ends the role processes.
    """
    progress, directory = progress_to(get_run_logger().info), execution.directory(run)
    config = execution.study.run(run).config
    with slots(devices_of(config)), live_page(directory, config):
        result = train_run(execution, run, on_event=lambda event: progress.event(run, event), log=progress.line)
    epochs, picture = epoch_rows(directory), learning_rate_markdown(directory)
    create_table_artifact(epochs, key=artifact_key("epochs", run), description=f"Epochs of {run}")
    create_markdown_artifact(picture, key=artifact_key("learning-rate", run), description=f"Learning rate of {run}")
    return result


@task(task_run_name="start {execution.study.name}", **STEP)
def start(execution: Execution, command: str) -> None:
    """Begin the execution, or continue it."""
    start_execution(execution, command=command)


@contextmanager
def turn_of(execution: Execution) -> Iterator[None]:
    """Wait for the execution's turn; in the block its stages find it at hand."""
    with in_turn(execution.study), at_hand(execution), _signs_of_life():
        yield


def models_checked(execution: Execution) -> AbstractContextManager[None]:
    """Check its models round the block that prepares its data."""
    return checked_models(execution.study, log=progress_to(get_run_logger().info).line)


@contextmanager
def open_execution(execution: Execution, command: str) -> Iterator[None]:
    """Begin the execution, or continue it; close it with the block, also after a `kill -9` of this process.

    Raises:
        InputError: when another process is at work on the execution.
        TrackingError: when MLflow cannot be used for a new execution; nothing is written then.
    """
    if not execution.is_begun:
        open_tracking(execution.home)  # without which nothing is written
    state = read_delivery(execution.folder)
    # Who holds the folder of a process that is gone delivers what it has left.
    with hold(execution.folder, patience=0 if state and state.is_running else DELIVERY_SECONDS):
        start(execution, command)
        with closing(execution, lambda folder: start_watchdog(folder, process_identity(), flow_run_address())):
            yield


@contextmanager
def _signs_of_life() -> Iterator[None]:
    """Stages that are flows send no heartbeats of their own, unless somebody has asked for them.

    They are in the process of their parent, which sends some. Each flow ends by waiting, up to a second, for the thread
    that sends its heartbeats. Those that send some have the tag of our deployments, by which zombies are found. The
    others have none: Prefect asks for the limits of its tags before each task.
    """
    asked_for = "PREFECT_FLOWS_HEARTBEAT_FREQUENCY" in os.environ
    with tags("rampline") if asked_for else temporary_settings(updates={PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


@task(task_run_name="score the test images", **STEP)
def score(execution: Execution, runs: list[str]) -> dict[str, dict[str, Any]]:
    """Score the best checkpoint of each run in one process; returns each run's `evaluation.json`."""
    progress = progress_to(get_run_logger().info)
    progress.line(f"evaluating {', '.join(runs)}")
    return evaluate_runs(execution, runs, on_event=lambda event: progress.event(event["run"], event))


@task(task_run_name="explain where the time went", **STEP)
def explain(execution: Execution, runs: list[str]) -> dict[str, str]:
    """Measure one replica's work for each run, and explain the runs; returns the verdicts by run."""
    return explain_runs(execution, runs, log=progress_to(get_run_logger().info).line)


@task(task_run_name="compare", **STEP)
def compare(execution: Execution) -> str:
    """Compare what MLflow holds of the execution; returns the path of `report.html`."""
    return str(compare_runs(execution))


@task(task_run_name="show the comparison", **STEP)
def show_comparison(execution: Execution, report: str) -> None:
    """Put the table of the comparison, and links to MLflow's pages of it, on the page of the current flow run."""
    study = execution.study.name
    description = f"Comparison of {study}. Full report: {report}"
    rows = comparison_rows(Path(report).with_name("comparison.csv"))
    create_table_artifact(rows, key=artifact_key("comparison", study), description=description)
    if quoted := quote_markdown(execution):
        create_markdown_artifact(quoted, key=artifact_key("quoted", study), description="Quoted against actual")
    links = mlflow_links(execution.comparison, execution.home) if execution.comparison else {}
    for shown, link in links.items():
        create_link_artifact(link, link_text=f"{shown} of {study} in MLflow", key=artifact_key("mlflow", shown, study))


@task(task_run_name="compare {execution.study.name} with its history", **STEP)
def compare_with_history(execution: Execution) -> list[str]:
    """Show the trends over the executions before on the page, and tell of what has changed; returns that in words."""
    # Here, because pandas must not delay the first run; the comparison has brought it in.
    from rampline.comparison.history_section import list_changes, make_history_section

    comparison = execution.comparison
    section = comparison and make_history_section(comparison)
    if not comparison or not section:
        return []
    study = execution.study.name
    description = f"History of {study}. Charts: {execution.reports / 'report.html'}#{section.id}"
    create_markdown_artifact(section_markdown(section), key=artifact_key("history", study), description=description)
    changes = list_changes(comparison.trends)
    announce_changes(execution, changes)
    return changes


def announce_changes(execution: Execution, changes: Sequence[str]) -> None:
    """Tell of changes, if there are any, and emit the event `rampline.study.changed`, which people may be sent."""
    for change in changes:
        progress_to(get_run_logger().warning).line(change)
    if changes:
        study, labels = execution.study.name, {"rampline.execution": execution.name}
        resource = {"prefect.resource.id": f"rampline.study.{study}", STUDY_LABEL: study, **labels}
        emit_event(CHANGED, resource=resource, payload={"changes": list(changes)})
        # Who is sent messages has it now; else a later flow run tells of it, at worst once more.
        if execution.comparison and current_flow_run().deployment_id:
            with suppress(TrackingError, *STORE_ERRORS):
                open_tracking(execution.home).set_tag(execution.comparison.parent_run_id, TOLD_TAG, "yes")


@task(task_run_name="label {images}", **STEP)
def label_images(study: str, images: str, output: str, batch_size: int, probabilities: bool = False) -> dict[str, Any]:
    """Label the folder; returns the file, the model's version, and how many images have each label."""
    home, log = Home.from_environment(), progress_to(get_run_logger().info).line
    file = output or str(home.predictions / study_name(study) / f"{own_name()}.csv")
    made = predict_folder(study, images, home=home, output=file, batch_size=batch_size, with_all=probabilities, log=log)
    log(made.sentence())
    return made.to_dict()


@task(task_run_name="labels of {study}")
def publish_counts(study: str, prediction: dict[str, Any]) -> None:
    """Show the number of images per label, and where the model is."""
    rows = [{"label": label, "images": count} for label, count in prediction["counts"].items()]
    rows.append({"label": "(without a label)", "images": prediction["unreadable"]})
    create_table_artifact(rows, key=artifact_key("labels", study), description=f"Table: {prediction['output']}")
    model, version = prediction["model"], prediction["model_version"]
    link = model_version_link(model, version, Home.from_environment())
    create_link_artifact(link, link_text=f"{model} version {version}", key=artifact_key("champion", study))
