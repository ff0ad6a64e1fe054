"""What MLflow holds about one execution of a study: its runs, their epochs, answers and machines."""

from __future__ import annotations

import json
import math
import re
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, TypeVar

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Metric, Run
from mlflow.exceptions import MlflowException

from rampline.config.formats import keys_that_keep_training
from rampline.credentials import mask
from rampline.errors import InputError
from rampline.record.metric import Source
from rampline.record.metrics import compared_epochs, metrics_of_run, own_metrics
from rampline.record.provenance import describe_machine
from rampline.registry.candidate import PREDICTIONS, Predictions
from rampline.tracking.description import GPU_TAG
from rampline.tracking.store import find_runs
from rampline.training.early_stop import stopped_after

COUNTS = ("replicas", "per_replica_batch_size", "global_batch_size", "steps_per_epoch")
# What decides, of one source, which images a run trains on.
SAME_DATA = ("data.limit", "data.split_seed", "data.validation_fraction")
# What decides, of one network, how much there is to compute for an image or an update, and by which operations.
SAME_WORK = (
    *("model.options", "model.trainable", "model.batch_norm", "model.head_units", "model.dropout"),
    *("optimizer.name", "optimizer.momentum", "optimizer.weight_decay", "optimizer.clipnorm", "optimizer.ema"),
    *("xla", "deterministic"),
)
# Settings that must be equal where throughput is compared for the number of replicas alone.
COMPARABLE = (
    *("model.name", "data.source", *SAME_DATA, "data.image_size", "data.channels"),
    *("precision", "data.cache", "data.prefetch", "data.augment", *SAME_WORK),
)
# Settings that change nothing of the training, or that another param holds as it came out.
NOT_OF_SET_UP = keys_that_keep_training() | {
    *("batch.size", "batch.per"),
    *("learning_rate.peak", "learning_rate.scale_with", "learning_rate.base_batch_size"),
}
PUBLISHED = "rampline.published."
ENVIRONMENT = "rampline.environment."
# The machines that a run names, where it names some: its cost is that of these.
PRICE_OF = "price of"
# The most accurate runs: those that a recommendation is among, also in an execution of thousands.
MOST_READ = 20
# Of a GPU that are kept: as many as a chart has room for.
MOST_SAMPLES = 3000
# Key in a row of `read_system` by what `rampline.tracking.description` has, and how its samples become one figure.
ROLE_FIGURES = {
    "process_cpu_utilization_percentage": ("cpu_percent_mean", statistics.fmean),
    "process_memory_usage_megabytes": ("memory_megabytes_peak", max),
}
GPU_FIGURES = {
    "utilization_percentage": ("utilization_percent_mean", statistics.fmean),
    "memory_access_percentage": ("memory_access_percent_mean", statistics.fmean),
    "memory_usage_megabytes": ("memory_megabytes_peak", max),
    "memory_usage_percentage": ("memory_percent_peak", max),
    "power_usage_watts": ("power_watts_mean", statistics.fmean),
}
METRIC = re.compile(r"system/(?P<role>[^/]+)/(?:gpu_(?P<gpu>\d+)_)?(?P<name>.+)")
Summary = Callable[[Iterable[float]], float]
Read = TypeVar("Read")
# Points by id of the run and name of the metric, in the order in which they were logged; names without points are not
# there.
Histories = dict[tuple[str, str], list[Metric]]


def find_execution(client: MlflowClient, study: str, parent_run_id: str | None) -> Run:
    """The parent run of an execution of `study`: the one of that id, else the newest.

    Raises:
        InputError: when MLflow has no such execution.
    """
    store = f"MLflow at {mask(client.tracking_uri)}"
    if parent_run_id is not None:
        try:
            run = client.get_run(parent_run_id)
        except MlflowException as error:
            raise InputError(f"study {study}: {store} has no run {parent_run_id}") from error
        if run.data.tags.get("rampline.kind") != "study":
            raise InputError(f"study {study}: MLflow run {parent_run_id} is not an execution of a study")
        return run
    experiment = client.get_experiment_by_name(study)
    executions = "tags.`rampline.kind` = 'study'"
    newest = experiment and next(find_runs(client, experiment.experiment_id, executions, "DESC", page_size=1), None)
    if newest is None:
        raise InputError(f"study {study} has no execution in {store}: `rampline run {study}` makes one")
    return newest


