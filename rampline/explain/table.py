"""Explanations as rows of text: the same in the terminal and in the report."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rampline.metrics import Source, from_source


def _parts_of(whole: str) -> tuple[tuple[str, str], ...]:
    """Field and words of each part of `Explanation.step` or `.run`."""
    told = ((*metric.told_as.partition("."), metric.heading) for metric in from_source(Source.EXPLANATION))
    return tuple((part, heading) for outer, _, part, heading in told if outer == whole)


STEP_PARTS, RUN_PARTS = _parts_of("step"), _parts_of("run")
NOISE_NOTE = (
    "A part with \N{PLUS-MINUS SIGN} is not told apart from noise of that size: its neighbours may hold it, or it them."
)


def write_milliseconds(value: float) -> str:
    """`0.42`, `3.1`, `128`."""
    return f"{value:z.2f}" if abs(value) < 1 else f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"


def with_share(value: float, parts: Mapping[str, float], noise: float = math.nan) -> str:
    """Milliseconds or seconds, and their share of all parts: `3.1 (42 %)`; with its noise a part `0.00 ±0.31`."""
    if not math.isnan(noise):
        return f"{write_milliseconds(value)} \N{PLUS-MINUS SIGN}{write_milliseconds(noise)}"
    total = sum(parts.values())
    return f"{write_milliseconds(value)} ({100 * value / total:z.0f} %)" if total else write_milliseconds(value)
