"""Faults in real runs: roles that are killed or frozen at a chosen moment, and what it cost to go on."""

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rampline.config import RunConfig
from rampline.files import read_json, write_json
from rampline.jobs.local import Local, LocalPlacement
from rampline.jobs.supervisor import supervise
from rampline.jobs.waiting import wait_until
from rampline.record.checkpoints import last_checkpoint
from rampline.record.run_directory import RunDirectory

MOMENTS = ("start-up", "mid-epoch", "checkpoint", "evaluation")
# What a role's heartbeat file says it is at.
CALLS = {"mid-epoch": "train", "checkpoint": "save", "evaluation": "evaluate"}
WAIT_SECONDS = 180


@dataclass(frozen=True)
class Hold:
    """A role of a run of `small_models:with_all_state` that stands still in a step, until it is killed or let go.

    Attributes:
        directory: the run, not started yet.
        role: `ROLE-INDEX`.
        step: of each process of that role, counted from 1 from its start: every attempt stands still.
    """

    directory: RunDirectory
    role: str
    step: int

    def __post_init__(self) -> None:
        write_json(self.directory.path / "hold.json", {"role": self.role, "step": self.step})

    def await_stop(self) -> None:
        """Wait until it stands still; it counts as gone on from now."""
        held = self.directory.path / "held"
        assert wait_until(held.is_file, WAIT_SECONDS, every=0.01)
        held.unlink()

    def forget(self) -> None:
        """It is dead, and stood still until then; `await_stop` waits for the next."""
        (self.directory.path / "held").unlink(missing_ok=True)

    def let_go(self) -> None:
        """From now on nothing stands still."""
        (self.directory.path / "hold.json").unlink()


@dataclass(eq=False)
class Faults(threading.Thread):
    """Hits one role at one kind of moment, `count` times, each time in a run that has come back since.

    Attributes:
        directory: the run.
        role: `ROLE-INDEX` that is hit.
        moment: one of `MOMENTS`, or where the `hold` is.
        number: the signal.
        seed: of the random delays after the moment has begun.
        at: `time.time()` of each hit.
    """

    directory: RunDirectory
    role: str
    moment: str | Hold
    count: int = 1
    number: signal.Signals = signal.SIGKILL
    seed: int = 0
    at: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(name=f"faults-{self.role}", daemon=True)
        self._random = random.Random(f"{self.role} {self.moment} {self.seed}")

    def run(self) -> None:
        hit = 0
        while len(self.at) < self.count:
            hit = self._wait(lambda known=hit: self._other_pid(known))
            if isinstance(self.moment, Hold):
                self.moment.await_stop()
                if len(self.at) + 1 == self.count:
                    self.moment.let_go()
            elif self.moment == "start-up":
                time.sleep(self._random.uniform(0, 5))
            else:
                # Some epochs in, so that there is a checkpoint behind and work in front.
                self._wait(self._has_progress)
                time.sleep(self._random.uniform(0, 0.5))
                self._wait(lambda call=CALLS[self.moment]: self._is_at(call))
                time.sleep(self._random.uniform(0, 0.02))
            if self.directory.is_complete:
                return
            moment = time.time()
            with contextlib.suppress(ProcessLookupError):  # it was ended with a gang that was lost before
                os.kill(hit, self.number)
                self.at.append(moment)

    def _wait(self, condition):
        deadline = time.monotonic() + WAIT_SECONDS
        while not (found := condition()):
            if self.directory.is_complete or time.monotonic() > deadline:
                raise SystemExit
            time.sleep(0.0005 if self.moment in ("checkpoint", "evaluation") else 0.01)
        return found

    def _other_pid(self, known: int) -> int | None:
        if not self.directory.roles_file.is_file():
            return None
        roles = read_json(self.directory.roles_file)["roles"]
        pid = next((r["pid"] for r in roles if f"{r['role']}-{r['index']}" == self.role), None)
        return pid if pid and pid != known and Path(f"/proc/{pid}").is_dir() else None

    def _has_progress(self) -> bool:
        """Whether training has gone on since the last hit."""
        since = self.at[-1] if self.at else 0.0
        return any(e["event"] == "progress" and e["time"] > since for e in self.directory.read_events())

    def _is_at(self, call: str) -> bool:
        chief = next(iter(sorted(self.directory.path.glob("heartbeats/chief-0"))), None)
        file = chief or self.directory.heartbeat_file("worker-0")
        return file.is_file() and call.encode() in file.read_bytes()


