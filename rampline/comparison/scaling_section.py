"""The section of the report on strong and weak scaling."""

from __future__ import annotations

from rampline.comparison.columns import is_missing
from rampline.comparison.drawn import pick_drawn
from rampline.comparison.scaling_charts import chart_speedup, chart_throughput
from rampline.comparison.scaling_curves import KINDS, ScalingCurve, ScalingPoint, list_left_out, make_curves
from rampline.comparison.scaling_fit import TERMS, ScalingFit, fit_curve
from rampline.comparison.section import Chart, ReportTable, Section
from rampline.comparison.table import Comparison
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
