"""Strong and weak scaling, kept apart: which runs may stand on one curve, what each reaches, and a fit.

What a curve is, `rampline.comparison.scaling_section` tells readers. With parameter servers, whose updates are
asynchronous and of one worker's batch each, a step is the time in which all workers together train on as many images.

The fit of the step time is a sum of terms that a curve can tell apart: a synchronous step of N replicas computes,
exchanges gradients and has a fixed cost (launch, Python, optimizer). A ring all-reduce sends 2 (N - 1) messages after
each other and 2 (N - 1) / N times the gradients through each link (Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", JPDC 69(2)). Hence, in ms:

    strong:  T(N) = compute / N  + sync · (N - 1) + fixed
    weak:    T(N) = compute      + sync · (N - 1) + volume · 2 (N - 1) / N

Under **strong** scaling 2 (N - 1) / N = 2 - 2 / N is a mixture of the first and the last term: no set of strong runs
can tell the gradients' volume from a fixed cost, so `fixed` holds it (this is Amdahl's serial part). Under **weak**
scaling the work of a replica is constant, and so is the fixed cost: `compute` holds both. `sync` grows with every
replica: messages of the ring, and what replicas on the same hardware take from each other.

The residuals are relative, so that fast steps count like slow ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from scipy.optimize import nnls

from rampline.comparison.runs import Comparison, comparable_settings, is_missing

# What is held constant: the column of `Comparison.runs` by kind of scaling.
KINDS = {"strong": "global_batch_size", "weak": "per_replica_batch_size"}
# Figures of one machine at two times that differ by less are its noise.
STEADY = 1.15
FIT_COUNTS = 3  # fewer different numbers of replicas cannot tell three terms apart
Term = Callable[[float], float]
TERMS: dict[str, dict[str, tuple[str, Term]]] = {
    "strong": {
        "compute": ("{} / N", lambda replicas: 1 / replicas),
        "sync": ("{} · (N - 1)", lambda replicas: replicas - 1),
        "fixed": ("{}", lambda _: 1.0),
    },
    "weak": {
        "compute": ("{}", lambda _: 1.0),
        "sync": ("{} · (N - 1)", lambda replicas: replicas - 1),
        "volume": ("{} · 2 (N - 1) / N", lambda replicas: 2 * (replicas - 1) / replicas),
    },
}


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """One run on a curve.

    Attributes:
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
        strategy, steps_per_call: of all runs but the first.
        engine: of all.
        points: by replicas; at least two different numbers of them.
    """

    kind: str
    batch_size: int
    strategy: str
    engine: str
    steps_per_call: str
    points: tuple[ScalingPoint, ...]

    @property
    def replica_counts(self) -> list[int]:
        """The different numbers of replicas, ascending."""
        return sorted({point.replicas for point in self.points})


def make_curves(comparison: Comparison, kind: str) -> list[ScalingCurve]:
    """The curves of one kind, `strong` or `weak`, in the order of their runs; empty where no run has more replicas."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for row in comparison.finished:
        if not any(is_missing(row[key]) for key in ("images_per_second", "replicas", *KINDS.values())):
            alike = (row[KINDS[kind]], row["machine"], row["engine"], *comparable_settings(row))
            groups.setdefault(alike, []).append(row)
    return [curve for rows in groups.values() for curve in _curves_of(rows, kind, comparison.reference)]


def list_left_out(comparison: Comparison) -> list[str]:
    """Finished runs of several replicas that stand on no curve."""
    points = {point.run for kind in KINDS for curve in make_curves(comparison, kind) for point in curve.points}
    several = [row["run"] for row in comparison.finished if not is_missing(row["replicas"]) and row["replicas"] > 1]
    return [run for run in several if run not in points]


def _curves_of(rows: list[dict[str, Any]], kind: str, reference: str) -> list[ScalingCurve]:
    single = [row for row in rows if row["replicas"] == 1]
    base = next((row for row in rows if row["run"] == reference), single[0] if single else None)
    if base is None:
        return []
    members: dict[tuple, list[dict[str, Any]]] = {}
    for row in rows:
        if row is not base:
            members.setdefault((row["strategy"], row["steps_per_call"]), []).append(row)
    curves = [
        ScalingCurve(
            kind=kind,
            batch_size=int(base[KINDS[kind]]),
            strategy=strategy,
            engine=base["engine"],
            steps_per_call=steps_per_call,
            points=tuple(sorted((_point(row, base) for row in (base, *others)), key=attrgetter("replicas"))),
        )
        for (strategy, steps_per_call), others in members.items()
    ]
    return [curve for curve in curves if len(curve.replica_counts) > 1]


def _point(row: dict[str, Any], base: dict[str, Any]) -> ScalingPoint:
    throughput, ceiling = float(row["images_per_second"]), row["ceiling_images_per_second"]
    if is_missing(ceiling) or throughput > STEADY * ceiling:
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


@dataclass(frozen=True, kw_only=True)
class ScalingFit:
    """The terms of a curve's step time.

    Attributes:
        terms: milliseconds by term, as `TERMS` names them; none is negative.
        error: largest relative residual of the step times, as a share.
        is_exact: whether there are as many terms as different numbers of replicas: then the error says nothing about
            how good the model is.
    """

    kind: str
    terms: dict[str, float]
    batch_size: int
    error: float
    is_exact: bool

    def step_ms(self, replicas: float) -> float:
        """Milliseconds of a step of that many replicas."""
        return sum(value * TERMS[self.kind][name][1](replicas) for name, value in self.terms.items())

    def images_per_second(self, replicas: float) -> float:
        """Throughput of that many replicas."""
        global_batch_size = self.batch_size * (replicas if self.kind == "weak" else 1)
        return 1000 * global_batch_size / self.step_ms(replicas)


def fit_curve(curve: ScalingCurve) -> ScalingFit | None:
    """The fit of a synchronous curve of at least `FIT_COUNTS` different numbers of replicas, else None."""
    if curve.strategy == "parameter_server" or len(curve.replica_counts) < FIT_COUNTS:
        return None
    measured = np.array([point.step_ms for point in curve.points])
    functions = TERMS[curve.kind]
    design = np.array([[term(point.replicas) for _, term in functions.values()] for point in curve.points])
    values, _ = nnls(design / measured[:, None], np.ones(len(measured)))
    residuals = design @ values / measured - 1
    return ScalingFit(
        kind=curve.kind,
        terms=dict(zip(functions, values.tolist(), strict=True)),
        batch_size=curve.batch_size,
        error=float(np.abs(residuals).max()),
        is_exact=len(curve.replica_counts) <= len(functions),
    )
