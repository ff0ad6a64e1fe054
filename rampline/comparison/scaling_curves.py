"""Strong and weak scaling, kept apart: which runs may stand on one curve, and what each of them reaches.

**Strong scaling**: the global batch size stays what it is with one replica, so each replica gets less of it.
**Weak scaling**: the batch size per replica stays, so the global batch grows with the replicas.

Runs of one group have the same batch size in that sense, and the same data (fingerprint, limit, split), model,
precision, input pipeline and machine. The first point of its curves is the reference, else the group's first run of one
replica; a curve is one strategy, engine and number of steps per call. A run of one replica stands on both kinds.

**Step time** of a run = global batch size / throughput. With parameter servers, whose updates are asynchronous and of
one worker's batch each, it is the time in which all workers together train on as many images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rampline.comparison.columns import is_missing
from rampline.comparison.table import Comparison
from rampline.comparison.tracked import COMPARABLE

# What is held constant: the column of `Comparison.runs` by kind of scaling.
KINDS = {"strong": "global_batch_size", "weak": "per_replica_batch_size"}
ASYNCHRONOUS = "parameter_server"
# Figures of one machine at two times that differ by less are its noise.
STEADY = 1.15


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """One run on a curve.

    Attributes:
        run: its name.
        replicas: how many train at once.
        global_batch_size: images per training step.
        images_per_second: its throughput.
        step_ms: milliseconds in which `global_batch_size` images are trained on.
        speedup: throughput against the first point of the curve.
        efficiency: `speedup` / (replicas / replicas of the first point); 1 is ideal.
        ceiling: the speed-up of as many independent processes that do the same work at once; NaN if not measured, or if
            the run is clearly faster: the machine was busier when they were measured, so they are no ceiling then.
        ceiling_efficiency: throughput against that of those processes; NaN as `ceiling`.
    """

    run: str
    replicas: int
    global_batch_size: int
    images_per_second: float
    step_ms: float
    speedup: float
    efficiency: float
    ceiling: float
    ceiling_efficiency: float


@dataclass(frozen=True, kw_only=True)
class ScalingCurve:
    """Runs that differ in their replicas alone.

    Attributes:
        kind: `strong` or `weak`.
        batch_size: what is constant: images per step (strong), or per step and replica (weak).
        strategy: of all runs but the first.
        engine: of all runs but the first.
        steps_per_call: of all runs but the first, as they were set; empty where unknown.
        points: by replicas; at least two different numbers of them.
    """

    kind: str
    batch_size: int
    strategy: str
    engine: str
    steps_per_call: str
    points: tuple[ScalingPoint, ...]

    @property
    def is_synchronous(self) -> bool:
        """Whether the replicas wait for each other in every step."""
        return self.strategy != ASYNCHRONOUS

    @property
    def replica_counts(self) -> list[int]:
        """The different numbers of replicas, ascending."""
        return sorted({point.replicas for point in self.points})


def make_curves(comparison: Comparison, kind: str) -> list[ScalingCurve]:
    """The curves of one kind, `strong` or `weak`, in the order of their runs; empty where no run has more replicas."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for row in comparison.finished:
        if not any(is_missing(row[key]) for key in ("images_per_second", "replicas", *KINDS.values())):
            groups.setdefault(_group(row, kind), []).append(row)
    return [curve for rows in groups.values() for curve in _curves_of(rows, kind, comparison.reference)]


def list_left_out(comparison: Comparison) -> list[str]:
    """Finished runs of several replicas that stand on no curve."""
    points = {point.run for kind in KINDS for curve in make_curves(comparison, kind) for point in curve.points}
    several = [row["run"] for row in comparison.finished if not is_missing(row["replicas"]) and row["replicas"] > 1]
    return [run for run in several if run not in points]


def _group(row: dict[str, Any], kind: str) -> tuple:
    return (row[KINDS[kind]], row["fingerprint"], row["machine"], *(str(row[key]) for key in COMPARABLE))


def _curves_of(rows: list[dict[str, Any]], kind: str, reference: str) -> list[ScalingCurve]:
    single = [row for row in rows if row["replicas"] == 1]
    base = next((row for row in rows if row["run"] == reference), single[0] if single else None)
    if base is None:
        return []
    members: dict[tuple, list[dict[str, Any]]] = {}
    for row in rows:
        if row is not base:
            members.setdefault((row["strategy"], row["engine"], row["steps_per_call"]), []).append(row)
    curves = [_curve(kind, key, [base, *others]) for key, others in members.items()]
    return [curve for curve in curves if len(curve.replica_counts) > 1]


def _curve(kind: str, key: tuple[str, str, str], rows: list[dict[str, Any]]) -> ScalingCurve:
    base, (strategy, engine, steps_per_call) = rows[0], key
    points = sorted((_point(row, base) for row in rows), key=lambda point: point.replicas)
    return ScalingCurve(
        kind=kind,
        batch_size=int(base[KINDS[kind]]),
        strategy=strategy,
        engine=engine,
        steps_per_call=steps_per_call,
        points=tuple(points),
    )


def _point(row: dict[str, Any], base: dict[str, Any]) -> ScalingPoint:
    throughput, ceiling = float(row["images_per_second"]), _number(row["ceiling_images_per_second"])
    if throughput > STEADY * ceiling:
        ceiling = math.nan
    speedup = throughput / base["images_per_second"]
    return ScalingPoint(
        run=row["run"],
        replicas=int(row["replicas"]),
        global_batch_size=int(row["global_batch_size"]),
        images_per_second=throughput,
        step_ms=1000 * row["global_batch_size"] / throughput,
        speedup=speedup,
        efficiency=speedup * base["replicas"] / row["replicas"],
        ceiling=ceiling / base["images_per_second"],
        ceiling_efficiency=throughput / ceiling,
    )


def _number(value: Any) -> float:
    return math.nan if is_missing(value) or value <= 0 else float(value)
