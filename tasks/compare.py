"""Comparing the runs of an execution, and showing the comparison on the flow run's page."""

from pathlib import Path

from prefect import task
from prefect.artifacts import create_link_artifact, create_table_artifact

from rampline.execution import compare_runs
from rampline.markdown import comparison_rows
from rampline.record.home import Home
from rampline.tasks.keys import artifact_key
from rampline.tasks.retry import unless_ours
from rampline.tracking.pages import mlflow_links


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
