"""The fit of step times, on curves whose terms are known."""

from __future__ import annotations

import math

import pytest

from rampline.comparison.scaling_curves import ScalingCurve, ScalingPoint
from rampline.comparison.scaling_fit import fit_curve


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
    fit = fit_curve(curve("strong", [(1, 14), (2, 9), (4, 8), (8, 10.5)]))
    assert fit is not None
    assert fit.terms == pytest.approx({"compute": 12, "sync": 1, "fixed": 2})
    assert fit.error == pytest.approx(0, abs=1e-12)
    assert not fit.is_exact
    assert fit.step_ms(3) == pytest.approx(8)
    assert fit.images_per_second(3) == pytest.approx(8000)  # 64 images in 8 ms


def test_terms_of_weak_scaling_are_found():
    # 10 + 0.5 (N - 1) + 2 * 2 (N - 1) / N
    fit = fit_curve(curve("weak", [(1, 10), (2, 12.5), (4, 14.5), (8, 17)]))
    assert fit is not None
    assert fit.terms == pytest.approx({"compute": 10, "sync": 0.5, "volume": 2})
    assert fit.images_per_second(4) == pytest.approx(256 / 0.0145)


def test_no_term_is_negative():
    # Replicas that take turns on the same cores: 10 + 2 (N - 1), nothing is shared.
    fit = fit_curve(curve("strong", [(1, 10), (2, 12), (4, 16)]))
    assert fit is not None
    assert fit.terms == pytest.approx({"compute": 0, "sync": 2, "fixed": 10}, abs=1e-9)
    # Faster than ideal, where only c / N is left: the c nearest to 12, 8 and 8 (4 · 2, 2 · 4), relatively, is
    # (1/12 + 2/8) / (1/144 + 2/64) = 96/11.
    fast = fit_curve(curve("strong", [(1, 12), (2, 4), (4, 2)]))
    assert fast is not None
    assert fast.terms == pytest.approx({"compute": 96 / 11, "sync": 0, "fixed": 0})
    assert fast.error == pytest.approx(3 / 11)  # 96/11 against 12


def test_error_is_the_largest_relative_residual():
    # Two runs of two replicas, 8 and 12 ms: the t that is nearest to both is (1/8 + 1/12) / (1/64 + 1/144) = 120/13.
    # The other points go exactly through 8 + 8/13 (N - 1) + 8/13 · 2 (N - 1) / N.
    fit = fit_curve(curve("weak", [(1, 8), (2, 8), (2, 12), (4, 8 + 36 / 13)]))
    assert fit is not None
    assert fit.terms == pytest.approx({"compute": 8, "sync": 8 / 13, "volume": 8 / 13})
    assert fit.error == pytest.approx(3 / 13)  # 120/13 against 12
    assert fit.is_exact  # three numbers of replicas, three terms


def test_what_cannot_be_fitted():
    assert fit_curve(curve("strong", [(1, 14), (2, 9), (2, 9.5)])) is None
    assert fit_curve(curve("strong", [(1, 14), (2, 9), (4, 8)], strategy="parameter_server")) is None
