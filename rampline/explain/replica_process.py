"""One replica's work in a process of its own: see `rampline.explain.replica`, which starts it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from rampline.config import RunConfig, from_dict
from rampline.data.dataset import PreparedDataset
from rampline.errors import RunFailed
from rampline.explain.replica import ALLOWANCE_SECONDS, RESULTS, count_processes
from rampline.files import make_directory, read_json, write_json
from rampline.jobs.tf_config import ALONE
from rampline.training.engine import Engine
from rampline.training.probes import Probe, measure_in_turns
from rampline.training.state import make_state
from rampline.training.strategy import configure_devices, replica_devices
from rampline.training.timings import CACHED, ReplicaProbes, Timings, mean_timings
from rampline.training.train import make_engine

POLL_SECONDS = 0.01


class Meeting:
    """A place where the processes wait for each other: one empty file per process and occasion."""

    def __init__(self, folder: Path, index: int, processes: int) -> None:
        self._folder, self._index, self._processes = folder, index, processes
        make_directory(folder)

    def arrive(self, occasion: str) -> None:
        """Say that this process has come so far."""
        (self._folder / f"{occasion}.{self._index}").touch()

    def wait(self, occasion: str, indices: range | None = None) -> None:
        """Wait until the processes `indices`, all unless given, have said so.

        Raises:
            RunFailed: when one of them does not.
        """
        deadline = time.monotonic() + ALLOWANCE_SECONDS
        for index in range(self._processes) if indices is None else indices:
            while not (self._folder / f"{occasion}.{index}").is_file():
                if time.monotonic() > deadline:
                    raise RunFailed(f"process {index} did not come to {occasion}")
                time.sleep(POLL_SECONDS)

    def end(self) -> None:
        """Leave nothing: no process waits any more."""
        shutil.rmtree(self._folder)


def probe_replicas(folder: Path, index: int, works: list[dict[str, Any]], processes: int) -> None:
    """Do the part of one process of all `works`, in a folder of its own beside those of the others.

    Args:
        folder: of this process.
        index: its number.
        works: `{"key", "config", "dataset", "batch_size"}` of each.
        processes: how many replicas run at once.
    """
    shared, count = folder.parent, count_processes(processes)
    for number, work in enumerate(works):
        config, dataset = from_dict(work["config"]), PreparedDataset.open(Path(work["dataset"]))
        if number == 0:
            configure_devices(config)
        keras.backend.clear_session()
        keras.mixed_precision.set_global_policy(config.precision)
        meeting = Meeting(shared / work["key"], index, count)
        out = shared / RESULTS / f"{work['key']}.json"
        _probe(config, dataset, work["batch_size"], meeting, index, count, out)


def _probe(
    config: RunConfig, dataset: PreparedDataset, size: int, meeting: Meeting, index: int, processes: int, out: Path
) -> None:
    engine = _make_engine(config, dataset)
    probe = engine.make_probe(CACHED, size)
    probe(1)
    meeting.arrive("compiled")
    meeting.wait("compiled")
    if index:
        _measure_at_once(probe, meeting, out.with_suffix(""), index, processes)
        return
    halves = {"half": engine.make_probe(CACHED, size // 2)} if size > 1 else {}
    timings = measure_in_turns({"alone": probe, **halves}, config, average=lambda seconds: seconds)
    rounds = len(timings["alone"].milliseconds)
    steps = timings["alone"].steps // rounds
    write_json(out.with_suffix(".steps.json"), [steps, rounds])
    meeting.arrive("alone")
    for number in range(rounds):
        meeting.arrive(f"round{number}")
    at_once = None
    if processes > 1:
        meeting.wait("measured", range(1, processes))
        parts = [read_json(_part(out.with_suffix(""), other)) for other in range(1, processes)]
        at_once = mean_timings([Timings(milliseconds=tuple(part), steps=steps * rounds) for part in parts])
    meeting.end()
    ReplicaProbes(
        alone=timings["alone"],
        half=timings.get("half"),
        at_once=at_once,
        processes=max(1, processes - 1),
        batch_size=size,
    ).write(out)


def _measure_at_once(probe: Probe, meeting: Meeting, out: Path, index: int, processes: int) -> None:
    meeting.wait("alone", range(1))
    steps, rounds = read_json(out.with_suffix(".steps.json"))
    milliseconds = []
    for number in range(rounds):
        meeting.arrive(f"round{number}")
        meeting.wait(f"round{number}")
        milliseconds.append(1000 * probe(steps))
    write_json(_part(out, index), milliseconds)
    meeting.arrive("measured")


def _part(out: Path, index: int) -> Path:
    return out.with_suffix(f".{index}.json")


def _make_engine(config: RunConfig, dataset: PreparedDataset) -> Engine:
    strategy = tf.distribute.OneDeviceStrategy(replica_devices(config)[0])
    return make_engine(config, dataset, strategy, make_state(config, dataset, strategy), ALONE)
