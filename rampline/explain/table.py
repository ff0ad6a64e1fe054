"""Explanations as rows of text: the same in the terminal and in the report."""

from __future__ import annotations

import math
from collections.abc import Mapping

STEP_PARTS = (
    ("input", "input"),
    ("compute", "compute"),
    ("contention", "contention"),
    ("sync", "sync"),
    ("other", "fixed cost"),
)
NOISE_NOTE = (
    "A part with \N{PLUS-MINUS SIGN} is not told apart from noise of that size: its neighbours may hold it, or it them."
)
RUN_PARTS = (
    ("startup", "start-up"),
    ("tracing", "tracing"),
    ("steps", "steps"),
    ("evaluation", "evaluation"),
    ("checkpoint", "checkpoints"),
    ("logging", "logging"),
    ("unexplained", "unexplained"),
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
