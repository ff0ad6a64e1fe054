"""Colours: one per run, the same in every chart and in the table, told apart by the colour-blind, in light and dark.

Charts are drawn in placeholder colours that become CSS variables, so that one SVG serves both colour schemes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# After Okabe and Ito (2008), darkened for white paper and lightened for a dark screen.
LIGHT = ("#0072b2", "#d55e00", "#00875f", "#b0508a", "#b98100", "#4f9fd8", "#6a6a6a", "#7d5a2b")
DARK = ("#4fb0ea", "#ff8b4a", "#33cfa0", "#e594c6", "#f2bf3f", "#a5d5fa", "#b4b4b4", "#cda878")
# Parts of a whole; in other hues than runs where both stand in one report. The last is for the rest.
LIGHT_PARTS = ("#3a6ea5", "#24806a", "#a5632c", "#8a5aa8", "#5a7a26", "#a84a5c", "#6b737b")
DARK_PARTS = ("#7db2ea", "#5fcfb4", "#e8a56b", "#c79be6", "#a9cc6a", "#f08ba0", "#9aa3ab")
DASHES = ((), (5, 2), (1.5, 1.5), (5, 1.5, 1.5, 1.5))
# Runs that a chart can tell apart.
MOST_STYLES = len(LIGHT) * len(DASHES)

INK, MUTED, RULE, PAPER = "#010203", "#020304", "#030405", "#040506"
_VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", RULE: "var(--rule)", PAPER: "var(--paper)"}
_RUNS = tuple(f"#0a0b{number:02x}" for number in range(len(LIGHT)))
_PARTS = tuple(f"#0c0d{number:02x}" for number in range(len(LIGHT_PARTS)))


@dataclass(frozen=True, kw_only=True)
class RunStyle:
    """How one run is drawn: `color` in charts, `variable` in HTML; `dashes` tell apart what shares a colour."""

    color: str
    variable: str
    dashes: tuple[float, ...]

    @property
    def dash_array(self) -> str:
        """`dashes` as SVG writes them; `none` for a solid line."""
        return " ".join(f"{length:g}" for length in self.dashes) or "none"


def style_runs(runs: list[str]) -> dict[str, RunStyle]:
    """A style for each run: colours in order, then the same colours with other dashes."""
    return {run: _style(number) for number, run in enumerate(runs)}


def _style(number: int) -> RunStyle:
    color = number % len(LIGHT)
    dashes = DASHES[number // len(LIGHT) % len(DASHES)]
    return RunStyle(color=_RUNS[color], variable=f"var(--run-{color})", dashes=dashes)


def color_parts(count: int) -> list[str]:
    """Colours for the parts of a whole, in charts: the last one is grey, for the rest.

    Raises:
        ValueError: if there are more parts than colours.
    """
    if not 1 <= count <= len(_PARTS):
        raise ValueError(f"{count} parts of a whole: must be 1 to {len(_PARTS)}")
    return [*_PARTS[: count - 1], _PARTS[-1]]


def declare_colors(runs: Sequence[str], parts: Sequence[str]) -> str:
    """The colours of runs and of parts as declarations of CSS variables, for one colour scheme."""
    named = [(f"--run-{number}", color) for number, color in enumerate(runs)]
    named += [(f"--part-{number}", color) for number, color in enumerate(parts)]
    return " ".join(f"{name}: {color};" for name, color in named)


def use_variables(svg: str) -> str:
    """The SVG with CSS variables in place of the placeholder colours."""
    for number, color in enumerate(_RUNS):
        svg = svg.replace(color, f"var(--run-{number})")
    for number, color in enumerate(_PARTS):
        svg = svg.replace(color, f"var(--part-{number})")
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, variable)
    return svg
