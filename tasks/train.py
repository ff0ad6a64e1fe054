"""Training one run, and what its page shows afterwards."""

from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact

from rampline.execution import train_run
from rampline.jobs.device_queue import devices_of
from rampline.markdown import epoch_rows, learning_rate_markdown
from rampline.progress import progress_to
from rampline.record.execution_file import read_execution
from rampline.record.run_directory import RunDirectory
from rampline.tasks.devices import slots
from rampline.tasks.keys import artifact_key
from rampline.tasks.live import live_page


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
