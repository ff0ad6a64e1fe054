"""Ratios within one run: variants take turns, round after round, in fresh processes or as processes that wait."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from benchmarks.process import TurnTaker, VariantError, run_variant

QUICK_ROUNDS = 2
# Variants that take turns begin afresh after so many: blocks of one process have its luck in common.
ROUNDS_OF_A_PROCESS = 5
ROUNDS_IN_TURNS = 2 * ROUNDS_OF_A_PROCESS
PACKAGES = ("rampline", "tensorflow", "keras", "prefect", "mlflow", "numpy")

Figures = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way of doing it: a command run in a fresh process whose last line of standard output is a JSON object.

    The object holds figures (numbers). The process finds `RAMPLINE_BENCH_FOLDER` (a folder for data, kept until the
    whole benchmark ends) and, in the quick mode, `RAMPLINE_BENCH_QUICK=1` in its environment.

    Attributes:
        arguments: after `python -m`.
        takes_turns: it stays for `ROUNDS_OF_A_PROCESS` rounds, and times a block in each (`variants.turns`).
    """

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float = 300.0
    takes_turns: bool = False

    @property
    def command(self) -> str:
        """The command that repeats it alone."""
        settings = [f"{name}={value}" for name, value in self.environment.items()]
        return " ".join([*settings, "python -m", *self.arguments])


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A row of the table: the ratio of two variants' figures in each round, or one variant's figure itself.

    Attributes:
        figure: key in the variants' objects: `examples_per_second`, `seconds`, `peak_mib`, `checkpoint_share`.
        variants: the ratio is the first one's figure over the second one's; of one alone its figure counts.
        target: `None` reports only.
        at_least: whether the ratio must be at least `target`, or at most.
        together: measurements of one non-empty name run in the same rounds, and share variants that are equal.
    """

    key: str
    title: str
    figure: str
    variants: tuple[Variant, ...]
    target: float | None = None
    at_least: bool = True
    rounds: int = 5
    in_quick: bool = True
    about: str = ""
    together: str = ""

    def ratio(self, figures: Figures) -> float | None:
        """Of one round (variant to figures); None where a variant has no figure."""
        values = [figures.get(variant.command, {}).get(self.figure) for variant in self.variants]
        if None in values:
            return None
        return values[0] / values[1] if len(values) > 1 else values[0]

    def is_met(self, ratio: float) -> bool | None:
        """Whether the ratio is on the right side of the target; None without one."""
        if self.target is None:
            return None
        return ratio >= self.target if self.at_least else ratio <= self.target


@dataclass(kw_only=True)
class Rounds:
    """Measurements that run together: every variant once in each round, which starts with the next one each time.

    Attributes:
        tell: gets a line for what starts, and for what fails.
    """

    measurements: list[Measurement]
    rounds: int
    tell: Callable[[str], None] = print
    failures: list[str] = field(default_factory=list)
    _waiting: dict[str, TurnTaker] = field(default_factory=dict)

    def run(self) -> dict[str, dict[str, Any]]:
        """The results by the measurements' keys."""
        variants = list({c.command: c for m in self.measurements for c in m.variants}.values())
        outcomes: list[dict[str, dict[str, Any]]] = []
        dropped: dict[str, str] = {}
        try:
            for number in range(self.rounds):
                if number % ROUNDS_OF_A_PROCESS == 0:
                    self._end_waiting()
                outcomes.append({})
                shift = number % len(variants)
                for variant in [*variants[shift:], *variants[:shift]]:
                    if variant.command in dropped:
                        continue
                    self.tell(f"round {number + 1}/{self.rounds}, {variant.name}")
                    try:
                        outcomes[-1][variant.command] = self._figures_of(variant)
                    except VariantError as error:
                        dropped[variant.command] = str(error)
                        self.failures.append(f"{variant.name} failed: {error} (repeat with: {variant.command})")
                        self.tell(self.failures[-1])
        finally:
            self._end_waiting()
        return {m.key: summarise(m, outcomes, dropped) for m in self.measurements}

    def _figures_of(self, variant: Variant) -> dict[str, Any]:
        start = (variant.arguments, variant.environment, variant.timeout_seconds)
        if not variant.takes_turns:
            return run_variant(*start)
        taker = self._waiting.get(variant.command) or TurnTaker(*start)
        self._waiting[variant.command] = taker
        try:
            return taker.turn()
        except VariantError:
            self._waiting.pop(variant.command).end()
            raise

    def _end_waiting(self) -> None:
        while self._waiting:
            self._waiting.popitem()[1].end()


def summarise(measurement: Measurement, rounds: Iterable[Figures], dropped: Mapping[str, str]) -> dict[str, Any]:
    """The result of a measurement: its ratios, and each variant's figure, with the least and the greatest."""
    rounds = list(rounds)
    ratios = [ratio for figures in rounds if (ratio := measurement.ratio(figures)) is not None]
    figures = {}
    for variant in measurement.variants:
        values = [f[variant.command][measurement.figure] for f in rounds if variant.command in f]
        if values:
            figures[variant.name] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": describe_host(),
        "versions": list_versions(),
        "ratio": statistics.median(ratios) if ratios else None,
        "ratios": ratios,
        "figures": figures,
        "dropped": {c.name: dropped[c.command] for c in measurement.variants if c.command in dropped},
    }


@cache
def describe_host() -> str:
    """Cores, processor and memory: `2 cores (Intel ...), 23 GiB`."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    models = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    memory = psutil.virtual_memory().total / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores ({models[0] if models else platform.machine()}), {memory:.0f} GiB"


@cache
def list_versions() -> dict[str, str]:
    """Of Python and the packages that change figures."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
