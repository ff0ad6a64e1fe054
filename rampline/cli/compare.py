"""`rampline compare STUDY`: the comparison of a study's latest execution, from MLflow."""

from __future__ import annotations

import os

from rich.console import Console

from rampline.cli.arguments import StudyArgument
from rampline.errors import InputError
from rampline.home import Home
from rampline.imports import importing
from rampline.study import load_study


def compare(study: StudyArgument) -> None:
    """Show the comparison of a study's latest execution again, from MLflow."""
    home = Home.from_environment()
    if not os.environ.get("MLFLOW_TRACKING_URI") and not home.tracking_database.is_file():
        raise InputError(f"there are no runs in {home.root}: `rampline run {study}` makes some")
    name = load_study(study).name if study.endswith((".yaml", ".yml")) else study
    show_comparison(name, home, Console())


def show_comparison(study: str, home: Home, console: Console, parent_run_id: str | None = None) -> None:
    """Print the comparison of an execution, where its report is, and how to open it in MLflow."""
    # They bring in MLflow and pandas: too slow for the other commands.
    with importing():
        from rampline.comparison.table import read_comparison
        from rampline.comparison.terminal import print_comparison
        from rampline.links import how_to_open_mlflow, shorten
        from rampline.tracking.store import open_tracking

        client = open_tracking(home)  # which imports more than it does
    comparison = read_comparison(client, study, parent_run_id, with_system=False)
    console.print()
    print_comparison(comparison, console)
    console.print()
    report = home.reports / comparison.study / comparison.execution / "report.html"
    if report.is_file():
        console.print(f"report  {shorten(report)}", highlight=False, soft_wrap=True, markup=False)
    runs = home.runs / comparison.study / comparison.execution
    if runs.is_dir():
        console.print(f"runs    {shorten(runs)}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"MLflow  {how_to_open_mlflow(home)}", highlight=False, soft_wrap=True, markup=False)
