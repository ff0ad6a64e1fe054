"""The process of a trial: it measures a candidate against the settings before, in turns."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from rampline.config import RunConfig, from_dict
from rampline.data.dataset import PreparedDataset
from rampline.jobs.exit_status import one_line
from rampline.jobs.job import EVENTS
from rampline.jobs.memory import available_bytes, is_out_of_memory, peak_bytes
from rampline.jobs.tf_config import ALONE
from rampline.record.events import EventWriter
from rampline.training.state import make_state
from rampline.training.strategy import configure_devices, make_strategy
from rampline.training.timings import REAL
from rampline.training.train import make_engine
from rampline.tuning.trial import DOES_NOT_FIT, FAILED, MEASURED, Rounds

ROUNDS = 5
ROUND_SECONDS = 0.5
# A candidate that is below this share of the speed before in two rounds is not measured any further.
HOPELESS = 0.8


class Variant:
    """Settings that make timed steps on the run's data, from fresh weights."""

    def __init__(self, config: RunConfig, dataset: PreparedDataset, strategy: tf.distribute.Strategy) -> None:
        keras.mixed_precision.set_global_policy(config.precision)
        state = make_state(config, dataset, strategy)
        self.is_compiled = state.compiled_with is not None
        self._probe = make_engine(config, dataset, strategy, state, ALONE).make_probe(REAL)
        self._config, self._examples, self._step = config, dataset.splits["train"], 0
        self.run(1)
        self.run(1)
        seconds = self.run(1)[1]
        steps = max(1, min(16, int(ROUND_SECONDS / 2 / seconds)))
        self.seconds_per_step = self.run(steps)[1] / steps

    def run(self, steps: int) -> tuple[int, float]:
        """Images and seconds of the next `steps` steps: the last batch of an epoch may be smaller."""
        seconds = steps * self._probe(steps)
        # Model.fit is timed from the end of its first step.
        first = self._step + (self._config.engine == "fit")
        self._step = first + steps
        return self._images_until(first + steps) - self._images_until(first), seconds

    def _images_until(self, step: int) -> int:
        epochs, steps = divmod(step, self._config.steps_per_epoch(self._examples))
        return epochs * self._examples + steps * self._config.global_batch_size


def measure_trial(folder: Path, before: dict[str, Any], after: dict[str, Any], dataset: str) -> dict[str, Any]:
    """The job of the tuner; tells `ready`, and whether the model is a compiled one, when the settings before run.

    Returns:
        `status`, and `rounds` or the `reason` why there are none.
    """
    free = available_bytes()
    configs, prepared = [from_dict(before), from_dict(after)], PreparedDataset.open(Path(dataset))
    configure_devices(configs[0])
    strategy = make_strategy(configs[0])
    reference = Variant(configs[0], prepared, strategy)
    EventWriter(folder / EVENTS).write("ready", is_compiled=reference.is_compiled)
    devices = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices("GPU")]
    for device in devices:
        tf.config.experimental.reset_memory_stats(device)
    try:
        rounds = _compare(reference, Variant(configs[1], prepared, strategy))
    except Exception as error:  # noqa: BLE001 - whatever it is, the next candidate may work
        return {"status": DOES_NOT_FIT if is_out_of_memory(error) else FAILED, "reason": one_line(error)}
    peaks = [tf.config.experimental.get_memory_info(device)["peak"] for device in devices] or [peak_bytes()]
    rounds = dataclasses.replace(rounds, memory_bytes=max(peaks), free_bytes=None if devices else free)
    return {"status": MEASURED, "rounds": dataclasses.asdict(rounds)}


def _compare(before: Variant, after: Variant) -> Rounds:
    """Rounds in which the two take turns, each the first one every other time."""
    figures: dict[Variant, list[float]] = {before: [], after: []}
    steps = max(2, math.ceil(ROUND_SECONDS / max(before.seconds_per_step, after.seconds_per_step)))
    rounds = Rounds(before=(), after=())
    for number in range(ROUNDS):
        for variant in (before, after) if number % 2 == 0 else (after, before):
            images, seconds = variant.run(steps)
            figures[variant].append(images / seconds)
        rounds = Rounds(before=tuple(figures[before]), after=tuple(figures[after]))
        if number and max(rounds.ratios) < HOPELESS:
            break
    return rounds
