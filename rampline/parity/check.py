"""Is the scaled run still the same training? Its first steps against one replica's, before it starts. No TensorFlow."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rampline.config import BatchConfig, RunConfig, to_dict
from rampline.config.sections import AUTO
from rampline.devices import visible_gpu_ids
from rampline.files import JsonData, json_digest
from rampline.jobs.job import Job, JobFailed, run_together
from rampline.jobs.launcher import workers_now
from rampline.jobs.launchers import launcher_of_jobs
from rampline.record.run_directory import RunDirectory

FOLDER, RESULT = "parity", "parity.json"
# Of the batch: what does not fit with a sixteenth of it lacks memory for something else.
HALVINGS = 4
# From the launch to the rendezvous a role imports TensorFlow: a minute on a busy shared machine.
ALLOWANCE_SECONDS = 120
# Float64, once on the strategy and once on one replica, with the compilation of both.
STEP_ALLOWANCE_SECONDS = 120

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Neutralised:
    """A kind of layer that was set to run as in evaluation on both sides, how many of it, and why."""

    layer: str
    count: int
    why: str


@dataclass(frozen=True, kw_only=True)
class ParityResult(JsonData):
    """What the check has found; the content of `parity.json`.

    Attributes:
        status: `pass`, `fail` or `not_applicable`.
        reason: one line: why it failed, or does not apply; empty for `pass`.
        notes: what of the run's own settings the check has replaced.
        steps: that were compared, or whose staleness was measured; `first_step` is 0-based.
        precision: in which was computed: `float64`, or `float32` where the model insists on it.
        tolerance: the largest difference that is rounding.
        max_loss_diff: largest difference of a step's loss, relative where the loss is above 1; `None` where it is not
            finite, or was not measured.
        max_weight_diff: largest difference of a variable's element, optimizer slots and all replicas included; relative
            to the variable's largest element where that is above 1.
        worst_variable: the variable that has it.
        losses: mean loss of each step on the run's strategy, as `reference_losses` on one replica; `None` for a value
            that is not finite.
        mean_staleness: updates of other workers between a step's reading of the weights and its own, in steps.
        seconds: what the check took, start of the processes included.
        configuration: digest of what was checked: an equal one need not be checked again.
    """

    status: str
    reason: str = ""
    notes: tuple[str, ...] = ()
    steps: int = 0
    first_step: int = 0
    global_batch_size: int = 0
    replicas: int = 1
    precision: str = "float64"
    tolerance: float = 0.0
    max_loss_diff: float | None = None
    max_weight_diff: float | None = None
    worst_variable: str | None = None
    losses: tuple[float | None, ...] = ()
    reference_losses: tuple[float | None, ...] = ()
    neutralised: tuple[Neutralised, ...] = ()
    mean_staleness: float | None = None
    max_staleness: int | None = None
    seconds: float = 0.0
    configuration: str = ""

    @property
    def passed(self) -> bool:
        """Whether the run may train: nothing was found to be wrong."""
        return self.status != "fail"

    def sentence(self) -> str:
        """The result in one line."""
        text = f"parity {self.status.replace('_', ' ')}" + (f": {self.reason}" if self.reason else "")
        if self.status == "pass":
            text += f": {self.steps} steps, losses within {self.max_loss_diff:.1g} and weights within "
            text += f"{self.max_weight_diff:.1g} of one replica's ({self.precision})"
        if self.mean_staleness is not None:
            text += f"; updates are {self.mean_staleness:.1f} steps stale on average, {self.max_staleness} at most"
        return text


def parity_config(config: RunConfig) -> RunConfig:
    """The run as it is checked: its training, without what only makes it faster or keeps a record."""
    return dataclasses.replace(config, precision="float32", xla=False, checkpoint_every_steps=0, log_examples=False)


def parity_notes(config: RunConfig) -> tuple[str, ...]:
    """What `parity_config` changes of a run and a reader should know."""
    notes = {
        f"precision={config.precision}: checked in float64": config.precision != "float32",
        "the skipping of a step that overflows: checked in mixed_float16": (
            config.precision == "mixed_float16" and config.is_synchronous
        ),
        "xla=true: checked without XLA": config.xla,
    }
    return tuple(note for note, holds in notes.items() if holds)


def result_file(run_directory: RunDirectory) -> Path:
    """Where the result of a run's check lies."""
    return run_directory.path / FOLDER / RESULT


def check_parity(run_directory: RunDirectory, *, log: Log) -> ParityResult:
    """Check a run that is created; one that passed with the same settings is not checked again.

    The roles are those of the run, on this machine; an elastic run is checked with the workers that there is room for,
    and again with another number of them. Whatever ends this call, no role is alive afterwards. Takes about ten seconds
    and twice `parity.steps` steps in float64.

    Raises:
        RunFailed: when a role ends without an answer, naming its log.
        InputError: when a role finds the configuration wrong.
    """
    config, path = run_directory.read_config(), result_file(run_directory)
    workers = workers_now(launcher_of_jobs(config), config)
    digest = _digest(run_directory, config, workers)
    if path.is_file():
        earlier = ParityResult.read(path)
        if earlier.configuration == digest and earlier.passed:
            return earlier
        path.unlink()
    started = time.monotonic()
    if config.strategy == "single":
        result = ParityResult(status="not_applicable", reason="one replica: there is nothing to compare")
    else:
        result = _check_within_memory(run_directory, config, workers, path, log)
    result = dataclasses.replace(result, seconds=round(time.monotonic() - started, 3), configuration=digest)
    result.write(path)
    return result


