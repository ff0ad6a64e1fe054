"""Looking at a study before and after its runs: `rampline plan`, `data` and `compare`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rich.console import Console

from rampline.cli.arguments import OnlyOption, OverridesOption, SetOption, StudyArgument, all_overrides
from rampline.cli.console import SafeConsole, line_console, make_table, table_console
from rampline.errors import InputError
from rampline.imports import importing
from rampline.record.home import Home
from rampline.servers.running import running_servers
from rampline.study import load_study, study_name
from rampline.study.preflight import check_study

if TYPE_CHECKING:
    from rampline.comparison.runs import Comparison

TEXTS = ("strategy", "processes", "devices")
PLAN_WIDTH = 160


def plan(study: StudyArgument, only: OnlyOption = None, set_: SetOption = None, file: OverridesOption = None) -> None:
    """Show what a study would run: roles, devices, batches, steps, learning rate, expected time and cost."""
    home = Home.from_environment()
    checked = check_study(load_study(study, only=only or [], overrides=all_overrides(file, set_ or [], only)), home)
    # They bring in pandas: a wrong study should be told of before.
    from rampline.forecast.plan import plan_remarks, plan_study, plan_table

    runs = plan_study(checked, home)
    (first, *others), rows = plan_table(runs)
    table = make_table(first, *others, numbers=tuple(name for name in others if name not in TEXTS))
    for row in rows:
        table.add_row(*row)
    console = table_console(PLAN_WIDTH)
    console.print(f"study {checked.name}: {checked.description}", soft_wrap=True)
    console.print(table)
    for line in plan_remarks(checked, runs):
        console.print(line, soft_wrap=True)


def compare(study: StudyArgument) -> None:
    """Show the comparison of a study's latest execution again, from MLflow."""
    home = Home.from_environment()
    if not os.environ.get("MLFLOW_TRACKING_URI") and not home.tracking_database.is_file():
        raise InputError(f"there are no runs in {home.root}: `rampline run {study}` makes some")
    show_comparison(find_comparison(study_name(study), home), home, SafeConsole())


def find_comparison(study: str, home: Home, parent_run_id: str | None = None) -> Comparison:
    """The comparison of an execution, by default the latest, from MLflow."""
    # They bring in MLflow and pandas: too slow for the other commands.
    with importing():
        from rampline.comparison.runs import read_comparison
        from rampline.tracking.store import open_tracking

        client = open_tracking(home)  # which imports more than it does
    return read_comparison(client, study, parent_run_id, for_report=False)


def show_comparison(comparison: Comparison, home: Home, console: Console) -> None:
    """Print a comparison, where its report is, and how to open it in MLflow."""
    from rampline.comparison.terminal import print_comparison
    from rampline.tracking.pages import how_to_open_mlflow, shorten

    console.print()
    print_comparison(comparison, console)
    console.print()
    report = home.reports / comparison.study / comparison.execution / "report.html"
    if report.is_file():
        console.print(f"report  {shorten(report)}", soft_wrap=True)
    runs = home.runs / comparison.study / comparison.execution
    if runs.is_dir():
        console.print(f"runs    {shorten(runs)}", soft_wrap=True)
    servers = None if os.environ.get("MLFLOW_TRACKING_URI") else running_servers(home)
    console.print(f"MLflow  {servers.mlflow_url if servers else how_to_open_mlflow(home)}", soft_wrap=True)


def data(study: StudyArgument, set_: SetOption = None) -> None:
    """Prepare the data of a study, and show what is in it: counts, sizes, duplicates, leaks, and a page of pictures."""
    home, console = Home.from_environment(), line_console()
    checked = check_study(load_study(study, overrides=all_overrides(None, set_ or [])), home)
    # pandas: a wrong study should be told of before
    from rampline.comparison.data_section import write_data_page
    from rampline.data.preparation import prepare_dataset
    from rampline.data.quality import read_report
    from rampline.tracking.pages import shorten

    said: list[str] = []

    def say(line: str) -> None:
        """Preparing tells the counts of what it makes."""
        if line not in said:
            console.print(line)
        said.append(line)

    # Some differ only in how they are fed.
    prepared = [prepare_dataset(config, home, log=say) for config in checked.data]
    for dataset in {dataset.directory: dataset for dataset in prepared}.values():
        report = read_report(dataset.directory)
        for line in [*report.count_lines(), *report.duplicate_lines()]:
            say(line)
        page = home.reports / checked.name / "data" / f"{dataset.directory.name}.html"
        write_data_page(dataset, report, page)
        console.print(f"page    {shorten(page)}")
