"""Ratios within one run: contenders take turns, round after round, in fresh processes or as processes that wait."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_host, list_versions
from benchmarks.process import ContenderError, TurnTaker, run_contender
from rampline.files import write_json

RESULTS = Path(__file__).parent / "results"
QUICK_ROUNDS = 2
# Contenders that take turns begin afresh after so many: blocks of one process have its luck in common.
ROUNDS_OF_A_PROCESS = 5
ROUNDS_IN_TURNS = 2 * ROUNDS_OF_A_PROCESS


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One way of doing it: a command run in a fresh process whose last line of standard output is a JSON object.

    The object holds figures (numbers); `{"not_measured": "why, and what to do"}` alone says that it could not run here,
    which is no failure. The process finds `RAMPLINE_BENCH_FOLDER` (a folder for data, kept until the whole benchmark
    ends) and, in the quick mode, `RAMPLINE_BENCH_QUICK=1` in its environment.
    """

    name: str
    arguments: tuple[str, ...]
    """After `python -m`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float = 300.0
    takes_turns: bool = False
    """It stays for `ROUNDS_OF_A_PROCESS` rounds, and times a block in each (`benchmarks.contenders.turns`)."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A line of the table: the ratio of two contenders' figures in each round, or one contender's figure itself."""

    key: str
    """The result is `benchmarks/results/KEY.json`."""
    title: str
    figure: str
    """Key in the contenders' objects: `examples_per_second`, `seconds`, `peak_mib`, `share`."""
    contenders: tuple[Contender, ...]
    numerator: str
    """Names of contenders: ratio = figure(numerator) / figure(denominator)."""
    denominator: str = ""
    """Empty: the target is for the numerator's figure itself."""
    target: float | None = None
    """None: reported only."""
    at_least: bool = True
    """Else the ratio must be at most `target`."""
    rounds: int = 5
    in_quick: bool = True
    about: str = ""
    together: str = ""
    """Measurements of one non-empty name run in the same rounds, and share contenders that are equal."""

    def __post_init__(self) -> None:
        names = [contender.name for contender in self.contenders]
        if len(set(names)) < len(names):
            raise ValueError(f"{self.key}: two contenders of one name")
        if missing := {self.numerator, self.denominator} - {*names, ""}:
            raise ValueError(f"{self.key}: no contender {missing}")

    def ratio(self, figures: Mapping[str, Mapping[str, Any]]) -> float | None:
        """Of one round (contender to figures); None where a contender has no figure."""
        above = figures.get(self.numerator, {}).get(self.figure)
        if above is None or not self.denominator:
            return above
        below = figures.get(self.denominator, {}).get(self.figure)
        return None if below is None else above / below

    def is_met(self, ratio: float) -> bool | None:
        """Whether the target is; None without one."""
        return meets(ratio, self.target, at_least=self.at_least)


def meets(value: float, target: float | None, *, at_least: bool) -> bool | None:
    """Whether a figure is on the right side of its target; None without one."""
    if target is None:
        return None
    return value >= target if at_least else value <= target


@dataclass(frozen=True, kw_only=True)
class Procedure:
    """How often contenders run, where results go, and who is told.

    Attributes:
        rounds: how often each contender runs.
        folder: of the results.
        command: written into the results.
        report: gets one line for each contender that fails.
        progress: called before each process with the round (from 1) and the contender.
        on_duration: called after each process with its wall seconds.
        waiting: the processes of contenders that take turns, by the contender; `end_waiting` ends them.
    """

    rounds: int
    folder: Path = RESULTS
    command: str = "python -m benchmarks"
    report: Callable[[str], None] = print
    progress: Callable[[int, Contender], None] = lambda number, contender: None
    on_duration: Callable[[Contender, float], None] = lambda contender, seconds: None
    waiting: dict[str, TurnTaker] = field(default_factory=dict)

    def run(self, number: int, contender: Contender) -> dict[str, Any]:
        """A contender in a round: its figures and `wall_seconds`, or an `error`, or why it was `not_measured`."""
        self.progress(number, contender)
        try:
            figures, seconds = self._figures_of(contender)
            outcome = figures if "not_measured" in figures else {**figures, "wall_seconds": round(seconds, 2)}
        except ContenderError as error:
            self.report(f"{contender.name} failed: {error} (repeat with: {command_of(contender)})")
            if taker := self.waiting.pop(repr(contender), None):
                taker.end()
            outcome, seconds = {"error": str(error)}, error.seconds
        self.on_duration(contender, seconds)
        return outcome

    def end_waiting(self) -> None:
        """End the processes of contenders that take turns."""
        while self.waiting:
            self.waiting.popitem()[1].end()

    def _figures_of(self, contender: Contender) -> tuple[dict[str, Any], float]:
        start = (contender.arguments, contender.environment, contender.timeout_seconds)
        if not contender.takes_turns:
            return run_contender(*start)
        if repr(contender) not in self.waiting:
            self.waiting[repr(contender)] = TurnTaker(*start)
        return self.waiting[repr(contender)].turn()


