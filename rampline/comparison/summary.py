"""The comparison as MLflow keeps it: figures on the study's run and on each child, and a note in markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rampline.comparison.run_table import make_columns
from rampline.comparison.runs import NOT_MEASURED_TAG, Comparison, is_missing
from rampline.comparison.sentences import find_fastest, list_answers, list_remarks, list_verdicts, tell_repeats
from rampline.record.metric import Output, Source
from rampline.record.metrics import PAGE_RANK, logged, shown_in
from rampline.record.units import escape_markdown
from rampline.tracking.pages import LATEST, artifact_page, compare_page, experiment_page, run_page
from rampline.tracking.reconciliation import NOTE_TAG, Moment, Record

SETTINGS = ("strategy", "engine", "replicas", "global_batch_size")
NOTE_LIMIT = 7900  # MLflow keeps 8,000 characters of a tag
COMPARED = 20  # runs side by side: more fit on no screen


def summarise(comparison: Comparison, files: Iterable[Path], now: float) -> Record:
    """What the study's MLflow run should hold of the comparison; figures that are missing are left out.

    Params are `SETTING/RUN`, such as `strategy/baseline`: they stay the same when an execution is compared again. What
    may change then are tags, such as `rampline.fastest_run` and the description that MLflow shows, in markdown.
    Metrics are `METRIC/RUN`, such as `speedup/multi-worker`; MLflow groups its charts by the part before the slash.
    With repeats there are `METRIC_low/RUN` and `METRIC_high/RUN` too, the bounds of the interval.

    Args:
        comparison: of the study's runs.
        files: the report and its table.
        now: Unix seconds.
    """
    rows, keys = comparison.rows, [metric.name for metric in shown_in(Output.STUDY_RUN)]
    tags = {NOTE_TAG: write_markdown(comparison), NOT_MEASURED_TAG: "\n".join(comparison.not_measured) or None}
    if comparison.reference:
        tags |= {
            "rampline.compared_with": comparison.reference,
            "rampline.fastest_run": find_fastest(comparison)["run"],
        }
    figures = {f"{key}/{row['run']}": float(row[key]) for row in rows for key in keys if not is_missing(row[key])}
    bounds = [(row["run"], key, row["intervals"][key]) for row in rows for key in keys if key in row["intervals"]]
    figures |= {f"{key}_low/{run}": low for run, key, (low, _) in bounds}
    figures |= {f"{key}_high/{run}": high for run, key, (_, high) in bounds}
    return Record(
        params={f"{key}/{row['run']}": str(row[key]) for row in rows for key in SETTINGS if not is_missing(row[key])},
        tags=tags,
        moments=[Moment(figures=figures, time=now)],
        artifacts={file.name: file for file in files},
    )


def derived_metrics(comparison: Comparison) -> dict[str, dict[str, float]]:
    """What the comparison finds (`speedup`, …) by MLflow run id, to be logged on the child runs that have it."""
    keys = logged(Source.COMPARISON)
    rows = comparison.trainings.filter(items=["run_id", *keys]).to_dict("records")
    derived = {row["run_id"]: {key: float(row[key]) for key in keys if not is_missing(row[key])} for row in rows}
    return {run_id: figures for run_id, figures in derived.items() if figures}


def write_markdown(comparison: Comparison) -> str:
    """The summary and the table in markdown, at most `NOTE_LIMIT` characters.

    A table that is too long has no links to its runs; beyond that whole rows are left out.
    """
    for linked in (True, False):
        text = "\n".join(_lines(comparison, linked=linked)).rstrip()
        if len(text) <= NOTE_LIMIT:
            return text
    return text[:NOTE_LIMIT].rpartition("\n")[0]


def _lines(comparison: Comparison, *, linked: bool) -> Iterator[str]:
    yield escape_markdown(" ".join(list_answers(comparison)))
    yield from ("", _links(comparison), "")
    # Those that fit on MLflow's page, and what others have published.
    columns = [c for c in make_columns(comparison) if c.rank <= PAGE_RANK or c.key.startswith("published_")]
    yield _markdown_row(escape_markdown(column.title) for column in columns)
    yield _markdown_row("--:" if column.numeric else ":--" for column in columns)
    for row in comparison.rows:
        run, *figures = [escape_markdown(column.text(row)) for column in columns]
        page = run_page(comparison.experiment_id, row["answers_of"])
        yield _markdown_row([f"[{run}]({page})" if linked else run, *figures])
    yield ""
    yield from (
        f"- {escape_markdown(text)}"
        for text in (tell_repeats(comparison), *list_remarks(comparison), *list_verdicts(comparison))
    )
    if comparison.command:
        yield from ("", f"`{comparison.command}`")


def _links(comparison: Comparison) -> str:
    experiment = comparison.experiment_id
    pages = {
        "side by side": compare_page(experiment, [row["answers_of"] for row in comparison.rows][:COMPARED]),
        "charts of the latest execution": experiment_page(experiment, LATEST, charts=True),
        "report.html": artifact_page(experiment, comparison.parent_run_id, "report.html"),
    }
    return ", ".join(f"[{name}]({page})" for name, page in pages.items())


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
