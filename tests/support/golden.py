"""Golden files: what users see, frozen in tests/golden. `RAMPLINE_GOLDEN=write` writes them instead of comparing."""

import difflib
import os
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "golden"
# With its sign, its fraction and its exponent, and no part of a word such as float32.
NUMBER = re.compile(r"(?<![\w.])(?:(?<!\S)[+−-]|(?<=±))?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?(?![a-zA-Z_])")


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
