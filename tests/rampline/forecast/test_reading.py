"""Readings of real roles, and the command and the plan that use them."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rampline.cli import app
from rampline.config import BatchConfig, ClusterConfig, RunConfig
from rampline.config.run_config import Strategy
from rampline.data.dataset import PreparedDataset
from rampline.errors import ClusterConfigError
from rampline.forecast.reading import chosen_batch_sizes, config_of_reading, few_replicas, key_of, take_reading
from rampline.forecast.reading_process import _affordable


def run_of(strategy: Strategy, **cluster: int) -> RunConfig:
    return RunConfig(strategy=strategy, batch=BatchConfig(size=32), cluster=ClusterConfig(**cluster))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wanted, chosen",
    [([64], (32, 64)), ([64, 16], (16, 64)), ([256, 16, 64, 4], (4, 32, 256)), ([1], (1,)), ([8, 8], (4, 8))],
)
def test_few_batch_sizes_stand_for_many(wanted: list[int], chosen: tuple[int, ...]) -> None:
    assert chosen_batch_sizes(wanted) == chosen


def test_of_a_slow_network_fewer_batch_sizes_are_read() -> None:
    assert _affordable([4, 32, 256], 0.01) == [4, 32, 256]
    assert _affordable([4, 32, 256], 0.4) == [4, 32]
    assert _affordable([4, 32, 256], 30.0) == [4]


def test_runs_that_differ_in_replicas_and_batch_share_their_readings(digits: PreparedDataset) -> None:
    runs = [run_of("mirrored", replicas=n, virtual_devices=n) for n in (2, 4, 8)]
    assert len({key_of(run, digits, 1) for run in [*runs, run_of("single")]}) == 1
    assert len({key_of(run, digits, 2) for run in runs}) == 1
    assert key_of(runs[0], digits, 2) != key_of(run_of("multi_worker", workers=2), digits, 2)
    # Micro-batches of 16, which is the whole share, of 8, and of 8 in a larger batch.
    whole, *parts = [replace(runs[0], batch=BatchConfig(size=n, accumulate=m)) for n, m in ((32, 1), (32, 2), (64, 4))]
    assert key_of(whole, digits, 1) == key_of(runs[0], digits, 1)
    assert key_of(whole, digits, 1) != key_of(parts[0], digits, 1) == key_of(parts[1], digits, 1)


def test_a_few_replicas_are_those_of_two_workers() -> None:
    run = run_of("multi_worker", workers=4, replicas=2)
    assert few_replicas(run) == 4
    assert config_of_reading(run, 4).cluster.workers == 2
    assert config_of_reading(run, 4).replicas == 4


@pytest.mark.long
@pytest.mark.parametrize(
    "strategy, cluster",
    [
        ("multi_worker", {"workers": 4}),
        ("mirrored", {"replicas": 4, "virtual_devices": 4}),
        ("parameter_server", {"workers": 4, "parameter_servers": 1}),
    ],
)
def test_a_reading_of_real_roles(
    strategy: Strategy, cluster: dict[str, int], digits: PreparedDataset, forks: None, tmp_path: Path
) -> None:
    found = take_reading(run_of(strategy, **cluster), digits, 2, [4, 16], tmp_path / "reading" / "reading.json")
    # A busy machine may afford the smaller batch, and an evaluation of some images, alone.
    assert (found.replicas, found.batch_sizes[0]) == (2, 4)
    assert all(timings.median > 0 for timings in (*found.real, *found.cached))
    assert (found.update is not None) == (strategy != "parameter_server")
    assert (found.latency_ms > 0) == (strategy == "multi_worker")
    assert min(found.startup_seconds, found.tracing_seconds, *found.evaluation_seconds, found.checkpoint_seconds) > 0
    assert 0 < found.evaluation_images[-1] <= digits.splits["validation"]
    assert found.gradient_bytes % 4 == 0
    assert not (tmp_path / "reading" / "checkpoints").exists()


def test_a_reading_that_is_refused_leaves_the_last_one(digits: PreparedDataset, tmp_path: Path) -> None:
    file = tmp_path / "reading" / "reading.json"
    file.parent.mkdir()
    file.write_text("{}")
    run = RunConfig(strategy="mirrored", cluster=ClusterConfig(replicas=32))
    with pytest.raises(ClusterConfigError):
        take_reading(run, digits, 32, [8], file)
    assert file.is_file()


def test_a_forecast_is_in_the_plan_afterwards(forks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path / "home"))
    (tmp_path / "s.yaml").write_text(
        "base: {data: {limit: 12}, batch: {size: 16}, cluster: {price_per_hour: 3.6}}\n"
        "runs: {one: {set: {repeats: 2}}, two: {set: {strategy: mirrored, cluster: {replicas: 2, virtual_devices: 2}}}}"
    )
    (tmp_path / "m.yaml").write_text("fast: {compute: 1000, price_per_hour: 36}")
    options = ("--only", "one-seed1", "--only", "two", "--on", str(tmp_path / "m.yaml"))
    made = CliRunner().invoke(app, ["forecast", str(tmp_path / "s.yaml"), *options])
    assert made.exit_code == 0
    read = "read: convnet, 1 replica, batches of 8, 16"
    for words in (read, "on this machine", "fast", "one-seed1", "0 earlier forecasts"):
        assert words in made.output
    # One process has its replicas on one machine.
    assert "not forecast on fast: two: 2 replicas of one process need as many devices: it has 1" in made.output
    rows = [line.split()[0] for line in made.output.splitlines() if line.strip()]
    assert [rows.count(name) for name in ("one-seed1", "two")] == [2, 1]
    planned = CliRunner().invoke(app, ["plan", str(tmp_path / "s.yaml")]).output
    assert "from the readings of `rampline forecast`" in " ".join(planned.split())
    assert "?" not in planned
