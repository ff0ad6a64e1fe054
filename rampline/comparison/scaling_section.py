"""The report's sections on strong and weak scaling, with their charts, and on grids: batch size by replicas."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rampline.comparison.charts import MUTED, axis, curve_chart, drawn_runs, finite, points, style_runs
from rampline.comparison.repeats import figure_of
from rampline.comparison.runs import Comparison, comparable_settings, is_missing, written
from rampline.comparison.scaling_curves import (
    KINDS,
    TERMS,
    ScalingCurve,
    ScalingFit,
    fit_curve,
    list_left_out,
    make_curves,
)
from rampline.comparison.section import Chart, ReportTable, Section
from rampline.record.units import (
    NONE,
    write_accuracy,
    write_count,
    write_number_of,
    write_percent,
    write_quantity,
    write_ratio,
)

CONSTANT = {"strong": "global batch size of {}", "weak": "batch size of {} per replica"}
MEANING = {
    "strong": "Strong scaling keeps the global batch size: more replicas share the same step.",
    "weak": "Weak scaling keeps the batch size per replica: the global batch grows with the replicas.",
}
# What must be equal: see `comparable_settings`.
ALIKE = "engine, data, network, trained layers, BatchNormalization, precision, XLA, determinism, input pipeline"
HEAD = ("run", "curve", "replicas", "global batch", "ms/step", "images/s", "speed-up", "efficiency", "of ceiling")
ABOUT = (
    f"Runs of one curve have the same {ALIKE} and machine; its first point is the "
    "reference, or the first run of one replica with that batch size. A step is the time in which one global batch is "
    "trained on "
    "(batch / images per second). Efficiency is the speed-up divided by the replicas. “Of ceiling” compares with the "
    "same work in as many independent processes at once: what these lose too, such as shared memory bandwidth or "
    "cores, is not the strategy's fault. A run that is more than 15 % faster than these were has no such figure: the "
    "machine was busier when they were measured. The fit is by non-negative least squares of relative residuals; "
    "its terms follow the ring all-reduce (Patarasuk & Yuan 2009), which sends 2 (N - 1) messages and 2 (N - 1) / N "
    "times the gradients. Under strong scaling that volume cannot be told from a fixed cost and is part of it; under "
    "weak scaling a fixed cost cannot be told from compute and is part of that."
).replace(" - ", " \N{MINUS SIGN} ")
FIT_POINTS = 60
Named = Sequence[tuple[str, ScalingCurve]]
BATCHES = {"global_batch_size": "global batch", "per_replica_batch_size": "batch per replica"}
# What is in the cells: by name the words, and how a figure is written.
FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "images_per_second": ("Images/s", write_quantity),
    "test_accuracy": ("Accuracy on the scored images", write_accuracy),
}
Row = dict[str, Any]


def make_scaling_section(comparison: Comparison) -> Section | None:
    """Strong and weak scaling of the finished runs; None where no finished run has several replicas."""
    left_out = list_left_out(comparison)
    sentences, tables, charts = list[str](), list[ReportTable](), list[Chart]()
    runs = list(dict.fromkeys([*drawn_runs(comparison), *comparison.runs["run"]]))
    for kind in KINDS:
        curves = make_curves(comparison, kind)
        if not curves:
            continue
        named = list(zip(name_curves(curves), curves, strict=True))
        fits = [(name, curve, fit) for name, curve in named if (fit := fit_curve(curve)) is not None]
        sentences += [MEANING[kind], *(_describe(name, curve) for name, curve in named)]
        tables.append(_points_table(kind, named))
        charts.append(chart_speedup(kind, named, runs))
        if fits:
            tables.append(_fit_table(kind, fits))
            charts.append(chart_throughput(kind, fits, runs))
    if left_out:
        sentences.append(
            f"Not on a curve: {', '.join(left_out)}. Neither the reference nor a run of one replica has the same "
            f"batch size, {ALIKE} and machine."
        )
    if not sentences:
        return None
    return Section(
        id="scaling",
        title="Scaling",
        sentences=tuple(sentences),
        tables=tuple(tables),
        charts=tuple(charts),
        about=ABOUT if tables else "",
    )


def name_curves(curves: list[ScalingCurve]) -> list[str]:
    """A name for each curve: strategy, and of engine, steps per call and batch size those that differ."""
    engines, calls, batches = map(set, zip(*((c.engine, c.steps_per_call, c.batch_size) for c in curves), strict=True))
    names = []
    for curve in curves:
        parts = [curve.strategy.replace("_", "-")]
        parts += [curve.engine] if len(engines) > 1 else []
        parts += [f"K={curve.steps_per_call}"] if len(calls) > 1 else []
        parts += [f"batch {curve.batch_size}"] if len(batches) > 1 else []
        names.append(" ".join(parts))
    return [
        f"{name}, {curve.points[-1].run}" if names.count(name) > 1 else name
        for name, curve in zip(names, curves, strict=True)
    ]


def _describe(name: str, curve: ScalingCurve) -> str:
    """What the largest set-up of a curve reaches."""
    last = curve.points[-1]
    constant = CONSTANT[curve.kind].format(write_count(curve.batch_size))
    text = (
        f"{name}, {constant}: {last.replicas} replicas reach {write_ratio(last.speedup)}, "
        f"{write_percent(last.efficiency)} of ideal"
    )
    if not is_missing(last.ceiling_efficiency):
        share = "as much as" if last.ceiling_efficiency >= 1 else f"{write_percent(last.ceiling_efficiency)} of what"
        text += f" and {share} {last.replicas} independent processes reach"
    return f"{text}."


def _points_table(kind: str, named: list[tuple[str, ScalingCurve]]) -> ReportTable:
    rows = tuple(
        (
            *(point.run, name, write_count(point.replicas), write_count(point.global_batch_size)),
            *(write_quantity(point.step_ms), write_quantity(point.images_per_second)),
            *(write_ratio(point.speedup), write_percent(point.efficiency)),
            written(point.ceiling_efficiency, lambda share: write_percent(min(share, 1))),
        )
        for name, curve in named
        for point in curve.points
    )
    numeric = (False, False, *(True,) * (len(HEAD) - 2))
    return ReportTable(title=f"{kind.capitalize()} scaling", head=HEAD, rows=rows, numeric=numeric)


def _fit_table(kind: str, fits: list[tuple[str, ScalingCurve, ScalingFit]]) -> ReportTable:
    rows = tuple(
        (name, write_formula(fit), write_count(len(curve.replica_counts)), f"{100 * fit.error:.1f} %")
        for name, curve, fit in fits
    )
    exact = [name for name, _, fit in fits if fit.is_exact]
    note = "The error is the largest relative difference between a measured step and the fit."
    if any(value == 0 for _, _, fit in fits for value in fit.terms.values()):
        note += (
            " A term that a formula does not have is not told apart from noise: it would be negative, "
            "and the other terms hold what there is of it."
        )
    if exact:
        note += (
            f" The fit of {', '.join(exact)} has as many terms as numbers of replicas: "
            "its error says nothing about how good it is."
        )
    return ReportTable(
        title=f"{kind.capitalize()} scaling: milliseconds per step of N replicas",
        head=("curve", "step time T(N), ms", "replica counts", "error"),
        rows=rows,
        numeric=(False, False, True, True),
        note=note,
    )


def write_formula(fit: ScalingFit) -> str:
    """The terms above 0 with their milliseconds: `compute 12.0 / N + sync 1.50 · (N - 1) + fixed 0.40`."""
    written = {
        name: TERMS[fit.kind][name][0].format(write_quantity(value)) for name, value in fit.terms.items() if value
    }
    return " + ".join(f"{name} {text}" for name, text in written.items()).replace("-", "\N{MINUS SIGN}")


def chart_speedup(kind: str, curves: Named, runs: Sequence[str]) -> Chart:
    """Speed-up of each named curve; `runs` are all runs of the comparison, whose colours the points have."""
    rows = [
        {"curve": name, "run": point.run, "replicas": point.replicas, "speedup": point.speedup}
        for name, curve in curves
        for point in curve.points
    ]
    reached = (point.ceiling for _, curve in curves for point in curve.points)
    ceilings = [
        {**row, "speedup": ceiling} for row, ceiling in zip(rows, reached, strict=True) if math.isfinite(ceiling)
    ]
    # Replicas of the runs that speed-up is measured against: one, or as many as the reference has.
    bases = {next(point.replicas for point in curve.points if point.speedup == 1) for _, curve in curves}
    ideal = [
        {"curve": f"ideal from {base}", "replicas": count, "speedup": count / base}
        for base in sorted(bases)
        for count in (pick(row["replicas"] for row in rows) for pick in (min, max))
    ]
    return Chart(
        title=f"{kind.capitalize()} scaling: speed-up",
        caption="Dashed: ideal. Dotted: the same work in independent processes at once, the most the machine gives.",
        spec=_chart(
            rows,
            axis("speedup", "speed-up", scale={"domainMin": 0}, tickCount=4),
            runs,
            _lines(rows, _legend(curves, runs), strokeWidth=1.7),
            _lines(ceilings, _legend(curves, runs), strokeWidth=1.2, strokeDash=[1.5, 1.5]),
            _lines(ideal, {row["curve"]: MUTED for row in ideal}, strokeWidth=1.2, strokeDash=[5, 2]),
        ),
        legend=tuple(_legend(curves, runs).items()),
    )


def chart_throughput(kind: str, fitted: Sequence[tuple[str, ScalingCurve, ScalingFit]], runs: Sequence[str]) -> Chart:
    """Measured throughput as points, and the fit of each curve as a line between its first and last point."""
    curves = [(name, curve) for name, curve, _ in fitted]
    rows = [
        {"run": point.run, "replicas": point.replicas, "speed": point.images_per_second}
        for _, curve in curves
        for point in curve.points
    ]
    fits = [
        {"curve": name, "replicas": float(count), "speed": fit.images_per_second(float(count))}
        for name, curve, fit in fitted
        for count in np.linspace(curve.points[0].replicas, curve.points[-1].replicas, FIT_POINTS)
    ]
    y = axis("speed", "images/s", scale={"domainMin": 0}, tickCount=4)
    return Chart(
        title=f"{kind.capitalize()} scaling: throughput",
        caption="Points are measured, lines are the fit of the step time.",
        spec=_chart(rows, y, runs, _lines(fits, _legend(curves, runs), strokeWidth=1.4)),
        legend=tuple(_legend(curves, runs).items()),
    )


def _chart(
    rows: list[dict[str, Any]], y: dict[str, Any], runs: Sequence[str], *lines: dict[str, Any]
) -> dict[str, Any]:
    """Lines of curves, and points in the colours of their runs, over replicas."""
    styles = style_runs(runs)
    counts = sorted({row["replicas"] for row in rows})
    x = axis(
        "replicas", "replicas", scale={"domain": [counts[0], counts[-1]], "nice": False}, values=counts, format="d"
    )
    shown = [finite({**row, "color": styles[row["run"]].color}) for row in rows]
    return curve_chart(shown, x, y, *lines, points(x, y))


def _lines(rows: list[dict[str, Any]], colors: Mapping[str, str], **mark: Any) -> dict[str, Any]:
    values = [finite({**row, "color": colors[row["curve"]]}) for row in rows]
    return {
        "data": {"values": values},
        "mark": {"type": "line", **mark},
        "encoding": {"detail": {"field": "curve", "type": "nominal"}},
    }


def _legend(curves: Named, runs: Sequence[str]) -> dict[str, str]:
    """CSS colours by curve: that of its last point's run."""
    styles = style_runs(runs)
    return {name: styles[curve.points[-1].run].color for name, curve in curves}


