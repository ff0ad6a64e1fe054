"""The tasks of the flows: one short step of an execution each, with its retries, caching and artifacts."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect import Task, get_run_logger, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from rampline.config import DataConfig
from rampline.data.dataset import PreparedDataset
from rampline.data.preparation import locate_prepared, prepare_dataset
from rampline.data.quality import read_report
from rampline.errors import DatasetError, RamplineError
from rampline.execution import closing, compare_runs, evaluate_runs, explain_runs, start_execution, train_run
from rampline.jobs.device_queue import devices_of
from rampline.progress import progress_to
from rampline.record.execution_file import read_execution
from rampline.record.home import Home
from rampline.record.provenance import process_identity
from rampline.record.run_directory import RunDirectory
from rampline.registry.prediction import predict_folder
from rampline.servers.guardian import start_guardian
from rampline.servers.prefect_objects.new_data import PREPARED, STUDY_LABEL
from rampline.study import Study
from rampline.tasks.flow_run import current_flow_run, flow_run_address
from rampline.tasks.page import artifact_key, comparison_rows, epoch_rows, learning_rate_markdown, live_page
from rampline.tasks.turns import in_turn, slots
from rampline.tracking.pages import mlflow_links, model_version_link
from rampline.training.model_contract import checked_models


def cache_key(_context: Any, parameters: dict[str, Any]) -> str | None:
    """The data settings and the folder they led to; none, and so no cached result, while that folder is not there."""
    config: DataConfig = parameters["config"]
    try:
        prepared = locate_prepared(config, Home.from_environment())
    except DatasetError:
        return None  # the task says what is wrong with it
    if prepared is None:
        return None
    settings = json.dumps([str(prepared.directory), dataclasses.asdict(config)], sort_keys=True)
    return "prepared-" + hashlib.sha256(settings.encode()).hexdigest()


@task(task_run_name="prepare {config.source}", cache_key_fn=cache_key, persist_result=True, result_serializer="json")
def prepare_data(config: DataConfig, study: str) -> str:
    """Prepare the dataset unless that was done before; returns its folder."""
    progress, home = progress_to(get_run_logger().info), Home.from_environment()
    is_new = locate_prepared(config, home) is None

    def show(done: int, total: int) -> None:
        progress.event(config.source, {"event": "preparing", "done": done, "total": total})

    dataset = prepare_dataset(config, home, on_progress=show, log=progress.line)
    if is_new:
        announce_data(dataset, study)
    return str(dataset.directory)


def announce_data(dataset: PreparedDataset, study: str) -> None:
    """Emit the event `rampline.data.prepared`, which an automation may start a study on."""
    labels = {STUDY_LABEL: study, "rampline.fingerprint": dataset.fingerprint, "rampline.source": dataset.source}
    resource = {"prefect.resource.id": f"rampline.dataset.{dataset.directory.name}", **labels}
    emit_event(PREPARED, resource=resource, payload={"splits": dataset.splits, "directory": str(dataset.directory)})


@task(task_run_name="data report of {source}")
def publish_data_report(source: str, directory: str) -> None:
    """Show the data report on the flow run's page."""
    report = read_report(Path(directory))
    create_markdown_artifact(
        report.to_markdown(), key=artifact_key("data-report", source), description=f"Data of {source}"
    )


@task(task_run_name="train {run}")
def train(execution: str, run: str) -> dict[str, Any]:
    """Train the run in role processes, or continue it, or skip it where it is complete; returns `result.json`.

    To be called, never submitted: cancelling then raises in here, and `train_run` ends the role processes.
    """
    progress, directory = progress_to(get_run_logger().info), RunDirectory(Path(execution) / run)
    config = read_execution(Path(execution)).study.run(run).config
    with slots(devices_of(config)), live_page(directory, config):
        result = train_run(Path(execution), run, on_event=lambda event: progress.event(run, event), log=progress.line)
    epochs, picture = epoch_rows(directory), learning_rate_markdown(directory)
    create_table_artifact(epochs, key=artifact_key("epochs", run), description=f"Epochs of {run}")
    create_markdown_artifact(picture, key=artifact_key("learning-rate", run), description=f"Learning rate of {run}")
    return result


def unless_ours(_task: Task, _task_run: TaskRun, state: State) -> bool:
    """Try again after what the world did (network, database), not after wrong input or a run that failed."""
    return not isinstance(state.result(raise_on_failure=False), RamplineError)


@task(task_run_name="start {study}", retries=2, retry_delay_seconds=5, retry_condition_fn=unless_ours)
def start(study: str, only: list[str], overrides: dict[str, str], execution: str = "") -> str:
    """Open an execution of the study, or again the one in the folder `execution`; returns its folder.

    The name of a new one comes from the flow run: a retry of the flow run goes on where the first attempt stopped.
    """
    home = Home.from_environment()
    return str(start_execution(study, home=home, only=only, overrides=overrides, name=execution_name(execution)))


