"""docs/performance.md, written wholly from `benchmarks/results/*.json`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.curve import Curve
from benchmarks.measurement import RESULTS, Measurement, meets
from rampline.files import read_json, write_text

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
WIDTH = 125
UNITS = {
    "examples_per_second": "examples/s",
    "seconds": "s",
    "fixed_seconds": "s",
    "first_seconds": "s",
    "milliseconds": "ms",
    "peak_mib": "MiB",
}
INTRODUCTION = """# Performance

What `make bench` has measured. Each line of the first table is a ratio of two ways of doing the same work, which take
turns within one run: the median over the rounds, with the least and the greatest. A round of five is fresh processes,
one after the other; a round of ten is a block of steps of each of several processes that are all warm, within seconds,
and after five of them all begin afresh. Speeds in examples/s change with the machine and with what else it does; ratios
of one round change far less, and they alone count. A target is missed or met by the median.

`make bench-quick` measures the short part again in under 5 minutes (two rounds; printed, not written here), `make
bench-growth` the curves, and `python -m benchmarks --only KEY` one line. [results.md](results.md) is about the studies
on real images, and [explain.md](explain.md) about where the time of one run goes.
"""


def write_page(topics: Iterable[ModuleType], results: Path = RESULTS, page: Path = PAGE) -> Path:
    """Write the page.

    Args:
        topics: modules with `MEASUREMENTS` or `CURVES`; the first line of their docstring is their heading.
        results: the folder of `KEY.json` files; what has none is said to be not measured.
        page: the file.
    """
    items = {module: items_of(module) for module in topics}
    found = {path.stem: read_json(path) for path in sorted(results.glob("*.json"))}
    parts = [INTRODUCTION.strip(), describe_made(found.values()), table_of_targets(chain(*items.values()), found)]
    for module, own in items.items():
        parts.append(f"## {(module.__doc__ or module.__name__).splitlines()[0].rstrip('.')}")
        for item in own:
            describe = curve_section if isinstance(item, Curve) else section
            parts.append(describe(item, found.get(item.key)))
    write_text(page, "\n\n".join(part for part in parts if part) + "\n")
    return page


def items_of(module: ModuleType) -> list[Measurement | Curve]:
    """The measurements and curves of a topic."""
    return [*getattr(module, "MEASUREMENTS", ()), *getattr(module, "CURVES", ())]


def describe_made(found: Iterable[Mapping[str, Any]]) -> str:
    """On which machines, when and with which versions."""
    made: dict[str, set[str]] = {}
    for result in found:
        versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
        made.setdefault(f"{result['machine']}; {versions}", set()).add(result["date"])
    lines = [f"Machine: {words}. Measured on {' and '.join(sorted(dates))}." for words, dates in made.items()]
    return "\n\n".join(wrap(line) for line in lines) or "Nothing has been measured yet."


def table_of_targets(items: Iterable[Measurement | Curve], found: Mapping[str, Mapping[str, Any]]) -> str:
    """All measurements in one table, and the curves that have a target."""
    rows = []
    for item in items:
        result = found.get(item.key)
        if isinstance(item, Curve):
            rows += [row_of_curve(item, result)] if item.target is not None else []
            continue
        ratio = result["ratio"] if result else None
        if result is None or ratio is None:
            rows.append([item.title, target_of(item), "not measured", "", ""])
            continue
        ratios = result["ratios"]
        spread = f"{amount(item, min(ratios))} to {amount(item, max(ratios))}, {len(ratios)} rounds"
        rows.append([item.title, target_of(item), f"**{amount(item, ratio)}**", spread, verdict(item.is_met(ratio))])
    return markdown_table(["measure", "target", "median", "spread", "met"], rows, numeric=(2,))


def row_of_curve(item: Curve, result: Mapping[str, Any] | None) -> list[str]:
    """A curve's line in the table: its last point beside the target."""
    point = result["points"][-1] if result else {"x": item.points[-1][0], "figures": {}}
    figures, unit = point["figures"].get(item.target_figure), UNITS.get(item.target_figure, "")
    title = f"{item.title}, {item.x} {point['x']}"
    target = f"{'≥' if item.at_least else '≤'} {number(item.target or 0, item.target_figure)} {unit}".strip()
    if not figures:
        return [title, target, "not measured", "", ""]
    least, middle, most = (number(figures[key], item.target_figure) for key in ("min", "median", "max"))
    is_met = meets(figures["median"], item.target, at_least=item.at_least)
    return [title, target, f"**{middle} {unit}**", f"{least} to {most}", verdict(is_met)]


