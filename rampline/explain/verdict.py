"""The verdict in one sentence: what holds a run back, how much of each step that is, and what would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rampline.config import RunConfig
from rampline.explain.parts import StepParts
from rampline.explain.probes import StrategyProbes
from rampline.explain.table import write_milliseconds

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
        bound: `input`, `compute`, `contention`, `sync` or `overhead`: the largest part of its step.
        share: that part of the step, in [0, 1].
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
    """The verdict on a run; `noise`: of the parts that are not told apart from it, see `noise_of_parts`."""
    values = {name: getattr(parts, name) for name in BOUNDS}
    part = max(values, key=lambda name: values[name])
    share = values[part] / parts.total
    reason, remedy = _words(config, part, parts, probes)
    gain = 1 / max(1 - share, 1 / MOST_GAIN)
    if remedy.startswith(PREFETCH):
        gain = _overlap(probes)
    what = f"{100 * share:.0f} % of each {write_milliseconds(parts.total)} ms step"
    help_ = f"{remedy} {_write_gain(gain)}" if part != "compute" else remedy
    noise = noise or {}
    others = [name for name in values if name != part and name not in noise and values[name] > 0]
    if share < HALF and others:
        second = max(others, key=lambda name: values[name])
        help_ += f"; next comes {NAMES[second]} with {100 * values[second] / parts.total:.0f} %"
    if noise:
        told = "is" if len(noise) == 1 else "are"
        help_ += f"; {_and([NAMES[name] for name in noise])} {told} not told apart from noise"
    sentence = f"{BOUNDS[part]}-bound: {what} {reason}; {help_}"
    return Verdict(bound=BOUNDS[part], share=share, gain=gain, sentence=sentence)


def _write_gain(gain: float) -> str:
    if gain >= MOST_GAIN:
        return "more than can be measured: hardly anything else is left of the step"
    return f"at most {gain:.1f}\N{MULTIPLICATION SIGN}"


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


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