def execution_name(execution: str) -> str:
    """Name of the execution in the folder `execution`, or of the one that belongs to the current flow run if empty."""
    if execution:
        return Path(execution).name
    flow_run = current_flow_run()
    return f"{flow_run.created:%Y%m%d-%H%M%S}-{flow_run.id.hex[-6:]}"


Prepare = Callable[[str, list[str], dict[str, str], str], Any]


@contextmanager
def open_execution(
    checked: Study, study: str, only: list[str], overrides: dict[str, str], execution: str = "", *, prepare: Prepare
) -> Iterator[str]:
    """Wait for the study's turn, check its models, prepare its data, open its execution; close it with the block.

    Yields the folder of the execution.

    Args:
        checked: what `study`, `only` and `overrides` lead to.
        study: name or path.
        only: runs; all if empty.
        overrides: dotted keys laid over every run.
        execution: folder of one that is continued.
        prepare: the flow that prepares the data.
    """
    with in_turn(checked), _one_heartbeat():
        with checked_models(checked, log=progress_to(get_run_logger().info).line):
            prepare(study, only, overrides, execution)
        path = start(study, only, overrides, execution)
        with closing(path, lambda folder: start_guardian(folder, process_identity(), flow_run_address())):
            yield path


@contextmanager
def _one_heartbeat() -> Iterator[None]:
    """Stages that are flows send no heartbeats of their own, unless somebody has asked for them.

    They are in the process of their parent, which sends some. Each flow ends by waiting, up to a second, for the thread
    that sends its heartbeats.
    """
    if "PREFECT_FLOWS_HEARTBEAT_FREQUENCY" in os.environ:
        yield
        return
    with temporary_settings(updates={PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


@task(task_run_name="score the test images", retries=2, retry_delay_seconds=5, retry_condition_fn=unless_ours)
def score(execution: str, runs: list[str]) -> dict[str, dict[str, Any]]:
    """Score the best checkpoint of each run in one process; returns each run's `evaluation.json`."""
    progress = progress_to(get_run_logger().info)
    progress.line(f"evaluating {', '.join(runs)}")
    return evaluate_runs(Path(execution), runs, on_event=lambda event: progress.event(event["run"], event))


@task(task_run_name="explain where the time went", retries=1, retry_delay_seconds=5, retry_condition_fn=unless_ours)
def explain(execution: str, runs: list[str]) -> dict[str, str]:
    """Measure one replica's work for each run, and explain the runs; returns the verdicts by run."""
    return explain_runs(Path(execution), runs, log=progress_to(get_run_logger().info).line)


@task(task_run_name="compare", retries=2, retry_delay_seconds=5, retry_condition_fn=unless_ours)
def compare(execution: str) -> str:
    """Compare what MLflow holds of the execution; returns the path of `report.html`."""
    return str(compare_runs(Path(execution)).report)


@task(task_run_name="show the comparison", retries=2, retry_delay_seconds=5, retry_condition_fn=unless_ours)
def show_comparison(study: str, execution: str, report: str) -> None:
    """Put the table of the comparison, and links to MLflow's pages of it, on the page of the current flow run."""
    description = f"Comparison of {study}. Full report: {report}"
    rows = comparison_rows(Path(report).with_name("comparison.csv"))
    create_table_artifact(rows, key=artifact_key("comparison", study), description=description)
    for shown, link in mlflow_links(Path(execution), Home.from_environment()).items():
        create_link_artifact(link, link_text=f"{shown} of {study} in MLflow", key=artifact_key("mlflow", shown, study))


@task(task_run_name="label {images}", retries=2, retry_delay_seconds=5, retry_condition_fn=unless_ours)
def label_images(study: str, images: str, output: str, batch_size: int) -> dict[str, Any]:
    """Label the folder; returns the file, the model's version, and how many images have each label."""
    home, log = Home.from_environment(), progress_to(get_run_logger().info).line
    file = output or str(home.predictions / Path(study).stem / f"{_flow_run_time()}.csv")
    made = predict_folder(study, images, home=home, output=file, batch_size=batch_size, log=log)
    log(made.sentence())
    return made.to_dict()


@task(task_run_name="labels of {study}")
def publish_counts(study: str, prediction: dict[str, Any]) -> None:
    """Show the number of images per label, and where the model is."""
    rows = [{"label": label, "images": count} for label, count in prediction["counts"].items()]
    rows.append({"label": "(cannot be read)", "images": prediction["unreadable"]})
    create_table_artifact(rows, key=artifact_key("labels", study), description=f"Table: {prediction['output']}")
    model, version = prediction["model"], prediction["model_version"]
    link = model_version_link(model, version, Home.from_environment())
    create_link_artifact(link, link_text=f"{model} version {version}", key=artifact_key("champion", study))


def _flow_run_time() -> str:
    """When the flow run was to start: a retry writes to the same file."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        raise RuntimeError("label_images is a step of a flow: call it from one")
    flow_run = context.flow_run
    return f"{flow_run.expected_start_time or flow_run.created:%Y%m%d-%H%M%S}-{flow_run.id.hex[-6:]}"