def read_children(client: MlflowClient, parent: Run) -> list[Run]:
    """The runs of an execution in the order they were started; of two with the same name, the later one."""
    found = find_runs(client, parent.info.experiment_id, f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
    children = (child for child in found if child.data.tags.get("rampline.kind") == "run")
    return list({run_name(child): child for child in children}.values())


def read_histories(client: MlflowClient, runs: Sequence[Run], names: Iterable[str]) -> Histories:
    """All points of these metrics of the runs: a request for each metric that a run has.

    Raises:
        MlflowException: when the store cannot be read.
    """
    having = [(run.info.run_id, name) for name in names for run in runs if name in run.data.metrics]
    return {(run_id, name): client.get_metric_history(run_id, name) for run_id, name in having}


def run_name(run: Run) -> str:
    """The name of a run in its study."""
    return run.data.tags.get("rampline.run") or run.info.run_name or run.info.run_id


def run_row(run: Run, parent: Run) -> dict[str, Any]:
    """What one child run says about itself: one row, before anything is derived from its epochs or other runs.

    What says nothing of its machines was trained on that of its parent.
    """
    params, metrics, tags = run.data.params, run.data.metrics, run.data.tags
    row: dict[str, Any] = {
        "run": run_name(run),
        "repeat_of": tags.get("rampline.repeat_of", ""),
        "run_id": run.info.run_id,
        "strategy": tags.get("rampline.strategy") or params.get("strategy", ""),
        "engine": params.get("engine", ""),
        "status": run.info.status,
        "failure": tags.get("rampline.failure", ""),
        "stopped": tags.get("rampline.stopped", ""),
        "run_dir": tags.get("rampline.run_dir", ""),
        "test_split": tags.get("rampline.test_split", ""),
        "fingerprint": tags.get("rampline.data_fingerprint", ""),
        "virtual_devices": _integer(params.get("cluster.virtual_devices")),
        "attempts": _integer(tags.get("rampline.attempts")),
        "workers_of_attempts": tags.get("rampline.workers", ""),
        "attempt_table": tuple(map(tuple, json.loads(tags.get("rampline.attempt_table", "[]")))),
        "machines": _machines(tags, parent.data.tags),
        "first_epochs": tuple(json.loads(tags.get("rampline.first_epochs", "[]"))),
        "bound": tags.get("rampline.bound", ""),
        "verdict": tags.get("rampline.verdict", ""),
        "parity": tags.get("rampline.parity", ""),
        "answers": tags.get("rampline.answers", ""),
        "set_up": "\n".join(f"{key}={params[key]}" for key in sorted(params) if key not in NOT_OF_SET_UP),
    }
    row |= {key: params.get(key, "") for key in ("steps_per_call", "batch.accumulate", "model.weights", *COMPARABLE)}
    row |= {key: _integer(params.get(key)) for key in COUNTS}
    row |= {metric.name: metrics.get(metric.name, math.nan) for metric in metrics_of_run() if metric.is_read}
    # MLflow tells the last value of a metric first.
    row |= {metric.name: metrics[metric.name] for metric in own_metrics(metrics)}
    published = {tag.removeprefix(PUBLISHED): value for tag, value in tags.items() if tag.startswith(PUBLISHED)}
    return row | {f"published_{metric}": to_number(value) for metric, value in sorted(published.items())}


def own_figures(client: MlflowClient, run: Run) -> dict[str, Any]:
    """Metrics of a stopped run's own as its last epoch had them: the last that MLflow has may be of a lost attempt."""
    last, run_id = stopped_after(run.data.tags.get("rampline.stopped", "")) or 0, run.info.run_id
    names = [metric.name for metric in own_metrics(run.data.metrics) if last and metric.source is Source.EPOCH]
    histories = read_histories(client, [run], names)
    kept = {name: [point for point in histories[run_id, name] if point.step <= last] for name in names}
    return {
        name: max(points, key=lambda point: (point.step, point.timestamp)).value
        for name, points in kept.items()
        if points
    }


def _machines(tags: Mapping[str, str], of_parent: Mapping[str, str]) -> tuple[tuple[int, str], ...]:
    """From which epoch on a run was trained on which machine; a machine that is not known has an empty name."""
    started = describe_machine({name.removeprefix(ENVIRONMENT): text for name, text in of_parent.items()})
    known = json.loads(tags.get("rampline.machines", "[]")) or [[1, ""]]
    return tuple((first, machine or started) for first, machine in known)


def find_ancestors(rows: Sequence[Mapping[str, Any]], study: str, execution: str) -> dict[str, str]:
    """Of each run that starts from the weights of another of these, by name, which one that is.

    The run directory of an MLflow run is where it was begun. So that one that has moved since is found too, the
    end of the path counts as well: STUDY/EXECUTION/RUN.
    """
    names, folders = {row["run"] for row in rows}, {row["run_dir"]: row["run"] for row in rows if row["run_dir"]}
    ancestors: dict[str, str] = {}
    for row in rows:
        weights = PurePath(row["model.weights"])
        parts = weights.parts
        found = [folders[folder] for folder in map(str, weights.parents) if folder in folders]
        ends = zip(parts, parts[1:], parts[2:], strict=False)
        found += [name for *folder, name in ends if folder == [study, execution] and name in names]
        if found and found[0] != row["run"]:
            ancestors[row["run"]] = found[0]
    return ancestors


def epoch_rows(run: Run, histories: Histories) -> list[dict[str, Any]]:
    """One row per epoch of a run; an epoch that was logged twice counts as it was logged last.

    Of a run that was stopped, epochs after that were those of an attempt that was lost.
    """
    epochs: dict[int, dict[str, Any]] = {}
    for key in compared_epochs():
        points = histories.get((run.info.run_id, key), ())
        for point in sorted(points, key=lambda point: point.timestamp):
            epochs.setdefault(point.step, {})[key] = point.value
    name, last = run_name(run), stopped_after(run.data.tags.get("rampline.stopped", "")) or math.inf
    return [{"run": name, "epoch": epoch} | values for epoch, values in sorted(epochs.items()) if epoch <= last]


def environment_of(runs: Sequence[Run], parent: Run) -> pd.DataFrame:
    """What the runs ran on: one row per run, one column per item; a run's own tags go before its parent's."""
    return pd.DataFrame({run_name(run): _environment(run, parent) for run in runs}).T.fillna("")


def _environment(run: Run, parent: Run) -> dict[str, str]:
    tags = parent.data.tags | run.data.tags
    items = {
        "git commit": tags.get("rampline.git_commit") or tags.get("mlflow.source.git.commit", ""),
        "data source": run.data.params.get("data.source", ""),
        "data fingerprint": tags.get("rampline.data_fingerprint", ""),
        "model": run.data.params.get("model.name", ""),
        "seed": run.data.params.get("seed", ""),
        "precision": run.data.params.get("precision", ""),
    }
    machine = run.data.params.get("cluster.machine", "None")
    if machine != "None":
        items[PRICE_OF] = f"{run.data.params.get('cluster.machines', '1')} x {machine}"
    logged = {tag.removeprefix(ENVIRONMENT): value for tag, value in tags.items() if tag.startswith(ENVIRONMENT)}
    return items | dict(sorted(logged.items()))


def _integer(text: str | None) -> int | None:
    number = to_number(text)
    return int(number) if math.isfinite(number) else None


def to_number(text: str | None) -> float:
    """The number that a tag or param holds; NaN where it holds none."""
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def read_answers(client: MlflowClient, runs: Iterable[Mapping[str, Any]]) -> dict[str, Predictions]:
    """The answers of the most accurate of these runs, by name; of runs that have none in MLflow, nothing."""
    logged = (row for row in runs if row["answers"])
    best = sorted(logged, key=lambda row: row["test_accuracy"], reverse=True)[:MOST_READ]
    if len(best) < 2:
        return {}
    # Without those of a run its interval is wider, and says so.
    found = {row["run"]: read_artifact(client, row["answers_of"], PREDICTIONS, Predictions.read) for row in best}
    return {run: answers for run, answers in found.items() if answers is not None}


def read_artifact(client: MlflowClient, run_id: str, name: str, read: Callable[[Path], Read]) -> Read | None:
    """What `read` makes of a file that a run has in MLflow; `None` where MLflow does not have it, or cannot give it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return read(Path(client.download_artifacts(run_id, name, folder)))
        except (MlflowException, OSError):
            return None


def read_system(
    client: MlflowClient, children: Sequence[Run], epochs: Histories, names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """System figures of the runs of an execution: one row per run and role, then one per GPU of that role.

    `epochs` has the histories of `elapsed_seconds`, see `read_histories`; `names` those of the runs, by MLflow run id:
    others are left out.

    Means are those of the samples that were taken while the run trained (all of them, where MLflow does not tell when
    that was); peaks are those of the whole life of the role. Figures that MLflow does not have are NaN.

    Keys:
        run, role: names, such as `mirrored` and `chief-0`.
        gpu: number of the GPU in its role; None in the row of the role itself.
        gpu_name: its model; empty when unknown.
        cpu_percent_mean: of the role's process, 100 per busy core; NaN in rows of GPUs.
        memory_megabytes_peak: resident set of the role, or used memory of the GPU; 10^6 bytes.
        utilization_percent_mean, memory_access_percent_mean: share of the time, in [0, 100], in which a kernel ran on
            the GPU, and in which its memory was read or written; NaN in rows of roles.
        memory_percent_peak: used memory of the GPU, in [0, 100] of all it has.
        power_watts_mean: of the whole GPU.
        utilization_over_time: (seconds since training began, `utilization_percent`) of each sample, or means of
            neighbours where there are more than `MOST_SAMPLES`; of GPUs alone.
    """
    return [
        {"run": names[child.info.run_id], **row}
        for child in children
        if child.info.run_id in names
        for row in _system_rows(client, child, epochs)
    ]


def _system_rows(client: MlflowClient, run: Run, epochs: Histories) -> list[dict[str, Any]]:
    training = _training_time(epochs.get((run.info.run_id, "elapsed_seconds"), []))
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for key in sorted(run.data.metrics):
        match = METRIC.fullmatch(key)
        if match and (found := (GPU_FIGURES if match["gpu"] else ROLE_FIGURES).get(match["name"])):
            role, gpu = match["role"], match["gpu"]
            row = rows.setdefault((role, int(gpu or -1)), _system_row(run, role, gpu))
            row |= _read_figures(client, run.info.run_id, key, found, training)
    return [row for _, row in sorted(rows.items(), key=lambda item: _place(*item[0]))]


def _read_figures(
    client: MlflowClient, run_id: str, key: str, summary: tuple[str, Summary], training: tuple[int, int] | None
) -> dict[str, Any]:
    """What is kept of the samples of a metric: those of all metrics of a long run would fill the memory."""
    figure, summarise = summary
    samples = client.get_metric_history(run_id, key)
    figures: dict[str, Any] = {figure: _summarise(samples, summarise, training)}
    if figure == "utilization_percent_mean":
        began = training[0] if training else samples[0].timestamp
        over_time = [((sample.timestamp - began) / 1000, sample.value) for sample in samples]
        figures["utilization_over_time"] = tuple(thin_out(over_time, MOST_SAMPLES))
    return figures


def thin_out(samples: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most so many samples: means of neighbours."""
    width = math.ceil(len(samples) / most)
    groups = [samples[first : first + width] for first in range(0, len(samples), width or 1)]
    return [
        (statistics.fmean(at for at, _ in group), statistics.fmean(value for _, value in group)) for group in groups
    ]


def _place(role: str, gpu: int) -> tuple[str, int, int]:
    name, _, index = role.rpartition("-")
    return name, int(index) if index.isdecimal() else 0, gpu


def _system_row(run: Run, role: str, gpu: str | None) -> dict[str, Any]:
    name = run.data.tags.get(f"{GPU_TAG}{role}.{gpu}", "")
    figures = {figure: math.nan for figure, _ in (*ROLE_FIGURES.values(), *GPU_FIGURES.values())}
    return {"role": role, "gpu": None if gpu is None else int(gpu), "gpu_name": name, **figures}


def _summarise(samples: list[Metric], summarise: Summary, training: tuple[int, int] | None) -> float:
    if summarise is not max and training:
        inside = [sample for sample in samples if training[0] <= sample.timestamp <= training[1]]
        samples = inside or samples
    return summarise(sample.value for sample in samples)


def _training_time(epochs: list[Metric]) -> tuple[int, int] | None:
    """When training began and its last epoch ended, in milliseconds since 1970: starting TensorFlow is left out.

    `epochs` are the points of `elapsed_seconds`.
    """
    if not epochs:
        return None
    begin = min(epoch.timestamp - int(1000 * epoch.value) for epoch in epochs)
    return begin, max(epoch.timestamp for epoch in epochs)
