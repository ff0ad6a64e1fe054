"""Quotes from the readings of a home, and what they say of set-ups that nobody has run."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from rampline.config import BatchConfig, ClusterConfig, RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.errors import ClusterConfigError
from rampline.files import write_json
from rampline.forecast.forecast import Calibration
from rampline.forecast.quote import from_readings, quote_run, take_readings, tell_doubled
from rampline.forecast.reading import few_replicas, file_of, key_of
from rampline.jobs.exit_status import NO_MEMORY
from rampline.jobs.job import JobFailed
from rampline.record.home import Home

WORKERS = RunConfig(strategy="multi_worker", batch=BatchConfig(size=32), cluster=ClusterConfig(workers=2))


def put_reading(home: Home, config: RunConfig, dataset: PreparedDataset, replicas: int, step: float) -> None:
    timings: list[dict[str, Any]] = [{"milliseconds": [ms] * 3, "steps": 30} for ms in (step / 2, step)]
    reading = {
        "replicas": replicas,
        "batch_sizes": [16, 32],
        "real": timings,
        "cached": timings,
        "update": {"milliseconds": [1.0, 1.0, 1.0], "steps": 30},
        "latency_ms": 0.5,
        "startup_seconds": 1.0,
        "tracing_seconds": 1.0,
        "evaluation_tracing_seconds": 0.1,
        "evaluation_images": [120],
        "evaluation_seconds": [0.1],
        "checkpoint_seconds": 0.1,
        "logging_seconds": 0.1,
        "gradient_bytes": 1000,
    }
    write_json(file_of(home, key_of(config, dataset, replicas)), reading)


@pytest.fixture
def home(tmp_path: Path, digits: PreparedDataset, monkeypatch: pytest.MonkeyPatch) -> Home:
    """With the readings of `WORKERS`, on four cores."""
    monkeypatch.setattr("rampline.forecast.forecast.available_cores", lambda: 4)
    made = Home(root=tmp_path / "home")
    put_reading(made, WORKERS, digits, 1, 20.0)
    put_reading(made, WORKERS, digits, few_replicas(WORKERS), 22.0)
    return made


def test_a_home_without_readings_has_no_quote(tmp_path: Path, digits: PreparedDataset) -> None:
    assert quote_run(Home(root=tmp_path), [], "run", WORKERS, digits, Calibration()) is None
    assert tell_doubled(Home(root=tmp_path), "run", WORKERS, digits, 1.0, Calibration()) == ""


def test_readings_are_good_for_other_numbers_of_workers(home: Home, digits: PreparedDataset) -> None:
    found = {
        n: from_readings(
            home, dataclasses.replace(WORKERS, cluster=dataclasses.replace(WORKERS.cluster, workers=n)), digits
        )
        for n in (1, 2, 4, 8)
    }
    speeds = {n: forecast.images_per_second for n, forecast in found.items() if forecast}
    assert len(speeds) == 4
    assert speeds[1] < speeds[2] < speeds[4]
    # More than there are cores.
    assert speeds[8] < 1.1 * speeds[4]


@pytest.mark.parametrize(
    "error",
    [
        ClusterConfigError("there is no place"),
        JobFailed("forecast: chief 0", "has no memory: it asked for more", Path("log"), NO_MEMORY),
    ],
)
def test_what_has_no_place_or_no_memory_here_is_not_read(
    home: Home, digits: PreparedDataset, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    lines: list[str] = []
    monkeypatch.setattr("rampline.forecast.quote.take_reading", fail)
    take_readings([(WORKERS, digits)], home, log=lines.append)
    what = ("convnet, 1 replica", "convnet, 2 replicas (multi_worker)")
    assert lines == [f"not read: {each}: {error}" for each in what]


def test_a_damaged_reading_is_none(home: Home, digits: PreparedDataset) -> None:
    file = file_of(home, key_of(WORKERS, digits, 1))
    for text in ("", "{}", '{"real": 3}'):
        file.write_text(text)
        assert from_readings(home, WORKERS, digits) is None


def test_other_settings_have_no_reading(home: Home, digits: PreparedDataset) -> None:
    assert from_readings(home, dataclasses.replace(WORKERS, precision="mixed_bfloat16"), digits) is None


def test_twice_as_many_workers_are_told_with_their_interval(home: Home, digits: PreparedDataset) -> None:
    said = tell_doubled(home, "two", WORKERS, digits, 1.5, Calibration())
    assert said.startswith("Not measured: two with 4 workers would reach 2.")
    assert "of the reference's speed, by forecast; what would hold it back most: " in said


@pytest.mark.parametrize(
    "config, speedup",
    [
        (WORKERS, math.nan),
        (dataclasses.replace(WORKERS, batch=BatchConfig(size=2)), 1.5),
        (dataclasses.replace(WORKERS, strategy="single", cluster=ClusterConfig()), 1.0),
    ],
)
def test_nothing_is_said_of_what_is_no_set_up(
    home: Home, digits: PreparedDataset, config: RunConfig, speedup: float
) -> None:
    assert tell_doubled(home, "run", config, digits, speedup, Calibration()) == ""
