"""The units of metrics, and how figures are written: the same in terminal, report, pages and MLflow. No TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

NONE = "\N{EN DASH}"  # in the place of a figure that is not there
TIMES = "\N{MULTIPLICATION SIGN}"
GIBIBYTE = 2**30
MOST_NAMED = 8  # of a list, of which a sentence names all
# But for tabs and ends of lines.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def write_accuracy(value: float) -> str:
    """A share of correct answers, as Keras and MLflow write it: `0.9778`."""
    return f"{value:.4f}"


def write_quantity(value: float) -> str:
    """Seconds or images/s with three digits or more: `3.42`, `42.0`, `5,210`."""
    if abs(value) < 10:
        return f"{value:.2f}"
    return f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"


def write_ratio(value: float) -> str:
    """A factor with its multiplication sign: `1.31x`."""
    return f"{value:.2f}{TIMES}"


def write_percent(value: float) -> str:
    """`66 %`."""
    return f"{100 * value:.0f} %"


def write_dollars(value: float) -> str:
    """`$0.0312` below a dollar, `$12.40` above."""
    return f"${value:.4f}" if abs(value) < 1 else f"${value:,.2f}"


def write_duration(seconds: float) -> str:
    """`42.0 s` below two minutes, `34.9 min` below two hours, `3.50 h` above."""
    if seconds < 120:
        return f"{write_quantity(seconds)} s"
    return f"{write_quantity(seconds / 60)} min" if seconds < 7200 else f"{write_quantity(seconds / 3600)} h"


def write_count(value: float) -> str:
    """`1,437`."""
    return f"{int(value):,}"


def write_number_of(things: str, count: float) -> str:
    """`1 epoch`, `2.5 minutes`, `1,437 images`."""
    return f"{count:,.10g} {things}{'' if count == 1 else 's'}"


def write_bytes(value: float) -> str:
    """`812 bytes`, `42.0 MB` or `3.60 GB`, by powers of ten as disks and downloads have them."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if value >= size:
            return f"{write_quantity(value / size)} {unit}"
    return f"{write_count(value)} bytes"


def write_range(value: float, factor: float, write: Callable[[float], str]) -> str:
    """A figure with the interval from itself divided by a factor to itself times that: `412 (370 to 459)`."""
    return f"{write(value)} ({write(value / factor)} to {write(value * factor)})"


def list_names(names: Sequence[str]) -> str:
    """The names as a sentence has them; of many the first ones, and how many more."""
    if len(names) > MOST_NAMED + 1:
        return f"{', '.join(names[:MOST_NAMED])} and {len(names) - MOST_NAMED} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def escape_controls(text: str) -> str:
    """The text with its control characters as `\\x1b`: a terminal would obey those of a class or a file name."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def escape_markdown(text: str) -> str:
    """Markdown that shows the text as it is: stars, paths and brackets mark nothing up, and fetch nothing."""
    return re.sub(r"([\\*_<\[|`])", r"\\\1", text)


def write_markdown_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table as GitHub and Prefect show it, whatever is in its cells."""
    escaped = [[" ".join(escape_markdown(cell).splitlines()) for cell in row] for row in (head, *rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (escaped[0], ["---"] * len(escaped[0]), *escaped[1:]))


@dataclass(frozen=True)
class Unit:
    """A unit by its symbol, and how its figures are written in tables."""

    symbol: str
    write: Callable[[float], str]


NUMBER = Unit("", write_quantity)
ACCURACY = Unit("share of 1", write_accuracy)
SHARE = Unit("share of 1", write_percent)
RATIO = Unit("factor", write_ratio)
COUNT = Unit("number", write_count)
SECONDS = Unit("s", write_quantity)
MILLISECONDS = Unit("ms", write_quantity)
IMAGES_PER_SECOND = Unit("images/s", write_quantity)
DOLLARS = Unit("USD", write_dollars)
# Of a metric that we do not have, such as one that others have published: by the last word of its name.
UNIT_BY_LAST_WORD = {
    **{"accuracy": ACCURACY, "seconds": SECONDS, "usd": DOLLARS},
    **{"speedup": RATIO, "efficiency": SHARE, "epoch": COUNT},
}
