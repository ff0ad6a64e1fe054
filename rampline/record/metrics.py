"""Every metric is one row of `METRICS`: its names, how it is written, and where it is shown.

Events, MLflow, TensorBoard, the lines of a training, tables, `comparison.csv`, the report, pages and `docs/metrics.md`
take from the row what they show. A new metric is a row, and the place that measures it. No TensorFlow.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rampline.record.metric import Metric, Output, Source, Summary
from rampline.record.units import (
    ACCURACY,
    COUNT,
    DOLLARS,
    IMAGES_PER_SECOND,
    MILLISECONDS,
    NUMBER,
    RATIO,
    SECONDS,
    SHARE,
    UNIT_BY_LAST_WORD,
    Unit,
)


def _in_all(name: str, heading: str, unit: Unit, place: int) -> Metric:
    return Metric(
        f"{name}_in_all",
        f"`{name}` of a run and of those whose weights it starts from.",
        Source.COMPARISON,
        unit=unit,
        heading=heading,
        better="lower",
        logged=False,
        sum_of=name,
        rank=11,
        under=name,
        note="{} in all",
        shown={Output.TABLE: place},
    )


def _throughput(which: str, about: str, summary: Summary) -> Metric:
    name, of = f"images_per_second_{which}", "images_per_second"
    return Metric(name, about, Source.COMPARISON, unit=IMAGES_PER_SECOND, logged=False, of=of, summary=summary)


def _explained(name: str, told_as: str, about: str, unit: Unit, heading: str = "", *, in_csv: bool = True) -> Metric:
    return Metric(name, about, Source.EXPLANATION, told_as=told_as, unit=unit, heading=heading, in_csv=in_csv)


def _noise_of(part: str) -> Metric:
    about = f"The noise of `step_ms_{part}`: half of the interval that the median of the rounds of the probes lies in."
    return _explained(f"step_ms_{part}_noise", f"noise.{part}", about, MILLISECONDS, in_csv=False)


def _parity(name: str, about: str, unit: Unit = NUMBER) -> Metric:
    return Metric(f"parity_{name}", about, Source.PARITY, told_as=name, unit=unit, in_csv=False)


def _quoted(name: str, told_as: str, of: str, unit: Unit = SECONDS) -> Metric:
    about = f"{of}, as expected before the run."
    return Metric(f"quoted_{name}", about, Source.FORECAST, told_as=told_as, unit=unit, in_csv=False)


# The order of the rows is that of the columns of `comparison.csv`.
METRICS: tuple[Metric, ...] = (
    Metric(
        "train_loss",
        "Mean loss over the training examples of the epoch, without penalties on weights.",
        Source.EPOCH,
        better="lower",
        told_in_steps="loss",
        charted=True,
        tensorboard="train/epoch_loss",
        line="loss {:.4f}",
        shown={Output.EPOCH_LINE: 1, Output.EPOCH_PAGE: 1, Output.VIEW_BY_TIME: 2},
    ),
    Metric(
        "train_regularization_loss",
        "Mean penalty on weights, of a network that has one.",
        Source.EPOCH,
        better="lower",
        tensorboard="train/epoch_regularization_loss",
    ),
    Metric(
        "val_loss",
        "Mean loss over the validation split after the epoch.",
        Source.EPOCH,
        better="lower",
        charted=True,
        tensorboard="validation/epoch_loss",
        shown={Output.EPOCH_PAGE: 3},
    ),
    Metric(
        "val_accuracy",
        "Share of correct answers on the validation split after the epoch.",
        Source.EPOCH,
        unit=ACCURACY,
        better="higher",
        tensorboard="validation/epoch_accuracy",
        line="val. accuracy {:.4f}",
        charted=True,
        shown={Output.EPOCH_LINE: 3, Output.EPOCH_PAGE: 4, Output.VIEW_BY_TIME: 1, Output.VIEW_BY_EPOCH: 1},
    ),
    Metric(
        "learning_rate",
        "Learning rate of the epoch's last step, scaling included.",
        Source.EPOCH,
        tensorboard="train/learning_rate",
        line="learning rate {:.3g}",
        charted=True,
        shown={Output.EPOCH_LINE: 6, Output.EPOCH_PAGE: 5, Output.VIEW_BY_EPOCH: 3},
    ),
    Metric(
        "input_wait_fraction",
        "Share of the epoch's training time in which steps waited for their batch.",
        Source.EPOCH,
        unit=SHARE,
        better="lower",
    ),
    Metric(
        "validation_seconds",
        "Time of the validation after the epoch.",
        Source.EPOCH,
        unit=SECONDS,
        better="lower",
        logged=False,
    ),
    Metric(
        "test_accuracy",
        "Share of correct answers of the best checkpoint on the test split, else on the validation split.",
        Source.EVALUATION,
        unit=ACCURACY,
        heading="test acc",
        better="higher",
        rank=1,
        shown={
            **{Output.TABLE: 1, Output.STUDY_RUN: 1, Output.HISTORY: 1, Output.BEST_MARK: 1, Output.CHART_CHOICE: 2},
            **{Output.VIEW_COLUMN: 1, Output.VIEW_BAR: 2, Output.VIEW_PARALLEL: 2},
        },
    ),
    Metric("test_loss", "Mean loss of the best checkpoint on the same images.", Source.EVALUATION, better="lower"),
    Metric(
        "test_balanced_accuracy",
        "Mean over the classes of the share of correct answers on the images of each, so that each counts the same.",
        Source.EVALUATION,
        unit=ACCURACY,
        better="higher",
    ),
    Metric(
        "test_calibration_error",
        "Expected calibration error on the same images, over 15 bins: how far the probability of an answer is from the "
        "share of correct answers.",
        Source.EVALUATION,
        unit=ACCURACY,
        better="lower",
    ),
    Metric("test_examples", "How many images those are.", Source.EVALUATION, told_as="examples", unit=COUNT),
    Metric("epochs", "Epochs that the run has completed.", Source.COMPARISON, unit=COUNT, logged=False),
    Metric(
        "best_epoch",
        "The epoch of the best validation accuracy, from 1.",
        Source.RESULT,
        unit=COUNT,
        of="val_accuracy",
        summary=Summary.BEST_EPOCH,
        rank=10,
        under="best_val_accuracy",
        note="epoch {}",
        shown={Output.TABLE: 3},
    ),
    Metric(
        "best_val_accuracy",
        "The best validation accuracy of any epoch, whose checkpoint is scored.",
        Source.RESULT,
        unit=ACCURACY,
        heading="best val",
        better="higher",
        of="val_accuracy",
        summary=Summary.BEST,
        rank=8,
        shown={Output.TABLE: 2, Output.STUDY_RUN: 2, Output.CHART_CHOICE: 3},
    ),
    Metric(
        "last_val_accuracy",
        "The validation accuracy after the last epoch.",
        Source.COMPARISON,
        unit=ACCURACY,
        heading="last val",
        better="higher",
        logged=False,
        of="val_accuracy",
        summary=Summary.LAST,
        rank=10,
        shown={Output.TABLE: 4, Output.STUDY_RUN: 3},
    ),
    Metric(
        "train_accuracy",
        "Share of correct answers over the training examples of the epoch, as they were trained on.",
        Source.EPOCH,
        unit=ACCURACY,
        heading="train acc",
        better="higher",
        told_in_steps="accuracy",
        summary=Summary.LAST,
        tensorboard="train/epoch_accuracy",
        line="accuracy {:.4f}",
        shown={Output.EPOCH_LINE: 2, Output.EPOCH_PAGE: 2},
    ),
    Metric(
        "epoch_seconds",
        "Training time of the epoch, without validation and checkpoints.",
        Source.EPOCH,
        unit=SECONDS,
        heading="epoch s",
        better="lower",
        summary=Summary.MEDIAN,
        line="{:.1f} s",
        shown={Output.EPOCH_LINE: 5, Output.EPOCH_PAGE: 6},
    ),
    Metric(
        "train_seconds",
        "Training time of the run, tracing included: the sum of `epoch_seconds`.",
        Source.RESULT,
        unit=SECONDS,
        heading="train s",
        better="lower",
        rank=4,
        shown={Output.TABLE: 5, Output.STUDY_RUN: 4, Output.VIEW_COLUMN: 5, Output.VIEW_BAR: 3},
    ),
    Metric(
        "elapsed_seconds",
        "Time since training began, with tracing, evaluation and checkpoints, over all attempts.",
        Source.EPOCH,
        unit=SECONDS,
        heading="elapsed s",
        better="lower",
        charted=True,
        summary=Summary.LAST,
    ),
    Metric(
        "wall_seconds",
        "Time from the start of the roles to the end of training, over all attempts.",
        Source.RESULT,
        unit=SECONDS,
        heading="wall s",
        better="lower",
        rank=6,
        shown={Output.TABLE: 8, Output.STUDY_RUN: 5},
    ),
    Metric(
        "images_per_second",
        "Training throughput over all replicas.",
        Source.EPOCH,
        unit=IMAGES_PER_SECOND,
        heading="images/s",
        better="higher",
        told_in_steps="images_per_second",
        summary=Summary.MEDIAN,
        tensorboard="train/images_per_second",
        line="{:,.0f} images/s",
        rank=2,
        shown={
            **{Output.EPOCH_LINE: 4, Output.EPOCH_PAGE: 7, Output.TABLE: 12, Output.STUDY_RUN: 6},
            **{Output.HISTORY: 2, Output.BEST_MARK: 2, Output.CHART_CHOICE: 1},
            **{Output.VIEW_COLUMN: 2, Output.VIEW_BY_EPOCH: 2, Output.VIEW_PARALLEL: 1},
        },
    ),
    _throughput("min", "Throughput of the slowest epoch.", Summary.MIN),
    _throughput("max", "Throughput of the fastest epoch.", Summary.MAX),
    Metric(
        "speedup",
        "Throughput divided by that of the reference run.",
        Source.COMPARISON,
        unit=RATIO,
        heading="speed-up",
        better="higher",
        rank=1,
        shown={Output.TABLE: 13, Output.STUDY_RUN: 7, Output.VIEW_COLUMN: 3, Output.VIEW_BAR: 1},
    ),
    Metric(
        "scaling_efficiency",
        "Speed-up divided by the ratio of replicas to those of the reference, for the same training with no larger "
        "batch per replica; 1 is ideal.",
        Source.COMPARISON,
        unit=SHARE,
        heading="efficiency",
        better="higher",
        rank=5,
        under="speedup",
        note="{} of ideal",
        shown={Output.TABLE: 14, Output.STUDY_RUN: 8, Output.VIEW_COLUMN: 4, Output.VIEW_BAR: 4},
    ),
    Metric(
        "train_seconds_vs_reference",
        "Training time divided by that of the reference, for equal epochs on equal data.",
        Source.COMPARISON,
        unit=RATIO,
        heading="vs ref",
        better="lower",
        logged=False,
        rank=13,
        under="train_seconds",
        note="{} ref.",
        shown={Output.TABLE: 6},
    ),
    Metric(
        "cost_usd",
        "`wall_seconds` at `cluster.price_per_hour`.",
        Source.RESULT,
        unit=DOLLARS,
        heading="cost",
        better="lower",
        rank=4,
        is_optional=True,
        shown={Output.TABLE: 10, Output.STUDY_RUN: 9, Output.HISTORY: 3, Output.VIEW_COLUMN: 6},
    ),
    _in_all("train_seconds", "train s in all", SECONDS, 7),
    _in_all("wall_seconds", "wall s in all", SECONDS, 9),
    _in_all("cost_usd", "cost in all", DOLLARS, 11),
    _explained("step_ms_input", "step.input", "Of a step: what the input pipeline adds.", MILLISECONDS, "input"),
    _explained("step_ms_compute", "step.compute", "Of a step: the network's own work.", MILLISECONDS, "compute"),
    _explained("step_ms_contention", "step.contention", "Of a step: sharing the hardware.", MILLISECONDS, "contention"),
    _explained("step_ms_sync", "step.sync", "Of a step: keeping the replicas in step.", MILLISECONDS, "sync"),
    _explained("step_ms_other", "step.other", "Of a step: what a smaller batch leaves.", MILLISECONDS, "fixed cost"),
    *map(_noise_of, ("input", "compute", "contention", "sync", "other")),
    _explained(
        "ceiling_images_per_second",
        "ceiling_images_per_second",
        "Throughput of as many independent replicas at once on the same machine.",
        IMAGES_PER_SECOND,
    ),
    _explained("probe_slowdown", "slowdown", "The run's usual step divided by the probed one.", RATIO),
    _explained("startup_seconds", "run.startup", "From launch of the roles to the first step.", SECONDS, "start-up"),
    _explained("tracing_seconds", "run.tracing", "Building the graphs.", SECONDS, "tracing"),
    _explained("steps_seconds", "run.steps", "The run's steps, each as long as its usual one.", SECONDS, "steps"),
    _explained("evaluation_seconds", "run.evaluation", "Validation after each epoch.", SECONDS, "evaluation"),
    _explained("checkpoint_seconds", "run.checkpoint", "Saving.", SECONDS, "checkpoints"),
    _explained("logging_seconds", "run.logging", "Writing events and TensorBoard scalars.", SECONDS, "logging"),
    _explained("unexplained_seconds", "run.unexplained", "The rest of `wall_seconds`.", SECONDS, "unexplained"),
    _quoted("wall_seconds", "wall_seconds", "`wall_seconds`"),
    _quoted("cost_usd", "cost_usd", "`cost_usd`", DOLLARS),
    _quoted("images_per_second", "images_per_second", "`images_per_second`", IMAGES_PER_SECOND),
    _quoted("startup_seconds", "run.startup", "`startup_seconds`"),
    _quoted("tracing_seconds", "run.tracing", "`tracing_seconds`"),
    _quoted("steps_seconds", "run.steps", "`steps_seconds`"),
    _quoted("evaluation_seconds", "run.evaluation", "`evaluation_seconds`"),
    _quoted("checkpoint_seconds", "run.checkpoint", "`checkpoint_seconds`"),
    Metric(
        "quoted_within",
        "Of ten quoted wall times and costs nine come out within this share of what was expected.",
        Source.FORECAST,
        told_as="within",
        unit=SHARE,
        in_csv=False,
    ),
    _parity("max_loss_diff", "Largest difference of a step's loss from that of one replica."),
    _parity("max_weight_diff", "Largest difference of a weight from that of one replica."),
    _parity("mean_staleness", "Updates of other workers between a step's reading of the weights and its own."),
    _parity("max_staleness", "The largest such number.", COUNT),
)
# Runs in TensorBoard, by how metrics of a run's own begin; of the test images there are none.
_SPLITS = {"train_": "train", "val_": "validation", "test_": ""}
# What comparisons have beside metrics, and begins so.
_NO_METRICS = ("test_split",)
# Metrics of a higher rank are not on pages that have room for few columns: MLflow's note, the flow run's page.
PAGE_RANK = 6


def from_source(source: Source, told: Iterable[str] = ()) -> list[Metric]:
    """The metrics of a source, and the own ones among the names that it has told."""
    return [metric for metric in (*METRICS, *own_metrics(told)) if metric.source is source]


def own_metrics(told: Iterable[str]) -> list[Metric]:
    """The metrics of a run's own, such as `val_top_5`, among the names that its epochs and its evaluation have told."""
    known = {*_NO_METRICS, *(metric.name for metric in METRICS)}
    return [_own(name) for name in told if name.startswith(tuple(_SPLITS)) and name not in known]


