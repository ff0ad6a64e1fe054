"""One run of the benchmark: every measurement in turn, with what is being done and how long it will still take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.curve import Curve, run_curve
from benchmarks.measurement import QUICK_ROUNDS, RESULTS, Contender, Measurement, Procedure, run_together
from benchmarks.page import describe_ratio
from rampline.files import read_json

QUICK_RESULTS = Path(__file__).parent / ".quick"
GUESS_SECONDS = 20.0


class Session:
    """What is to be run, in groups; `failures` are the lines of contenders that failed."""

    def __init__(
        self, chosen: Sequence[Measurement | Curve], *, quick: bool, rounds: int | None, arguments: Sequence[str]
    ) -> None:
        self.groups = group(chosen)
        self.rounds = rounds or (QUICK_ROUNDS if quick else None)
        self.folder = QUICK_RESULTS if quick else RESULTS
        self.command = " ".join(["python -m benchmarks", *arguments])
        self.failures: list[str] = []
        self.seconds = known_seconds(self.folder)
        self.left = [contender for members in self.groups for contender in self.processes(members)]
        self.started = time.monotonic()

    def processes(self, members: Sequence[Measurement | Curve]) -> list[Contender]:
        """Every process of a group, one for each round."""
        contenders = {repr(c): c for item in members for c in contenders_of(item)}
        return list(contenders.values()) * self.rounds_of(members)

    def rounds_of(self, members: Sequence[Measurement | Curve]) -> int:
        """Of a group: what was asked for, else the most that one of its measurements wants."""
        if isinstance(members[0], Curve):
            return members[0].rounds
        return self.rounds or max(item.rounds for item in members)

    def run(self) -> None:
        """Run all groups; each result is written and its line printed as it comes."""
        for number, members in enumerate(self.groups, start=1):
            self.place = f"{number}/{len(self.groups)} {', '.join(item.key for item in members)}"
            rounds = self.rounds_of(members)
            procedure = Procedure(
                rounds=rounds,
                folder=self.folder,
                command=self.command,
                report=self.report,
                progress=lambda n, c, rounds=rounds: self.progress(f"round {n}/{rounds}", c),
                on_duration=self.on_duration,
            )
            if isinstance(members[0], Curve):
                points = run_curve(members[0], procedure)["points"]
                for figures in (point["figures"] for point in points):
                    print("    " + ", ".join(f"{k} {v['median']:.4g}" for k, v in figures.items() if v), flush=True)
                continue
            for item, result in zip(members, run_together(members, procedure), strict=True):
                print(f"    {item.title}: {describe_ratio(item, result)}", flush=True)
        print(f"benchmarks: {(time.monotonic() - self.started) / 60:.0f} min, {len(self.failures)} failed")

    def report(self, line: str) -> None:
        """One contender has failed."""
        self.failures.append(line)
        print(f"    {line}", flush=True)

    def progress(self, words: str, contender: Contender) -> None:
        """The line of what starts now."""
        seconds = sum(self.seconds.get(key_of(c), GUESS_SECONDS) for c in self.left)
        print(f"{self.place}: {words}, {contender.name}; about {seconds / 60:.0f} min left", flush=True)

    def on_duration(self, contender: Contender, seconds: float) -> None:
        """Remember how long a process takes."""
        self.seconds[key_of(contender)] = seconds
        if contender in self.left:
            self.left.remove(contender)


def group(chosen: Sequence[Measurement | Curve]) -> list[list[Any]]:
    """Measurements that run together, in the order of the first of each."""
    groups: dict[str, list[Any]] = {}
    for item in chosen:
        name = item.together if isinstance(item, Measurement) else ""
        groups.setdefault(f"together {name}" if name else item.key, []).append(item)
    return list(groups.values())


def contenders_of(item: Measurement | Curve) -> tuple[Contender, ...]:
    """All that an item runs in one round."""
    return tuple(contender for _, contender in item.points) if isinstance(item, Curve) else item.contenders


def key_of(contender: Contender) -> str:
    """What it is known by from one run of the benchmark to the next."""
    return " ".join(contender.arguments)


def known_seconds(folder: Path) -> dict[str, float]:
    """Mean wall seconds of contenders by their command, as the last results have them."""
    known: dict[str, list[float]] = {}
    for path in folder.glob("*.json"):
        result = read_json(path)
        runs = [(result["commands"][name], f) for figures in result.get("rounds", []) for name, f in figures.items()]
        runs += [(point["command"], f) for point in result.get("points", []) for f in point["rounds"]]
        for command, figures in runs:
            known.setdefault(command.partition("python -m ")[2], []).append(figures["wall_seconds"])
    return {command: statistics.mean(seconds) for command, seconds in known.items()}
