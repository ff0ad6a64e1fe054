"""A job: what its function returns or says comes back, and its process is gone, whatever way it went."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from processes import processes_of, started_processes_of

from rampline.errors import InputError
from rampline.jobs.job import Job, JobFailed, run_job
from rampline.jobs.local import LOCAL

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


def test_what_its_function_returns_comes_back(make_job: Callable[..., Job]) -> None:
    (note,) = run_job(make_job("with_a_loss"), launcher=LOCAL)
    assert note.startswith("model.name='job_networks:with_a_loss': what it is compiled with is not used")


def test_wrong_input_is_the_line_of_the_process(make_job: Callable[..., Job]) -> None:
    line = r"^model\.name='job_networks:layer' must return a keras\.Model, not Dense$"
    with pytest.raises(InputError, match=line):
        run_job(make_job("layer"), launcher=LOCAL)


def test_a_failure_says_why_and_names_the_log(make_job: Callable[..., Job], tmp_path: Path) -> None:
    job = make_job("out_of_memory")
    with pytest.raises(
        JobFailed, match=r"^the look ended with status 1: MemoryError: 3 GiB wanted \(log: .*/job/log\)$"
    ):
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
