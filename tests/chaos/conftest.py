"""Runs that faults are injected into, and the table of what they cost."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runs import make_config
from table import Table

from rampline.config import DataConfig, LearningRateConfig, OptimizerConfig, RunConfig
from rampline.data.preparation import prepare_dataset
from rampline.jobs.supervisor import supervise
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory, RunIdentity

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"
EPOCHS = {"single": 60, "mirrored": 30, "multi_worker": 20, "parameter_server": 15}
CLUSTERS = {
    "single": {},
    "mirrored": {"replicas": 2, "virtual_devices": 2},
    "multi_worker": {"workers": 2},
    "parameter_server": {"workers": 2, "parameter_servers": 1},
}


def make_chaos_config(strategy: str) -> RunConfig:
    """About 10 s of training with BatchNorm, Dropout and Adam, a checkpoint every 50 steps, partial last batches."""
    config = make_config(strategy, model="small_models:with_all_state", batch=12, **CLUSTERS[strategy])
    cluster = dataclasses.replace(config.cluster, max_restarts=20, heartbeat_timeout_seconds=15)
    return dataclasses.replace(
        config,
        cluster=cluster,
        data=DataConfig(source="digits"),
        optimizer=OptimizerConfig(name="adam"),
        learning_rate=LearningRateConfig(peak=1e-3),
        epochs=EPOCHS[strategy],
        checkpoint_every_steps=50,
        steps_per_call=4,
        log_examples=config.is_synchronous,
    )


@pytest.fixture(scope="session")
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """What was measured; written into docs/reliability.md where RAMPLINE_CHAOS_TABLE names a file to collect it in."""
    file = os.environ.get("RAMPLINE_CHAOS_TABLE")
    table = Table(Path(file) if file else tmp_path_factory.mktemp("chaos") / "table.json")
    yield table
    print("\n" + table.to_markdown())  # noqa: T201
    if file:
        table.write_into(DOCUMENT)


@pytest.fixture(scope="session")
def chaos_dataset(rampline_home: Path) -> Path:
    """All of `digits`."""
    return prepare_dataset(DataConfig(source="digits"), Home(root=rampline_home)).directory


@pytest.fixture
def make_run(chaos_dataset: Path, forks: None, tmp_path: Path) -> Callable[..., RunDirectory]:
    """`make_run(strategy)`: a run directory that nothing has run yet."""

    def make(strategy: str, **changes: object) -> RunDirectory:
        return _create(tmp_path / f"{strategy}-run", make_chaos_config(strategy), chaos_dataset, **changes)

    return make


@pytest.fixture(scope="session")
def uninterrupted(chaos_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunDirectory]:
    """`uninterrupted(strategy)`: the same run, that nothing has happened to; trained once."""
    trained: dict[str, RunDirectory] = {}

    def train(strategy: str) -> RunDirectory:
        if strategy not in trained:
            path = tmp_path_factory.mktemp("uninterrupted") / strategy
            directory = _create(path, make_chaos_config(strategy), chaos_dataset)
            supervise(directory, on_event=lambda event: None, log=print)
            trained[strategy] = directory
        return trained[strategy]

    return train


def _create(path: Path, config: RunConfig, dataset: Path, **changes: object) -> RunDirectory:
    directory = RunDirectory(path)
    identity = RunIdentity(study="chaos", name=path.name, dataset=str(dataset))
    directory.create(dataclasses.replace(config, **changes), identity)  # type: ignore[arg-type]
    return directory
