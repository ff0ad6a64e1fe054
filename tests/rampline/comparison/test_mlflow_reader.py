"""The roles' samples, as tracking delivers them, become one row per role and per GPU."""

import dataclasses
import json
import math
import weakref
from collections.abc import Callable

import pytest
from mlflow.tracking import MlflowClient

from rampline.comparison import mlflow_reader
from rampline.comparison.mlflow_reader import (
    find_execution,
    read_children,
    read_histories,
    read_system,
    run_name,
)
from rampline.tracking.description import SampleReader
from rampline.tracking.reconciliation import Known, reconcile


def sample(seconds: float, cpu: float, memory: float, *gpus: dict) -> dict:
    """One line of a role's file, `seconds` after the run began."""
    own = {"cpu_percent": cpu, "memory_mebibytes": memory, "machine_cpu_percent": 50.0}
    return {"time": 1_000_000 + seconds, **own, "gpus": list(gpus)}


def gpu(use: float, access: float, memory: float, power: float, **more) -> dict:
    values = {"utilization_percent": use, "memory_access_percent": access, "memory_mebibytes": memory}
    return {**values, "memory_total_mebibytes": 1000.0, "power_watts": power} | more


@pytest.fixture
def read(client, log_study, tmp_path):
    """Delivers the samples of the roles of one run, and reads them back."""

    def deliver_and_read(
        study, run, samples, *, training: tuple[float, float] | None = None, reader: MlflowClient = client
    ) -> list[dict]:
        parent = find_execution(client, study, log_study(study, [run]))
        (child,) = read_children(client, parent)
        for role, lines in samples.items():
            file = tmp_path / "system" / f"{role}.jsonl"
            file.parent.mkdir(exist_ok=True)
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
            reconcile(client, SampleReader(file).read(), Known.of(child))
        if training:
            begin, end = training
            client.log_metric(
                child.info.run_id, "elapsed_seconds", end - begin, int(1000 * (1_000_000 + end)), 1, synchronous=True
            )
        children = read_children(client, parent)
        names = {child.info.run_id: run_name(child) for child in children}
        return read_system(reader, children, read_histories(client, children, ["elapsed_seconds"]), names)

    return deliver_and_read


def test_means_are_those_of_the_training_and_peaks_those_of_the_whole_life(read, four_runs):
    named = gpu(0, 0, 900, 60, name="Tesla T4")
    lines = [
        sample(1, 100, 2000, named, gpu(0, 0, 100, 60)),
        sample(15, 120, 300, gpu(90, 40, 700, 100), gpu(60, 20, 200, 90)),
        sample(25, 180, 400, gpu(96, 44, 800, 110), gpu(50, 30, 250, 80)),
        sample(31, 10, 500, gpu(2, 1, 10, 50), gpu(2, 1, 10, 50)),
    ]
    rows = read("system-means", dataclasses.replace(four_runs[2], epochs=()), {"chief-0": lines}, training=(10, 30))

    assert [(row["run"], row["role"], row["gpu"], row["gpu_name"]) for row in rows] == [
        ("mirrored", "chief-0", None, ""),
        ("mirrored", "chief-0", 0, "Tesla T4"),
        ("mirrored", "chief-0", 1, ""),
    ]
    role, first, second = rows
    assert (role["cpu_percent_mean"], role["memory_megabytes_peak"]) == (150.0, 2097.2)
    assert math.isnan(role["utilization_percent_mean"])
    assert first["utilization_percent_mean"] == 93.0
    assert first["memory_access_percent_mean"] == 42.0
    assert (first["memory_megabytes_peak"], first["memory_percent_peak"]) == (943.7, 90.0)
    assert first["power_watts_mean"] == 105.0
    assert math.isnan(first["cpu_percent_mean"])
    assert (second["utilization_percent_mean"], second["memory_percent_peak"]) == (55.0, 25.0)


class Points(list):
    """Points of a metric, of which it can be told whether somebody has them still."""


class OneAtATime(MlflowClient):
    """A store that gives the points of a metric when those of the one before are forgotten."""

    def __init__(self, uri: str) -> None:
        super().__init__(tracking_uri=uri)
        self._last: Callable[[], Points | None] = lambda: None

    def get_metric_history(self, run_id: str, key: str) -> Points:
        assert self._last() is None
        points = Points(super().get_metric_history(run_id, key))
        self._last = weakref.ref(points)
        return points


def test_samples_of_a_long_run_are_read_metric_by_metric_and_thinned_out(read, client, four_runs, monkeypatch):
    monkeypatch.setattr(mlflow_reader, "MOST_SAMPLES", 2)
    lines = [sample(second, 100, 300, gpu(10.0 * second, 5, 100, 50)) for second in range(1, 5)]
    run = dataclasses.replace(four_runs[2], epochs=())
    _, row = read("system-long", run, {"chief-0": lines}, reader=OneAtATime(client.tracking_uri))
    assert row["utilization_over_time"] == ((0.5, 15.0), (2.5, 35.0))
    assert row["utilization_percent_mean"] == 25.0


def test_without_a_finished_epoch_all_samples_count_and_roles_are_in_the_order_of_their_numbers(read, four_runs):
    roles = {f"worker-{index}": [sample(1, 10.0 * index, 100), sample(2, 30.0 * index, 100)] for index in (10, 2)}
    rows = read(
        "system-roles",
        dataclasses.replace(four_runs[1], name="many", epochs=()),
        {"ps-0": [sample(1, 5, 100)], **roles},
    )
    assert [(row["role"], row["gpu"], row["cpu_percent_mean"]) for row in rows] == [
        ("ps-0", None, 5.0),
        ("worker-2", None, 40.0),
        ("worker-10", None, 200.0),
    ]


def test_runs_without_system_metrics_have_no_rows(read, four_runs):
    assert read("system-none", four_runs[0], {}) == []
