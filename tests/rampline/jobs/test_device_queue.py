"""The queue for devices, between real processes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from command_line import wait_until

from rampline.config import RunConfig
from rampline.config.sections import ClusterConfig
from rampline.devices import find_devices
from rampline.errors import ClusterConfigError
from rampline.jobs.device_queue import Ticket, devices_of, hold_devices
from rampline.record.home import Home

HOLD = """
import sys, time
from pathlib import Path
from rampline.jobs.device_queue import Ticket, hold_devices
from rampline.record.home import Home
root, name, submitted_at, devices, slots, seconds = sys.argv[1:]
ticket = Ticket(name=name, submitted_at=float(submitted_at), devices=int(devices))
def say(text):
    with open(f"{root}/log", "a") as log:
        log.write(f"{name} {text}\\n")
with hold_devices(Home(root=Path(root)), ticket, slots=int(slots), log=lambda text: say(text)) as granted:
    say(f"has [{', '.join(granted)}]")
    time.sleep(float(seconds))
    say("leaves")
"""


class Queue:
    def __init__(self, root: Path) -> None:
        self.root, self.processes = root, []

    def start(self, name: str, *, at: float, devices: int = 1, slots: int = 1, seconds: float = 60.0):
        arguments = [str(self.root), name, str(at), str(devices), str(slots), str(seconds)]
        self.processes.append(subprocess.Popen([sys.executable, "-c", HOLD, *arguments]))
        return self.processes[-1]

    @property
    def log(self) -> list[str]:
        file = self.root / "log"
        return file.read_text().splitlines() if file.is_file() else []

    def until(self, *lines: str) -> None:
        wait_until(lambda: all(line in self.log for line in lines), 30)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    queue = Queue(tmp_path)
    yield queue
    for process in queue.processes:
        process.kill()
        process.wait()


def test_one_device_is_given_in_the_order_of_submission(queue: Queue):
    queue.start("first", at=100, seconds=3)
    queue.until("first has [0]")
    # The later one arrives earlier.
    queue.start("third", at=300, seconds=0)
    queue.until("third waiting for 1 device: first has the machine")
    queue.start("second", at=200, seconds=0.5)
    for process in queue.processes:
        assert process.wait(30) == 0
    moves = [line for line in queue.log if "waiting" not in line]
    assert moves == [
        "first has [0]",
        "first leaves",
        "second has [0]",
        "second leaves",
        "third has [0]",
        "third leaves",
    ]
    assert not list(queue.root.glob("devices/*/*.json"))


def test_a_run_without_devices_counts_as_work_and_waits_for_nobody(queue: Queue):
    queue.start("first", at=1)
    queue.until("first has [0]")
    queue.start("virtual", at=2, devices=0)
    queue.until("virtual has []")
    first, _ = queue.processes
    first.kill()
    first.wait()
    queue.start("third", at=3)
    queue.until("third has [0]")
    assert len(list(queue.root.glob("devices/*/*.json"))) == 2


def test_a_holder_that_is_killed_frees_its_devices(queue: Queue):
    first = queue.start("first", at=1)
    queue.until("first has [0]")
    queue.start("second", at=2, seconds=0)
    queue.until("second waiting for 1 device: first has the machine")
    began = time.monotonic()
    first.kill()
    queue.until("second has [0]")
    assert time.monotonic() - began < 5


def test_nobody_is_overtaken_by_one_who_needs_less(queue: Queue):
    first = queue.start("one of two", at=1, slots=2)
    queue.until("one of two has [0]")
    queue.start("both", at=2, devices=2, slots=2, seconds=0)
    queue.until("both waiting for 2 devices: one of two has the machine")
    queue.start("other of two", at=3, slots=2, seconds=0)
    queue.until("other of two waiting for 1 device: one of two has the machine")
    first.kill()
    queue.until("both has [0, 1]", "other of two has [0]")
    moves = [line for line in queue.log if " has [" in line]
    assert moves == ["one of two has [0]", "both has [0, 1]", "other of two has [0]"]


def test_what_never_fits_is_refused(tmp_path: Path):
    ticket = Ticket(name="digits/e1", submitted_at=1, devices=3)
    with (
        pytest.raises(ClusterConfigError, match="digits/e1 needs 3 devices at once: cpu-slots allows 2"),
        hold_devices(Home(root=tmp_path), ticket, slots=2, log=print),
    ):
        pass


@pytest.mark.usefixtures("four_gpus")
def test_gpus_are_told_apart_by_their_own_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A command may see some GPUs of its machine only; who sees others is not waited for, even who waits."""
    home, tickets = Home(root=tmp_path), (Ticket(name=f"{n}", submitted_at=n, devices=1) for n in range(4))

    def hold(visible: str):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        slots = len(visible.split(","))
        return hold_devices(home, next(tickets), slots=slots, log=pytest.fail)

    with hold("1") as first, hold("0,1,2") as second, hold("3") as third, hold("0,2,3") as fourth:
        assert (first, second, third, fourth) == (("1",), ("0",), ("3",), ("2",))


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize("told_by", ["driver", "nvidia-smi"])
def test_a_gpu_that_is_named_in_two_ways_is_one(told_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for number, file in enumerate(sorted((tmp_path / "driver").glob("*/information"))):
        uuid = f"GPU-{number}f2a-77" if told_by == "driver" else "GPU-????????-????"
        file.write_text(f"{file.read_text()}GPU UUID: \t {uuid}\n")
    listed = "".join(f"echo 'GPU {number}: NVIDIA H200 (UUID: GPU-{number}f2a-77)'\n" for number in range(4))
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{listed}")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    home, tickets = Home(root=tmp_path), (Ticket(name=f"{n}", submitted_at=n, devices=1) for n in range(3))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1f2a,0")
    with hold_devices(home, next(tickets), slots=2, log=pytest.fail) as first:
        assert (first, os.environ["CUDA_VISIBLE_DEVICES"]) == (("1",), "GPU-1f2a")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-2f2a-77")
        with hold_devices(home, next(tickets), slots=2, log=pytest.fail) as second:
            assert (second, os.environ["CUDA_VISIBLE_DEVICES"]) == (("2",), "GPU-2f2a-77")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        with pytest.raises(BlockingIOError), hold_devices(home, next(tickets), slots=1, log=_refuse):
            pass


