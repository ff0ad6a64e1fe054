"""Studies that are jobs of Slurm, and the same runs by processes of this machine."""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import Rampline, wait_until
from own_prefect import own_prefect
from slurm_cluster import SlurmCluster

from rampline.config import to_dict
from rampline.files import read_json
from rampline.jobs.supervisor import supervise
from rampline.record.run_directory import RunDirectory

# BatchNorm, Dropout and Adam; code is imported only where a study file names it.
HELD = """name: held
base:
  epochs: 12
  steps_per_call: 4
  data: {source: digits, image_size: 28, limit: 20}
  model: {name: "small_models:with_all_state"}
  explain: {steps: 0}
  parity: {steps: 0}
runs:
  multi-worker: {set: {strategy: multi_worker, cluster: {workers: 2}}}
"""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@dataclasses.dataclass(frozen=True)
class Submitted:
    """A job, and where its one run is."""

    job: str
    directory: RunDirectory
    cluster: SlurmCluster

    @property
    def printed(self) -> str:
        return (self.directory.path.parent / "job.log").read_text()

    def times(self, event: str) -> list[float]:
        file = self.directory.events_file
        return [e["time"] for e in self.directory.read_events() if e["event"] == event] if file.is_file() else []

    def await_epochs(self, count: int) -> None:
        wait_until(lambda: len(self.times("epoch")) >= count, 120)

    def await_starts(self, count: int) -> None:
        wait_until(lambda: len(self.times("started")) == count, 120)

    def go(self) -> None:
        (self.directory.path / "go").touch(mode=0o600)

    def node_of(self, role: str) -> str:
        roles = read_json(self.directory.roles_file)["roles"]
        return next(r["host"] for r in roles if f"{r['role']}-{r['index']}" == role)


Submit = Callable[..., Submitted]
TrainedHere = Callable[[Submitted], RunDirectory]


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables that lead all jobs to one Prefect server: beside the tests of the others, which wait less."""
    with own_prefect(tmp_path_factory.mktemp("prefect")) as (_, variables):
        yield variables


@pytest.fixture
def submit(
    slurm: SlurmCluster, rampline: Rampline, home: Path, prepared: None, prefect: dict[str, str]
) -> Iterator[Submit]:
    """`submit(*ARGUMENTS)` hands a study in; what its job printed is there where a test fails."""

    def call(*arguments: str) -> Submitted:
        done = rampline("submit", *arguments, prefect=prefect | slurm.environment)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        (folder,) = home.glob("runs/*/*")
        return Submitted(done.stdout.split(":")[0].removeprefix("job "), RunDirectory(folder / "multi-worker"), slurm)

    yield call
    for log in home.glob("runs/*/*/job.log"):
        sys.stdout.write(log.read_text())


@pytest.fixture
def held(tmp_path: Path) -> str:
    """A study whose run a test may hold."""
    file = tmp_path / "held.yaml"
    file.write_text(HELD)
    return str(file)


@pytest.fixture
def unhurried(held: str) -> str:
    """The same study, whose run takes its time until `Submitted.go`: after 3 epochs 1.6 s for each, 40 s in all."""
    slower = HELD.replace("with_all_state", "slow_with_all_state").replace("steps_per_call: 4", "steps_per_call: 1")
    Path(held).write_text(slower.replace("epochs: 12", "epochs: 28"))
    return held


@pytest.fixture(scope="session")
def trained_here(forks: None, tmp_path_factory: pytest.TempPathFactory) -> TrainedHere:
    """`trained_here(submitted)`: the same run by processes of this machine, that nothing has happened to.

    Runs of the same settings are trained once.
    """
    trained = dict[str, RunDirectory]()

    def train(submitted: Submitted) -> RunDirectory:
        config = submitted.directory.read_config()
        config = dataclasses.replace(config, cluster=dataclasses.replace(config.cluster, launcher="local"))
        settings = json.dumps(to_dict(config))
        if settings not in trained:
            directory = RunDirectory(tmp_path_factory.mktemp("here") / "run")
            directory.create(config, submitted.directory.read_identity())
            (directory.path / "go").touch(mode=0o600)
            supervise(directory, on_event=lambda event: None, log=lambda line: None)
            trained[settings] = directory
        return trained[settings]

    return train
