"""The explanation of a run: where its time went, what holds it back, and what the machine allows."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rampline.config import RunConfig
from rampline.explain.parts import RunParts, StepParts, noise_of_parts, run_parts, steady_epochs, step_parts
from rampline.files import JsonData, read_json
from rampline.record.metric import Source
from rampline.record.metrics import from_source, to_log
from rampline.record.run_directory import RunDirectory
from rampline.record.units import TIMES, list_names
from rampline.training.timings import ReplicaProbes, StrategyProbes


def _parts_of(whole: str) -> tuple[tuple[str, str], ...]:
    """Field and words of each part of `Explanation.step` or `.run`."""
    told = ((*metric.told_as.partition("."), metric.heading) for metric in from_source(Source.EXPLANATION))
    return tuple((part, heading) for outer, _, part, heading in told if outer == whole)


STEP_PARTS, RUN_PARTS = _parts_of("step"), _parts_of("run")
NOISE_NOTE = (
    "\N{PLUS-MINUS SIGN} is half of the interval that the median of the rounds of the probes lies in. A part that is "
    "not above it has no share: its neighbours may hold it, or it them."
)


def write_milliseconds(value: float) -> str:
    """`0.42`, `3.1`, `128`."""
    return f"{value:z.2f}" if abs(value) < 1 else f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"


def with_share(value: float, parts: Mapping[str, float], noise: float = math.nan) -> str:
    """Milliseconds or seconds with their noise, if it is known, and their share of all parts: `3.1 ±0.2 (42 %)`."""
    text, total = write_milliseconds(value), sum(parts.values())
    if not math.isnan(noise):
        text += f" \N{PLUS-MINUS SIGN}{write_milliseconds(noise)}"
    return text if value <= noise or not total else f"{text} ({100 * value / total:z.0f} %)"


def table_of_parts(
    parts: tuple[tuple[str, str], ...],
    rows: Mapping[str, Mapping[str, float]],
    noise: Mapping[str, Mapping[str, float]],
) -> Iterator[tuple[str, ...]]:
    """The head and a row for each run, as texts: its parts, each `with_share`, and their total; all by run and part."""
    yield ("run", *(words for _, words in parts), "total")
    for run, row in rows.items():
        known = noise.get(run, {})
        shares = (with_share(row[key], row, known.get(key, math.nan)) for key, _ in parts)
        yield (run, *shares, write_milliseconds(sum(row.values())))


PREFETCH = "data.prefetch=auto"
# A gain below this is no remedy.
WORTH_IT = 1.15
# A part below this share of the step is not all there is to say.
HALF = 0.5
# The rest of a step is not measured to less than a hundredth of it.
MOST_GAIN = 100.0
BOUNDS = {"input": "input", "compute": "compute", "contention": "contention", "sync": "sync", "other": "overhead"}

NAMES = {
    "input": "the input",
    "compute": "computing",
    "contention": "sharing the hardware",
    "sync": "keeping the replicas in step",
    "other": "the fixed cost",
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What holds a run back.

    Attributes:
        bound: `input`, `compute`, `contention`, `sync` or `overhead`: the largest part of its step. Two of them, such
            as `input or compute`, where the probes do not tell which is the larger.
        share: the larger part of the step, in [0, 1].
        gain: how many times faster a step could be at most if the part could be taken away; `MOST_GAIN` for more.
        sentence: all of it for a person, with what would help.
    """

    bound: str
    share: float
    gain: float
    sentence: str