def section(item: Measurement, result: Mapping[str, Any] | None) -> str:
    """One measurement: what is compared, the command, each contender's figures."""
    parts = [f"### {item.title}", wrap(item.about), fenced(f"python -m benchmarks --only {item.key}")]
    if result is None:
        return "\n\n".join(part for part in [*parts, "Not measured."] if part)
    rows = []
    for contender in item.contenders:
        figures = result["figures"].get(contender.name)
        if figures:
            numbers = [number(figures[key], item.figure) for key in ("median", "min", "max")]
        else:
            numbers = ["-", "-", "-"]
        rows.append([contender.name, *numbers])
    unit = UNITS.get(item.figure, item.figure.replace("_", " "))
    parts.append(markdown_table(["contender", f"{unit}, median", "least", "greatest"], rows, numeric=(1, 2, 3)))
    parts.append("\n".join(wrap(f"- {name}: {reason(why)}", "  ") for name, why in result["dropped"].items()))
    parts.append(wrap(f"{ratio_words(item)}: {describe_ratio(item, result)}."))
    return "\n\n".join(part for part in parts if part)


def curve_section(item: Curve, result: Mapping[str, Any] | None) -> str:
    """One curve: a line for each point."""
    parts = [f"### {item.title}", wrap(item.about), fenced(f"python -m benchmarks --only {item.key}")]
    if result is None:
        return "\n\n".join(part for part in [*parts, "Not measured."] if part)
    rows = []
    for point in result["points"]:
        figures = point["figures"]
        cells = [number(figures[f]["median"], f) if figures.get(f) else "-" for f in item.figures]
        rows.append([str(point["x"]), *cells])
    heads = [item.x, *item.figures.values()]
    parts.append(markdown_table(heads, rows, numeric=tuple(range(len(heads)))))
    failed = [f"- at {point['x']}: {point['failed']}" for point in result["points"] if "failed" in point]
    parts.append("\n".join(wrap(line, "  ") for line in failed))
    return "\n\n".join(part for part in parts if part)


def describe_ratio(item: Measurement, result: Mapping[str, Any]) -> str:
    """The ratio of a measurement beside its target, in words."""
    if result["ratio"] is None:
        missing = [f"{name} {reason(why)}" for name, why in result["dropped"].items()]
        return "; ".join(missing) or "not measured"
    ratios = result["ratios"]
    words = f"{amount(item, result['ratio'])} ({amount(item, min(ratios))} to {amount(item, max(ratios))})"
    if item.target is None:
        return f"{words}, reported only"
    return f"{words}, target {target_of(item)}: {'met' if item.is_met(result['ratio']) else 'missed'}"


def ratio_words(item: Measurement) -> str:
    """What the ratio is of."""
    return f"{item.numerator} / {item.denominator}" if item.denominator else item.numerator


def target_of(item: Measurement) -> str:
    """`≥ 0.97`, `≤ 2.0 %`, or that there is none."""
    if item.target is None:
        return "reported"
    return f"{'≥' if item.at_least else '≤'} {amount(item, item.target)}"


def amount(item: Measurement, value: float) -> str:
    """A ratio, or the figure itself where the measurement has no denominator."""
    if item.denominator:
        return f"{value:.1f}" if value >= 10 else f"{value:.3f}".removesuffix("0")
    if item.figure.endswith("share"):
        return f"{100 * value:.2f} %"
    return f"{number(value, item.figure)} {UNITS.get(item.figure, '')}".strip()


def number(value: float, figure: str) -> str:
    """A figure with as many digits as count."""
    if figure.endswith("share"):
        return f"{100 * value:.2f} %"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def verdict(is_met: bool | None) -> str:
    """`yes`, `**no**`, or nothing without a target."""
    return "" if is_met is None else "yes" if is_met else "**no**"


def reason(dropped: Mapping[str, str]) -> str:
    """Why a contender has no figures."""
    return f"failed: {dropped['error']}" if "error" in dropped else f"not measured: {dropped['not_measured']}"


def wrap(text: str, indent: str = "") -> str:
    """A paragraph in lines of the documentation's width."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def fenced(command: str) -> str:
    """A command as a block."""
    return f"```sh\n{command}\n```"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[int] = ()) -> str:
    """A table in markdown; columns of figures (by their index) on the right."""
    rule = ["--:" if index in numeric else ":--" for index in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *rows])
