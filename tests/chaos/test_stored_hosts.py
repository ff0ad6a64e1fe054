"""A study on a machine that is lost with its disk, or frozen and revived; another goes on, from the object store."""

import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults import assert_bit_equal, examples_seen
from hosts import Host, why_not
from stored_hosts import StoredHosts, make_stored_hosts, processes_below
from table import Table

from rampline.record.checkpoints import last_checkpoint, step_of
from rampline.record.run_directory import RunDirectory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]
# The run of `make_chaos_config("multi_worker")`.
STUDY = """
name: stored
base:
  strategy: multi_worker
  epochs: 20
  model: {name: "small_models:with_all_state"}
  data: {source: digits}
  batch: {size: 12, per: global}
  steps_per_call: 4
  optimizer: {name: adam}
  learning_rate: {peak: 0.001}
  checkpoint_every_steps: 50
  log_examples: true
  parity: {steps: 0}
  explain: {steps: 0}
  cluster: {workers: 2, heartbeat_timeout_seconds: 15}
runs:
  workers: {}
"""
EXECUTION = "stored/e1"
STARTED_SECONDS = 120


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[StoredHosts]:
    with make_stored_hosts(tmp_path) as made:
        yield made


@pytest.fixture
def study(tmp_path: Path) -> str:
    file = tmp_path / "stored.yaml"
    file.write_text(STUDY)
    return str(file)


def begin(bed: StoredHosts, host: Host, study: str) -> tuple:
    """The study on a host, once it has trained for two epochs."""
    command = bed.run(host, study, "--execution", "e1")
    run = bed.directory(host, EXECUTION, "workers")
    bed.wait_for(lambda: len(run.read_events("epoch")) >= 2, STARTED_SECONDS, "two epochs")
    return command, run


def trained(run: RunDirectory) -> int:
    """The last step that it has told of."""
    last = run.read_events("progress")[-1]
    return (last["epoch"] - 1) * last["steps_per_epoch"] + last["step"]


def test_a_machine_is_lost_with_its_disk(bed, study: str, uninterrupted: Callable, table: Table) -> None:
    first, second = bed.machines
    command, run = begin(bed, first, study)
    done = trained(run)
    bed.hosts.power_off(first)
    command.wait(timeout=30)
    _, stored, _ = bed.look(EXECUTION)
    assert 0 < stored <= done + 50

    assert not bed.home.exists()
    began = time.time()
    again = bed.run(second, study, "--resume")
    continued = bed.directory(second, EXECUTION, "workers")
    bed.wait_for(lambda: continued.events_file.is_file(), 60, "the execution on the other host")
    bed.wait_for(lambda: continued.read_events("started")[-1]["time"] > began, STARTED_SECONDS, "training")
    started = continued.read_events("started")[-1]
    bed.wait_for(lambda: again.poll() is not None, 240, "the end of the study")
    assert again.returncode == 0, bed.said()
    # Nothing that was in the store is done again.
    assert started["first_step"] == stored
    assert_bit_equal(continued, uninterrupted("multi_worker"))
    seen, whole = examples_seen(continued), examples_seen(uninterrupted("multi_worker"))
    assert seen == whole
    assert "test accuracy is" in bed.log(second).read_text()
    goes_on = next(e["time"] for e in continued.read_events("progress") if e["time"] > started["time"]) - began
    row = ("host powered off with its disk, `--resume` on another, from S3; multi_worker", "mid-epoch", "1", "-")
    table.add_row(*row, f"{goes_on:.1f}", str(max(0, done - stored)), "weights bit-equal, same examples")


def test_a_machine_comes_back_after_another_has_gone_on(bed, study: str, uninterrupted: Callable, table: Table) -> None:
    """Frozen, as a virtual machine is, with all that it had in memory."""
    first, second = bed.machines
    command, _ = begin(bed, first, study)
    frozen = processes_below(command)
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    again = bed.run(second, study, "--resume")
    owner = ""

    def goes_on() -> bool:
        nonlocal owner
        owner, _, _ = bed.look(EXECUTION)
        return owner.startswith("0002-")

    bed.wait_for(goes_on, STARTED_SECONDS, "the second owner")
    revived = time.monotonic()
    for process in frozen:
        process.send_signal(signal.SIGCONT)
    command.send_signal(signal.SIGCONT)  # `nsenter` stops with what it waits for
    status = command.wait(timeout=120)
    ended = time.monotonic() - revived
    assert status == 1, bed.said()
    said = bed.log(first).read_text().splitlines()[-1]
    assert re.fullmatch(r"rampline: error: e1 goes on in process \d+ of h1, from what s3://bucket/team had", said), (
        bed.said()
    )
    assert not [process for process in frozen if process.is_running()]
    bed.wait_for(lambda: again.poll() is not None, 240, "the end of the study")
    assert again.returncode == 0, bed.said()
    continued = bed.directory(second, EXECUTION, "workers")
    assert_bit_equal(continued, uninterrupted("multi_worker"))
    assert examples_seen(continued) == examples_seen(uninterrupted("multi_worker"))
    last = last_checkpoint(continued.checkpoints)
    assert last
    assert bed.look(EXECUTION) == (owner, step_of(last), [owner])
    row = ("host frozen, and revived after another had gone on from S3; multi_worker", "mid-epoch", "1")
    table.add_row(*row, f"{ended:.1f} (ended)", "-", "0", "the older writes nothing there; weights bit-equal")
