"""What is recommended, and in which words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from logged_runs import LoggedRun, there

from rampline.comparison.recommendation import make_recommendation_section, recommend
from rampline.comparison.runs import read_comparison
from rampline.comparison.sentences import summarise_accuracy, summarise_speed
from rampline.registry.paired_test import compare_predictions

MINUS, DASH, TIMES = "\N{MINUS SIGN}", "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"


def run(
    name: str, accuracy: float, seconds: float, cost: float | None = None, examples: int | None = 10_000
) -> LoggedRun:
    metrics = {"test_accuracy": accuracy, "wall_seconds": seconds, "train_seconds": seconds / 2}
    metrics |= {} if cost is None else {"cost_usd": cost}
    metrics |= {} if examples is None else {"test_examples": examples}
    return LoggedRun(name=name, epochs=[(0.9, 100, 1e-3, 1)], metrics=metrics, params={"model.name": name})


@pytest.fixture
def recommended(compare):
    def read(study, runs, **tags):
        return recommend(compare(study, runs, reference=runs[0].name, **tags))

    return read


def test_fastest_and_cheapest_may_be_one(recommended):
    found = recommended("same", [run("base", 0.905, 100, 0.2), run("fast", 0.9, 50, 0.1), run("bad", 0.8, 10, 0.01)])
    assert found.sentence == (
        "Within 1 point of the best test accuracy (base, 0.9050), fast takes the least time and costs the least: "
        f"50.0 s, $0.1000, {MINUS}0.5 points (95 % interval {MINUS}1.3 to +0.3, not shown to be within)."
    )
    assert (found.fastest, found.cheapest, len(found.remarks)) == ("fast", "fast", 1)
    assert [(c.run, c.is_within) for c in found.candidates] == [("base", True), ("fast", True), ("bad", False)]


def test_fastest_and_cheapest_may_differ(recommended):
    found = recommended(
        "differ", [run("base", 0.9, 7200, 0.2), run("fast", 0.91, 600, 0.3), run("slow", 0.9, 9000, 0.1)]
    )
    assert found.sentence == (
        "Within 1 point of the best test accuracy (fast, 0.9100), fast takes the least time: 10.0 min, $0.3000; "
        f"slow costs the least: 2.50 h, $0.1000, {MINUS}1.0 points (95 % interval {MINUS}1.8 to {MINUS}0.2, not "
        "shown to be within)."
    )


def test_costs_that_are_not_told_apart_leave_one_answer(recommended):
    runs = [run("base", 0.9, 200, 0.05), run("fast", 0.9, 70, 0.0201), run("other", 0.9, 90, 0.0200)]
    found = recommended("near-costs", runs)
    assert (found.fastest, found.cheapest) == ("fast", "fast")


def test_reference_stays_where_nothing_is_clearly_better(recommended):
    found = recommended("itself", [run("base", 0.9, 100, 0.2), run("other", 0.9, 96, 0.195)])
    assert found.sentence == (
        "Within 1 point of the best test accuracy (base, 0.9000), the reference base takes the least time and costs "
        "the least: 100 s, $0.2000."
    )


def test_runs_that_take_as_long_are_named(recommended):
    runs = [run("base", 0.9, 100), run("fast", 0.9, 50), run("equal", 0.9, 52), run("slower", 0.9, 54)]
    found = recommended("near", runs)
    assert (found.fastest, found.remarks[0]) == ("fast", "Not told apart from fast by their times: equal.")


def test_without_prices_only_the_fastest(recommended):
    found = recommended("prices", [run("base", 0.9, 100), run("fast", 0.91, 50)])
    assert found.sentence == (
        "Within 1 point of the best test accuracy (fast, 0.9100), fast takes the least time: 50.0 s."
    )
    assert (found.cheapest, found.unpriced) == ("", "No price is given, so cost is not compared.")
    some = recommended("some", [run("base", 0.9, 100, 0.1), run("fast", 0.91, 50)])
    assert (some.fastest, some.cheapest) == ("fast", "")
    assert some.unpriced == "No price is given for fast, so cost is not compared."


def test_no_other_run_keeps_the_accuracy(recommended):
    found = recommended("worse", [run("base", 0.9, 100), run("fast", 0.889, 50)])
    assert (
        found.sentence
        == "No other run comes within 1 point of the best test accuracy (base, 0.9000): base takes 100 s."
    )
    assert found.fastest == "base"


def test_a_reference_at_chance_makes_no_run_at_chance_good_enough(recommended):
    found = recommended("chance", [run("base", 0.505, 100), run("quick", 0.507, 10), run("good", 0.962, 300)])
    assert found.sentence == (
        "No other run comes within 1 point of the best test accuracy (good, 0.9620): good takes 5.00 min."
    )
    assert found.fastest == "good"
    assert [candidate.is_within for candidate in found.candidates] == [False, False, True]


def test_tolerance_is_the_studys_and_includes_its_bound(recommended):
    runs = [run("base", 0.98, 100), run("fast", 0.97, 50)]  # 0.97 - 0.98 is -0.010000000000000009
    assert recommended("bound", runs).fastest == "fast"
    narrow = recommended("narrow", runs, accuracy_tolerance="0.005")
    assert narrow.sentence == (
        "No other run comes within 0.5 points of the best test accuracy (base, 0.9800): base takes 100 s."
    )


def test_interval_beyond_the_tolerance_is_said(recommended):
    found = recommended("doubt", [run("base", 0.9, 100, examples=360), run("fast", 0.9, 50, examples=360)])
    # 1.96 * sqrt(2 * 0.9 * 0.1 / 360) is 4.4 points.
    assert found.sentence == (
        "Within 1 point of the best test accuracy (base, 0.9000), fast takes the least time: 50.0 s, +0.0 points "
        f"(95 % interval {MINUS}4.4 to +4.4, not shown to be within)."
    )
    assert found.remarks[0].endswith("beyond the tolerance. 360 test images cannot tell that much.")
    assert [candidate.is_doubtful for candidate in found.candidates] == [False, True]


def test_deadline(recommended):
    runs = [run("base", 0.9, 7200), run("fast", 0.9, 3000), run("bad", 0.5, 60)]
    met = recommended("met", runs, deadline_hours="1")
    assert met.sentence.startswith(
        "Within 1 point of the best test accuracy (base, 0.9000) and a deadline of 1 h, fast takes the least time: "
        "50.0 min"
    )
    missed = recommended("missed", runs, deadline_hours="0.5")
    assert missed.sentence == (
        "Within 1 point of the best test accuracy (base, 0.9000) and a deadline of 0.5 h, no run is ready in time: "
        "fast takes 50.0 min."
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
    runs = [
        run("base", 0.9, 100, 0.2, examples=360),
        run("fast", 0.9, 50, examples=360),
        run("bad", 0.8, 10, examples=None),
    ]
    found = recommended("table", runs, deadline_hours="0.02")
    section = there(make_recommendation_section(read_comparison(client, "table")))
    assert section.sentences == found.remarks
    table = section.tables[0]
    assert table.head == ("run", "accuracy", "points", "95 % interval", "within 1 point", "time", "cost", "in time")
    assert table.rows[0] == ("base", "0.9000", "+0.0", DASH, "yes", "100 s", "$0.2000", "no")
    # Wilson: 0.8647 to 0.9269 of 360 images; hypot(3.53, 2.69) = 4.44 points.
    assert table.rows[1] == ("fast", "0.9000", "+0.0", f"{MINUS}4.4 to +4.4", "not shown", "50.0 s", DASH, "yes")
    assert table.rows[2] == ("bad", "0.8000", f"{MINUS}10.0", DASH, "no", "10.0 s", DASH, "yes")
    assert "paired" in section.about
    assert math.isnan(found.candidates[1].cost.value)


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
    assert [(c.run, c.time.value, round(c.cost.value, 9)) for c in found.candidates] == [
        ("base", 100, 0.1),
        ("tuned", 120, 0.12),
        ("tuned-again", 130, 0.13),
        ("base-2", 90, 0.2),
    ]
    assert (found.fastest, found.cheapest) == ("base-2", "base")
    untimed = replace(runs[0], metrics={"test_accuracy": 0.9})
    assert [c.run for c in recommended("untimed-chain", [runs[3], untimed, *runs[1:3]]).candidates] == ["base-2"]


def answer(client, comparison, answers: dict[str, tuple[Sequence[int], str]], tmp_path: Path) -> None:
    """Log what each run answered on images whose label is 1, and the digest of that."""
    for row in comparison.rows:
        predicted, digest = answers[row["run"]]
        lines = [f"{index},1,{prediction},0.9" for index, prediction in enumerate(predicted)]
        (tmp_path / "predictions.csv").write_text("\n".join(["index,label,prediction,probability", *lines]) + "\n")
        client.log_artifact(row["run_id"], str(tmp_path / "predictions.csv"))
        client.set_tag(row["run_id"], "rampline.answers", digest)


def test_the_interval_is_that_of_promote_image_by_image(recommended, client, tmp_path):
    names = {"base": 100, "fast": 50, "other": 80}
    recommended("paired", [run(name, 0.95, seconds, examples=1000) for name, seconds in names.items()])
    right, wrong = [1] * 940, [0] * 50
    # Of 1,000 images, base and fast disagree on 10, and other errs on others.
    answers: dict[str, tuple[Sequence[int], str]] = {
        "base": ([*right, *[1] * 5, *[0] * 5, *wrong], "a"),
        "fast": ([*right, *[0] * 5, *[1] * 5, *wrong], "b"),
        "other": ([*wrong, *right, *[1] * 10], "c"),
    }
    answer(client, read_comparison(client, "paired"), answers, tmp_path)
    base, fast, other = recommend(read_comparison(client, "paired")).candidates
    paired = compare_predictions(*map(np.array, ([1] * 1000, answers["base"][0], answers["fast"][0])))
    assert fast.interval == paired.interval
    low, high = paired.interval
    assert -0.01 < low < 0 < high < 0.01
    assert (base.interval, fast.is_doubtful) == (None, False)
    assert other.interval is not None
    assert other.interval[0] < -0.015  # 100 disagreements


def test_answers_that_are_gone_leave_the_wider_interval(recommended, client):
    recommended("gone", [run("base", 0.95, 100, examples=1000), run("fast", 0.95, 50, examples=1000)])
    for row in read_comparison(client, "gone").rows:
        client.set_tag(row["run_id"], "rampline.answers", row["run"])
    fast = recommend(read_comparison(client, "gone")).candidates[1]
    assert fast.interval == pytest.approx((-0.0193, 0.0193), abs=1e-4)


def twins(client, compare, study: str, *, same: bool = True, **params: str):
    """`twin` takes half the time of `base` at twice its throughput, and is the same model."""
    base = replace(run("base", 0.9, 100, 0.2, examples=58), params={})
    twin = replace(run("twin", 0.9, 50, 0.1, examples=58), params=params, epochs=[(0.9, 200, 1e-3, 1)])
    for row in compare(study, [base, twin], reference="base").rows:
        client.set_tag(row["run_id"], "rampline.answers", "same" if same else row["run"])
    return read_comparison(client, study)


def test_the_same_training_once_more_is_not_recommended_and_not_faster(client, compare):
    spelling = {"batch.per": "replica", "cluster.max_restarts": "7"}
    comparison = twins(client, compare, "twins", same=True, **spelling)
    found = recommend(comparison)
    assert (found.fastest, found.cheapest) == ("base", "base")
    assert found.sentence == (
        "Within 1 point of the best test accuracy (base, 0.9000), the reference base takes the least time and costs "
        "the least: 100 s, $0.2000."
    )
    assert found.remarks[0].startswith("twin is the same training as base: the same answers")
    assert found.candidates[1].interval == (0, 0)
    section = there(make_recommendation_section(comparison))
    assert section.tables[0].rows[1][2:5] == ("+0.0", "same answers", "yes")
    speed, ratio = summarise_speed(comparison), f"2.00{TIMES} (0.50{TIMES} to 2.00{TIMES})"
    assert speed == f"No run is clearly faster than the reference base (100 images/s): twin is at {ratio}."


def test_the_same_training_in_another_set_up_is_recommended_where_it_is_faster(client, compare):
    comparison = twins(client, compare, "other-set-up", engine="fit")
    assert recommend(comparison).fastest == "twin"
    assert summarise_speed(comparison).startswith("twin is the fastest")
    # Half the time at the same throughput is the start, or noise.
    slow = twins(client, compare, "slow-set-up", engine="fit", images="fewer")
    epochs = slow.runs.assign(images_per_second=[100.0, 90.0])
    assert recommend(replace(slow, runs=epochs)).fastest == "base"
    # Equal settings are one set-up, whatever came out of it: its speeds differ by noise.
    assert recommend(twins(client, compare, "no-twins", same=False)).fastest == "base"


def test_the_same_model_at_another_price_or_with_fewer_checkpoints_is_no_training_once_more(client, compare):
    for params in ({"cluster.price_per_hour": "1.2"}, {"checkpoint_every_epochs": "5"}):
        comparison = twins(client, compare, f"paid-{min(params)}", same=True, **params)
        rows = comparison.runs.assign(images_per_second=[100.0, 100.0])
        found = recommend(replace(comparison, runs=rows))
        assert (found.fastest, found.cheapest) == ("twin", "twin")
        # As trainings of one set-up they would share an interval.
        assert "cost_usd" not in rows["intervals"][0]


def test_a_run_that_stopped_earlier_with_the_same_model_takes_less_time_for_that(client, compare):
    base = replace(run("base", 0.9, 100, examples=58), epochs=[(0.9, 100, 1e-3, 1), (0.8, 100, 1e-3, 2)])
    tags = {"rampline.stopped": "after epoch 1 of 2: target accuracy 0.9 reached"}
    early = replace(run("early", 0.9, 50, examples=58), tags=tags, params={"stop.target_accuracy": "0.9"})
    for row in compare("early", [base, early], reference="base").rows:
        client.set_tag(row["run_id"], "rampline.answers", "same")
    found = recommend(read_comparison(client, "early"))
    assert found.fastest == "early"
    assert found.remarks[0] == (
        "early has the time and the accuracy that it had when it stopped, after epoch 1 of 2: target accuracy 0.9 "
        "reached."
    )


@pytest.mark.parametrize(
    "split, other, weighed",
    [
        ("test", {"data.split_seed": "1", "data.validation_fraction": "0.2"}, True),
        ("test", {"data.limit": "50"}, True),  # equally many of the same images
        ("test", {"data.limit": "50", "data.split_seed": "1"}, False),
        ("validation", {"data.split_seed": "1"}, False),
        ("validation", {"data.validation_fraction": "0.2"}, False),
        ("test", {"test_examples": "500"}, False),
    ],
)
def test_runs_are_held_to_each_other_on_the_same_images_alone(client, compare, split, other, weighed):
    data = {"data.limit": "None", "data.split_seed": "0", "data.validation_fraction": "0.1"}
    examples = int(other.get("test_examples", "1000"))
    runs = [
        replace(run("base", 0.9, 100, examples=1000), params=data),
        replace(run("fast", 0.95, 50, examples=examples), params=data | other),
    ]
    study = f"images-{split}-{'-'.join(other)}"
    for row in compare(study, runs, reference="base").rows:
        client.set_tag(row["run_id"], "rampline.test_split", split)
    comparison = read_comparison(client, study)
    assert [candidate.run for candidate in recommend(comparison).candidates] == ["base", "fast"][: 1 + weighed]
    assert ("0.9500" in summarise_accuracy(comparison)) == weighed


def test_a_moved_home_keeps_what_a_run_starts_from(recommended):
    tags = {"rampline.run_dir": "/old/runs/moved/first/base"}
    weights = {"model.weights": "/new/runs/moved/first/base/checkpoints/step-00000008"}
    runs = [replace(run("base", 0.9, 100), tags=tags), replace(run("tuned", 0.9, 20), params=weights)]
    found = recommended("moved", runs)
    assert [(c.run, c.time.value) for c in found.candidates] == [("base", 100), ("tuned", 120)]
    elsewhere = {"model.weights": "/new/runs/moved/second/base/checkpoints/step-00000008"}
    found = recommended("moved", [runs[0], replace(runs[1], params=elsewhere)])
    assert [c.time.value for c in found.candidates] == [100, 20]
