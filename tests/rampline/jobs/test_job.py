"""A job: what its function returns or says comes back, and its process is gone, whatever way it went."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from processes import processes_of, started_processes_of
from runs import make_config

from rampline.config import RunConfig
from rampline.errors import InputError
from rampline.files import read_json
from rampline.jobs.job import Job, JobFailed, run_job
from rampline.jobs.launcher import Node
from rampline.jobs.local import LOCAL
from rampline.jobs.roles import local_tasks
from rampline.jobs.supervisor import supervise
from rampline.jobs.tf_config import ALONE, Task
from rampline.record.run_directory import RunDirectory

NETWORKS = """import time
import keras

def with_a_loss(input_shape, classes):
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(classes)(x))
    model.compile("sgd", loss="mse")
    return model

def layer(input_shape, classes):
    return keras.layers.Dense(classes)

def out_of_memory(input_shape, classes):
    raise MemoryError("3 GiB wanted")

def endless(input_shape, classes):
    time.sleep(600)
"""


@pytest.fixture
def make_job(forks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    """`make_job(NETWORK)`: a look at a network of the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job_networks.py").write_text(NETWORKS)

    def make(network: str, **limits: Any) -> Job:
        model = {"name": f"job_networks:{network}", "image_shape": [8, 8, 1], "classes": 3}
        return Job(function="models", what="the look", folder=tmp_path / "job", arguments={"models": [model]}, **limits)

    return make


def test_wrong_input_is_the_line_of_the_process(make_job: Callable[..., Job]) -> None:
    line = r"^model\.name='job_networks:layer' must return a keras\.Model, not Dense$"
    with pytest.raises(InputError, match=line):
        run_job(make_job("layer"), launcher=LOCAL)


def test_a_failure_says_why_and_names_the_log(make_job: Callable[..., Job], tmp_path: Path) -> None:
    job = make_job("out_of_memory")
    with pytest.raises(JobFailed, match=r"^the look has no memory: MemoryError: 3 GiB wanted \(log: .*/job/log\)$"):
        run_job(job, launcher=LOCAL)
    # An earlier answer, and what was printed before, are none of the next one's.
    (job.folder / "answer.json").write_text("[]")
    with pytest.raises(JobFailed) as failed:
        run_job(job, launcher=LOCAL)
    kept = failed.value.with_log_at(tmp_path / "kept" / "failed.log")
    assert str(kept).endswith(f"(log: {tmp_path}/kept/failed.log)")
    assert kept.log.read_text().count("rampline: error: ") == 2


@pytest.mark.parametrize(
    ("limit", "how"), [("timeout_seconds", "did not end within 2 s"), ("silence_seconds", "told nothing for 2 s")]
)
def test_one_that_takes_too_long_is_ended(limit: str, how: str, make_job: Callable[..., Job]) -> None:
    job = make_job("endless", **{limit: 2})
    with pytest.raises(JobFailed, match=f"^the look {how}") as failed:
        run_job(job, launcher=LOCAL)
    assert (failed.value.status, failed.value.lacks_memory) == (None, False)
    assert processes_of(job.folder) == []


def test_one_that_is_killed_is_named_with_its_signal(make_job: Callable[..., Job]) -> None:
    job = make_job("endless")
    with ThreadPoolExecutor() as pool:
        killer = pool.submit(lambda: os.kill(started_processes_of(job.folder, 1)[0], signal.SIGKILL))
        with pytest.raises(JobFailed, match=r"^the look was ended by signal 9 ") as failed:
            run_job(job, launcher=LOCAL)
        killer.result()
    assert failed.value.lacks_memory
    assert processes_of(job.folder) == []


AGENT = 'trap : TERM; RAMPLINE_PARENT_PID=$$ "$0" -P -m rampline.worker "$1"; echo $? > "$2"'


class AgentRole:
    """A role below a shell, in place of an agent on another machine: the file that this leaves has its exit status."""

    def __init__(self, place: str, task: Task, job: Job) -> None:
        self.label, self.task, self.log = f"{task.role} {task.index} on {place}", task, job.folder / f"{place}.log"
        self._exit_file = job.folder / f"{place}-{task.name}.exit"
        with open(self.log, "ab") as log:
            self.agent = subprocess.Popen(
                ["sh", "-c", AGENT, sys.executable, str(job.folder), str(self._exit_file)],
                env={**os.environ, **job.environment, "TF_CONFIG": task.to_json() if task is not ALONE else ""},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def exit_status(self) -> int | None:
        if self.agent.poll() is None:
            return None
        return int(self._exit_file.read_text()) if self._exit_file.is_file() else self.agent.returncode

    def silent_seconds(self) -> float:
        return 0.0

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.agent.pid, number)

    def last_line(self) -> str:
        return self.log.read_text().splitlines()[-1]

    def describe(self) -> dict[str, object]:
        return {"role": self.task.role, "index": self.task.index, "pid": self.agent.pid, "host": "elsewhere"}


@dataclass
class AgentPlacement:
    place: str
    tasks: list[Task]
    warning: str | None = None
    machine = None

    def start(self, task: Task, job: Job) -> AgentRole:
        return AgentRole(self.place, task, job)

    def close(self) -> frozenset[str]:
        return frozenset([self.place])


class Agents:
    """A launcher with two places; after an attempt it never knows whether its place is clear."""

    def __init__(self) -> None:
        self.avoided: list[set[str]] = []

    def check(self, config: RunConfig) -> None:
        pass

    def nodes(self) -> list[Node]:
        return [Node(name=name, state="up", cores=1) for name in ("here", "there")]

    def room(self, config: RunConfig, *, avoid: Collection[str] = ()) -> int:
        return config.cluster.workers

    def place(self, config: RunConfig, *, avoid: Collection[str] = (), workers: int | None = None) -> AgentPlacement:
        self.avoided.append(set(avoid))
        return AgentPlacement(min({"here", "there"} - set(avoid)), local_tasks(config, workers))

    def place_jobs(self, jobs: Sequence[Job]) -> AgentPlacement:
        return AgentPlacement("here", [ALONE])


def test_a_launcher_of_another_kind_runs_a_job(make_job: Callable[..., Job]) -> None:
    (note,) = run_job(make_job("with_a_loss"), launcher=Agents())
    assert "is compiled, and trains with that instead of the study" in note


@pytest.mark.long
def test_a_launcher_of_another_kind_avoids_the_machine_on_which_a_role_was_lost(
    make_run: Callable[..., RunDirectory],
) -> None:
    directory, launcher, lines = make_run(make_config("single"), epochs=60), Agents(), list[str]()

    def kill(event: dict[str, Any]) -> None:
        if event["event"] == "epoch" and not lines:
            lines.append("killed")
            os.killpg(read_json(directory.roles_file)["roles"][0]["pid"], signal.SIGKILL)

    supervise(directory, on_event=kill, log=lines.append, launcher=launcher)
    result = read_json(directory.result_file)
    assert (result["attempts"], result["epochs"]) == (2, 60)
    assert launcher.avoided == [set(), {"here"}]
    assert re.match(
        r"chief 0 on here was ended by signal 9 \(log: .*/here\.log\): starting again from step \d+ ", lines[1]
    )
