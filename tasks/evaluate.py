"""Scoring runs on the test split."""

from pathlib import Path
from typing import Any

from prefect import get_run_logger, task

from rampline.execution import evaluate_runs
from rampline.progress import progress_to
from rampline.tasks.retry import unless_ours


@task(task_run_name="score the test images", retries=2, retry_delay_seconds=5, retry_condition_fn=unless_ours)
def score(execution: str, runs: list[str]) -> dict[str, dict[str, Any]]:
    """Score the best checkpoint of each run in one process; returns each run's `evaluation.json`."""
    progress = progress_to(get_run_logger().info)
    progress.line(f"evaluating {', '.join(runs)}")
    return evaluate_runs(Path(execution), runs, on_event=lambda event: progress.event(event["run"], event))
