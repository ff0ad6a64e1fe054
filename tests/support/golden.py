"""Golden files: what users see, frozen in tests/golden. `RAMPLINE_GOLDEN=write` writes them instead of comparing."""

import difflib
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "golden"
# With its sign, its fraction and its exponent, and no part of a word such as float32.
NUMBER = re.compile(r"(?<![\w.])(?:(?<!\S)[+\u2212-]|(?<=±))?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?(?![a-zA-Z_])")


def check_golden(name: str, text: str) -> None:
    """Compare `text` with `tests/golden/NAME`, without blanks at the ends of lines."""
    found = "\n".join(line.rstrip() for line in text.splitlines()).strip() + "\n"
    file = FOLDER / name
    if os.environ.get("RAMPLINE_GOLDEN") == "write":
        file.write_text(found, encoding="utf-8")
    expected = file.read_text(encoding="utf-8")
    if found != expected:
        difference = difflib.unified_diff(
            expected.splitlines(), found.splitlines(), f"golden/{name}", "now", "", "", 2, ""
        )
        pytest.fail("\n".join([*difference, "If this is meant: RAMPLINE_GOLDEN=write, and look at it"]), pytrace=False)


def mask_numbers(text: str) -> str:
    """`#` for every number; words stay."""
    return NUMBER.sub("#", text)


class _Page(HTMLParser):
    """Lines of visible text, in some elements or all: cells of a row, and texts of a chart, beside each other."""

    BESIDE = ("td", "th", "text", "a", "dd")
    INLINE = ("br", "small", "span", "strong", "code", "b", "i", "em", "tspan")
    IN_CHART = ("g", "path", "line", "rect", "use", "circle", "polyline", "polygon", "defs", "clippath", "title")
    WITHOUT_END = ("meta", "link", "br", "img", "input")

    def __init__(self, html: str, only: tuple[str, ...]) -> None:
        super().__init__()
        self.lines, self._open, self._only = [""], list[str](), set(only)
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.WITHOUT_END:
            self._open.append(tag)
        if tag in self.BESIDE:
            self.lines[-1] += " | " if self.lines[-1] else ""
        elif tag not in (*self.INLINE, *self.IN_CHART) and self.lines[-1]:
            self.lines.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        is_shown = not {"style", "script"}.intersection(self._open)
        if is_shown and data.strip() and (not self._only or self._only.intersection(self._open)):
            self.lines[-1] = f"{self.lines[-1].rstrip()} {' '.join(data.split())}".strip()


def visible_text(html: str, *only: str) -> str:
    """What a reader sees of a page, without charts' lines; with `only`, what is in these elements."""
    lines = (line.replace(" | | ", " | ").strip(" |") for line in _Page(html, only).lines)
    return "\n".join(line for line in lines if line)
