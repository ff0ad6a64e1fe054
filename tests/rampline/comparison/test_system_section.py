"""The section tells cores, memory and GPUs by role, and calls a load uneven by the rule that it states."""

import dataclasses
import math

import pytest
from logged_runs import there

from rampline.comparison.mlflow_reader import GPU_FIGURES, ROLE_FIGURES, thin_out
from rampline.comparison.runs import Comparison
from rampline.comparison.system_section import (
    NO_GPU,
    Balance,
    describe_loads,
    find_balances,
    make_system_section,
)
from rampline.record.units import NONE, TIMES


def make_system(*rows: dict) -> list[dict]:
    figures = {figure: math.nan for figure, _ in (*ROLE_FIGURES.values(), *GPU_FIGURES.values())}
    return [{"gpu": None, "gpu_name": "", **figures, **row} for row in rows]


def role(run: str, name: str, cpu: float) -> dict:
    return {"run": run, "role": name, "cpu_percent_mean": cpu, "memory_megabytes_peak": 1234.0}


def gpu(run: str, name: str, number: int, use: float, **more) -> dict:
    values = {"run": run, "role": name, "gpu": number, "gpu_name": "Tesla T4", "utilization_percent_mean": use}
    access = {"memory_access_percent_mean": use / 2, "memory_megabytes_peak": 14_000.0, "memory_percent_peak": 87.6}
    return values | access | {"power_watts_mean": 68.4, "utilization_over_time": ((0.0, use), (5.0, 0.0))} | more


@pytest.fixture(scope="module")
def comparison(compare, four_runs) -> Comparison:
    return compare("system-section", four_runs)


@pytest.mark.parametrize(
    "lowest, highest, ratio, is_uneven",
    [(60, 69, 1.15, False), (60, 70, 1.167, True), (2, 6, 3.0, False), (2, 7, 3.5, True), (0, 0, 1.0, False)],
)
def test_a_load_is_uneven_above_the_ratio_and_five_points(lowest, highest, ratio, is_uneven):
    balance = Balance(run="r", parts="GPUs", is_gpu=True, count=2, lowest=lowest, highest=highest)
    assert balance.ratio == pytest.approx(ratio, abs=0.001)
    assert balance.is_uneven is is_uneven


def test_a_gpu_that_does_nothing_beside_a_busy_one_is_uneven():
    balance = Balance(run="r", parts="GPUs", is_gpu=True, count=2, lowest=0, highest=50)
    assert balance.is_uneven


def test_an_uneven_load_on_processors_is_told_in_cores():
    balance = Balance(run="two", parts="worker roles", is_gpu=False, count=2, lowest=80, highest=140)
    assert describe_loads([balance, Balance(run="r", parts="GPUs", is_gpu=True, count=2, lowest=90, highest=95)]) == [
        "The load on the 2 worker roles of two is uneven: from 0.80 to 1.40 cores busy."
    ]


def test_gpus_of_a_run_are_compared_over_its_roles_and_roles_with_those_of_their_kind():
    rows = [role("pool", "chief-0", 20), role("pool", "worker-0", 100), role("pool", "worker-1", 150)]
    gpus = [gpu("pool", "worker-0", 0, 80), gpu("pool", "worker-1", 0, 90), gpu("alone", "chief-0", 0, 10)]
    found = find_balances(make_system(*rows, role("alone", "chief-0", 50), *gpus))
    assert [(b.run, b.parts, b.count, b.lowest, b.highest, b.is_uneven) for b in found] == [
        ("pool", "worker roles", 2, 100, 150, True),
        ("pool", "GPUs", 2, 80, 90, False),
    ]


def test_without_a_gpu_one_sentence_says_so_and_no_chart_is_drawn(comparison):
    system = make_system(role("baseline", "chief-0", 142), role("multi-worker", "worker-0", 90))
    section = there(make_system_section(dataclasses.replace(comparison, system=system)))
    assert section.sentences == (NO_GPU,)
    assert section.charts == ()
    (table,) = section.tables
    assert table.rows == (("baseline", "chief-0", "1.42", "1.23"), ("multi-worker", "worker-0", "0.90", "1.23"))


def test_gpus_have_a_table_a_chart_and_a_judgement(comparison):
    gpus = [gpu("mirrored", "chief-0", 0, 96), gpu("mirrored", "chief-0", 1, 60, power_watts_mean=float("nan"))]
    system = make_system(role("mirrored", "chief-0", 142), *gpus)
    section = there(make_system_section(dataclasses.replace(comparison, system=system)))
    assert section.sentences == ("The load on the 2 GPUs of mirrored is uneven: from 60 % to 96 % busy.",)
    roles, table, balance = section.tables
    assert len(roles.rows) == 1
    assert table.rows == (
        ("mirrored", "chief-0", "0 Tesla T4", "96 %", "48 %", "14.0 (88 %)", "68"),
        ("mirrored", "chief-0", "1 Tesla T4", "60 %", "30 %", "14.0 (88 %)", NONE),
    )
    assert balance.rows == (("mirrored", "2 GPUs", "60 %", "96 %", f"1.60{TIMES}", "uneven"),)
    chart, over_time = section.charts
    assert [(row["run"], row["text"], row["color"]) for row in chart.spec["data"]["values"]] == [
        ("mirrored 0", "96 %", "var(--run-2)"),
        ("mirrored 1", "60 %", "var(--run-2)"),
    ]
    assert [(row["run"], row["seconds"], row["busy"]) for row in over_time.spec["data"]["values"]] == [
        *(("mirrored 0", 0, 96), ("mirrored 0", 5, 0)),
        *(("mirrored 1", 0, 60), ("mirrored 1", 5, 0)),
    ]


def test_long_runs_are_thinned_out():
    samples = [(float(second), second % 2) for second in range(10)]
    assert thin_out(samples, 10) == samples
    assert thin_out(samples, 4) == [(1, 1 / 3), (4, 2 / 3), (7, 1 / 3), (9, 1)]


def test_even_loads_are_called_even(comparison):
    name = "mirrored-with-a-very-long-name"
    runs = comparison.runs.assign(run=[name, *comparison.runs["run"].tolist()[1:]])
    workers = [gpu(name, f"worker-{index}", 0, 90) for index in range(2)]
    system = make_system(*workers)
    section = there(make_system_section(dataclasses.replace(comparison, runs=runs, system=system)))
    assert section.sentences == ("Where a run has several GPUs or equal roles, they are evenly loaded.",)
    assert [row[2] for row in section.tables[1].rows] == ["0 Tesla T4", "1 Tesla T4"]


def test_runs_without_system_metrics_have_no_section(comparison):
    assert make_system_section(dataclasses.replace(comparison, system=make_system())) is None
