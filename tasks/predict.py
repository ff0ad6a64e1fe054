"""Labelling a folder of images, and showing what was found on the flow run's page."""

from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.artifacts import create_link_artifact, create_table_artifact
from prefect.context import FlowRunContext

from rampline.progress import progress_to
from rampline.record.home import Home
from rampline.registry.prediction import predict_folder
from rampline.tasks.keys import artifact_key
from rampline.tasks.retry import unless_ours
from rampline.tracking.pages import model_version_link


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
