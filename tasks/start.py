"""Starting an execution: the study is checked, and its MLflow run opened."""

from pathlib import Path

from prefect import task

from rampline.execution import start_execution
from rampline.record.home import Home
from rampline.tasks.flow_run import current_flow_run
from rampline.tasks.retry import unless_ours


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
