"""Finding out where the time of trained runs went."""

from pathlib import Path

from prefect import get_run_logger, task

from rampline.execution import explain_runs
from rampline.progress import progress_to
from rampline.tasks.retry import unless_ours


@task(task_run_name="explain where the time went", retries=1, retry_delay_seconds=5, retry_condition_fn=unless_ours)
def explain(execution: str, runs: list[str]) -> dict[str, str]:
    """Measure one replica's work for each run, and explain the runs; returns the verdicts by run."""
    return explain_runs(Path(execution), runs, log=progress_to(get_run_logger().info).line)
