"""`report.html` and `comparison.csv`: one execution of a study as a page that needs nothing else, and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from rampline.comparison.charts import CONFIG, drawn_runs, style_runs
from rampline.comparison.charts_section import make_charts_section
from rampline.comparison.data_section import make_data_section
from rampline.comparison.errors_section import Scores, make_errors_section
from rampline.comparison.explanation_section import make_explanation_section
from rampline.comparison.first_screen import make_first_screen
from rampline.comparison.history_section import make_history_section
from rampline.comparison.quote_section import make_quote_section
from rampline.comparison.recommendation import make_recommendation_section
from rampline.comparison.run_table import make_columns, make_run_rows, own_columns
from rampline.comparison.runs import Comparison
from rampline.comparison.scaling_section import make_grid_section, make_scaling_section
from rampline.comparison.section import TEMPLATES, ReportTable, Section, open_template
from rampline.comparison.system_section import make_system_section
from rampline.comparison.ways_section import make_ways_section
from rampline.data.quality import DataReport
from rampline.files import write_csv, write_text
from rampline.record.attempts import COLUMNS
from rampline.record.units import list_names

TABLE = "comparison.csv"


def write_comparison(
    comparison: Comparison,
    directory: Path,
    *,
    data: Mapping[str, DataReport] | None = None,
    scores: Sequence[Scores] = (),
) -> Path:
    """Write `comparison.csv` (all figures, full precision) and `report.html` into `directory`; returns the report.

    Args:
        comparison: what to write.
        directory: made if it is not there; older files of these names are replaced.
        data: the reports of its datasets, by the names of the runs that train on them.
        scores: of the runs whose answers are looked at, from `read_scores`.
    """
    report = directory / "report.html"
    write_csv(directory / TABLE, comparison.csv_table)
    write_text(report, render_report(comparison, data=data, scores=scores))
    return report


def render_report(
    comparison: Comparison, *, data: Mapping[str, DataReport] | None = None, scores: Sequence[Scores] = ()
) -> str:
    """The report as one HTML document that loads nothing from another file or host."""
    columns, before = make_columns(comparison), [make_recommendation_section(comparison)]
    after = [
        make_charts_section(comparison),
        make_history_section(comparison),
        make_errors_section(scores),
        make_ways_section(comparison),
        make_explanation_section(comparison),
        make_scaling_section(comparison),
        make_grid_section(comparison),
        make_quote_section(comparison),
        make_system_section(comparison),
        make_attempts_section(comparison),
        make_data_section(data or {}),
    ]
    return open_template("report.html.j2").render(
        comparison=comparison,
        first=make_first_screen(comparison, (data or {}).values()),
        columns=own_columns(columns),
        rows=make_run_rows(comparison, columns),
        styles=style_runs(drawn_runs(comparison)),
        vega=Markup((TEMPLATES / "vega.js").read_text(encoding="utf-8")),
        chart_config=CONFIG,
        before=list(filter(None, before)),
        after=list(filter(None, after)),
        environment=_environment(comparison.environment),
    )


def _environment(environment: pd.DataFrame) -> list[tuple[str, list[tuple[str, str]]]]:
    """Each item with its value, or with its values and the runs that have them where they differ."""
    items: list[tuple[str, list[tuple[str, str]]]] = []
    for item in environment.columns:
        runs_with: dict[str, list[str]] = {}
        for run, value in environment[item].items():
            runs_with.setdefault(str(value), []).append(str(run))
        if len(runs_with) == 1:
            items.append((item, [(value, "") for value in runs_with if value]))
        else:
            items.append((item, [(value or "unknown", list_names(runs)) for value, runs in runs_with.items()]))
    return [(item, values) for item, values in items if values]


def make_attempts_section(comparison: Comparison) -> Section | None:
    """Where each attempt ran and how it ended; None where all runs were started once, on one host."""
    trainings = (training for run in comparison.trainings_of.values() for training in run)
    rows = tuple((training["run"], *cells) for training in trainings for cells in training["attempt_table"])
    if not rows:
        return None
    table = ReportTable(title="", head=("run", *COLUMNS), rows=rows, numeric=(False,) * (1 + len(COLUMNS)))
    about = "Steps are those that a checkpoint has kept: the next attempt goes on from there."
    return Section(id="attempts", title="Attempts", tables=(table,), about=about)
