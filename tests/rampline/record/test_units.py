"""How figures are written."""

import pytest

from rampline.record.units import (
    escape_controls,
    escape_markdown,
    write_accuracy,
    write_dollars,
    write_duration,
    write_markdown_table,
    write_number_of,
    write_quantity,
    write_ratio,
)


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (write_accuracy, 0.97777, "0.9778"),
        (write_quantity, 3.417, "3.42"),
        (write_quantity, 42.04, "42.0"),
        (write_quantity, 5210.4, "5,210"),
        (write_ratio, 1.3149, "1.31\N{MULTIPLICATION SIGN}"),
        (write_dollars, 0.03124, "$0.0312"),
        (write_dollars, 1234.5, "$1,234.50"),
    ],
)
def test_written_figures(write, value, text):
    assert write(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(119, "119 s"), (120, "2.00 min"), (7199, "120 min"), (7200, "2.00 h"), (90000, "25.0 h")]
)
def test_durations(seconds, text):
    assert write_duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 minutes"), (1, "1 minute"), (2, "2 minutes"), (2.5, "2.5 minutes")])
def test_numbers_of_things(count, text):
    assert write_number_of("minute", count) == text


def test_control_characters_are_shown():
    assert escape_controls("a\x1b]0;b\x07\x9b2J\x7f") == r"a\x1b]0;b\x07\x9b2J\x7f"
    assert escape_controls("naïve\u3000🐈\tc\nd") == "naïve\u3000🐈\tc\nd"


def test_no_cell_of_a_table_is_markdown():
    cells = ["![](http://a.b/c.png)", "\\[x](y)", "<img src=z>", "p | *q*_r_"]
    assert [escape_markdown(cell) for cell in cells] == [
        r"!\[](http://a.b/c.png)",
        r"\\\[x](y)",
        r"\<img src=z>",
        r"p \| \*q\*\_r\_",
    ]
    assert write_markdown_table(["a"], [[cell] for cell in cells]).count("\\[") == 2
