"""One replica's work: who shares a measurement, real measurements, and what is left when one fails."""

import dataclasses
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import processes_of, started_processes_of
from runs import MakeRun, make_config

import rampline.explain.replica_process as training_replica
from rampline.config import ExplainConfig, RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.errors import RunFailed
from rampline.explain.replica import _launches, measure_replicas, replica_config, work_of
from rampline.explain.replica_process import meet
from rampline.files import write_json
from rampline.record.attempts import Attempts
from rampline.record.events import EventWriter
from rampline.record.run_directory import RunDirectory
from rampline.training.timings import ROUNDS, ReplicaProbes


@pytest.fixture
def make_run(make_run: MakeRun, digits: PreparedDataset) -> MakeRun:
    """Of runs that have started, and are to be probed."""

    def make(config: RunConfig, **changes: object) -> RunDirectory:
        directory = make_run(config, **{"explain": ExplainConfig(), **changes})
        EventWriter(directory.events_file).write("started", train_examples=digits.splits["train"])
        return directory

    return make


def install_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that lists one GPU."""
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'GPU 0: Tesla T4 (UUID: GPU-0)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_one_replica_is_a_run_of_its_own_with_its_share_of_the_batch() -> None:
    config = dataclasses.replace(
        make_config("multi_worker", model="convnet7", batch=29, workers=2, replicas=2),
        precision="mixed_bfloat16",
        log_examples=True,
        checkpoint_every_steps=3,
        explain=ExplainConfig(steps=7),
    )
    one = replica_config(config)
    assert (one.strategy, one.replicas, one.global_batch_size, one.per_replica_batch_size) == ("single", 1, 8, 8)
    assert (one.model.name, one.precision, one.steps_per_call, one.explain.steps) == (
        "convnet7",
        "mixed_bfloat16",
        8,
        7,
    )
    assert (one.optimizer, one.data) == (config.optimizer, config.data)
    assert (one.log_examples, one.checkpoint_every_steps) == (False, 0)


@pytest.mark.long
def test_runs_whose_replicas_do_the_same_work_share_it(make_run: MakeRun, tmp_path: Path) -> None:
    mirrored = work_of(make_run(make_config("mirrored", batch=28, replicas=2, virtual_devices=2)))
    assert mirrored.processes == 2
    assert (mirrored.config.global_batch_size, mirrored.batch_size) == (14, 14)
    # Half of the images, which fill no batch.
    assert work_of(make_run(make_config("mirrored", batch=512, replicas=2, virtual_devices=2))).batch_size == 60
    workers = make_config("multi_worker", batch=28, workers=2)
    # What one replica does not see: how often, from which weights and for how long it trains, and with whom.
    others = {"epochs": 50, "seed": 3, "checkpoint_keep": 0}
    assert work_of(make_run(workers, **others)).key == mirrored.key
    started = dataclasses.replace(workers.model, weights="run:baseline")
    assert work_of(make_run(workers, model=started)).key == mirrored.key
    servers = make_config("parameter_server", batch=14, workers=2, parameter_servers=1)
    assert work_of(make_run(servers)).key == mirrored.key
    different = [
        make_run(make_config("multi_worker", batch=30, workers=2)),
        make_run(make_config("multi_worker", batch=42, workers=3)),
        make_run(make_config("single", batch=14)),
        make_run(workers, precision="mixed_bfloat16"),
        make_run(workers, steps_per_call=1),
        make_run(workers, explain=ExplainConfig(steps=21)),
        make_run(workers, dataset=tmp_path),
    ]
    assert len({mirrored.key, *(work_of(directory).key for directory in different)}) == 8


def test_of_a_run_on_several_machines_those_count_that_shared_one(make_run: MakeRun) -> None:
    workers = make_run(make_config("multi_worker", batch=28, workers=3, replicas=2))
    servers = make_run(make_config("parameter_server", workers=2, parameter_servers=1))
    mirrored = make_run(make_config("mirrored", replicas=2, virtual_devices=2))
    for directory, roles in ((workers, "a b"), (servers, "a b"), (mirrored, "")):
        found = [{"role": "chief", "index": 0, "host": "a"}]  # of `workers` as TF_CONFIG may name it: it computes, too
        found += [{"role": "worker", "index": index, "host": host} for index, host in enumerate(roles.split())]
        write_json(directory.roles_file, {"roles": found})
    assert [work_of(run).processes for run in (workers, servers, mirrored)] == [4, 1, 2]
    assert work_of(workers).config.global_batch_size == 5


def test_deterministic_work_has_processes_of_its_own(make_run: MakeRun) -> None:
    runs = [make_run(make_config("single"), deterministic=is_so, epochs=n) for is_so in (True, False) for n in (1, 2)]
    launches = _launches((run, work_of(run)) for run in runs).values()
    assert [[work.config.deterministic for work in works] for works in launches] == [[False], [True]]


def test_one_replica_has_the_micro_batches_that_its_run_had_in_the_end(make_run: MakeRun) -> None:
    config = make_config("mirrored", batch=28, replicas=2, virtual_devices=2)
    run = make_run(config, batch=dataclasses.replace(config.batch, accumulate="auto"))
    attempts, found = Attempts(run.attempts_file), []
    for parts in (1, 2):
        attempts.begin(1, parts)
        found.append(work_of(run).config.rows_at_once)
    assert found == [14, 7]


@pytest.mark.long
def test_equal_work_is_measured_once_also_where_a_gpu_is_fewer_than_the_replicas(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_gpu(tmp_path, monkeypatch)
    small = ExplainConfig(steps=6)
    mirrored = make_run(make_config("mirrored", replicas=2, virtual_devices=2), explain=small)
    again = make_run(make_config("mirrored", replicas=2, virtual_devices=2), explain=small, epochs=9)
    assert work_of(mirrored).is_virtual
    assert not work_of(make_run(make_config("multi_worker", workers=2), explain=small)).is_virtual
    lines: list[str] = []
    measure_replicas([mirrored, again], tmp_path / "explain", log=lines.append)
    assert lines == ["explain: one replica's work, alone and 2 at once"]
    assert processes_of(tmp_path / "explain") == []
    found = ReplicaProbes.read(mirrored.replica_file)
    assert found == ReplicaProbes.read(again.replica_file)
    assert (found.processes, found.batch_size) == (2, 14)
    assert found.half is not None
    assert found.at_once is not None
    for timings in (found.alone, found.half, found.at_once):
        assert len(timings.milliseconds) >= ROUNDS
        assert timings.steps % (len(timings.milliseconds) * 8) == 0, "whole calls of 8 steps in each round"
        assert min(timings.milliseconds) > 0
    assert found.half.median < 1.5 * found.alone.median
    place = tmp_path / "explain" / "2-virtual"
    assert {file.name for file in place.glob("*.log")} == {"0.log", "1.log", "2.log"}
    # Both have the first GPU: the one ended before the other began.
    alone = next(place.glob("results/*.0.json"))
    assert alone.stat().st_mtime_ns < (place / "1" / "job.json").stat().st_mtime_ns
    measure_replicas([mirrored, again], tmp_path / "explain", log=lines.append)
    assert len(lines) == 1, "what is measured is not measured again"


def test_work_that_fails_costs_the_other_runs_of_its_launch_and_of_later_ones_nothing(
    make_run: MakeRun, tmp_path: Path
) -> None:
    broken = make_run(make_config("single", model="small_models:broken_import"))
    other = make_run(make_config("single", model="small_models:smooth"), explain=ExplainConfig(steps=1))
    pair = make_run(make_config("multi_worker", model="small_models:smooth", workers=2), explain=ExplainConfig(steps=1))
    folder = tmp_path / "explain"
    with pytest.raises(
        RunFailed, match=r"a probe of one replica ended with status 3: .*no_such_module.* \(log: .*/1/\w{16}/0\.log\)"
    ):
        measure_replicas([broken, other, pair], folder, log=print)
    assert processes_of(folder) == []
    assert [run.replica_file.is_file() for run in (broken, other, pair)] == [False, True, True]


def test_a_process_that_is_killed_is_named_with_its_signal(make_run: MakeRun, tmp_path: Path) -> None:
    folder = tmp_path / "explain"

    def kill_it() -> None:
        os.kill(started_processes_of(folder, 1)[0], signal.SIGKILL)

    with ThreadPoolExecutor() as pool:
        killer = pool.submit(kill_it)
        with pytest.raises(RunFailed, match=r"a probe of one replica was ended by signal 9 \(log: .*/1/0\.log\)"):
            measure_replicas([make_run(make_config("single"))], folder, log=print)
        killer.result()
    assert processes_of(folder) == []


def test_processes_wait_for_each_other(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(lambda: (meet(tmp_path / "here", "compiled", 1, 2), time.monotonic())[1])
        time.sleep(0.2)
        assert not waiting.done()
        arrived = time.monotonic()
        meet(tmp_path / "here", "compiled", 2, 2)
        assert arrived <= waiting.result(timeout=5) < arrived + 2


def test_one_that_does_not_come_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_replica, "ALLOWANCE_SECONDS", 0.1)
    with pytest.raises(RunFailed, match="process 2 did not come to alone"):
        meet(tmp_path, "alone", 1, 2)