def judge(
    config: RunConfig, parts: StepParts, probes: StrategyProbes, noise: Mapping[str, float] | None = None
) -> Verdict:
    """The verdict on a run; `noise`: of its parts, see `noise_of_parts`."""
    values, noise = {name: getattr(parts, name) for name in BOUNDS}, noise or {}
    first, second, *_ = sorted(BOUNDS, key=lambda name: -values[name])
    share = _share_of(first, values)
    shares = {name: min(value / parts.total, 1 - share) for name, value in values.items()} | {first: share}
    gain = _gain(config, first, share, probes)
    lost = [name for name in noise if values[name] <= noise[name] and name != first]
    step = f"of each {write_milliseconds(parts.total)} ms step"
    noises = noise.get(first, 0.0), noise.get(second, 0.0)
    # Compute and fixed cost share the step of one replica: what one has too much, the other has too little.
    uncertain = sum(noises) if {first, second} == {"compute", "other"} else math.hypot(*noises)
    if values[first] - values[second] <= uncertain:
        causes, helps = [], []
        for name in (first, second):
            reason, remedy = _words(config, name, parts, probes)
            causes.append(f"{100 * shares[name]:.0f} % {reason}")
            helps.append(_with_gain(name, remedy, _gain(config, name, shares[name], probes)))
        bound = f"{BOUNDS[first]} or {BOUNDS[second]}"
        sentence = f"{bound}, not told apart: {step}, {causes[0]}, and {causes[1]}; {'; '.join(helps)}"
        return Verdict(bound=bound, share=share, gain=gain, sentence=sentence)
    reason, remedy = _words(config, first, parts, probes)
    help_ = _with_gain(first, remedy, gain)
    others = [name for name in values if name not in (first, *lost) and values[name] > 0]
    if share < HALF and others:
        second = max(others, key=lambda name: values[name])
        help_ += f"; next comes {NAMES[second]} with {100 * shares[second]:.0f} %"
    if lost:
        told = "is" if len(lost) == 1 else "are"
        help_ += f"; {list_names([NAMES[name] for name in lost])} {told} not told apart from noise"
    sentence = f"{BOUNDS[first]}-bound: {100 * share:.0f} % {step} {reason}; {help_}"
    return Verdict(bound=BOUNDS[first], share=share, gain=gain, sentence=sentence)


def _gain(config: RunConfig, part: str, share: float, probes: StrategyProbes) -> float:
    if part == "input" and _input_remedy(config, probes) == PREFETCH:
        return _overlap(probes)
    return 1 / max(1 - share, 1 / MOST_GAIN)


def _share_of(largest: str, values: Mapping[str, float]) -> float:
    """The largest part's share of the step, in [0, 1]: with parts below 0 it may be told larger than the step.

    What contention is told too large, sync is too small: both are differences from the replicas at once.
    """
    values = dict(values)
    if largest not in ("contention", "sync"):
        values |= {"contention": values["contention"] + values["sync"], "sync": 0.0}
    others = sum(max(0.0, value) for name, value in values.items() if name != largest)
    total = sum(values.values())
    return max(0.0, min(values[largest], total - others) / total)


def _with_gain(part: str, remedy: str, gain: float) -> str:
    if part == "compute":
        return remedy
    most = "more than can be measured: hardly anything else is left of the step"
    return f"{remedy} {most if gain >= MOST_GAIN else f'at most {gain:.1f}{TIMES}'}"


def _words(config: RunConfig, part: str, parts: StepParts, probes: StrategyProbes) -> tuple[str, str]:
    match part:
        case "input":
            alone = write_milliseconds(probes.pipeline.median)
            reason = f"waits for the input pipeline, which needs {alone} ms for a batch alone"
            return reason, f"{_input_remedy(config, probes)} would give"
        case "compute":
            remedy = "a faster device or a lower precision is what is left"
            if config.replicas > 1 and not parts.sync + parts.other + parts.contention:
                return "is computing and keeping the replicas in step, which were not measured apart", remedy
            return "is the network's own work on its examples", remedy
        case "contention":
            reason = f"is lost because {config.replicas} replicas share processors and memory here"
            return reason, "devices of their own would give"
        case "sync":
            reason = "goes into the all-reduce between the replicas"
            if not config.is_synchronous:
                reason = "goes into reading and updating the variables on the parameter servers"
            return reason, "a larger batch per replica or a faster network would give"
        case _:
            reason = "is a fixed cost that does not shrink with the batch (launching operations, the update)"
            calls = config.engine == "loop" and config.steps_per_call == 1
            return reason, ("steps_per_call=auto or a larger batch" if calls else "a larger batch") + " would give"