def _check_within_memory(
    run_directory: RunDirectory, config: RunConfig, workers: int | None, path: Path, log: Log
) -> ParityResult:
    """The check with the run's global batch; where memory does not take it, with the half, the quarter, … of it.

    With `batch.accumulate: auto` in twice as many micro-batches, … as long as a share has examples for them.
    """
    on_one, notes = _on_one_machine(config)
    size = smallest = config.global_batch_size
    parts = 1 if config.batch.accumulate == AUTO else config.batch.accumulate
    halvings = 0
    while True:
        try:
            result = _run_roles(run_directory, _with_batch(on_one, size, parts), workers, path, log)
        except JobFailed as error:
            if not error.lacks_memory:
                raise
            if config.batch.accumulate == AUTO and 2 * parts <= math.ceil(size / on_one.num_replicas_in_sync):
                parts *= 2
                log(f"{error}: checking in {parts} micro-batches a step")
                continue
            smallest, size, halvings = size, size // 2, halvings + 1
            if size < config.replicas or halvings > HALVINGS:
                break
            log(f"{error}: checking with a global batch of {size} instead of {smallest}")
            continue
        if size < config.global_batch_size:
            notes += (f"global batch {config.global_batch_size}: checked with {size}, which memory takes",)
        return dataclasses.replace(result, notes=(*result.notes, *notes))
    reason = f"there is no memory for the check, in float64, with a global batch of {smallest} either"
    return ParityResult(status="not_applicable", reason=reason, replicas=config.replicas, notes=notes)


def _with_batch(config: RunConfig, size: int, parts: int) -> RunConfig:
    """The run with a global batch of that size, in so many micro-batches, but no more than a share has examples."""
    parts = min(parts, math.ceil(size / config.num_replicas_in_sync))
    batch, rate = BatchConfig(size=size, per="global", accumulate=parts), config.learning_rate
    # The batch may scale the peak below the floor.
    floorless = dataclasses.replace(config, batch=batch, learning_rate=dataclasses.replace(rate, floor=0.0))
    floor = min(rate.floor, floorless.peak_learning_rate)
    return dataclasses.replace(floorless, learning_rate=dataclasses.replace(rate, floor=floor))


def _on_one_machine(config: RunConfig) -> tuple[RunConfig, tuple[str, ...]]:
    """The run with all its roles on this machine, and what a reader should know of it.

    Roles of several machines may need more GPUs than this one has: then each replica is a process on the processors.
    """
    if config.strategy == "mirrored" or not os.environ.get("TF_CONFIG"):
        return config, ()
    place = "GPUs"
    if len(visible_gpu_ids()) < config.replicas:
        place = "processors"
        spread = dataclasses.replace(config.cluster, workers=config.replicas, replicas=1, virtual_devices=1)
        config = dataclasses.replace(config, cluster=spread)
    return config, (f"several machines: checked with {config.replicas} replicas on the {place} of this one",)


def _digest(run_directory: RunDirectory, config: RunConfig, workers: int | None) -> str:
    """Of all that decides what is computed; a failed check is repeated in any case."""
    content = {"config": to_dict(config), "dataset": run_directory.read_identity().dataset}
    content |= {"workers": workers} if workers not in (None, config.cluster.workers) else {}
    return json_digest(content)


def _run_roles(
    run_directory: RunDirectory, config: RunConfig, workers: int | None, path: Path, log: Log
) -> ParityResult:
    steps = config.parity.steps
    against = (
        "" if config.strategy == "parameter_server" and config.replicas > 1 else " against one replica, in float64"
    )
    log(f"parity: {steps} steps of {config.strategy} x{config.replicas}{against}")
    job = Job(
        function="parity",
        what="parity check",
        folder=path.parent,
        folders=[run_directory.path, path.parent],
        datasets=[Path(run_directory.read_identity().dataset)],
        arguments={"run_directory": str(run_directory.path), "config": to_dict(parity_config(config))},
        timeout_seconds=ALLOWANCE_SECONDS + config.cluster.rendezvous_timeout_seconds + steps * STEP_ALLOWANCE_SECONDS,
        ends_first=True,
    )
    placement = launcher_of_jobs(config).place(config, workers=workers)
    shutil.rmtree(job.folder / "logs", ignore_errors=True)
    run_together(placement, [(task, job) for task in placement.tasks])
    result, there = ParityResult.read(path), placement.tasks[0].workers
    if there < config.cluster.workers:
        fewer = f"checked with {there} of {config.cluster.workers} workers"
        result = dataclasses.replace(result, notes=(*result.notes, fewer))
    return result
