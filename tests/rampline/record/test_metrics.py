"""One table of metrics: its rows make sense, the document has them, and no other module lists metrics."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from rampline.record import metrics
from rampline.record.metric import Metric, Output, Source, Summary
from rampline.record.metrics import METRICS, figure_of_run, to_log, unit_of, write_document
from rampline.record.units import ACCURACY, NUMBER, RATIO

ROOT = Path(__file__).parents[3]
NAMES = {name for metric in METRICS for name in (metric.name, metric.told_as, metric.told_in_steps) if name}


def test_names_are_there_once_and_refer_to_metrics():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert {other for metric in METRICS for other in (metric.of, metric.under, metric.sum_of) if other} <= set(names)


def test_places_are_taken_once_and_what_they_need_is_there():
    for output in Output:
        places = [metric.shown[output] for metric in METRICS if output in metric.shown]
        assert places, output
        assert max(Counter(places).values()) == 1, output
    for metric in METRICS:
        assert metric.line or Output.EPOCH_LINE not in metric.shown, metric.name
        assert metric.is_of_run or Output.TABLE not in metric.shown, metric.name
        assert metric.better in ("", "higher", "lower"), metric.name
        # `Comparison.ranked` begins with the highest.
        assert metric.better == "higher" or Output.CHART_CHOICE not in metric.shown, metric.name
        assert metric.tensorboard.partition("/")[0] in ("", "train", "validation"), metric.name


@pytest.mark.parametrize(
    ("name", "figure", "unit"),
    [
        ("val_accuracy", "last_val_accuracy", ACCURACY),  # in a paper it is that after the last epoch
        ("train_accuracy", "train_accuracy", ACCURACY),
        ("speedup", "speedup", RATIO),
        ("carbon_kilograms", "carbon_kilograms", NUMBER),
        ("top5_accuracy", "top5_accuracy", ACCURACY),
    ],
)
def test_published_metrics_have_our_figure_and_a_unit(name, figure, unit):
    assert figure_of_run(name) == figure
    assert unit_of(name) is unit


def test_what_a_source_does_not_tell_is_left_out():
    told = {"step": {"input": 1.5}, "noise": {}, "slowdown": None, "verdict": {"bound": "input"}}
    assert to_log(Source.EXPLANATION, told) == {"step_ms_input": 1.5, "probe_slowdown": None}
    assert to_log(Source.EVALUATION, {"examples": 360, "split": "test"}) == {"test_examples": 360}


def test_a_line_has_a_hyphen_for_what_is_not_finite():
    metric = Metric(name="x", about="", source=Source.EPOCH, line="x {:.2f} s")
    assert (metric.write_line(1.234), metric.write_line(None)) == ("x 1.23 s", "x - s")


def test_the_document_has_the_table():
    # `python -m rampline.record.metrics` prints it.
    document = (ROOT / "docs" / "metrics.md").read_text()
    assert write_document() in document


def lists_metrics(node: ast.AST) -> bool:
    """Whether a literal has three metrics or more: a tuple, list or set of them, or a dict that says something of each.

    A dict from names to figures is what measures them.
    """
    if isinstance(node, ast.Dict):
        if not all(isinstance(value, ast.Constant | ast.Name | ast.Tuple) for value in node.values):
            return False
        elements = node.keys
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        elements = node.elts
    else:
        return False
    return sum(isinstance(element, ast.Constant) and element.value in NAMES for element in elements) >= 3


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('("train_loss", "val_loss", "loss")', True),
        ('{"train_loss": "epoch_loss", "val_loss": "epoch_loss", "speedup": write}', True),
        ('{"train_loss": a / b, "val_loss": c(), "speedup": 1.0}', False),
        ('("train_loss", "val_loss")', False),
    ],
)
def test_lists_are_recognised(code, found):
    assert any(lists_metrics(node) for node in ast.walk(ast.parse(code))) == found


def test_no_other_module_lists_metrics():
    files = [*ROOT.glob("rampline/**/*.py"), *ROOT.glob("flows/**/*.py"), *ROOT.glob("tasks/**/*.py")]
    found = {
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in files
        if file != Path(metrics.__file__)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.expr) and lists_metrics(node)
    }
    assert found == set()


def test_every_summary_is_of_epochs():
    epochs = {metric.name for metric in METRICS if metric.source is Source.EPOCH}
    assert {metric.of for metric in METRICS if metric.summary} <= epochs
    assert {metric.summary for metric in METRICS} == {None, *Summary}
