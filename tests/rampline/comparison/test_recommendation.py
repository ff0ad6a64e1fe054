"""What is recommended, and in which words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from logged_runs import LoggedRun

from rampline.comparison import read_comparison
from rampline.comparison.recommendation import make_recommendation_section, recommend

MINUS, DASH = "\N{MINUS SIGN}", "\N{EN DASH}"


def run(
    name: str, accuracy: float, seconds: float, cost: float | None = None, examples: int | None = 10_000
) -> LoggedRun:
    metrics = {"test_accuracy": accuracy, "wall_seconds": seconds, "train_seconds": seconds / 2}
    metrics |= {} if cost is None else {"cost_usd": cost}
    metrics |= {} if examples is None else {"test_examples": examples}
    return LoggedRun(name=name, epochs=[(0.9, 100, 1e-3, 1)], metrics=metrics)


@pytest.fixture
def recommended(client, log_study):
    def read(study, runs, **tags):
        return recommend(read_comparison(client, study, log_study(study, runs, reference=runs[0].name, **tags)))

    return read


def test_fastest_and_cheapest_may_be_one(recommended):
    found = recommended("same", [run("base", 0.9, 100, 0.2), run("fast", 0.905, 50, 0.1), run("bad", 0.8, 10, 0.01)])
    assert found.sentence == (
        "Within 1 point of base's test accuracy, fast takes the least time and costs the least: 50.0 s, $0.1000, "
        f"+0.5 points (95 % interval {MINUS}0.3 to +1.3)."
    )
    assert (found.fastest, found.cheapest, found.remarks) == ("fast", "fast", ())
    assert [(c.run, c.is_within) for c in found.candidates] == [("base", True), ("fast", True), ("bad", False)]


def test_fastest_and_cheapest_may_differ(recommended):
    found = recommended(
        "differ", [run("base", 0.9, 7200, 0.2), run("fast", 0.91, 600, 0.3), run("slow", 0.9, 9000, 0.1)]
    )
    assert found.sentence == (
        "Within 1 point of base's test accuracy, fast takes the least time: 10.0 min, $0.3000, +1.0 points (95 % "
        "interval +0.2 to +1.8); "
        f"slow costs the least: 2.50 h, $0.1000, +0.0 points (95 % interval {MINUS}0.8 to +0.8)."
    )


def test_reference_stays_where_nothing_is_clearly_better(recommended):
    found = recommended("itself", [run("base", 0.9, 100, 0.2), run("other", 0.9, 96, 0.195)])
    assert found.sentence == (
        "Within 1 point of base's test accuracy, base itself takes the least time and costs the least: 100 s, $0.2000."
    )


def test_without_prices_only_the_fastest(recommended):
    found = recommended("prices", [run("base", 0.9, 100), run("fast", 0.91, 50)])
    assert found.sentence.startswith(
        "Within 1 point of base's test accuracy, fast takes the least time: 50.0 s, +1.0 points"
    )
    assert (found.cheapest, found.remarks) == ("", ("No price is given, so cost is not compared.",))
    some = recommended("some", [run("base", 0.9, 100, 0.1), run("fast", 0.91, 50)])
    assert (some.fastest, some.cheapest) == ("fast", "")
    assert some.remarks == ("No price is given for fast, so cost is not compared.",)


def test_no_other_run_keeps_the_accuracy(recommended):
    found = recommended("worse", [run("base", 0.9, 100), run("fast", 0.889, 50)])
    assert found.sentence == "No other run stays within 1 point of base's test accuracy: stay with base."
    assert found.fastest == "base"


def test_tolerance_is_the_studys_and_includes_its_bound(recommended):
    runs = [run("base", 0.98, 100), run("fast", 0.97, 50)]  # 0.97 - 0.98 is -0.010000000000000009
    assert recommended("bound", runs).fastest == "fast"
    narrow = recommended("narrow", runs, accuracy_tolerance="0.005")
    assert narrow.sentence == "No other run stays within 0.5 points of base's test accuracy: stay with base."


def test_interval_beyond_the_tolerance_is_said(recommended):
    found = recommended("doubt", [run("base", 0.9, 100, examples=360), run("fast", 0.9, 50, examples=360)])
    # 1.96 * sqrt(2 * 0.9 * 0.1 / 360) is 4.4 points.
    assert found.sentence == (
        "Within 1 point of base's test accuracy, fast takes the least time: 50.0 s, +0.0 points "
        f"(95 % interval {MINUS}4.4 to +4.4, not shown to be within)."
    )
    assert found.remarks[0].endswith("beyond the tolerance. 360 test images cannot tell that much.")
    assert [candidate.is_doubtful for candidate in found.candidates] == [False, True]


def test_deadline(recommended):
    runs = [run("base", 0.9, 7200), run("fast", 0.9, 3000), run("bad", 0.5, 60)]
    met = recommended("met", runs, deadline_hours="1")
    assert met.sentence.startswith(
        "Within 1 point of base's test accuracy and a deadline of 1 h, fast takes the least time: 50.0 min"
    )
    missed = recommended("missed", runs, deadline_hours="0.5")
    assert missed.sentence == (
        "Within 1 point of base's test accuracy and a deadline of 0.5 h, no run is ready in time: fast takes 50.0 min."
    )
    assert missed.fastest == missed.cheapest == ""


def test_runs_that_cannot_be_weighed(recommended):
    other = replace(run("other-data", 0.99, 1), tags={"rampline.data_fingerprint": "e" * 64})
    found = recommended("weighed", [run("base", 0.9, 100), run("fast", 0.91, 50), other])
    assert found.fastest == "fast"
    assert found.remarks[-1] == "Not scored on the reference's test set, so not weighed: other-data."
    unscored = LoggedRun(name="base", epochs=[(0.9, 100, 1e-3, 1)])
    nothing = recommended("unscored", [unscored, run("fast", 0.91, 50)])
    assert nothing.sentence == "No recommendation: the reference base has no test accuracy to hold other runs to."


def test_nothing_to_choose(recommended, client):
    assert recommended("single", [run("base", 0.9, 100)]).sentence == ""
    assert make_recommendation_section(read_comparison(client, "single")) is None


def test_section(recommended, client):
    runs = [run("base", 0.9, 100, 0.2), run("fast", 0.9, 50, examples=360), run("bad", 0.8, 10, examples=None)]
    found = recommended("table", runs, deadline_hours="0.02")
    section = make_recommendation_section(read_comparison(client, "table"))
    assert section is not None
    assert section.sentences[0] == found.sentence
    table = section.tables[0]
    assert table.head == ("run", "accuracy", "points", "95 % interval", "within 1 point", "time", "cost", "in time")
    assert table.rows[0] == ("base", "0.9000", "+0.0", DASH, "yes", "100 s", "$0.2000", "no")
    # Wilson: 0.8647 to 0.9269 of 360 images, 0.8940 to 0.9057 of 10,000; hypot(3.53, 0.57) = 3.58 points below.
    assert table.rows[1] == ("fast", "0.9000", "+0.0", f"{MINUS}3.6 to +2.8", "not shown", "50.0 s", DASH, "yes")
    assert table.rows[2] == ("bad", "0.8000", f"{MINUS}10.0", DASH, "no", "10.0 s", DASH, "yes")
    assert "paired" in section.about
    assert math.isnan(found.candidates[1].cost_usd)


def test_a_run_that_starts_from_others_takes_their_time_too(recommended):
    def trained(name: str, seconds: float, cost: float, weights: str) -> LoggedRun:
        params, tags = {"model.weights": weights}, {"rampline.run_dir": f"/runs/{name}"}
        return replace(run(name, 0.9, seconds, cost), params=params, tags=tags)

    runs = [
        trained("base", 100, 0.1, "none"),
        trained("tuned", 20, 0.02, "/runs/base/checkpoints/step-00000008"),
        trained("tuned-again", 10, 0.01, "/runs/tuned/checkpoints/step-00000009"),
        trained("base-2", 90, 0.2, "imagenet"),
    ]
    found = recommended("chain", runs)
    assert [(c.run, c.seconds, round(c.cost_usd, 9)) for c in found.candidates] == [
        ("base", 100, 0.1),
        ("tuned", 120, 0.12),
        ("tuned-again", 130, 0.13),
        ("base-2", 90, 0.2),
    ]
    assert (found.fastest, found.cheapest) == ("base-2", "base")
