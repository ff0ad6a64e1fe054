"""Flow `evaluate`: scores of trained runs on the test split, where their time went, and their comparison."""

from prefect import flow

from rampline.tasks.form import find_trained
from rampline.tasks.steps import compare, explain, score, show_comparison
from rampline.tasks.turns import in_turn


@flow(name="evaluate", flow_run_name="evaluate {study}")
def evaluate(study: str = "digits", execution: str = "", runs: list[str] = []) -> str:  # noqa: B006
    """Score the best checkpoint of trained runs on the test images, and compare the runs; returns the report's path.

    Args:
        study: Name of the study.
        execution: Folder of the execution; empty for the latest one of the study.
        runs: Names of the runs to score; none for all that are trained.
    """
    opened, runs = find_trained(study, execution, runs)
    with in_turn(opened.study):
        score(opened, runs)
        explain(opened, runs)
    report = compare(opened)
    show_comparison(opened, report)
    return report
