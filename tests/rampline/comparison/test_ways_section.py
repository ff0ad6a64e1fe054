"""The four ways of looking at the same runs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from logged_runs import LoggedRun, there

from rampline.comparison.ways_section import make_views, make_ways_section

DASH = "\N{EN DASH}"


def run(name: str, *points: tuple[float, float], status: str = "FINISHED") -> LoggedRun:
    """A run with (validation accuracy, elapsed seconds) per epoch."""
    return LoggedRun(name=name, status=status, epochs=[(accuracy, 100, 1e-3, at) for accuracy, at in points])


# Steady is better at equal epochs, quick at equal time; late has not one epoch in that time.
RUNS = [
    run("steady", (0.80, 10), (0.90, 20), (0.96, 30), (0.95, 40)),
    run("quick", (0.70, 2), (0.85, 4), (0.955, 16)),
    run("late", (0.50, 17), (0.60, 34), (0.70, 51)),
    run("failed", (0.99, 1), status="FAILED"),
]


def test_four_ways_by_hand(compare):
    views = there(make_views(compare("ways", RUNS)))
    assert (views.epochs, views.seconds) == (3, 16)  # the fewest epochs, the shortest time of a finished run
    assert views.target == pytest.approx(0.9504)  # 99 % of 0.96
    steady, quick, late = views.runs
    assert (steady.best_epoch, steady.best, steady.last) == (3, 0.96, 0.95)
    assert (steady.at_equal_epochs, steady.at_equal_time, steady.seconds_to_target) == (0.96, 0.80, 30)
    assert (quick.at_equal_epochs, quick.at_equal_time, quick.seconds_to_target) == (0.955, 0.955, 16)
    assert late.at_equal_epochs == 0.70
    assert math.isnan(late.at_equal_time)
    assert math.isnan(late.seconds_to_target)


def test_best_so_far_counts_not_the_last(compare):
    views = there(make_views(compare("so-far", [run("falls", (0.9, 1), (0.5, 2)), run("other", (0.6, 1), (0.7, 2))])))
    assert (views.runs[0].last, views.runs[0].at_equal_epochs, views.runs[0].at_equal_time) == (0.5, 0.9, 0.9)


def test_of_repeats_it_is_what_their_trainings_have_reached(compare):
    trainings = [
        run("a", (0.90, 1), (0.95, 2)),
        run("a-seed1", (0.96, 1), (0.90, 2)),
        run("a-seed2", (0.91, 1), (0.94, 2)),
    ]
    repeated = [replace(each, tags={"rampline.repeat_of": "a"} if each.name != "a" else {}) for each in trainings]
    comparison = compare("repeats-reach", [*repeated, run("other", (0.5, 1), (0.6, 2))])
    view = there(make_views(comparison)).runs[0]
    assert view.best == view.at_equal_epochs == comparison.rows[0]["best_val_accuracy"] == 0.95
    assert (view.best_epoch, view.last) == (2, 0.94)


def test_section_says_where_the_ways_disagree(compare):
    section = there(make_ways_section(compare("disagree", RUNS)))
    assert section.sentences == (
        "Which run leads depends on how one looks: after 3 epochs it is steady, after 16.0 s it is quick, "
        "over all its epochs it is steady.",
    )
    table = section.tables[0]
    assert table.head == ("run", "best epoch", "best", "last", "after 3 epochs", "after 16.0 s", "time to 0.9504")
    assert table.rows[0] == ("steady", "3", "0.9600", "0.9500", "0.9600", "0.8000", "30.0 s")
    assert table.rows[2] == ("late", "3", "0.7000", "0.7000", "0.7000", DASH, DASH)
    assert len(section.charts) == 1
    rows = section.charts[0].spec["data"]["values"]
    assert [(row["run"], row["text"], row["epochs"], row.get("time")) for row in rows] == [
        ("steady", "0.8000", 0.96, 0.80),
        ("quick", "0.9550", 0.955, 0.955),
        ("late", DASH, 0.70, None),
    ]


def test_section_says_where_they_agree(compare):
    section = make_ways_section(compare("agree", [run("good", (0.9, 1), (0.95, 2)), run("bad", (0.5, 2), (0.6, 4))]))
    assert section is not None
    assert section.sentences == (
        "However one looks, good has reached the most: after 2 epochs, after 2.00 s, over all its epochs.",
    )
    tie = [run(name, (0.9, 1), (0.95, 2)) for name in ("good", "twin", "third")]
    section = make_ways_section(compare("tie", tie))
    assert section is not None
    assert section.sentences[0].startswith("However one looks, good, twin and third have reached the most: ")


def test_two_finished_runs_are_needed(compare):
    assert make_ways_section(compare("one-view", [RUNS[0], RUNS[3], LoggedRun(name="no-epochs")])) is None


def test_a_run_that_starts_from_another_has_its_epochs_and_time_before_its_own(compare):
    first = run("first", (0.80, 10), (0.90, 20), (0.85, 30))
    weights = {"model.weights": "/home/runs/chain/first/first/checkpoints/step-00000008"}
    later = replace(run("later", (0.70, 5), (0.95, 10)), params=weights)
    comparison = compare("chain", [first, later, run("other", (0.60, 25))])
    views = there(make_views(comparison))
    found = {view.run: view for view in views.runs}
    # After 25 s it is at the second epoch of the first run; 0.95 is there after 30 + 10 s.
    assert (views.epochs, views.seconds) == (1, 25)
    assert (found["later"].at_equal_epochs, found["later"].at_equal_time) == (0.80, 0.90)
    assert (found["later"].best_epoch, found["later"].best, found["later"].last) == (2, 0.95, 0.95)
    assert found["later"].seconds_to_target == 40
    assert comparison.runs["seconds_before"].tolist() == [0, 30, 0]


def test_runs_of_other_data_are_not_held_to_each_other(compare):
    fewer = replace(run("fewer", (0.99, 1)), params={"data.limit": "10"})
    views = there(make_views(compare("limited", [*RUNS[:2], fewer])))
    assert [view.run for view in views.runs] == ["steady", "quick"]
