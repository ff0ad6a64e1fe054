"""Lost roles cost time, not the run; what would fail again is not tried again."""

import dataclasses
import json
import signal
import socket
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faults import Faults, Hold, assert_bit_equal, examples_seen, run_with
from runs import make_config, set_version
from small_disk import read_only, small_disk
from stored_data import store_here

from rampline.config import DataConfig, RunConfig
from rampline.errors import ClusterConfigError, InputError, InUse, RunFailed
from rampline.files import read_json
from rampline.jobs import supervisor
from rampline.jobs.local import Local, LocalPlacement
from rampline.jobs.lock import hold_run
from rampline.jobs.roles import local_tasks
from rampline.jobs.supervisor import Gang, supervise
from rampline.jobs.tf_config import Task
from rampline.record.checkpoints import VERSION, list_checkpoints
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory, RunIdentity


def attempts(directory: RunDirectory) -> list[dict]:
    lines = [json.loads(line) for line in directory.attempts_file.read_text().splitlines()]
    return [line for line in lines if line["event"] == "attempt"]


@pytest.mark.long
def test_a_killed_worker_is_made_up_for(make_run) -> None:
    config = make_config("multi_worker", model="small_models:with_all_state", workers=2)
    config = dataclasses.replace(config, epochs=3, checkpoint_every_steps=3, log_examples=True)
    whole, hit = make_run(config), make_run(config)
    supervise(whole, on_event=lambda event: None, log=print)
    # Of 5 steps an epoch: in step 4, and once more in step 7, of the attempt that goes on with step 4.
    costs = run_with(Faults(hit, "worker-1", Hold(hit, "worker-1", step=4), count=2))
    assert all(cost.detected_after < 5 for cost in costs)
    assert_bit_equal(hit, whole)
    assert examples_seen(hit) == examples_seen(whole)
    assert len(attempts(hit)) == 3


@pytest.mark.long
def test_a_killed_parameter_server_worker_is_replaced_in_place(make_run) -> None:
    config = make_config("parameter_server", workers=2, parameter_servers=1)
    directory, lines = make_run(dataclasses.replace(config, epochs=30)), list[str]()
    run_with(Faults(directory, "worker-1", "mid-epoch"), lines)
    assert [line for line in lines if "worker 1 was ended by signal 9" in line and "the others go on" in line]
    assert len(attempts(directory)) == 1


@pytest.mark.long
def test_a_worker_that_is_lost_with_its_results_is_replaced_in_place(make_run) -> None:
    """The coordinator gives its call to another; who waits for the results must not fail meanwhile."""
    config = make_config(
        "parameter_server", model="small_models:with_a_result_that_is_lost", workers=2, parameter_servers=1
    )
    config = dataclasses.replace(config, epochs=10)
    directory, lines = make_run(config), list[str]()
    supervise(directory, on_event=lambda event: None, log=lines.append)
    assert [line for line in lines if "worker 1 was ended by signal 9" in line and "the others go on" in line]
    assert len(attempts(directory)) == 1
    assert read_json(directory.result_file)["epochs"] == 10


@pytest.mark.long
def test_tensorflow_still_gives_who_waits_the_error_of_a_lost_worker(make_run) -> None:
    """When this fails, `ParameterServerEngine._fetch` can be `call.fetch()`."""
    model = "small_models:with_a_result_that_is_lost_as_tensorflow_is"
    config = make_config("parameter_server", model=model, workers=2, parameter_servers=1)
    cluster = dataclasses.replace(config.cluster, max_restarts=1)
    with pytest.raises(RunFailed, match=r"chief 0 ended with status [14]: (Unavailable|Aborted|InvalidArgument)Error"):
        supervise(make_run(config, epochs=40, cluster=cluster), on_event=lambda event: None, log=print)


def test_a_stopped_run_goes_on_at_its_step_with_the_same_bits(make_run) -> None:
    """Two replicas, whose own moving statistics are not averaged when a stop comes in the middle of an epoch."""
    config = make_config("mirrored", model="small_models:with_all_state", replicas=2, virtual_devices=2)
    config = dataclasses.replace(config, epochs=3, steps_per_call=1, log_examples=True)
    whole, stopped = make_run(config), make_run(config)
    supervise(whole, on_event=lambda event: None, log=print)
    # Two replicas: in step 7 of 15, the second of an epoch.
    hold, asked_at = Hold(stopped, "chief-0", step=13), list[float]()

    def stop(event: dict) -> None:
        if event["event"] == "epoch":
            hold.await_stop()
            # The step that goes on is the last one: by then the role has been asked.
            threading.Timer(0.5, hold.let_go).start()
            asked_at.append(time.monotonic())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervise(stopped, on_event=stop, log=print)
    assert time.monotonic() - asked_at[0] < 10
    left = next(event for event in stopped.read_events() if event["event"] == "stopped")
    assert left["step"] in (7, 8)
    supervise(stopped, on_event=lambda event: None, log=print)
    assert read_json(stopped.result_file)["attempts"] == 2
    assert [e["first_step"] for e in stopped.read_events() if e["event"] == "started"] == [0, left["step"]]
    assert_bit_equal(stopped, whole)
    assert examples_seen(stopped) == examples_seen(whole)


