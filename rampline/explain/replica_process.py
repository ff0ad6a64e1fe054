"""One replica's work in a process of its own: see `rampline.explain.replica`, which starts it."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from rampline.config import RunConfig, from_dict
from rampline.data.dataset import PreparedDataset
from rampline.errors import RunFailed
from rampline.explain.replica import ALLOWANCE_SECONDS, RESULTS
from rampline.files import make_directory, read_json, write_json
from rampline.jobs.tf_config import ALONE
from rampline.jobs.waiting import wait_until
from rampline.training.engine import Engine
from rampline.training.probes import measure_in_turns
from rampline.training.state import make_state
from rampline.training.strategy import configure_devices, replica_devices
from rampline.training.timings import CACHED, ReplicaProbes, Timings, mean_timings
from rampline.training.train import make_engine

POLL_SECONDS = 0.01


def meet(folder: Path, occasion: str, index: int, processes: int) -> None:
    """Wait until all processes, counted from 1, have come so far: each leaves an empty file.

    Raises:
        RunFailed: when one of them does not come.
    """
    make_directory(folder)
    (folder / f"{occasion}.{index}").touch()
    _wait_for((folder / f"{occasion}.{other}" for other in range(1, processes + 1)), occasion)


def _wait_for(files: Iterable[Path], occasion: str) -> None:
    for index, file in enumerate(files, start=1):
        if not wait_until(file.is_file, ALLOWANCE_SECONDS, every=POLL_SECONDS):
            raise RunFailed(f"process {index} did not come to {occasion}")


def probe_replicas(folder: Path, index: int, works: list[dict[str, Any]], processes: int) -> None:
    """Do the part of one process of all `works`, in a folder of its own beside those of the others.

    Args:
        folder: of this process.
        index: its number.
        works: `{"key", "config", "dataset", "batch_size"}` of each.
        processes: how many replicas run at once.
    """
    shared = folder.parent
    for number, work in enumerate(works):
        config, dataset = from_dict(work["config"]), PreparedDataset.open(Path(work["dataset"]))
        if number == 0:
            configure_devices(config)
        keras.backend.clear_session()
        keras.mixed_precision.set_global_policy(config.precision)
        strategy = tf.distribute.OneDeviceStrategy(replica_devices(config)[0])
        engine = make_engine(config, dataset, strategy, make_state(config, dataset, strategy), ALONE)
        out = shared / RESULTS / f"{work['key']}.json"
        if index == 0:
            _measure_alone(engine, config, work["batch_size"], out if processes == 1 else _part(out, 0))
        else:
            _measure_at_once(engine, shared / work["key"], out, index, processes)


def _measure_alone(engine: Engine, config: RunConfig, size: int, out: Path) -> None:
    sizes = {"alone": size, "half": size // 2} if size > 1 else {"alone": size}
    probes = {name: engine.make_probe(CACHED, examples) for name, examples in sizes.items()}
    timings = measure_in_turns(probes, config, average=lambda seconds: seconds)
    alone, half = timings["alone"], timings.get("half")
    ReplicaProbes(alone=alone, half=half, at_once=None, processes=1, batch_size=size).write(out)


def _measure_at_once(engine: Engine, folder: Path, out: Path, index: int, processes: int) -> None:
    """Rounds as long, and as many, as the process that measured alone has made; the first process tells the result."""
    alone = ReplicaProbes.read(_part(out, 0))
    rounds = len(alone.alone.milliseconds)
    steps, milliseconds = alone.alone.steps // rounds, list[float]()
    probe = engine.make_probe(CACHED, alone.batch_size)
    probe(1)
    for number in range(rounds):
        meet(folder, f"round{number}", index, processes)
        milliseconds.append(1000 * probe(steps))
    write_json(_part(out, index), milliseconds)
    if index > 1:
        return
    files = [_part(out, other) for other in range(1, processes + 1)]
    _wait_for(files, "its end")
    shutil.rmtree(folder)
    parts = [read_json(file) for file in files]
    at_once = mean_timings([Timings(milliseconds=tuple(part), steps=alone.alone.steps) for part in parts])
    dataclasses.replace(alone, at_once=at_once, processes=processes).write(out)


def _part(out: Path, index: int) -> Path:
    """What one process has measured."""
    return out.with_suffix(f".{index}.json")