def make_grid_section(comparison: Comparison) -> Section | None:
    """Matrices of batch by replicas; None unless some runs differ in both, and are alike in data and model."""
    tables = [table for rows in _alike(comparison) for table in _matrices(rows)]
    if not tables:
        return None
    about = (
        "Of several runs with the same batch and replicas the cell has the one of the highest throughput. Runs of one "
        f"matrix have the same {ALIKE} and machine."
    )
    return Section(id="grid", title="Batch and replicas", tables=tuple(tables), about=about)


def _alike(comparison: Comparison) -> list[list[Row]]:
    alike: dict[tuple[Any, ...], list[Row]] = {}
    for row in comparison.finished:
        if not any(map(is_missing, (row["replicas"], row["images_per_second"], *(row[batch] for batch in BATCHES)))):
            alike.setdefault((row["engine"], row["machine"], *comparable_settings(row)), []).append(row)
    return list(alike.values())


def _matrices(rows: list[Row]) -> list[ReportTable]:
    replicas = sorted({int(row["replicas"]) for row in rows})
    # Of the two ways to say what a batch is, the one that leaves fewer cells empty.
    batch = min(BATCHES, key=lambda name: len({row[name] for row in rows}))
    sizes = sorted({int(row[batch]) for row in rows})
    if len(replicas) < 2 or len(sizes) < 2:
        return []
    fastest = {(row[batch], row["replicas"]): row for row in sorted(rows, key=lambda row: row["images_per_second"])}
    return [
        ReportTable(
            title=words,
            head=(BATCHES[batch], *(write_number_of("replica", count) for count in replicas)),
            rows=tuple(
                (write_count(size), *(_cell(fastest.get((size, count)), name) for count in replicas)) for size in sizes
            ),
            numeric=(True,) * (1 + len(replicas)),
        )
        for name, (words, _) in FIGURES.items()
        if any(not is_missing(row[name]) for row in fastest.values())
    ]


def _cell(row: Row | None, name: str) -> str:
    return NONE if row is None or is_missing(row[name]) else figure_of(row, name).write(FIGURES[name][1])