class Places(Local):
    """The launcher of this machine with places for so many workers, which a test takes away and gives back."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.places = places

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def room(self, config: RunConfig, *, avoid: Collection[str] = ()) -> int:
        return self.places

    def place(self, config: RunConfig, *, avoid: Collection[str] = (), workers: int | None = None) -> LocalPlacement:
        return super().place(config, workers=workers and min(workers, self.places))


@dataclass
class Resizes:
    """Hears a run's events, and changes its number of workers: each loss is a `kill -9` of the last one.

    Attributes:
        directory: the run.
        sizes: the workers of each attempt, one after the other.
        epochs: that an attempt trains before the next change.
    """

    directory: RunDirectory
    sizes: tuple[int, ...]
    epochs: int

    def __post_init__(self) -> None:
        self.launcher = Places(self.sizes[0])
        self._attempt = self._told = 0

    def hear(self, event: dict) -> None:
        if event["event"] == "started":
            self._attempt, self._told = event["attempt"], 0
        self._told += event["event"] == "epoch"
        if event["event"] != "epoch" or self._told != self.epochs or self._attempt == len(self.sizes):
            return
        size, self.launcher.places = self.sizes[self._attempt - 1], self.sizes[self._attempt]
        if self.launcher.places < size:
            roles = read_json(self.directory.roles_file)["roles"]
            os.kill(next(role["pid"] for role in roles if role["index"] == size - 1), signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What one fault cost. Times in seconds from the signal; steps are updates."""

    detected_after: float
    resumed_after: float
    steps_repeated: int


def run_with(faults: Faults, lines: list[str] | None = None) -> list[Recovery]:
    """Supervise the run to its end while `faults` hits it; returns what each hit cost."""
    faults.start()
    said = lines if lines is not None else []
    supervise(faults.directory, on_event=lambda event: None, log=said.append)
    faults.join(timeout=30)
    assert len(faults.at) == faults.count, f"only {len(faults.at)} of {faults.count} faults hit: {said}"
    return recoveries(faults.directory, faults.at)


def recoveries(directory: RunDirectory, hits: list[float]) -> list[Recovery]:
    """When each hit was noticed, when training went on, and how many steps were done again."""
    events = directory.read_events()
    lines = [json.loads(line) for line in directory.attempts_file.read_text().splitlines()]
    found = []
    for hit in hits:
        ended = next((e for e in lines if e["time"] >= hit and e["event"] in ("ended", "restarted")), None)
        assert ended, "a fault that nobody noticed"
        lost = (
            ended["time"] - (ended["seconds"] - ended["lost_after_seconds"])
            if "lost_after_seconds" in ended
            else ended["time"]
        )
        # The others may have completed the run without the one that was hit.
        told = [e["time"] for e in events if e["event"] in ("progress", "finished")]
        resumed = next((at for at in told if at > ended["time"]), hit)
        found.append(
            Recovery(detected_after=lost - hit, resumed_after=resumed - hit, steps_repeated=steps_repeated(events, hit))
        )
    return found


def steps_repeated(events: list[dict], hit: float) -> int:
    """Steps told of before the hit that the next attempt did again."""
    per_epoch = next(e["steps_per_epoch"] for e in events if e["event"] == "started")
    before = [(e["epoch"] - 1) * per_epoch + e["step"] for e in events if e["event"] == "progress" and e["time"] < hit]
    after = next((e["first_step"] for e in events if e["event"] == "started" and e["time"] > hit), None)
    return max(0, max(before, default=0) - after) if after is not None else 0


def final_variables(directory: RunDirectory) -> dict[str, bytes]:
    """The bits of all arrays of the newest checkpoint."""
    checkpoint = last_checkpoint(directory.checkpoints)
    assert checkpoint is not None
    with np.load(checkpoint / "variables.npz") as arrays:
        return {name: array.tobytes() for name, array in arrays.items()}


def assert_bit_equal(ours: RunDirectory, theirs: RunDirectory) -> None:
    """Both runs have ended with the same bits in all model and optimizer variables."""
    found, wanted = final_variables(ours), final_variables(theirs)
    assert sorted(found) == sorted(wanted)
    assert wanted
    assert [name for name in wanted if found[name] != wanted[name]] == []


def examples_seen(directory: RunDirectory) -> dict[int, list[int]]:
    """Examples of every step, where the workers of an attempt may be fewer: as it was done by all of them.

    A step that was done again must have used the same: the whole one, and of as many workers each worker's part.
    """
    workers = {e["attempt"]: e["workers"] for e in directory.read_events("started")}
    parts: dict[tuple[int, int], list[list[int]]] = {}
    own: dict[tuple[str, int, int | None], list[int]] = {}
    for file in sorted((directory.path / "examples").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            for step, examples in enumerate(entry["examples"], entry["first_step"]):
                parts.setdefault((step, entry["attempt"]), []).append(examples)
                part = own.setdefault((file.stem, step, workers.get(entry["attempt"])), examples)
                assert part == examples, f"step {step} of {file.stem} used other examples"
    seen: dict[int, list[int]] = {}
    for (step, attempt), of_workers in sorted(parts.items()):
        if len(of_workers) == workers.get(attempt):
            whole = [example for part in of_workers for example in part]
            assert seen.setdefault(step, whole) == whole, f"step {step} of attempt {attempt} used other examples"
    return seen
