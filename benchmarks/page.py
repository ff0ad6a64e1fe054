"""docs/performance.md, written wholly from `benchmarks/results.json`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measurement import Measurement
from rampline.files import write_text

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
WIDTH = 125
UNITS = {
    "examples_per_second": "examples/s",
    "seconds": "s",
    "fixed_seconds": "s",
    "first_seconds": "s",
    "peak_mib": "MiB",
}
INTRODUCTION = """# Performance

This page shows what `make bench` measured. Each line of the first table is a ratio of two ways of doing the same work,
which take turns within one run: the median over the rounds, with the least and the greatest. A round of five is fresh
processes, one after the other; a round of ten is a block of steps of each of several processes that are all warm,
within seconds, and after five of them all begin afresh. Speeds in examples/s change with the machine and with what else
it does; ratios of one round change far less, and they alone count. A target is missed or met by the median.

`make bench-quick` measures the short part again in under 5 minutes (two rounds; printed, not written here), and `python
-m benchmarks --only KEY` one line. [results.md](results.md) is about the studies on real images, and
[explain.md](explain.md) about where the time of one run goes.
"""


def write_page(items: Sequence[Measurement], found: Mapping[str, Mapping[str, Any]], page: Path = PAGE) -> Path:
    """Write the page; a measurement without a result is said to be not measured."""
    made = describe_made(found[item.key] for item in items if item.key in found)
    parts = [INTRODUCTION.strip(), made, table_of_targets(items, found), "## How each is measured"]
    for item in items:
        parts += section(item, found.get(item.key))
    write_text(page, "\n\n".join(part for part in parts if part) + "\n")
    return page


def describe_made(found: Iterable[Mapping[str, Any]]) -> str:
    """On which machines, when and with which versions."""
    made: dict[str, set[str]] = {}
    for result in found:
        versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
        made.setdefault(f"{result['machine']}; {versions}", set()).add(result["date"])
    lines = [f"Machine: {words}. Measured on {' and '.join(sorted(dates))}." for words, dates in made.items()]
    return "\n\n".join(wrap(line) for line in lines) or "Nothing has been measured yet."


def table_of_targets(items: Iterable[Measurement], found: Mapping[str, Mapping[str, Any]]) -> str:
    """All measurements in one table."""
    rows = []
    for item in items:
        ratio = found.get(item.key, {}).get("ratio")
        if ratio is None:
            rows.append([item.title, target_of(item), "not measured", "", ""])
            continue
        ratios = found[item.key]["ratios"]
        spread = f"{amount(item, min(ratios))} to {amount(item, max(ratios))}, {len(ratios)} rounds"
        verdict = {None: "", True: "yes", False: "**no**"}[item.is_met(ratio)]
        rows.append([item.title, target_of(item), f"**{amount(item, ratio)}**", spread, verdict])
    return markdown_table(["measure", "target", "median", "spread", "met"], rows, numeric=(2,))


def section(item: Measurement, result: Mapping[str, Any] | None) -> list[str]:
    """One measurement: what is compared, the command, each variant's figures."""
    parts = [f"### {item.title}", wrap(item.about), f"```sh\npython -m benchmarks --only {item.key}\n```"]
    if result is None:
        return [*parts, "Not measured."]
    rows = [
        [name, *(number(figures[key], item.figure) for key in ("median", "min", "max"))]
        for name, figures in result["figures"].items()
    ]
    unit = UNITS.get(item.figure, item.figure.replace("_", " "))
    parts.append(markdown_table(["variant", f"{unit}, median", "least", "greatest"], rows, numeric=(1, 2, 3)))
    return [*parts, *(wrap(f"{name} failed: {why}") for name, why in result["dropped"].items())]


def describe_ratio(item: Measurement, result: Mapping[str, Any]) -> str:
    """The ratio of a measurement beside its target, in words."""
    if result["ratio"] is None:
        return "; ".join(f"{name} failed: {why}" for name, why in result["dropped"].items()) or "not measured"
    ratios = result["ratios"]
    words = f"{amount(item, result['ratio'])} ({amount(item, min(ratios))} to {amount(item, max(ratios))})"
    verdict = {None: "reported only", True: "met", False: "missed"}[item.is_met(result["ratio"])]
    return f"{words}, {verdict}" if item.target is None else f"{words}, target {target_of(item)}: {verdict}"


def target_of(item: Measurement) -> str:
    """`≥ 0.97`, `≤ 2.0 %`, or that there is none."""
    if item.target is None:
        return "reported"
    return f"{'≥' if item.at_least else '≤'} {amount(item, item.target)}"


def amount(item: Measurement, value: float) -> str:
    """A ratio, or the figure itself where one variant has no other."""
    if len(item.variants) > 1 or item.figure == "real_vs_cached":
        return f"{value:.1f}" if value >= 10 else f"{value:.3f}".removesuffix("0")
    return f"{number(value, item.figure)} {UNITS.get(item.figure, '')}".strip()


def number(value: float, figure: str) -> str:
    """A figure with as many digits as count."""
    if figure.endswith("share"):
        return f"{100 * value:.2f} %"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def wrap(text: str, indent: str = "") -> str:
    """A paragraph in lines of the documentation's width."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[int] = ()) -> str:
    """A table in markdown; columns of figures (by their index) on the right."""
    rule = ["--:" if index in numeric else ":--" for index in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *rows])
