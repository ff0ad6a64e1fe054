"""What charts are made of: stacked parts, shared lines, and the colours of many runs."""

from __future__ import annotations

import json
import math

import pytest

from rampline.comparison.charts import axis, dumbbell, finite, run_lines, stacked_bars, style_runs, tooltip

PARTS = (("input", "input wait"), ("compute", "compute"), ("sync", "synchronisation"), ("other", "the rest"))


def draw(bars, parts=PARTS):
    spec, legend = stacked_bars(bars, parts, "milliseconds per step")
    pieces, totals = (layer["data"]["values"] for layer in spec["layer"])
    return pieces, {row["run"]: row["text"] for row in totals}, legend


def test_pieces_are_the_parts_in_their_order_and_totals_their_sums():
    pieces, totals, legend = draw([("long", {"input": 10, "compute": 60, "other": 30}), ("short", {"compute": 50})])
    assert [(p["run"], p["part"], p["value"]) for p in pieces] == [
        ("long", "input wait", 10),
        ("long", "compute", 60),
        ("long", "the rest", 30),
        ("short", "compute", 50),
    ]
    assert [p["place"] for p in pieces] == [0, 1, 3, 1]
    assert totals == {"long": "100", "short": "50.0"}
    # The last part is grey, whatever number of parts there is; parts that no run has are not in the legend.
    assert legend == (
        ("input wait", "var(--part-0)"),
        ("compute", "var(--part-1)"),
        ("the rest", "var(--part-6)"),
    )
    assert {piece["part"]: piece["color"] for piece in pieces} == dict(legend)


@pytest.mark.parametrize("value, total", [(math.nan, "8.00"), (None, "8.00"), (-0.4, "7.60")])
def test_noise_and_missing_parts_have_no_piece(value, total):
    pieces, totals, legend = draw([("one", {"input": value, "compute": 8.0})])
    assert [piece["part"] for piece in pieces] == ["compute"]
    assert totals == {"one": total}
    assert [words for words, _ in legend] == ["compute"]


def test_nothing_measured_is_a_total_of_nothing():
    assert draw([("one", {})]) == ([], {"one": "0.00"}, ())


def test_colours_take_turns_along_a_line_that_runs_share():
    rows = [{"run": run, "epoch": epoch, "rate": 0.1} for run in ("a", "b", "c") for epoch in (1, 2)]
    rows.append({"run": "alone", "epoch": 1, "rate": 0.2})
    layer = run_lines(rows, axis("epoch", "epoch"), axis("rate", "rate"), style_runs(["a", "b", "c", "alone"]))
    scale = layer["encoding"]["strokeDash"]["scale"]
    # Of each 15 pixels: a has all, b covers 10, c covers 5 of these.
    assert dict(zip(scale["domain"], scale["range"], strict=True)) == {
        "a": [15, 0],
        "b": [10, 5],
        "c": [5, 10],
        "alone": [1, 0],
    }


def test_a_dumbbell_has_room_for_its_words_and_none_for_what_is_missing():
    rows = [finite({"run": "a", "then": 0.5, "now": 0.9}), finite({"run": "b", "then": 0.6, "now": math.nan})]
    spec = dumbbell(rows, "then", "now", "accuracy", tooltip(now="now"))
    low, high = spec["encoding"]["x"]["scale"]["domain"]
    assert low < 0.5
    assert high > 0.9
    assert [row["end"] for row in spec["data"]["values"]] == [0.9, 0.6]
    json.dumps(spec, allow_nan=False)


def test_runs_that_share_a_colour_have_other_dashes():
    styles = style_runs([str(number) for number in range(32)])
    assert len({(style.color, style.dashes) for style in styles.values()}) == 32
    assert styles["0"].dash_array == "none"
    assert styles["8"].dash_array == "5 2"