def test_what_is_slow_once_the_roles_have_met_is_not_that_they_have_not(make_run, monkeypatch) -> None:
    """Weights may be downloaded, and the network built, for longer than the roles may take to find each other."""
    directory, told = make_run(make_config("single"), epochs=1), list[str]()

    def tell(event: dict) -> None:
        told.append(event["event"])
        monkeypatch.setattr(supervisor, "IMPORT_ALLOWANCE_SECONDS", -1000)  # from now on it is too late to meet

    supervise(directory, on_event=tell, log=print)
    assert read_json(directory.result_file)["attempts"] == 1
    assert told[:2] == ["met", "started"]


def test_weights_that_do_not_come_are_tried_again(make_run) -> None:
    directory, lines = make_run(make_config("single", model="small_models:not_downloaded", max_restarts=1)), list[str]()
    message = r"^chief 0: http://x cannot be downloaded: HTTP Error 503: .*; restarts used up: 1$"
    with pytest.raises(RunFailed, match=message):
        supervise(directory, on_event=lambda event: None, log=lines.append)
    assert len(attempts(directory)) == 2


def test_a_file_that_is_damaged_in_training_is_named_by_the_run_s_last_event(forks: None, tmp_path: Path) -> None:
    dataset = store_here(DataConfig(limit=12, cache="disk"), Home(root=tmp_path / "home")).directory
    directory = RunDirectory(tmp_path / "run")
    directory.create(make_config("single"), RunIdentity(study="test", name="run", dataset=str(dataset)))
    damaged = dataset / "train" / "00000" / "00000007"
    damaged.unlink()
    with pytest.raises(InputError, match=f"^{damaged} is not as it was prepared"):
        supervise(directory, on_event=lambda event: None, log=print)
    assert directory.read_events()[-1]["message"].startswith(f"DatasetError: {damaged} is not as it was prepared")
    assert directory.heartbeat_file("chief-0").read_text().split()[1] == "check"


@pytest.mark.long
def test_a_frozen_role_is_found_by_its_heartbeat(make_run) -> None:
    config = make_config("single", model="small_models:with_all_state", heartbeat_timeout_seconds=5)
    directory, lines = make_run(dataclasses.replace(config, epochs=3)), list[str]()
    costs = run_with(Faults(directory, "chief-0", Hold(directory, "chief-0", step=7), number=signal.SIGSTOP), lines)
    assert 4 < costs[0].detected_after < 10
    assert "chief 0 did not move for 5 s" in lines[0]


def test_workers_wait_for_a_checkpoint_that_takes_longer_than_a_step_may(make_run) -> None:
    cluster = {"workers": 2, "heartbeat_timeout_seconds": 5, "max_restarts": 0}
    config = make_config("multi_worker", model="small_models:slow_to_save", **cluster)
    directory = make_run(dataclasses.replace(config, epochs=2, steps_per_call=1))
    supervise(directory, on_event=lambda event: None, log=print)
    assert read_json(directory.result_file)["attempts"] == 1
    first, _ = directory.read_events("checkpoint")
    assert first["time"] - directory.read_events("epoch")[0]["time"] > 6


