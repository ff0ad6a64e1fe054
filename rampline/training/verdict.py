"""What the difference of two outcomes means: rounding, an error, or a training that rounding alone changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from rampline.parity import ParityResult
from rampline.training.neutral import BATCH_STATISTICS
from rampline.training.outcome import Outcome

# How much further than the shaken reference the strategy may be away: rounding hits every sum, shaking only the start.
EXCUSED_FACTOR = 1e4


def compare(result: ParityResult, ours: Outcome, reference: Outcome) -> ParityResult:
    """`result` with the differences of two outcomes, and what they mean."""
    differences = _variable_differences(ours, reference)
    # NaN is larger than all: a variable that has one is the worst.
    worst = int(np.argmax(np.nan_to_num(differences, nan=np.inf)))
    loss = float(_loss_differences(ours, reference).max())
    status, reason = _judge(result, ours, reference, float(np.maximum(loss, differences[worst])))
    return dataclasses.replace(
        result,
        status=status,
        reason=reason,
        max_loss_diff=finite([loss])[0],
        max_weight_diff=finite([differences[worst]])[0],
        worst_variable=ours.names[worst],
        reference_losses=finite(reference.losses),
    )


def excuse(result: ParityResult, ours: Outcome, reference: Outcome, shaken: Outcome) -> ParityResult:
    """A failed `result`, or `not_applicable` where rounding alone would have done as much.

    An unstable training multiplies every difference by thousands in each step. What tells then is the first figure that
    is beyond the tolerance: after an error it is as large as the error, else about as large as in `shaken`, a reference
    that began with weights changed by a rounding.
    """
    found, by_rounding = _trace(ours, reference), _trace(shaken, reference)
    beyond = np.flatnonzero(~(found <= result.tolerance))
    if not beyond.size or not found[beyond[0]] <= EXCUSED_FACTOR * by_rounding[beyond[0]]:
        return result
    change = f"in {result.steps} steps rounding alone changes the training by {by_rounding.max():.2g}"
    return dataclasses.replace(
        result, status="not_applicable", reason=f"{change}: lower learning_rate.peak or parity.steps to check it"
    )


def finite(values: np.ndarray | Sequence[float]) -> tuple[float | None, ...]:
    """The values, `None` for those that are not finite: JSON has none."""
    return tuple(float(v) if np.isfinite(v) else None for v in values)


def _judge(result: ParityResult, ours: Outcome, reference: Outcome, difference: float) -> tuple[str, str]:
    """Status and reason; `difference` is the largest one found."""
    for who, outcome in (("one replica", reference), ("the strategy", ours)):
        bad = np.flatnonzero(~np.isfinite(outcome.losses))
        if bad.size:
            step = result.first_step + int(bad[0]) + 1
            message = f"the loss is {outcome.losses[bad[0]]} at step {step} on {who}: lower learning_rate.peak"
            return _fixed_statistics_may_diverge(ours, reference), message
    if difference <= result.tolerance:
        return "pass", ""
    if ours.always_random:
        names = ", ".join(ours.always_random)
        return "not_applicable", f"the layer {names} draws random numbers and has no argument `training`"
    if not np.isfinite(difference):
        return "fail", "a variable is not finite after the steps"
    return "fail", f"the replicas train differently: {difference:.3g} is more than rounding ({result.tolerance:g})"


def _fixed_statistics_may_diverge(ours: Outcome, reference: Outcome) -> str:
    """With statistics that do not follow the weights, a deep network may diverge that trains well otherwise."""
    both = not np.isfinite(ours.losses).all() and not np.isfinite(reference.losses).all()
    has_fixed = any(layer.why == BATCH_STATISTICS for layer in ours.neutralised)
    return "not_applicable" if both and has_fixed else "fail"


def _trace(ours: Outcome, reference: Outcome) -> np.ndarray:
    """Difference of the loss at each step, then the largest of the variables."""
    return np.append(_loss_differences(ours, reference), np.max(_variable_differences(ours, reference)))


def _loss_differences(ours: Outcome, reference: Outcome) -> np.ndarray:
    return np.array([_difference(a, b) for a, b in zip(ours.losses, reference.losses, strict=True)])


def _variable_differences(ours: Outcome, reference: Outcome) -> np.ndarray:
    pairs = zip(ours.values, reference.values, ours.spread, strict=True)
    return np.array([np.maximum(_difference(a, b), spread / _scale(b)) for a, b, spread in pairs])


def _difference(value: np.ndarray, reference: np.ndarray) -> float:
    """The largest difference of two elements; relative where there are figures above 1: rounding grows with them."""
    return float(np.abs(value - reference).max(initial=0.0) / _scale(reference))


def _scale(reference: np.ndarray) -> float:
    return float(np.abs(reference).max(initial=1.0))
