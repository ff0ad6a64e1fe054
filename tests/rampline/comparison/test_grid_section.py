"""Throughput and accuracy by batch and replicas."""

from __future__ import annotations

from logged_runs import LoggedRun, there

from rampline.comparison.scaling_section import make_grid_section


def run(batch: int, replicas: int, speed: float, accuracy: float = 0.9) -> LoggedRun:
    params = {"global_batch_size": str(batch), "per_replica_batch_size": str(batch // replicas)}
    params["optimizer"] = f"one for {accuracy}"
    return LoggedRun(
        name=f"b{batch}-r{replicas}-{speed}",
        replicas=replicas,
        epochs=[(0.9, speed, 1e-3, 1)],
        metrics={"test_accuracy": accuracy},
        params=params,
    )


def test_a_grid_is_a_matrix(compare):
    runs = [run(32, 1, 100), run(32, 2, 150), run(32, 2, 160, 0.8), run(64, 2, 200)]
    section = there(make_grid_section(compare("grid", runs)))
    speed, accuracy = section.tables
    assert speed.head == ("global batch", "1 replica", "2 replicas")
    assert speed.rows == (("32", "100", "160"), ("64", "\N{EN DASH}", "200"))
    assert accuracy.rows == (("32", "0.9000", "0.8000"), ("64", "\N{EN DASH}", "0.9000"))


def test_weak_scaling_is_no_grid(compare):
    runs = [run(32, 1, 100), run(64, 2, 150), run(128, 4, 200)]
    assert make_grid_section(compare("weak", runs)) is None