def test_a_stop_waits_for_a_checkpoint_that_takes_long(make_run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STOP_GRACE_SECONDS", 3.0)
    directory = make_run(make_config("single", model="small_models:slow_to_save"), epochs=200, checkpoint_every_steps=0)

    def stop(event: dict) -> None:
        if event["event"] == "progress":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervise(directory, on_event=stop, log=print)
    assert [event["event"] for event in directory.read_events("checkpoint", "stopped")] == ["checkpoint", "stopped"]


@pytest.mark.parametrize(
    ("model", "message", "starts"),
    [
        ("small_models:out_of_memory", "MemoryError: 3 GiB wanted .*: twice the same", 2),
        ("small_models:broken_import", "No module named 'no_such_module'", 1),
    ],
)
def test_what_would_repeat_is_not_tried_again(model: str, message: str, starts: int, make_run) -> None:
    directory = make_run(make_config("single", model=model))
    with pytest.raises(RunFailed, match=message):
        supervise(directory, on_event=lambda event: None, log=print)
    assert len(attempts(directory)) == starts


@pytest.mark.long
def test_weights_that_are_not_finite_are_told_of_by_all_workers_alike(make_run) -> None:
    """An epoch is one step: what it makes of the weights shows in no loss before the checkpoint."""
    config = make_config("multi_worker", model="small_models:with_infinite_gradient", batch=120, workers=2)
    directory = make_run(config)
    with pytest.raises(RunFailed, match=r"the weights \S+ are not finite after step 1: try a lower"):
        supervise(directory, on_event=lambda event: None, log=print)
    assert len(attempts(directory)) == 1
    assert list_checkpoints(directory.checkpoints) == []


def test_a_gpu_that_others_fill_is_waited_for_and_takes_no_smaller_micro_batches(make_run) -> None:
    """A role that was killed keeps its memory for a moment, too."""
    config = make_config("single", model="small_models:on_a_gpu_that_others_fill")
    config = dataclasses.replace(config, batch=dataclasses.replace(config.batch, accumulate="auto"), epochs=1)
    directory, lines = make_run(config), list[str]()
    supervise(directory, on_event=lambda event: None, log=lines.append)
    first, second = (line for line in lines if "starting again" in line)
    assert first.startswith("chief 0 found its GPU full of what other processes have there: InternalError: cudaSetDev")
    assert [line.rpartition(" in ")[2] for line in (first, second)] == ["1 s", "2 s"]
    assert [event.get("micro_batch_size") for event in directory.read_events("started")] == [None]


def test_commands_that_each_start_some_of_the_roles_are_refused_micro_batches_that_double(tmp_path: Path) -> None:
    """Each would double them by itself: workers of different micro-batches share the validation split differently."""
    config, directory = make_config("multi_worker", workers=2), RunDirectory(tmp_path)
    doubling = dataclasses.replace(config, batch=dataclasses.replace(config.batch, accumulate="auto"))
    directory.create(doubling, RunIdentity(study="test", name="run", dataset=""))
    tasks = local_tasks(doubling)
    for launcher in (Local(tasks[:1]), Local(tasks[1:])):
        with pytest.raises(ClusterConfigError, match=r"auto needs one command .* set batch\.accumulate to a number$"):
            launcher.check(doubling)
        with pytest.raises(ClusterConfigError, match="auto needs one command"):
            supervise(directory, on_event=lambda event: None, log=print, launcher=launcher)
        launcher.place(config)
    assert not directory.attempts_file.exists()
    for whole in (Local(), Local(tasks)):
        assert len(whole.place(doubling).tasks) == 2


def test_a_run_of_a_newer_rampline_is_refused_and_one_without_a_version_goes_on(make_run) -> None:
    directory, steps = make_run(make_config("single"), epochs=2), list[int]()
    supervise(directory, on_event=lambda event: None, log=print)
    directory.result_file.unlink()
    checkpoints = list_checkpoints(directory.checkpoints)
    set_version(checkpoints[-1], VERSION + 1)
    newer = rf"written by a newer rampline \(version {VERSION + 1}\); this one reads {VERSION}: upgrade$"
    with pytest.raises(InputError, match=newer):
        supervise(directory, on_event=lambda event: None, log=print)
    assert len(attempts(directory)) == 2
    assert list_checkpoints(directory.checkpoints) == checkpoints
    set_version(checkpoints[-1], None)
    supervise(directory, on_event=lambda event: steps.extend(filter(None, [event.get("first_step")])), log=print)
    assert steps[0] == int(checkpoints[-1].name.removeprefix("step-"))


class FirstOnATakenPort(Local):
    """Of the first placement, worker 0 has the port `taken`."""

    def __init__(self, taken: str) -> None:
        self.placed, self._taken = 0, taken

    def place(self, config: RunConfig, *, avoid: Collection[str] = (), workers: int | None = None) -> LocalPlacement:
        placement = super().place(config, avoid=avoid, workers=workers)
        self.placed += 1
        if self.placed > 1:
            return placement
        port = placement.tasks[0].address.rpartition(":")[2]
        cluster = {"worker": tuple(a.replace(port, self._taken) for a in placement.tasks[0].cluster["worker"])}
        return dataclasses.replace(
            placement, tasks=[dataclasses.replace(task, cluster=cluster) for task in placement.tasks]
        )


@pytest.mark.long
def test_a_port_that_was_taken_meanwhile_is_chosen_anew(make_run) -> None:
    # A model function: roles that have a network to themselves find every port free.
    config = make_config("multi_worker", model="small_models:with_batch_norm", workers=2)
    directory, lines = make_run(config), list[str]()
    with socket.socket() as thief:
        thief.listen()
        launcher = FirstOnATakenPort(str(thief.getsockname()[1]))
        supervise(directory, on_event=lambda event: None, log=lines.append, launcher=launcher)
    assert read_json(directory.result_file)["attempts"] == launcher.placed == 2
    assert any("starting again from step 0" in line for line in lines)


def test_a_result_that_is_written_while_the_roles_are_ended_counts(make_run, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = supervisor._watch

    def lose_a_worker(*arguments: Any) -> None:
        watch(*arguments)
        raise supervisor.RoleLost("worker 1 was ended by signal 9")

    monkeypatch.setattr(supervisor, "_watch", lose_a_worker)
    directory = make_run(make_config("single"))
    supervise(directory, on_event=lambda event: None, log=pytest.fail)
    assert len(attempts(directory)) == 1


def test_an_error_without_a_file_is_told_by_what_it_says(make_run) -> None:
    directory = make_run(make_config("multi_worker", workers=2))

    def log(_line: str) -> None:
        raise TimeoutError("the queue did not answer")

    with pytest.raises(RunFailed, match=r"^the run cannot go on: TimeoutError\('the queue did not answer'\)$"):
        supervise(
            directory, on_event=lambda event: None, log=log, launcher=Local(local_tasks(directory.read_config())[:1])
        )


@pytest.mark.long
def test_a_clock_that_jumps_changes_nothing(make_run, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the role by the model's module, here by hand: a jump back by a day and forth by two, again and again."""
    real, jumps = time.time, [0.0, -86400.0, 86400.0]
    monkeypatch.setattr(time, "time", lambda: real() + jumps[int(real() * 2) % 3])
    config = make_config("single", model="small_models:with_jumping_clock", heartbeat_timeout_seconds=5)
    directory = make_run(dataclasses.replace(config, epochs=60))
    supervise(directory, on_event=lambda event: None, log=print)
    result = read_json(directory.result_file)
    epochs = [e["metrics"] for e in directory.read_events() if e["event"] == "epoch"]
    days = [round(e["time"] / 43200) for e in directory.read_events()]
    assert sum(before != after for before, after in pairwise(days)) > 2, "fewer jumps were seen"
    assert result["attempts"] == 1
    assert 0 < result["train_seconds"] < result["wall_seconds"] < 120
    assert all(0 < e["epoch_seconds"] < 60 for e in epochs)
    elapsed = [e["elapsed_seconds"] for e in epochs]
    assert elapsed == sorted(elapsed)


def test_a_run_directory_has_one_launcher(make_run) -> None:
    directory = make_run(make_config("single"))
    with (
        hold_run(directory),
        pytest.raises(InUse, match=r"is in use by process \d+ on .*: wait for it, or end it"),
        hold_run(directory),
    ):
        pass
    with hold_run(directory):
        pass


def test_a_full_disk_ends_the_run_with_a_clear_line(make_run, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", megabytes=1) as disk:
        directory = make_run(make_config("single"), folder=disk)
        with pytest.raises(RunFailed, match=r"checkpoint .*step-\d+ cannot be written: No space left on device"):
            supervise(directory, on_event=lambda event: None, log=print)
        assert len(attempts(directory)) == 1


def test_a_place_is_given_back_where_the_attempt_cannot_be_written_down(
    make_run, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, closed = make_run(make_config("single")), list[LocalPlacement]()
    monkeypatch.setattr(LocalPlacement, "close", lambda placement: closed.append(placement) or frozenset())
    with read_only(directory.path), pytest.raises(OSError, match="Read-only file system"):
        supervise(directory, on_event=lambda event: None, log=print)
    assert len(closed) == 1


def test_a_run_directory_that_cannot_be_written_is_told_of(make_run) -> None:
    directory = make_run(make_config("single"))
    with (
        read_only(directory.path),
        pytest.raises(InputError, match=r"cannot be written: Read-only file system"),
        hold_run(directory),
    ):
        pass


def test_commands_on_several_machines_write_the_roles_down_one_after_the_other(tmp_path: Path) -> None:
    config = make_config("multi_worker", workers=8)
    directory, tasks = RunDirectory(tmp_path), local_tasks(config)
    by_hand = dataclasses.replace(config, cluster=dataclasses.replace(config.cluster, launcher="hand"))

    def write(task: Task) -> None:
        def describe() -> dict[str, object]:
            return {"role": task.role, "index": task.index}

        gang = SimpleNamespace(config=by_hand, run_directory=directory, placement=SimpleNamespace(tasks=tasks))
        gang.roles = [SimpleNamespace(describe=describe)]
        for _ in range(5):
            Gang._write_roles(gang)  # type: ignore[arg-type]

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, tasks))
    assert [role["index"] for role in read_json(directory.roles_file)["roles"]] == list(range(8))
