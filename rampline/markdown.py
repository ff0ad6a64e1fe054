"""What a flow run page shows: of a run its epochs and its learning rate, of a study its comparison."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rampline.files import read_csv
from rampline.plan import PlannedRun
from rampline.record.metrics import PAGE_RANK, Output, metrics_of_run, shown_in
from rampline.record.run_directory import RunDirectory
from rampline.record.units import write_duration
from rampline.study import Study
from rampline.tracking.artifacts import draw_learning_rate


def epoch_rows(run_directory: RunDirectory) -> list[dict[str, float | None]]:
    """A row per epoch, in order; of an epoch that was trained twice (after a kill) the later one."""
    epochs = {event["epoch"]: event["metrics"] for event in run_directory.read_events("epoch")}
    shown = shown_in(Output.EPOCH_PAGE)
    return [{"epoch": epoch} | {m.name: epochs[epoch].get(m.told_as) for m in shown} for epoch in sorted(epochs)]


def learning_rate_markdown(run_directory: RunDirectory) -> str:
    """The schedule and the recorded rates as a picture inside the markdown itself: the page can fetch no file."""
    events = run_directory.read_events("started")
    curve = next((event["learning_rate_curve"] for event in reversed(events) if "learning_rate_curve" in event), [])
    rates = {int(row["epoch"] or 0): row["learning_rate"] or 0.0 for row in epoch_rows(run_directory)}
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "learning_rate.png"
        draw_learning_rate(picture, curve, rates)
        encoded = base64.b64encode(picture.read_bytes()).decode()
    heading = f"# Learning rate of {run_directory.path.name}"
    return f"{heading}\n\n![learning rate over epochs](data:image/png;base64,{encoded})\n"


def comparison_rows(csv_file: Path) -> list[dict[str, object]]:
    """The columns of `comparison.csv` that fit on a page; figures as the file has them, nothing for what is missing."""
    table = read_csv(csv_file)
    metrics = [metric.name for metric in metrics_of_run() if Output.TABLE in metric.shown and metric.rank <= PAGE_RANK]
    columns = ("run", "strategy", "replicas", "global_batch_size", *metrics, "status")
    table = table[[column for column in columns if column in table.columns]]
    return json.loads(str(table.to_json(orient="records", double_precision=4)))


def plan_markdown(study: Study, planned: Sequence[PlannedRun]) -> str:
    """What a study would run, with expected time and cost: what a person needs to say yes or no."""
    rows = [
        {
            "run": run.name,
            "strategy": run.config.strategy,
            "replicas": run.config.replicas,
            "devices": run.devices,
            "global batch": run.config.global_batch_size,
            "epochs": run.config.epochs,
            "time": "?" if run.expected_seconds is None else write_duration(run.expected_seconds),
            "cost (USD)": "?" if run.expected_cost_usd is None else f"{run.expected_cost_usd:.2f}",
        }
        for run in planned
    ]
    remarks = [study.description]
    if any(run.expected_seconds is None for run in planned):
        hours = f" The study says: {study.expected_hours}." if study.expected_hours else ""
        remarks.append(f"`?`: known after a run with these settings was measured.{hours}")
    header = list(rows[0])
    table = [header, ["---"] * len(header), *([str(row[name]) for name in header] for row in rows)]
    lines = [f"| {' | '.join(cells)} |" for cells in table]
    return "\n\n".join([f"## Plan of {study.name}", "\n".join(lines), *filter(None, remarks)]) + "\n"