def _own(name: str) -> Metric:
    split, _, metric = name.partition("_")
    words, run, is_validation = metric.replace("_", " "), _SPLITS[f"{split}_"], split == "val"
    unit, heading = ACCURACY if metric.startswith("top_") else NUMBER, f"{split} {words}"
    if not run:
        about = f"`{metric}` of the best checkpoint on the test images."
        shown = {Output.TABLE: 4}
        return Metric(name, about, Source.EVALUATION, unit=unit, heading=heading, is_optional=True, shown=shown)
    outputs = {Output.EPOCH_LINE: 3, Output.EPOCH_PAGE: 4, Output.TABLE: 4} if is_validation else {}
    return Metric(
        name,
        f"`{metric}` over the {run} images of the epoch.",
        Source.EPOCH,
        unit=unit,
        heading=heading,
        tensorboard=f"{run}/epoch_{metric}",
        line=f"val. {words} {{:.4f}}",
        summary=Summary.LAST,
        is_optional=True,
        shown=outputs,
    )


def logged(source: Source) -> list[str]:
    """The names in MLflow of what a source tells."""
    return [metric.name for metric in from_source(source) if metric.logged]


def shown_in(output: Output, told: Iterable[str] = ()) -> list[Metric]:
    """What an output shows, in its order; with the own ones among the names that were told."""
    shown = (metric for metric in (*METRICS, *own_metrics(told)) if output in metric.shown)
    return sorted(shown, key=lambda metric: metric.shown[output])


