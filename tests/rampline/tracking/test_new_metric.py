"""A metric that a role measures is told everywhere once it has its row."""

import io
import json

import pytest
import tensorflow as tf
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rampline.comparison.report import write_comparison
from rampline.comparison.runs import read_comparison
from rampline.comparison.summary import summarise, write_markdown
from rampline.comparison.terminal import print_comparison
from rampline.files import read_csv, write_json
from rampline.progress import LineProgress
from rampline.record import metrics
from rampline.record.metric import Metric, Output, Source, Summary
from rampline.record.units import ACCURACY
from rampline.tasks.page import comparison_rows, epoch_rows
from rampline.tracking.pages import renew_views
from rampline.training.tensorboard import ScalarWriter

NAME = "val_top5_accuracy"
ROW = Metric(
    name=NAME,
    about="Share of validation images whose class is among the five most likely ones.",
    source=Source.EPOCH,
    unit=ACCURACY,
    heading="top-5",
    better="higher",
    summary=Summary.BEST,
    tensorboard="validation/epoch_top5_accuracy",
    line="top-5 {:.4f}",
    rank=3,
    shown=dict.fromkeys(Output, 99),
)
VALUES = {1: 0.81, 2: 0.93, 3: 0.92}


@pytest.fixture
def directory(monkeypatch, make_run_directory, append_events, started, epoch):
    """A run directory whose epochs tell the metric."""
    monkeypatch.setattr(metrics, "METRICS", (*metrics.METRICS, ROW))
    directory = make_run_directory()
    append_events(directory, started(), *(epoch(number, **{NAME: value}) for number, value in VALUES.items()))
    return directory


@pytest.fixture
def comparison(client, deliver, directory):
    write_json(directory.result_file, {"train_seconds": 4.5, "wall_seconds": 12.0})
    deliver(directory)
    return read_comparison(client, "digits")


def test_in_mlflow(client, comparison, history):
    assert history(client, comparison.rows[0]["run_id"], NAME) == list(VALUES.items())
    assert summarise(comparison, (), 0.0).moments[0].figures[f"{NAME}/baseline"] == 0.93


def test_in_the_views_of_mlflow(directory):
    view = json.loads(renew_views({}, "e1", 0.0)["mlflow.sharedViewState.rampline-latest"])
    state = json.loads(view["state"])
    assert f"metrics.`{NAME}`" in state["selectedColumns"]
    assert [chart["type"] for chart in state["compareRunCharts"] if chart.get("metricKey") == NAME] == [
        "BAR",
        "LINE",
        "LINE",
    ]


def test_in_tables_csv_and_report(comparison, tmp_path):
    shown = io.StringIO()
    print_comparison(comparison, Console(file=shown, width=200))
    assert "top-5" in shown.getvalue()
    assert "0.9300" in shown.getvalue()
    report = write_comparison(comparison, tmp_path)
    table = report.with_name("comparison.csv")
    assert read_csv(table)[NAME].tolist() == [0.93]
    assert comparison_rows(table)[0][NAME] == 0.93
    assert 'data-label="top-5">' in report.read_text()
    assert "| top-5 |" in write_markdown(comparison)


def test_while_it_trains(directory):
    lines: list[str] = []
    for event in directory.read_events():
        LineProgress(lines.append).event("baseline", event)
    assert lines[2].endswith("  top-5 0.9300")
    assert [row[NAME] for row in epoch_rows(directory)] == list(VALUES.values())


def test_in_tensorboard(directory, tmp_path):
    writer = ScalarWriter(tmp_path, warn=pytest.fail)
    for event in directory.read_events("epoch"):
        writer.write_epoch(event["epoch"], event["metrics"])
    events = EventAccumulator(str(tmp_path / "validation"))
    events.Reload()
    points = [float(tf.make_ndarray(event.tensor_proto)) for event in events.Tensors("epoch_top5_accuracy")]
    assert points == pytest.approx(list(VALUES.values()))


def test_a_metric_of_a_runs_own_is_told_without_a_row(
    client, make_run_directory, append_events, started, epoch, evaluation, deliver, history, tmp_path
):
    directory, own = make_run_directory(), {"train_f1": 0.5, "val_f1": 0.25, "val_top_3": 0.75}
    append_events(directory, started(), epoch(1, **dict.fromkeys(own, 0.0)), epoch(2, **own))
    write_json(directory.result_file, {"train_seconds": 4.5, "wall_seconds": 12.0})
    write_json(directory.evaluation_file, evaluation | {"test_top_3": 0.625})
    deliver(directory)
    own["test_top_3"] = 0.625
    comparison = read_comparison(client, "digits")
    assert history(client, comparison.rows[0]["run_id"], "val_f1") == [(1, 0.0), (2, 0.25)]
    report = write_comparison(comparison, tmp_path)
    table = report.with_name("comparison.csv")
    assert {name: read_csv(table)[name].tolist() for name in own} == {name: [value] for name, value in own.items()}
    assert "test_split" not in [metric.name for metric in metrics.own_metrics(comparison.runs.columns)]
    for heading in ("val top 3", "test top 3"):
        assert f'data-label="{heading}">' in report.read_text()
    assert epoch_rows(directory)[1]["val_f1"] == 0.25
    lines: list[str] = []
    for event in directory.read_events():
        LineProgress(lines.append).event("baseline", event)
    assert "  val. accuracy 0.4200  val. f1 0.2500  val. top 3 0.7500  " in lines[2]


def test_in_the_document(directory):
    assert f"| `{NAME}` | share of 1 | higher | event `epoch` | Share of validation images" in metrics.write_document()
