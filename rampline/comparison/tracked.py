"""What MLflow holds about one execution of a study: its parent run, its children and their epochs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Run, RunStatus, ViewType
from mlflow.exceptions import MlflowException

from rampline.credentials import mask
from rampline.errors import InputError
from rampline.record.metrics import compared_epochs, metrics_of_run
from rampline.record.provenance import describe_machine
from rampline.tracking.histories import Histories

COUNTS = ("replicas", "per_replica_batch_size", "global_batch_size", "steps_per_epoch")
# What decides, of one source, which images a run trains on.
SAME_DATA = ("data.limit", "data.split_seed", "data.validation_fraction")
# Settings that must be equal where throughput is compared for the number of replicas alone.
COMPARABLE = (
    *("model.name", "data.source", *SAME_DATA, "data.image_size", "data.channels"),
    *("precision", "data.cache", "data.prefetch", "data.augment"),
)
# Settings that change nothing of the training, or that another param holds as it came out.
NOT_OF_SET_UP = (
    *("batch.", "parity.", "explain.", "profile", "log_examples", "data.manual_dir", "data.max_undecodable_share"),
    *("learning_rate.peak", "learning_rate.scale_with", "learning_rate.base_batch_size"),
    *("cluster.rendezvous_", "cluster.run_timeout_", "cluster.max_restarts", "cluster.heartbeat_"),
    *("cluster.preempted_", "cluster.price_", "cluster.machine"),
)
PUBLISHED = "rampline.published."
ENVIRONMENT = "rampline.environment."
PAGE = 1000


def find_execution(client: MlflowClient, study: str, parent_run_id: str | None) -> Run:
    """The parent run of an execution of `study`: the one of that id, else the newest.

    Raises:
        InputError: when MLflow has no such execution.
    """
    if parent_run_id is not None:
        return _get_execution(client, study, parent_run_id)
    experiment = client.get_experiment_by_name(study)
    found: Sequence[Run] = ()
    if experiment is not None:
        found = client.search_runs(
            [experiment.experiment_id],
            "tags.`rampline.kind` = 'study'",
            ViewType.ACTIVE_ONLY,
            max_results=1,
            order_by=["attributes.start_time DESC"],
        )
    if not found:
        raise InputError(
            f"study {study} has no execution in MLflow at {mask(client.tracking_uri)}: `rampline run {study}` makes one"
        )
    return found[0]


def _get_execution(client: MlflowClient, study: str, run_id: str) -> Run:
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        raise InputError(f"study {study}: MLflow at {mask(client.tracking_uri)} has no run {run_id}") from error
    if run.data.tags.get("rampline.kind") != "study":
        raise InputError(f"study {study}: MLflow run {run_id} is not an execution of a study")
    return run


def read_children(client: MlflowClient, parent: Run) -> list[Run]:
    """The runs of an execution in the order they were started; of two with the same name, the later one."""
    children: list[Run] = []
    token = None
    while True:
        page = client.search_runs(
            [parent.info.experiment_id],
            f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'",
            ViewType.ACTIVE_ONLY,
            max_results=PAGE,
            order_by=["attributes.start_time ASC"],
            page_token=token,
        )
        children.extend(child for child in page if child.data.tags.get("rampline.kind", "run") == "run")
        token = page.token
        if not token:
            break
    return list({run_name(child): child for child in children}.values())


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
        "run_id": run.info.run_id,
        "strategy": tags.get("rampline.strategy") or params.get("strategy", ""),
        "engine": params.get("engine", ""),
        "status": RunStatus.to_string(RunStatus.from_string(run.info.status)),
        "failure": tags.get("rampline.failure", ""),
        "run_dir": tags.get("rampline.run_dir", ""),
        "test_split": tags.get("rampline.test_split", ""),
        "fingerprint": tags.get("rampline.data_fingerprint", ""),
        "virtual_devices": _integer(params.get("cluster.virtual_devices")),
        "attempts": _integer(tags.get("rampline.attempts")),
        "machines": _machines(tags, parent.data.tags),
        "bound": tags.get("rampline.bound", ""),
        "verdict": tags.get("rampline.verdict", ""),
        "answers": tags.get("rampline.answers", ""),
        "set_up": "\n".join(f"{key}={params[key]}" for key in sorted(params) if not key.startswith(NOT_OF_SET_UP)),
    }
    row |= {key: params.get(key, "") for key in ("steps_per_call", "model.weights", *COMPARABLE)}
    row |= {key: _integer(params.get(key)) for key in COUNTS}
    row |= {metric.name: metrics.get(metric.name, math.nan) for metric in metrics_of_run() if metric.is_read}
    published = {tag.removeprefix(PUBLISHED): value for tag, value in tags.items() if tag.startswith(PUBLISHED)}
    return row | {f"published_{metric}": to_number(value) for metric, value in sorted(published.items())}


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
    """One row per epoch of a run; an epoch that was logged twice counts as it was logged last."""
    epochs: dict[int, dict[str, Any]] = {}
    for key in compared_epochs():
        for point in histories.get((run.info.run_id, key), ()):
            epochs.setdefault(point.step, {})[key] = point.value
    name = run_name(run)
    return [{"run": name, "epoch": epoch} | values for epoch, values in sorted(epochs.items())]


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
        items["price of"] = f"{run.data.params.get('cluster.machines', '1')} x {machine}"
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