def metrics_of_run(told: Iterable[str] = ()) -> list[Metric]:
    """The metrics of which a comparison has a figure for each run; with the own ones among the names that were told."""
    return [metric for metric in (*METRICS, *own_metrics(told)) if metric.is_of_run]


def compared_epochs() -> list[str]:
    """Names of the metrics whose epochs a comparison reads."""
    summarised = {metric.of for metric in METRICS if metric.summary}
    return [m.name for m in from_source(Source.EPOCH) if m.charted or m.name in summarised]


def find_metric(name: str) -> Metric | None:
    """The metric of that name."""
    return next((metric for metric in METRICS if metric.name == name), None)


def figure_of_run(name: str) -> str:
    """The figure of a run that people mean by a metric: of one that only epochs have, that of the last epoch."""
    metric = find_metric(name)
    if metric is None or metric.is_of_run:
        return name
    return next((m.name for m in METRICS if m.of == name and m.summary is Summary.LAST), name)


def unit_of(name: str) -> Unit:
    """The unit of a metric, or of the name of one that we do not have."""
    metric = find_metric(name)
    return metric.unit if metric else UNIT_BY_LAST_WORD.get(name.rpartition("_")[2], NUMBER)


def to_log(source: Source, told: Mapping[str, Any]) -> dict[str, Any]:
    """What a source tells, by the names in MLflow; what it does not tell is left out."""
    metrics = from_source(source, told if source in (Source.EPOCH, Source.EVALUATION) else ())
    found = {metric.name: _look_up(told, metric.told_as) for metric in metrics if metric.logged}
    return {name: value for name, (is_told, value) in found.items() if is_told}


def _look_up(told: Mapping[str, Any], path: str) -> tuple[bool, Any]:
    *outer, name = path.split(".")
    for part in outer:
        told = told.get(part) or {}
    return name in told, told.get(name)


def write_document() -> str:
    """The table of `docs/metrics.md`."""
    lines = ["| metric | unit | better | told in | what it is |", "|---|---|---|---|---|"]
    for metric in METRICS:
        about = metric.about if metric.logged else f"{metric.about} Not in MLflow."
        if metric.summary and metric.source is Source.EPOCH:
            about += f" Of a run in comparisons: {metric.summary}."
        cells = (f"`{metric.name}`", metric.unit.symbol or "-", metric.better or "-", str(metric.source), about)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(write_document())