def is_dropped(outcome: Mapping[str, Any]) -> bool:
    """Whether a contender gave no figures, and is not started again."""
    return "error" in outcome or "not_measured" in outcome


def run_together(measurements: Iterable[Measurement], procedure: Procedure) -> list[dict[str, Any]]:
    """Run measurements in the same rounds, and write `KEY.json` of each after every round.

    Contenders are shared where they are equal. Every round starts with the next one.

    Returns:
        One result for each measurement, as written.
    """
    measurements = list(measurements)
    contenders = list({repr(c): c for m in measurements for c in m.contenders}.values())
    outcomes: list[dict[str, dict[str, Any]]] = []
    dropped: dict[str, dict[str, Any]] = {}
    results: list[dict[str, Any]] = []
    try:
        for number in range(procedure.rounds):
            if number % ROUNDS_OF_A_PROCESS == 0:
                procedure.end_waiting()
            outcomes.append({})
            shift = number % len(contenders)
            for contender in [*contenders[shift:], *contenders[:shift]]:
                if repr(contender) not in dropped:
                    outcome = procedure.run(number + 1, contender)
                    (dropped if is_dropped(outcome) else outcomes[-1])[repr(contender)] = outcome
            results = [
                summarise(m, _rounds_of(m, outcomes), _dropped_of(m, dropped), procedure.command) for m in measurements
            ]
            for result in results:
                write_json(procedure.folder / f"{result['key']}.json", result)
    finally:
        procedure.end_waiting()
    return results


def summarise(
    measurement: Measurement,
    rounds: list[dict[str, dict[str, Any]]],
    dropped: Mapping[str, dict[str, Any]],
    command: str,
) -> dict[str, Any]:
    """The result of a measurement: its rounds, and medians with the least and the greatest."""
    ratios = [ratio for figures in rounds if (ratio := measurement.ratio(figures)) is not None]
    ratio = statistics.median(ratios) if ratios else None
    return {
        "key": measurement.key,
        "title": measurement.title,
        "figure": measurement.figure,
        "numerator": measurement.numerator,
        "denominator": measurement.denominator,
        "target": measurement.target,
        "at_least": measurement.at_least,
        "command": command,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": describe_host(),
        "versions": list_versions(),
        "ratio": ratio,
        "ratios": ratios,
        "met": None if ratio is None else measurement.is_met(ratio),
        "figures": {c.name: spread_of(rounds, c.name, measurement.figure) for c in measurement.contenders},
        "commands": {c.name: command_of(c) for c in measurement.contenders},
        "dropped": dict(dropped),
        "rounds": rounds,
    }


def spread_of(rounds: Iterable[Mapping[str, Mapping[str, Any]]], name: str, figure: str) -> dict[str, float] | None:
    """Median, least and greatest of a contender's figure over rounds; None where it has none."""
    values = [figures[name][figure] for figures in rounds if figures.get(name, {}).get(figure) is not None]
    return {"median": statistics.median(values), "min": min(values), "max": max(values)} if values else None


def command_of(contender: Contender) -> str:
    """The command that repeats one contender alone."""
    settings = [f"{name}={value}" for name, value in contender.environment.items()]
    return " ".join([*settings, "python -m", *contender.arguments])


def _rounds_of(measurement: Measurement, outcomes: list[dict[str, dict[str, Any]]]) -> list[dict[str, dict[str, Any]]]:
    names = {repr(c): c.name for c in measurement.contenders}
    return [{names[key]: figures for key, figures in outcome.items() if key in names} for outcome in outcomes]


def _dropped_of(measurement: Measurement, dropped: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {c.name: dropped[repr(c)] for c in measurement.contenders if repr(c) in dropped}