@pytest.mark.usefixtures("four_gpus")
def test_fewer_gpus_than_there_are_may_be_in_use(queue: Queue):
    home = Home(root=queue.root)
    with hold_devices(home, Ticket(name="a", submitted_at=1, devices=1), slots=2, log=pytest.fail):
        os.environ["CUDA_VISIBLE_DEVICES"] = "0,1,2,3"  # as of a command that was started beside it
        ticket = Ticket(name="b", submitted_at=2, devices=2)
        with pytest.raises(BlockingIOError), hold_devices(home, ticket, slots=2, log=_refuse):
            pass


def _refuse(text: str) -> None:
    raise BlockingIOError(text)


def test_each_slurm_job_has_devices_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ticket = Ticket(name="digits/e1", submitted_at=1, devices=1)
    with ExitStack() as stack:
        for job in ("17", "18", ""):
            monkeypatch.setenv("SLURM_JOB_ID", job)
            stack.enter_context(hold_devices(Home(root=tmp_path), ticket, slots=1, log=pytest.fail))


@pytest.mark.usefixtures("four_gpus")
def test_each_holder_sees_its_own_gpus_alone(tmp_path: Path):
    home = Home(root=tmp_path / "home")
    first = Ticket(name="first", submitted_at=1, devices=1)
    second = Ticket(name="second", submitted_at=2, devices=2)
    with hold_devices(home, first, slots=4, log=print):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
        assert find_devices().count == 1
    subprocess_holder = Queue(tmp_path / "home")
    process = subprocess_holder.start("other", at=1, slots=4)
    try:
        subprocess_holder.until("other has [0]")
        with hold_devices(home, second, slots=4, log=print):
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "1,2"
    finally:
        process.kill()
        process.wait()
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("config", "devices"),
    [
        (RunConfig(), 1),
        (RunConfig(strategy="mirrored", cluster=ClusterConfig(replicas=4)), 4),
        (RunConfig(strategy="mirrored", cluster=ClusterConfig(replicas=2, virtual_devices=2)), 0),
        (RunConfig(strategy="multi_worker", cluster=ClusterConfig(workers=2)), 2),
        (RunConfig(strategy="parameter_server", cluster=ClusterConfig(workers=3, parameter_servers=1)), 3),
        (RunConfig(strategy="multi_worker", cluster=ClusterConfig(workers=8)), 4),
    ],
)
def test_a_run_holds_its_gpus(config: RunConfig, devices: int):
    assert devices_of(config) == devices


def test_without_gpus_a_run_holds_the_processor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    config = RunConfig(strategy="mirrored", cluster=ClusterConfig(replicas=4, virtual_devices=4))
    assert devices_of(config) == 1


def test_a_long_name_has_a_ticket_too(tmp_path: Path) -> None:
    ticket = Ticket(name="study /data/" + 300 * "x", submitted_at=1.0, devices=1)
    with hold_devices(Home(root=tmp_path), ticket, slots=1, log=print) as granted:
        assert len(granted) == 1
