"""What a run would take that was never run: its step, its stages, its cost, and how sure that is. No TensorFlow.

From what one replica takes, and a few at once, to what many would take:

- *Work*: alone it takes T(1), as `few` at once T(few). On the cores of one machine each doubling costs the same factor
  as long as there are cores, then twice: T(n) = T(1) g^log2(min(n, cores)) max(1, n / cores). On devices of their own n
  take what `few` have taken.
- *Sums of gradients*: the latency-bandwidth model of a ring, alpha (n - 1) + beta 2 (n - 1) / n bytes (Thakur,
  Rabenseifner and Gropp, 2005). Where replicas are more than the cores, who waits for a core sends and answers late.
- *Start-up and tracing*: processes on the same cores take turns too; one process does it for its replicas in turn.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from rampline.config import RunConfig
from rampline.devices import available_cores, find_devices
from rampline.explain.explanation import BOUNDS
from rampline.explain.parts import RunParts, StepParts, steady_epochs
from rampline.files import JsonData, read_json
from rampline.forecast.machine_types import MachineType
from rampline.forecast.reading import FEW_REPLICAS, Reading
from rampline.record.attempts import read_environments, read_workers
from rampline.record.home import Home
from rampline.record.metric import Source
from rampline.record.metrics import to_log
from rampline.record.provenance import this_machine
from rampline.record.run_directory import RunDirectory
from rampline.study.execution_file import find_executions

# Before anything was forecast in this home: the relative error, one standard deviation, of a set-up with the number of
# replicas and the batches that were read; and of one with other replicas, or a batch beyond, for each doubling.
PRIOR, PRIOR_PER_DOUBLING = 0.08, 0.05
# Of a run with several replicas, whose cost for each other could not be read.
UNREAD = 0.25
# Of a machine that somebody has described.
UNSEEN = 0.3
# What a sample of that prior would weigh: as many forecasts of this home count as much.
PRIOR_RUNS = 4
LATEST_RUNS = 50
# What a file that another version has written, or a crash, raises: it is as if it were not there.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, StopIteration, ZeroDivisionError)
CONFIDENCE = 0.9
# What five values range over is so many of their standard deviations.
RANGE_OF_FIVE = 2.33


@dataclass(frozen=True, kw_only=True)
class Forecast(JsonData):
    """Content of `forecast.json`, which is written before the run.

    Attributes:
        step: parts of a training step in milliseconds; the last one of an epoch may have fewer images.
        run: parts of the wall time in seconds.
        images_per_second: of training.
        deviation: standard deviation of the logarithm of what comes out, before any forecast of this home is counted.
        factor: images/s lie, with a probability of 90 %, between those here divided by this and those here times this;
            1 where no `Calibration` was applied, as in files of earlier versions.
        wall_factor: the same of wall time and cost.
        source: what it is from: `readings`, or `run` for an earlier run with the same settings.
    """

    step: StepParts
    run: RunParts
    images_per_second: float
    epochs: int
    deviation: float
    factor: float = 1.0
    wall_factor: float = 1.0
    source: Literal["readings", "run"] = "readings"

    @property
    def wall_seconds(self) -> float:
        """The clock of the bill."""
        return self.run.total

    @property
    def epoch_seconds(self) -> float:
        """Of the steps of an epoch."""
        return self.run.steps / self.epochs

    @property
    def least_seconds(self) -> float:
        """Wall time up to the end of the first epoch."""
        once = self.run.startup + self.run.tracing
        return once + (self.run.steps + self.run.evaluation + self.run.checkpoint) / self.epochs

    @property
    def bound(self) -> str:
        """The largest part of the step, in the words of an explanation."""
        return BOUNDS[max(BOUNDS, key=lambda name: getattr(self.step, name))]

    def cost_usd(self, price_per_hour: float | None) -> float | None:
        """Wall time at that price."""
        return None if price_per_hour is None else self.wall_seconds / 3600 * price_per_hour

    def figures(self, price_per_hour: float | None) -> dict[str, Any]:
        """The figures by the names they have in MLflow."""
        told = dataclasses.asdict(self) | {"wall_seconds": self.wall_seconds}
        told |= {"within": self.wall_factor - 1} if self.wall_factor > 1 else {}
        cost = self.cost_usd(price_per_hour)
        return to_log(Source.FORECAST, told | ({} if cost is None else {"cost_usd": cost}))


def faster(forecast: Forecast, reference: Forecast) -> tuple[float, float]:
    """Images/s by the reference's, and the factor of its interval: as if both erred independently of each other."""
    factor = math.exp(math.hypot(math.log(forecast.factor), math.log(reference.factor)))
    return forecast.images_per_second / reference.images_per_second, factor


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How good the forecasts of a home were.

    Attributes:
        errors: log(outcome / forecast) by its deviation, of the images/s of each run that was forecast and is complete,
            on this machine.
        wall_errors: the same of wall times.
    """

    errors: Sequence[float] = ()
    wall_errors: Sequence[float] = ()

    @classmethod
    def of(cls, home: Home) -> Calibration:
        """From the runs of a home, the latest ones."""
        found = (RunDirectory(file.parent) for each in find_executions(home) for file in each.glob("*/forecast.json"))
        errors: list[float] = []
        wall_errors: list[float] = []
        here = this_machine()
        for directory in found:
            with suppress(*UNREADABLE):
                if directory.is_complete and counts_here(directory, here):
                    _add_errors(directory, errors, wall_errors)
            if len(errors) == LATEST_RUNS:
                break
        return cls(errors=errors, wall_errors=wall_errors)

    def applied(self, forecast: Forecast) -> Forecast:
        """The forecast with the intervals that follow."""
        factor, wall_factor = (_factor(errors, forecast.deviation) for errors in (self.errors, self.wall_errors))
        return dataclasses.replace(forecast, factor=factor, wall_factor=wall_factor)


def _factor(errors: Sequence[float], deviation: float) -> float:
    from scipy.special import stdtrit  # no part of SciPy should delay the first step of a study

    runs = PRIOR_RUNS + len(errors)
    # By how much earlier forecasts were worse than they claimed; the prior is 1.
    scale = math.sqrt((PRIOR_RUNS + sum(error**2 for error in errors)) / runs)
    return math.exp(float(stdtrit(runs, (1 + CONFIDENCE) / 2)) * scale * deviation)


def counts_here(directory: RunDirectory, here: Mapping[str, str]) -> bool:
    """Whether no attempt of a run was on another machine, but for the nodes of a cluster, or had fewer workers.

    The nodes are the same for all. An attempt by an earlier version tells no machine. A host that has another number of
    cores by now counts as another machine, and so does one that trained on its CPU and would on its GPUs now, or the
    other way round. How many GPUs an attempt saw is for the settings to say. `here` is `this_machine`.
    """
    cluster = read_json(directory.config_file)["cluster"]
    if {*read_workers(directory.attempts_file)} - {cluster["workers"]}:
        return False
    if cluster.get("launcher") in ("ray", "slurm"):
        return True
    own = {**here, "gpus": "none"} if cluster.get("virtual_devices") else here
    return all(_fits(told, own) for told in read_environments(directory.attempts_file).values())


def _fits(told: Mapping[str, str], own: Mapping[str, str]) -> bool:
    """Whether an attempt was on such a machine, as far as it tells."""
    on_cpu = [each.get("gpus", own["gpus"]) == "none" for each in (told, own)]
    return on_cpu[0] == on_cpu[1] and all(told.get(key, own[key]) == own[key] for key in ("host", "cpu cores"))


def _add_errors(directory: RunDirectory, errors: list[float], wall_errors: list[float]) -> None:
    forecast, result = Forecast.read(directory.forecast_file), read_json(directory.result_file)
    epochs = steady_epochs(directory.read_events("started", "epoch"))
    if speeds := [metrics["images_per_second"] for metrics in epochs if metrics.get("images_per_second")]:
        errors.append(math.log(statistics.median(speeds) / forecast.images_per_second) / forecast.deviation)
    # Of a run that went on to its last epoch at the first start: a quote knows nothing of faults, stops and rungs.
    if result["attempts"] == 1 and result["epochs"] == forecast.epochs and not directory.rungs.is_dir():
        wall_errors.append(math.log(result["wall_seconds"] / forecast.wall_seconds) / forecast.deviation)


def place_of(config: RunConfig) -> Place:
    """Where the replicas of a run would compute, as far as can be known before."""
    is_local = config.cluster.launcher == "local"
    is_on_cores = bool(config.cluster.virtual_devices) or (is_local and not find_devices().gpus)
    return Place(is_shared=is_on_cores, cores=available_cores())


def forecast_run(
    config: RunConfig,
    one: Reading,
    few: Reading | None,
    *,
    train_examples: int,
    validation_examples: int,
    machine: MachineType | None = None,
) -> Forecast:
    """What a run would take.

    Args:
        config: the run.
        one: with one replica.
        few: with the run's strategy; `None` where the run has one replica, or this machine has no place for more.
        train_examples: images of an epoch.
        validation_examples: images of an evaluation.
        machine: on which; by default as the readings were made.
    """
    law = _Law(config, one, few, place_of(config), machine)
    step, steps = law.step(train_examples), config.steps_per_epoch(train_examples)
    whole, rest = divmod(train_examples, config.global_batch_size)
    epoch_seconds = (whole * step.total + (law.step(rest).total if rest else 0.0)) / 1000
    # A best epoch is saved, too, and nobody knows how many there will be: half of the others.
    saved = (math.ceil(config.epochs / config.checkpoint_every_epochs) + config.epochs) / 2
    if config.checkpoint_every_steps:
        saved += config.epochs * steps // config.checkpoint_every_steps
    run = RunParts(
        startup=law.of_process("startup_seconds"),
        tracing=law.of_process("tracing_seconds"),
        steps=config.epochs * epoch_seconds,
        evaluation=config.epochs * law.evaluation(validation_examples) + law.of_process("evaluation_tracing_seconds"),
        checkpoint=saved * (few or one).checkpoint_seconds,
        logging=one.logging_seconds,
        unexplained=0.0,
    )
    return Forecast(
        step=step,
        run=run,
        images_per_second=train_examples / epoch_seconds,
        epochs=config.epochs,
        deviation=law.deviation(config.share_of(train_examples)),
    )


@dataclass(frozen=True)
class _Law:
    """What follows from the readings for so many replicas."""

    config: RunConfig
    one: Reading
    few: Reading | None
    place: Place
    machine: MachineType | None

    @property
    def replicas(self) -> int:
        return self.config.replicas

    def step(self, examples: int) -> StepParts:
        """With a global batch of `examples`, at most a full one."""
        size = self.config.share_of(examples)
        real, cached = (_at(self.one, kind, size) for kind in ("real", "cached"))
        fixed = min(max(2 * _at(self.one, "cached", max(1, size // 2)) - cached, 0.0), cached) if size > 1 else 0.0
        alone = {"input": real - cached, "compute": cached - fixed, "other": fixed}
        few, sync = self.few, 0.0
        if self.machine:
            # A pipeline that takes less than nothing is noise, which a faster machine would not divide.
            alone["input"] = max(0.0, alone["input"])
            alone["compute"] /= self.machine.compute
            sync = self.machine.all_reduce_ms(self.one.gradient_bytes, self.replicas)
        if self.machine or few is None:
            parts = StepParts(**alone, contention=0.0, sync=sync)
            # An update is that of any worker.
            return parts if self.config.is_synchronous else parts.scaled(1 / self.replicas)
        if not self.config.is_synchronous:
            return self._asynchronous(few, size, cached, fixed)
        sync = max(0.0, few.update.median - self.one.update.median) if few.update and self.one.update else 0.0
        work = {"of": few.replicas, "replicas": self.replicas}
        real = self.place.work(real, max(_at(few, "real", size) - sync, real / 2), **work)
        busy = self.place.work(cached, max(_at(few, "cached", size) - sync, cached / 2), **work)
        return StepParts(
            input=real - busy,
            compute=cached - fixed,
            contention=busy - cached,
            sync=self.place.all_reduce(sync, few.latency_ms, **work),
            other=fixed,
        )

    def _asynchronous(self, few: Reading, size: int, cached: float, fixed: float) -> StepParts:
        """Of an update: each worker makes one in the time of a cycle, and they take turns."""
        work = {"of": few.replicas, "replicas": self.replicas}
        cycle = {kind: self.place.in_turns(few.replicas * _at(few, kind, size), **work) for kind in ("real", "cached")}
        parts = StepParts(
            input=cycle["real"] - cycle["cached"],
            compute=cached - fixed,
            contention=0.0,
            sync=cycle["cached"] - cached,
            other=fixed,
        )
        return parts.scaled(1 / self.replicas)

    def of_process(self, name: str) -> float:
        """Of what every process does, side by side; one process with several replicas does it for each in turn."""
        one = getattr(self.one, name)
        if self.few is None:
            return one
        few, of = getattr(self.few, name), self.few.replicas
        if self.config.strategy == "mirrored":
            return few + max(0.0, few - one) * (self.replicas - of) / (of - 1)
        workers = self.config.cluster.workers
        return few if self.machine else self.place.in_turns(few, of=FEW_REPLICAS, replicas=workers)

    def evaluation(self, images: int) -> float:
        one, few = _evaluation(self.one, images), self.few and _evaluation(self.few, images)
        if self.machine:
            return one / self.machine.compute / self.replicas
        if self.few is None or few is None:
            return one
        return self.place.shared_work(one, few, of=self.few.replicas, replicas=self.replicas)

    def deviation(self, size: int) -> float:
        """Of the rounds, and of the law, as the square root of the sum of squares."""
        reading = self.few or self.one
        sizes = reading.batch_sizes
        _, nearest = min(zip(sizes, reading.real, strict=True), key=lambda pair: abs(pair[0] - size))
        rounds = (max(nearest.milliseconds) - min(nearest.milliseconds)) / nearest.median / RANGE_OF_FIVE
        beyond = math.log2(max(size / sizes[-1], sizes[0] / size, 1.0))
        known = math.hypot(rounds, PRIOR, PRIOR_PER_DOUBLING * beyond)
        if self.machine:
            return math.hypot(known, UNSEEN)
        if self.few is None:
            return math.hypot(known, UNREAD if self.replicas > 1 else 0.0)
        doublings = abs(math.log2(self.replicas / self.few.replicas))
        return math.hypot(known, PRIOR_PER_DOUBLING * doublings)


def _at(reading: Reading, kind: str, size: int) -> float:
    return between(reading.batch_sizes, [timings.median for timings in getattr(reading, kind)], size)


def _evaluation(reading: Reading, images: int) -> float:
    return between(reading.evaluation_images, reading.evaluation_seconds, images)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where replicas compute.

    Attributes:
        is_shared: whether they share one machine's cores; else each has a device of its own.
        cores: of that machine.
    """

    is_shared: bool
    cores: int

    def work(self, one: float, few: float, *, of: int, replicas: int) -> float:
        """What the work of a replica takes with so many at once; `few` is that of `of`, 2 or more, at once."""
        if replicas == 1:
            return one
        if not self.is_shared:
            return few
        per_doubling = math.log(max(few / self._turns(of) / one, 1e-9)) / math.log2(self._apart(of))
        return one * math.exp(per_doubling * math.log2(self._apart(replicas))) * self._turns(replicas)

    def shared_work(self, one: float, few: float, *, of: int, replicas: int) -> float:
        """The same of a work that is divided among the replicas, such as an evaluation."""
        if not self.is_shared:
            return one if replicas == 1 else few * of / replicas
        return self.work(one, few, of=of, replicas=min(replicas, max(self.cores, of)))

    def all_reduce(self, few: float, latency: float, *, of: int, replicas: int) -> float:
        """What a sum over so many replicas takes.

        Args:
            few: over `of` replicas.
            latency: of the smallest sum over them: the part that does not depend on the bytes.
            of: 2 or more.
            replicas: 1 or more.
        """
        waiting = min(few, latency)
        over_more = waiting * (replicas - 1) / (of - 1) + (few - waiting) * self._ring(replicas) / self._ring(of)
        return self.in_turns(over_more, of=of, replicas=replicas)

    def in_turns(self, few: float, *, of: int, replicas: int) -> float:
        """What so many take side by side where `of` take `few`: more where they are more than the cores."""
        return few * self._turns(replicas) / self._turns(of)

    def _apart(self, replicas: int) -> int:
        """As many of them as have cores of their own, or would on the smallest machine: two."""
        return min(replicas, max(2, self.cores)) if self.is_shared else replicas

    def _turns(self, replicas: int) -> float:
        return replicas / self._apart(replicas)

    def _ring(self, replicas: int) -> float:
        """What a replica sends, by the bytes of its gradients."""
        apart = self._apart(replicas)
        return 2 * (apart - 1) / apart


def between(sizes: Sequence[int], values: Sequence[float], size: int) -> float:
    """The value at `size` on the line through the two nearest sizes; no less than the smallest of the values' share.

    Args:
        sizes: ascending, at least one.
        values: measured there.
        size: also outside them.
    """
    if len(sizes) == 1:
        return values[0] * size / sizes[0]
    right = next((i for i in range(1, len(sizes) - 1) if size <= sizes[i]), len(sizes) - 1)
    left = right - 1
    slope = (values[right] - values[left]) / (sizes[right] - sizes[left])
    line = values[left] + slope * (size - sizes[left])
    return max(line, values[0] * min(1.0, size / sizes[0]))