def _input_remedy(config: RunConfig, probes: StrategyProbes) -> str:
    # `auto` has taken memory, or there is no room for it.
    can_have_memory = config.data.cache in ("disk", "none")
    if config.data.prefetch == "off" and _overlap(probes) >= WORTH_IT:
        without_pipeline = probes.real.median / probes.cached.median
        # It costs nothing, so it comes first, unless memory would give more than twice as much.
        if not can_have_memory or without_pipeline <= 2 * _overlap(probes):
            return PREFETCH
    if can_have_memory:
        return "data.cache=memory"
    return "a faster pipeline"


def _overlap(probes: StrategyProbes) -> float:
    """How many times faster a step is if the pipeline works while it computes: the slower of both decides."""
    return max(1.0, probes.real.median / max(probes.cached.median, probes.pipeline.median))


@dataclass(frozen=True, kw_only=True)
class Explanation(JsonData):
    """Content of `explanation.json`.

    Attributes:
        step: parts of the run's usual training step, in milliseconds: in the proportions that the probes have found.
        run: parts of the wall time, in seconds.
        verdict: what holds the run back.
        ceiling_images_per_second: what as many independent replicas reach at once on this machine, with no all-reduce
            and no pipeline; `None` where it was not measured.
        noise: milliseconds by part of `step`: see `noise_of_parts`.
        slowdown: the usual step divided by the probed one: away from 1, the machine was busier, or idler, while the run
            trained than while it was probed.
    """

    step: StepParts
    run: RunParts
    verdict: Verdict
    ceiling_images_per_second: float | None
    slowdown: float
    noise: dict[str, float] = dataclasses.field(default_factory=dict)

    def figures(self) -> dict[str, float | None]:
        """The figures by the names they have in MLflow."""
        return to_log(Source.EXPLANATION, dataclasses.asdict(self))


def explain_run(run_directory: RunDirectory) -> Explanation:
    """Explain a complete run whose probes were made.

    Args:
        run_directory: with `probes.json`, and `replica.json` if one replica's work was measured.
    """
    config = run_directory.read_config()
    probes = StrategyProbes.read(run_directory.probes_file)
    replica = ReplicaProbes.read(run_directory.replica_file) if run_directory.replica_file.is_file() else None
    events, result = run_directory.read_events("started", "epoch", "checkpoint"), read_json(run_directory.result_file)
    is_alone = config.is_synchronous and config.replicas == 1
    how: Any = {"is_alone": is_alone, "updates_at_once": 1 if config.is_synchronous else config.cluster.workers}
    probed = step_parts(probes, replica, **how).of_share(_mean_share(config, events))
    epochs = [metrics["epoch_seconds"] for metrics in steady_epochs(events)]
    # One epoch alone holds the tracing.
    usual = 1000 * statistics.median(epochs) * result["epochs"] / result["steps"] if epochs else probed.total
    slowdown = usual / probed.total
    step = probed.scaled(slowdown)
    noise = {part: ms * slowdown for part, ms in noise_of_parts(probes, replica, **how).items()}
    return Explanation(
        step=step,
        run=run_parts(events, result, step_milliseconds=usual),
        verdict=judge(config, step, probes, noise),
        ceiling_images_per_second=replica and _ceiling(config, replica),
        slowdown=slowdown,
        noise=noise,
    )


def _ceiling(config: RunConfig, replica: ReplicaProbes) -> float:
    at_once = replica.at_once or replica.alone
    return 1000 * replica.batch_size * config.replicas / at_once.median


def _mean_share(config: RunConfig, events: list[dict[str, Any]]) -> float:
    """The mean batch of an epoch by a whole one: the last one may be smaller."""
    (*_, images) = (event["train_examples"] for event in events if event["event"] == "started")
    return images / config.steps_per_epoch(images) / min(images, config.global_batch_size)
