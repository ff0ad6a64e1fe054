"""Labels that do not cover each other, and stacked bars as their SVG draws them."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest

from rampline.comparison.canvas import shorten, spread, stacked_bars


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([1.0, 5.0], [1.0, 5.0]),
        ([5.0, 5.0, 1.0], [6.0, 5.0, 1.0]),
        ([9.8, 9.9, 10.0], [8.0, 9.0, 10.0]),
        ([], []),
    ],
)
def test_spread(positions, expected):
    assert spread(positions, 1.0, 0.0, 10.0) == pytest.approx(expected)


def test_shorten():
    assert shorten("parameter-server") == "parameter-server"
    assert shorten("a-name-that-is-far-too-long") == "a-name-t…-too-long"


PARTS = (("input", "input wait"), ("compute", "compute"), ("sync", "synchronisation"), ("other", "the rest"))


def draw(rows, parts=PARTS):
    return stacked_bars(rows, parts, "milliseconds per step", "steps")


def pieces(svg):
    """Colour number, left edge and width of every piece in the axes, in SVG units."""
    found = re.findall(r'<path d="([^"]*)" clip-path[^>]*style="fill: var\(--part-(\d)\)', svg)
    edges = [(int(part), [float(x) for x in re.findall(r"[ML] ([-\d.]+) ", path)]) for path, part in found]
    return [(part, min(xs), max(xs) - min(xs)) for part, xs in edges]


def texts(svg):
    return re.findall(r">([^<>]+)</text>", svg)


def test_pieces_are_as_long_as_their_values_and_join():
    drawn = pieces(draw([("one", {"input": 10, "compute": 60, "sync": 20, "other": 10})]))
    assert [part for part, _, _ in drawn] == [0, 1, 2, 6]  # the last part is grey
    lengths = [width for _, _, width in drawn]
    assert [length / sum(lengths) for length in lengths] == pytest.approx([0.1, 0.6, 0.2, 0.1], abs=1e-4)
    for (_, left, width), (_, following, _) in pairwise(drawn):
        assert left + width == pytest.approx(following, abs=1e-3)


def test_bars_share_one_scale_and_name_their_totals():
    svg = draw([("long", {"compute": 75, "other": 25}), ("short", {"compute": 50})])
    drawn = [width for _, _, width in pieces(svg) if width]
    assert [width / drawn[0] for width in drawn] == pytest.approx([1, 1 / 3, 2 / 3], abs=1e-4)
    assert {"long", "short", "100", "50.0", "75.0", "milliseconds per step"} <= set(texts(svg))


def test_values_stand_only_where_they_fit():
    shown = texts(draw([("one", {"input": 1.5, "compute": 98.25})]))
    assert "98.2" in shown
    assert "1.50" not in shown


def test_only_parts_that_are_there_have_a_legend():
    shown = texts(draw([("one", {"compute": 5}), ("two", {"other": 1})]))
    assert [words for _, words in PARTS if words in shown] == ["compute", "the rest"]


@pytest.mark.parametrize("value", [math.nan, None, -0.4])
def test_noise_and_missing_parts_have_no_piece(value):
    svg = draw([("one", {"input": value, "compute": 8.0})])
    assert sum(width > 0 for _, _, width in pieces(svg)) == 1
    assert "input wait" not in texts(svg)
    assert texts(svg).count("8.00") == 2  # in the piece, and as total


def test_nothing_measured_is_a_total_of_nothing():
    svg = draw([("one", {})])
    assert sum(width > 0 for _, _, width in pieces(svg)) == 0
    assert "0.00" in texts(svg)


def test_refused():
    with pytest.raises(ValueError, match="a row"):
        draw([])
    with pytest.raises(ValueError, match="8 parts of a whole: must be 1 to 7"):
        draw([("one", {})], [(str(number), "part") for number in range(8)])
