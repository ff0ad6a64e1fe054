"""The report's section on strong and weak scaling, with its charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from rampline.comparison.canvas import (
    FONT_SIZE,
    INK,
    MUTED,
    grid,
    make_axes,
    pick_drawn,
    shorten,
    spread,
    style_runs,
    write_svg,
)
from rampline.comparison.runs import Comparison, is_missing
from rampline.comparison.scaling_curves import (
    KINDS,
    TERMS,
    ScalingCurve,
    ScalingFit,
    ScalingPoint,
    fit_curve,
    list_left_out,
    make_curves,
)
from rampline.comparison.section import Chart, ReportTable, Section
from rampline.record.units import NONE, write_count, write_percent, write_quantity, write_ratio

CONSTANT = {"strong": "global batch size of {}", "weak": "batch size of {} per replica"}
MEANING = {
    "strong": "Strong scaling keeps the global batch size: more replicas share the same step.",
    "weak": "Weak scaling keeps the batch size per replica: the global batch grows with the replicas.",
}
HEAD = ("run", "curve", "replicas", "global batch", "ms/step", "images/s", "speed-up", "efficiency", "of ceiling")
ABOUT = (
    "Runs of one curve have the same data, model, precision, input pipeline and machine; its first point is the "
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
HEIGHT = 250  # SVG units
LEFT = 48
NAME_GAP = 15  # SVG units between two names
FIT_POINTS = 60
IDEAL = (5, 2)
Named = Sequence[tuple[str, ScalingCurve]]


def make_scaling_section(comparison: Comparison) -> Section | None:
    """Strong and weak scaling of the finished runs; None where no finished run has several replicas."""
    left_out = list_left_out(comparison)
    sentences: list[str] = []
    tables: list[ReportTable] = []
    charts: list[Chart] = []
    runs = list(dict.fromkeys([*pick_drawn(comparison).runs["run"], *comparison.runs["run"]]))
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
            f"Not on a curve: {', '.join(left_out)}. No run of fewer replicas has the same batch size, data, model, "
            "precision, input pipeline and machine."
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
    engines = {curve.engine for curve in curves}
    calls = {curve.steps_per_call for curve in curves}
    batches = {curve.batch_size for curve in curves}
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
    rows = [_cells(name, point) for name, curve in named for point in curve.points]
    return ReportTable(
        title=f"{kind.capitalize()} scaling",
        head=HEAD,
        rows=tuple(rows),
        numeric=(False, False, *(True,) * (len(HEAD) - 2)),
    )


def _cells(name: str, point: ScalingPoint) -> tuple[str, ...]:
    ceiling = point.ceiling_efficiency
    return (
        point.run,
        name,
        write_count(point.replicas),
        write_count(point.global_batch_size),
        write_quantity(point.step_ms),
        write_quantity(point.images_per_second),
        write_ratio(point.speedup),
        write_percent(point.efficiency),
        NONE if is_missing(ceiling) else write_percent(min(ceiling, 1)),
    )


def _fit_table(kind: str, fits: list[tuple[str, ScalingCurve, ScalingFit]]) -> ReportTable:
    rows = [
        (name, write_formula(fit), write_count(len(curve.replica_counts)), f"{100 * fit.error:.1f} %")
        for name, curve, fit in fits
    ]
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
        rows=tuple(rows),
        numeric=(False, False, True, True),
        note=note,
    )


def write_formula(fit: ScalingFit) -> str:
    """The terms above 0 with their milliseconds: `compute 12.0 / N + sync 1.50 · (N - 1) + fixed 0.40`."""
    written = {
        name: TERMS[fit.kind][name][0].format(write_quantity(value)) for name, value in fit.terms.items() if value
    }
    return " + ".join(f"{name} {text}" for name, text in written.items()).replace("-", "\N{MINUS SIGN}")


class _End(NamedTuple):
    """Where a line ends, and how it is named there."""

    name: str
    height: float
    color: str
    dashes: tuple[float, ...] = ()


def chart_speedup(kind: str, curves: Named, runs: Sequence[str]) -> Chart:
    """Speed-up of each named curve; `runs` are all runs of the comparison, whose colours the points have."""
    axes = _make_axes("speed-up", [name for name, _ in curves] + ["ideal"])
    styles = style_runs(list(runs))
    ends: list[_End] = []
    for name, curve in curves:
        color = styles[curve.points[-1].run].color
        replicas = [point.replicas for point in curve.points]
        axes.plot(replicas, [point.speedup for point in curve.points], color=color, linewidth=1.7)
        for point in curve.points:
            axes.plot(point.replicas, point.speedup, "o", color=styles[point.run].color, markersize=5)
        ceiling = [(point.replicas, point.ceiling) for point in curve.points if math.isfinite(point.ceiling)]
        if len(ceiling) > 1:
            axes.plot(*zip(*ceiling, strict=True), color=color, linewidth=1.2, linestyle=(0, (1.5, 1.5)))
        ends.append(_End(name, curve.points[-1].speedup, color))
    first, last = _range(curves)
    base = _base(curves)
    axes.plot([first, last], [first / base, last / base], color=MUTED, linewidth=1.2, linestyle=(0, IDEAL))
    axes.set_ylim(bottom=0)
    _name_ends(axes, [*ends, _End("ideal", last / base, MUTED, IDEAL)])
    _replica_ticks(axes, curves)
    return Chart(
        title=f"{kind.capitalize()} scaling: speed-up",
        caption="Dashed: ideal. Dotted: the same work in independent processes at once, the most the machine gives.",
        svg=write_svg(axes, f"{kind}-speedup"),
    )


def chart_throughput(kind: str, fitted: Sequence[tuple[str, ScalingCurve, ScalingFit]], runs: Sequence[str]) -> Chart:
    """Measured throughput as points, and the fit of each curve as a line between its first and last point."""
    curves = [(name, curve) for name, curve, _ in fitted]
    axes = _make_axes("images/s", [name for name, _ in curves])
    styles = style_runs(list(runs))
    ends: list[_End] = []
    for name, curve, fit in fitted:
        color = styles[curve.points[-1].run].color
        for point in curve.points:
            axes.plot(point.replicas, point.images_per_second, "o", color=styles[point.run].color, markersize=5)
        replicas = np.linspace(curve.points[0].replicas, curve.points[-1].replicas, FIT_POINTS)
        throughput = [fit.images_per_second(float(count)) for count in replicas]
        axes.plot(replicas, throughput, color=color, linewidth=1.4)
        ends.append(_End(name, curve.points[-1].images_per_second, color))
    highest = max(point.images_per_second for _, curve in curves for point in curve.points)
    axes.set_ylim(0, 1.06 * highest)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    _name_ends(axes, ends)
    _replica_ticks(axes, curves)
    return Chart(
        title=f"{kind.capitalize()} scaling: throughput",
        caption="Points are measured, lines are the fit of the step time.",
        svg=write_svg(axes, f"{kind}-throughput"),
    )


def _make_axes(title: str, names: Sequence[str]) -> Axes:
    axes = make_axes(HEIGHT, left=LEFT, right=38 + 6 * max(len(shorten(name)) for name in names), title=title)
    grid(axes, "y")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.set_xlabel("replicas")
    return axes


def _replica_ticks(axes: Axes, curves: Named) -> None:
    counts = sorted({point.replicas for _, curve in curves for point in curve.points})
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.03)


def _name_ends(axes: Axes, ends: Sequence[_End]) -> None:
    """Colour and name of each line at the right, as near to the height of its end as the others let them."""
    low, high = axes.get_ylim()
    gap = (high - low) * NAME_GAP / (axes.get_position().height * HEIGHT)
    across = axes.get_yaxis_transform()
    for end, height in zip(ends, spread([end.height for end in ends], gap, low, high), strict=True):
        sample = axes.plot([1.03, 1.075], [height, height], color=end.color, transform=across, clip_on=False)[0]
        sample.set(linewidth=2.4, linestyle=(0, end.dashes) if end.dashes else "-")
        name = axes.text(1.1, height, shorten(end.name), transform=across, va="center", color=INK, fontsize=FONT_SIZE)
        name.set_parse_math(False)


def _range(curves: Named) -> tuple[int, int]:
    counts = [point.replicas for _, curve in curves for point in curve.points]
    return min(counts), max(counts)


def _base(curves: Named) -> int:
    """Replicas of the runs that speed-up is measured against: one, or as many as the reference has."""
    first = curves[0][1].points
    return next(point.replicas for point in first if point.speedup == 1)
