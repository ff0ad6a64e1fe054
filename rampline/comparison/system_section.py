"""The report's section on CPU, memory and GPUs: what each role used, and whether equal parts carried equal load.

Replicas of a synchronous run do equal work, so one that is less busy waits for the others.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rampline.comparison.charts import (
    INK,
    axis,
    curve_chart,
    drawn_runs,
    finite,
    label,
    points,
    row_chart,
    style_runs,
)
from rampline.comparison.charts_section import FEWEST_POINTS, MOST_POINTS
from rampline.comparison.mlflow_reader import thin_out
from rampline.comparison.runs import Comparison, is_missing, written
from rampline.comparison.section import Chart, ReportTable, Section
from rampline.record.units import TIMES, write_quantity, write_ratio

UNEVEN_RATIO = 1.15
UNEVEN_POINTS = 5.0  # below, NVML's whole percents and a sample every 5 s make ratios out of nothing
MEGABYTES_PER_GIGABYTE = 1000
NO_GPU = "No GPU was measured: the roles saw none, or NVML and nvidia-ml-py (the extra gpu) are not installed there."
ABOUT = (
    "Sampled every 5 s by each role; means are over the samples taken while training, peaks over the whole life of the "
    f"role. A load is uneven where the highest is more than {UNEVEN_RATIO}{TIMES} the lowest, and at least "
    f"{UNEVEN_POINTS:.0f} % of a GPU's or core's time above it."
)
GPU_NOTE = (
    "Utilisation: share of the time in which a kernel ran. Memory access: share in which the GPU's memory was read or "
    "written. All of a GPU counts, whoever uses it. GPUs are numbered through each run."
)


def make_system_section(comparison: Comparison) -> Section | None:
    """CPU and memory by role, GPUs, and their balance; None where MLflow has no system metrics of these runs."""
    rows = comparison.system
    if not rows:
        return None
    roles, numbers = [row for row in rows if row["gpu"] is None], defaultdict[str, Iterator[int]](itertools.count)
    # Counted through each run, from 0.
    gpus = [row | {"number": next(numbers[row["run"]])} for row in rows if row["gpu"] is not None]
    balances = find_balances(rows)
    runs = drawn_runs(comparison)
    drawn = [gpu for gpu in gpus if gpu["run"] in runs and not is_missing(gpu["utilization_percent_mean"])]
    charts = [_utilization(runs, drawn), _utilization_over_time(runs, drawn)] if drawn else []
    return Section(
        id="system",
        title="CPU, memory and GPUs",
        sentences=(*([] if gpus else [NO_GPU]), *describe_loads(balances)),
        tables=tuple(_tables(roles, gpus, balances)),
        charts=tuple(charts),
        about=ABOUT,
    )


def describe_loads(balances: Sequence[Balance]) -> list[str]:
    """One sentence per uneven load, or that all are even."""
    even = ["Where a run has several GPUs or equal roles, they are evenly loaded."] if balances else []
    return [_describe(balance) for balance in balances if balance.is_uneven] or even


def _tables(roles: list[dict[str, Any]], gpus: list[dict[str, Any]], balances: list[Balance]) -> Iterator[ReportTable]:
    yield ReportTable(
        title="Roles",
        head=("run", "role", "cores busy", "peak GB"),
        rows=tuple(
            (r["run"], r["role"], written(r["cpu_percent_mean"], lambda percent: f"{percent / 100:.2f}"), _gigabytes(r))
            for r in roles
        ),
        numeric=(False, False, True, True),
        note="Cores busy: CPU time of the process per second. Peak: its resident set.",
    )
    if gpus:
        yield ReportTable(
            title="GPUs",
            head=("run", "role", "GPU", "utilisation", "memory access", "peak GB", "power, W"),
            rows=tuple(map(_gpu_cells, gpus)),
            numeric=(False, False, False, True, True, True, True),
            note=GPU_NOTE,
        )
    if balances:
        yield ReportTable(
            title="Balance",
            head=("run", "parts", "lowest", "highest", "ratio", "load"),
            rows=tuple(map(_balance_cells, balances)),
            numeric=(False, False, True, True, True, False),
        )


def _gpu_cells(gpu: dict[str, Any]) -> tuple[str, ...]:
    full = "" if is_missing(gpu["memory_percent_peak"]) else f" ({gpu['memory_percent_peak']:.0f} %)"
    return (
        *(gpu["run"], gpu["role"], f"{gpu['number']} {gpu['gpu_name']}".strip()),
        *(_percent(gpu["utilization_percent_mean"]), _percent(gpu["memory_access_percent_mean"])),
        *(_gigabytes(gpu) + full, written(gpu["power_watts_mean"], "{:.0f}".format)),
    )


def _balance_cells(balance: Balance) -> tuple[str, ...]:
    loads = (_write_load(balance, percent) for percent in (balance.lowest, balance.highest))
    verdict = "uneven" if balance.is_uneven else "even"
    return balance.run, f"{balance.count} {balance.parts}", *loads, written(balance.ratio, write_ratio), verdict


def _utilization(runs: list[str], gpus: list[dict[str, Any]]) -> Chart:
    styles = style_runs(runs)
    rows = [
        finite(
            {"run": f"{gpu['run']} {gpu['number']}", "color": styles[gpu["run"]].color}
            | {"busy": (busy := float(gpu["utilization_percent_mean"])), "text": _percent(busy)}
            | {"access": float(gpu["memory_access_percent_mean"])}
        )
        for gpu in gpus
    ]
    bars = {"mark": {"type": "bar", "opacity": 0.75, "height": {"band": 0.5}}}
    access = {
        "mark": {"type": "bar", "opacity": 0.7, "height": {"band": 0.12}},
        "encoding": {"x": {"field": "access", "type": "quantitative"}, "color": {"value": INK}},
    }
    x = axis("busy", "GPU utilisation, %", scale={"domain": [0, 115], "nice": False}, values=[0, 25, 50, 75, 100])
    return Chart(
        title="GPU utilisation by GPU",
        caption="Bar: a kernel ran. Dark line in it: memory was read or written. GPUs of one run should look the same.",
        spec=row_chart(rows, x, bars, access, label("busy", "text")),
    )


def _utilization_over_time(runs: list[str], gpus: list[dict[str, Any]]) -> Chart:
    styles, most = style_runs(runs), max(MOST_POINTS // len(gpus), FEWEST_POINTS)
    rows = [
        {"run": f"{gpu['run']} {gpu['number']}", "color": styles[gpu["run"]].color}
        | {"seconds": round(seconds, 1), "busy": round(busy, 1)}
        for gpu in gpus
        for seconds, busy in thin_out(gpu["utilization_over_time"], most)
    ]
    x = axis("seconds", "seconds since training began")
    y = axis("busy", "GPU utilisation, %", scale={"domain": [0, 105], "nice": False}, values=[0, 25, 50, 75, 100])
    lines = {"mark": {"type": "line", "clip": True}, "encoding": {"detail": {"field": "run"}}}
    return Chart(
        title="GPU utilisation over time",
        caption="A line per GPU, in the colour of its run. Between epochs it drops for validation and checkpoints.",
        spec=curve_chart(rows, x, y, lines, points(x, y)),
    )


def _percent(percent: float) -> str:
    return written(percent, "{:.0f} %".format)


def _gigabytes(row: dict[str, Any]) -> str:
    return written(row["memory_megabytes_peak"], lambda megabytes: write_quantity(megabytes / MEGABYTES_PER_GIGABYTE))


@dataclass(frozen=True, kw_only=True)
class Balance:
    """The load on `count` equal parts of a run.

    Attributes:
        parts: what they are, such as `GPUs` or `worker roles`.
        is_gpu: whether the load is GPU utilisation, else CPU of the process (100 per busy core).
        count: how many, at least 2.
        lowest, highest: mean loads in percent.
    """

    run: str
    parts: str
    is_gpu: bool
    count: int
    lowest: float
    highest: float

    @property
    def ratio(self) -> float:
        """Highest load / lowest load; 1 where nothing was busy."""
        if self.lowest > 0:
            return self.highest / self.lowest
        return math.inf if self.highest > 0 else 1.0

    @property
    def is_uneven(self) -> bool:
        """Whether the difference is more than measuring explains."""
        return self.ratio > UNEVEN_RATIO and self.highest - self.lowest >= UNEVEN_POINTS


def find_balances(rows: Iterable[dict[str, Any]]) -> list[Balance]:
    """The balances of every run that has several GPUs or several roles of one kind, in the order of the rows."""
    groups: dict[tuple[str, bool, str], list[float]] = {}
    for row in rows:
        is_gpu = row["gpu"] is not None
        kind = "GPUs" if is_gpu else f"{row['role'].rpartition('-')[0]} roles"
        load = row["utilization_percent_mean" if is_gpu else "cpu_percent_mean"]
        if not math.isnan(load):
            groups.setdefault((row["run"], is_gpu, kind), []).append(load)
    return [
        Balance(run=run, parts=kind, is_gpu=is_gpu, count=len(loads), lowest=min(loads), highest=max(loads))
        for (run, is_gpu, kind), loads in groups.items()
        if len(loads) > 1
    ]


def _write_load(balance: Balance, percent: float) -> str:
    return f"{percent:.0f} %" if balance.is_gpu else f"{percent / 100:.2f} cores"


def _describe(balance: Balance) -> str:
    lowest = _write_load(balance, balance.lowest).removesuffix(" cores")
    span = f"from {lowest} to {_write_load(balance, balance.highest)} busy"
    return f"The load on the {balance.count} {balance.parts} of {balance.run} is uneven: {span}."
