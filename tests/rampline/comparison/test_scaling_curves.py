"""Which runs stand on one curve, what its points say, and what a fit finds."""

from __future__ import annotations

import math
from typing import Any

import pytest
from logged_runs import LoggedRun, there

from rampline.comparison.runs import read_comparison
from rampline.comparison.scaling_curves import ScalingCurve, ScalingPoint, fit_curve, list_left_out, make_curves


def run(name: str, throughput: float, replicas: int = 1, batch: int = 64, **settings: Any) -> LoggedRun:
    """A run of two epochs at `throughput` images/s and a global batch of `batch`."""
    params = {"global_batch_size": str(batch), "per_replica_batch_size": str(batch // replicas), "steps_per_call": "16"}
    return LoggedRun(
        name=name,
        replicas=replicas,
        strategy=settings.pop("strategy", "mirrored" if replicas > 1 else "single"),
        epochs=[(0.9, 1, 1e-3, 1), (0.9, throughput, 1e-3, 2)],
        params=params | settings.pop("params", {}),
        **settings,
    )


RUNS = [
    run("one", 1000, metrics={"ceiling_images_per_second": 1000}),
    run("four", 2000, 4, metrics={"ceiling_images_per_second": 2500}),
    run("two", 1600, 2),
    run("two-each-64", 1900, 2, batch=128),
    run("workers", 1500, 2, strategy="multi_worker"),
]


def test_strong_and_weak_are_kept_apart(compare):
    comparison = compare("strong-weak", RUNS, reference="one")
    strong, weak = make_curves(comparison, "strong"), make_curves(comparison, "weak")
    assert [[point.run for point in curve.points] for curve in strong] == [["one", "two", "four"], ["one", "workers"]]
    assert [[point.run for point in curve.points] for curve in weak] == [["one", "two-each-64"]]
    assert [(curve.strategy, curve.engine, curve.batch_size) for curve in strong] == [
        ("mirrored", "loop", 64),
        ("multi_worker", "loop", 64),
    ]
    assert (weak[0].batch_size, weak[0].kind, weak[0].replica_counts) == (64, "weak", [1, 2])
    assert list_left_out(comparison) == []


def test_figures_of_a_point(compare):
    comparison = compare("points", RUNS, reference="one")
    one, two, four = make_curves(comparison, "strong")[0].points
    assert (one.step_ms, one.speedup, one.efficiency, one.ceiling, one.ceiling_efficiency) == (64, 1, 1, 1, 1)
    assert (two.step_ms, two.speedup, two.efficiency) == (40, 1.6, 0.8)  # 64 images at 1600 per second
    assert math.isnan(two.ceiling)
    assert math.isnan(two.ceiling_efficiency)
    assert (four.step_ms, four.speedup, four.efficiency, four.ceiling, four.ceiling_efficiency) == (
        32,
        2,
        0.5,
        2.5,
        0.8,
    )
    weak = make_curves(comparison, "weak")[0].points[1]
    assert weak.step_ms == pytest.approx(67.368, abs=1e-3)  # 128 images at 1900 per second
    assert (weak.speedup, weak.efficiency) == (1.9, 0.95)


@pytest.mark.parametrize(
    "change",
    [
        {"engine": "fit"},
        {"tags": {"rampline.workers": "4, 2"}},
        {"params": {"model.name": "convnet7"}},
        {"params": {"data.limit": "50"}},
        {"params": {"model.options": "{'alpha': 0.35}"}},
        {"params": {"model.trainable": "head"}},
        {"params": {"model.batch_norm": "frozen"}},
        {"params": {"model.head_units": "0"}},
        {"params": {"model.dropout": "0.5"}},
        {"params": {"optimizer.name": "sgd"}},
        {"params": {"xla": "True"}},
        {"params": {"deterministic": "True"}},
        {"tags": {"rampline.data_fingerprint": "e" * 64}},
        {"status": "FAILED"},
        {"batch": 96},
    ],
    ids=str,
)
def test_only_comparable_runs_stand_on_a_curve(compare, change):
    comparison = compare("comparable", [RUNS[0], RUNS[2], run("other", 1700, 4, **change)], reference="one")
    assert [[point.run for point in curve.points] for curve in make_curves(comparison, "strong")] == [["one", "two"]]
    assert make_curves(comparison, "weak") == []
    assert list_left_out(comparison) == ([] if "status" in change else ["other"])


def test_what_may_differ_where_more_replicas_train(compare):
    params = {"batch.accumulate": "2", "learning_rate.peak": "0.01"}
    other = run("other", 1700, 4, params=params)
    (curve,) = make_curves(compare("unlogged", [RUNS[0], other], reference="one"), "strong")
    assert [point.run for point in curve.points] == ["one", "other"]


def test_another_batch_size_starts_at_its_own_run_of_one_replica(client, log_study):
    log_study("sweep", [*RUNS[:3], run("one-32", 500, batch=32), run("two-32", 600, 2, batch=32)], reference="one")
    comparison = read_comparison(client, "sweep")
    first, second = make_curves(comparison, "strong")
    assert [point.run for point in first.points] == ["one", "two", "four"]
    assert [(point.run, point.speedup) for point in second.points] == [("one-32", 1.0), ("two-32", 1.2)]
    # Two replicas that share 64 have 32 each, like the run of one replica and 32.
    assert [[point.run for point in curve.points] for curve in make_curves(comparison, "weak")] == [["one-32", "two"]]


def test_engine_and_steps_per_call_make_curves_of_their_own(compare):
    others = [
        run("one-fit", 800, engine="fit"),
        run("fit", 1200, 2, engine="fit"),
        run("one-step", 900, 2, params={"steps_per_call": "1"}),
    ]
    curves = make_curves(compare("engines", [*RUNS[:3], *others], reference="one"), "strong")
    assert [(c.engine, c.steps_per_call, c.points[-1].run) for c in curves] == [
        ("loop", "16", "four"),
        ("loop", "1", "one-step"),
        ("fit", "16", "fit"),
    ]
    assert [curve.points[0].run for curve in curves] == ["one", "one", "one-fit"]


def test_reference_of_several_replicas_is_the_first_point(compare):
    points = make_curves(compare("from-two", RUNS[1:3], reference="two"), "strong")[0].points
    assert [(p.run, p.speedup, p.efficiency) for p in points] == [("two", 1.0, 1.0), ("four", 1.25, 0.625)]


def test_one_number_of_replicas_is_no_curve(compare):
    comparison = compare("ones", [RUNS[0], run("again", 1100, engine="fit")], reference="one")
    assert make_curves(comparison, "strong") == make_curves(comparison, "weak") == []


def curve(kind: str, step_ms: list[tuple[int, float]], strategy: str = "mirrored") -> ScalingCurve:
    """A curve of batch 64 with these milliseconds per step, by replicas."""
    points = []
    for replicas, milliseconds in step_ms:
        batch = 64 * replicas if kind == "weak" else 64
        points.append(
            ScalingPoint(
                run=f"run-{replicas}",
                replicas=replicas,
                global_batch_size=batch,
                images_per_second=1000 * batch / milliseconds,
                step_ms=milliseconds,
                speedup=math.nan,
                efficiency=math.nan,
                ceiling=math.nan,
                ceiling_efficiency=math.nan,
            )
        )
    return ScalingCurve(
        kind=kind, batch_size=64, strategy=strategy, engine="loop", steps_per_call="16", points=tuple(points)
    )


def test_terms_of_strong_scaling_are_found():
    # 12 / N + 1 (N - 1) + 2
    fit = there(fit_curve(curve("strong", [(1, 14), (2, 9), (4, 8), (8, 10.5)])))
    assert fit.terms == pytest.approx({"compute": 12, "sync": 1, "fixed": 2})
    assert fit.error == pytest.approx(0, abs=1e-12)
    assert not fit.is_exact
    assert fit.step_ms(3) == pytest.approx(8)
    assert fit.images_per_second(3) == pytest.approx(8000)  # 64 images in 8 ms


def test_terms_of_weak_scaling_are_found():
    # 10 + 0.5 (N - 1) + 2 * 2 (N - 1) / N
    fit = there(fit_curve(curve("weak", [(1, 10), (2, 12.5), (4, 14.5), (8, 17)])))
    assert fit.terms == pytest.approx({"compute": 10, "sync": 0.5, "volume": 2})
    assert fit.images_per_second(4) == pytest.approx(256 / 0.0145)


def test_no_term_is_negative():
    # Replicas that take turns on the same cores: 10 + 2 (N - 1), nothing is shared.
    fit = there(fit_curve(curve("strong", [(1, 10), (2, 12), (4, 16)])))
    assert fit.terms == pytest.approx({"compute": 0, "sync": 2, "fixed": 10}, abs=1e-9)
    # Faster than ideal, where only c / N is left: the c nearest to 12, 8 and 8 (4 · 2, 2 · 4), relatively, is
    # (1/12 + 2/8) / (1/144 + 2/64) = 96/11.
    fast = there(fit_curve(curve("strong", [(1, 12), (2, 4), (4, 2)])))
    assert fast.terms == pytest.approx({"compute": 96 / 11, "sync": 0, "fixed": 0})
    assert fast.error == pytest.approx(3 / 11)  # 96/11 against 12


def test_error_is_the_largest_relative_residual():
    # Two runs of two replicas, 8 and 12 ms: the t that is nearest to both is (1/8 + 1/12) / (1/64 + 1/144) = 120/13.
    # The other points go exactly through 8 + 8/13 (N - 1) + 8/13 · 2 (N - 1) / N.
    fit = there(fit_curve(curve("weak", [(1, 8), (2, 8), (2, 12), (4, 8 + 36 / 13)])))
    assert fit.terms == pytest.approx({"compute": 8, "sync": 8 / 13, "volume": 8 / 13})
    assert fit.error == pytest.approx(3 / 13)  # 120/13 against 12
    assert fit.is_exact  # three numbers of replicas, three terms


def test_what_cannot_be_fitted():
    assert fit_curve(curve("strong", [(1, 14), (2, 9), (2, 9.5)])) is None
    assert fit_curve(curve("strong", [(1, 14), (2, 9), (4, 8)], strategy="parameter_server")) is None
