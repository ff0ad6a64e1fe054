"""The history of a study in a real MLflow store: which executions count, what is told, and where it is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from command_line import wait_until
from golden import visible_text
from logged_runs import LoggedRun, there
from own_prefect import deployed_flow_run
from prefect import flow
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

from rampline.comparison import history
from rampline.comparison.history import State, Trend, judge_newest
from rampline.comparison.history_section import _range, list_changes, make_history_section, sparkline
from rampline.comparison.report import write_comparison
from rampline.comparison.runs import Comparison, read_comparison
from rampline.comparison.summary import summarise
from rampline.record.home import Home
from rampline.record.metrics import find_metric
from rampline.study import load_study
from rampline.study.execution_file import Execution
from rampline.tasks.steps import compare_with_history
from rampline.tracking.experiment import TOLD_TAG
from rampline.tracking.reconciliation import Known, reconcile

SPEEDS = (1000.0, 1020.0, 990.0, 1010.0)
MACHINE = {"rampline.machines": json.dumps([[1, "here (2 cores)"]])}
Night = Callable[..., Comparison]


@pytest.fixture
def night(client, log_study) -> Night:
    """Logs an execution whose run `baseline` is so fast, with what `compare` logs of it; returns its comparison."""

    def log(
        study: str, speed: float, *more: LoggedRun, cost: float = 0.02, with_trends: bool = True, **changes: Any
    ) -> Comparison:
        metrics = {"test_accuracy": 0.94, "cost_usd": cost}
        given: dict[str, Any] = {"tags": MACHINE, "params": {"epochs": "2"}} | changes
        run = LoggedRun(name="baseline", epochs=[(0.9, 10, 1e-3, 1), (0.9, speed, 1e-3, 2)], metrics=metrics, **given)
        nonlocal number
        number += 1
        parent = log_study(study, [run, *more], execution=f"night-{number}")
        comparison = read_comparison(client, study, parent, for_report=with_trends)
        reconcile(client, summarise(comparison, (), 0.0), Known.ask(client, parent))
        return comparison

    number = 0
    return log


def trend_of(comparison: Comparison, metric: str, run: str = "baseline") -> Trend:
    return next(trend for trend in comparison.trends if (trend.run, trend.metric.name) == (run, metric))


def test_a_slow_night_is_told_and_shown_and_noise_is_not(night, tmp_path) -> None:
    nights = [night("nightly", speed) for speed in SPEEDS]
    assert nights[0].trends == ()
    assert make_history_section(nights[0]) is None
    assert trend_of(nights[2], "images_per_second").judgement.state is State.TOO_FEW
    assert [trend.metric.name for trend in nights[3].trends] == ["test_accuracy", "images_per_second", "cost_usd"]
    assert list_changes(nights[3].trends) == []
    slow = night("nightly", 100.0, cost=0.2)
    trend = trend_of(slow, "images_per_second")
    assert trend.values == (*SPEEDS, 100.0)
    assert trend.days == tuple(sorted(trend.days))
    assert trend.days[-1] == 0
    speed, cost = list_changes(slow.trends)
    assert speed.startswith("baseline: images/s 100; usually 1,005, and the spread of 4 executions explains ")
    assert cost.startswith("baseline: cost $0.2000; usually $0.0200, ")
    report = write_comparison(slow, tmp_path).read_text()
    assert speed.removeprefix("baseline: ") in visible_text(report)
    section = there(make_history_section(slow))
    assert [chart.title for chart in section.charts] == ["Test acc", "Images/s", "Cost"]
    assert section.tables[0].rows[1][:3] == ("baseline", "images/s", "100")
    assert section.tables[0].rows[1][-2:] == ("████▁", "changed")


def test_other_executions_do_not_count(night) -> None:
    others = {
        "machine": {"tags": {"rampline.machines": json.dumps([[1, "there (64 cores)"]])}},
        "data": {"tags": MACHINE | {"rampline.data_fingerprint": "e" * 64}},
        "workers": {"tags": MACHINE | {"rampline.workers": "2, 1"}},
        "setting": {"params": {"epochs": "3"}},
        "price": {"params": {"epochs": "2", "cluster.price_per_hour": "7"}},
        "failed": {"status": "FAILED"},
    }
    usual = {"params": {"epochs": "2", "cluster.price_per_hour": "5"}}
    for number, changes in enumerate(others.values()):
        night("others", 500.0 + number, with_trends=False, **usual | changes)
    night("others", 1000.0, with_trends=False, **usual)
    newest = night("others", 1010.0, **usual)
    assert trend_of(newest, "images_per_second").values == (1000.0, 1010.0)


def test_what_changes_no_figure_and_settings_that_came_later_do_not_part_executions(night) -> None:
    earlier = {"epochs": "2", "explain.steps": "20", "cluster.max_restarts": "3"}
    night("alike", 1000.0, with_trends=False, params=earlier)
    newest = night("alike", 1010.0, params={"epochs": "2", "explain.steps": "0", "xla": "False"})
    assert trend_of(newest, "images_per_second").values == (1000.0, 1010.0)


def test_a_run_counts_with_those_that_it_starts_from(night) -> None:
    def tuned(number: int) -> LoggedRun:
        folder = f"/home/runs/ancestors/night-{number}"
        weights = {"model.weights": f"{folder}/baseline/checkpoints/step-0000000{number}"}
        return LoggedRun(name="tuned", epochs=[(0.9, 400 + number, 1e-3, 1)], tags=MACHINE, params=weights)

    for number in (1, 2):
        found = night("ancestors", 1000.0, tuned(number))
    assert trend_of(found, "images_per_second", "tuned").values == (401.0, 402.0)
    found = night("ancestors", 1000.0, tuned(3), params={"epochs": "9"})
    assert trend_of(found, "images_per_second", "tuned").values == (403.0,)
    section = there(make_history_section(found))
    assert section.sentences[0].startswith("Too little history: 3 executions")


def test_executions_with_other_settings_in_between_hide_nothing(night, monkeypatch) -> None:
    monkeypatch.setattr(history, "EXECUTIONS_AT_ONCE", 2)
    for speed in SPEEDS[:2]:
        night("burst", speed, with_trends=False)
    for number in range(3):
        night("burst", 500.0 + number, with_trends=False, params={"epochs": "9"})
    newest = night("burst", SPEEDS[2])
    assert trend_of(newest, "images_per_second").values == SPEEDS[:3]


def test_a_run_that_halving_cut_short_counts_with_those_that_were_cut_at_the_same_epoch(night) -> None:
    def stopped(why: str) -> dict[str, Any]:
        return {"tags": MACHINE | {"rampline.stopped": why}}

    cut = "after epoch 2 of 6: ranked {} of 4 by validation accuracy (0.9{}), and halving keeps 1"
    night("halved", 1000.0, with_trends=False)
    night("halved", 1001.0, with_trends=False, **stopped("after epoch 4 of 6: target accuracy 0.9 reached"))
    night("halved", 1002.0, with_trends=False, **stopped(cut.format(2, 1)))
    night("halved", 1003.0, with_trends=False, **stopped(cut.format(2, 1).replace("epoch 2", "epoch 3")))
    found = night("halved", 1004.0, **stopped(cut.format(3, 0)))
    assert trend_of(found, "images_per_second").values == (1002.0, 1004.0)
    found = night("halved", 1005.0)
    assert trend_of(found, "images_per_second").values == (1000.0, 1001.0, 1005.0)


def test_a_change_is_told_until_a_flow_run_of_a_deployment_has_told_it(night, client) -> None:
    for speed in SPEEDS:
        night("untold", speed, with_trends=False)
    first, second = night("untold", 100.0), night("untold", 101.0)
    assert trend_of(second, "images_per_second").judgement.state is State.STILL_CHANGED
    assert [len(list_changes(comparison.trends)) for comparison in (first, second)] == [1, 1]
    client.set_tag(second.parent_run_id, TOLD_TAG, "yes")
    third = night("untold", 102.0)
    assert trend_of(third, "images_per_second").judgement.state is State.STILL_CHANGED
    assert list_changes(third.trends) == []
    assert list_changes(read_comparison(client, "untold", second.parent_run_id).trends) == list_changes(second.trends)


@pytest.mark.slow
def test_a_flow_run_shows_the_history_and_announces_a_change(
    night, client, prefect_server, tmp_path, monkeypatch
) -> None:
    for speed in SPEEDS[:3]:
        night("digits-history", speed, with_trends=False)
    usual = night("digits-history", SPEEDS[3])
    slow = night("digits-history", 100.0)
    study, home = load_study("digits"), Home(root=tmp_path)

    @flow
    def page(comparison: Comparison) -> list[str]:
        execution = Execution(folder=tmp_path / "e1", study=study, home=home, comparison=comparison)
        return compare_with_history(execution)

    api = prefect_server.api
    with temporary_settings({PREFECT_API_URL: api.url, PREFECT_LOGGING_TO_API_ENABLED: False}):
        assert page(usual) == []
        assert page(slow) == list_changes(slow.trends)
    shown = api.post("/artifacts/filter", {"artifacts": {"key": {"any_": ["history-digits"]}}, "sort": "CREATED_DESC"})
    assert len(shown) == 2
    assert list_changes(slow.trends)[0] in shown[0]["data"]
    assert "| baseline | images/s | 100 | 1,005 |" in shown[0]["data"]
    events: list[dict[str, Any]] = []

    def is_there() -> bool:
        events[:] = api.post("/events/filter", {"filter": {"event": {"name": ["rampline.study.changed"]}}})["events"]
        return bool(events)

    wait_until(is_there, 30)
    (event,) = events
    assert event["payload"]["changes"] == list_changes(slow.trends)
    assert event["resource"]["prefect.resource.id"] == "rampline.study.digits"
    assert "flow-run" in {related["prefect.resource.role"] for related in event["related"]}
    # Messages tell of flow runs of deployments alone.
    assert TOLD_TAG not in client.get_run(slow.parent_run_id).data.tags
    monkeypatch.setenv("MLFLOW_TRACKING_URI", client.tracking_uri)
    with temporary_settings({PREFECT_API_URL: api.url, PREFECT_LOGGING_TO_API_ENABLED: False}):
        of_deployment = deployed_flow_run(api, "page")
        assert run_flow(page, of_deployment, {"comparison": slow}) == list_changes(slow.trends)
    assert TOLD_TAG in client.get_run(slow.parent_run_id).data.tags


def test_an_accuracy_is_as_usual_from_0_to_1_at_most() -> None:
    values, metric = (0.50, 0.60, 0.55, 0.56), there(find_metric("test_accuracy"))
    judgement = judge_newest(values, metric, 1)
    trend = Trend(run="a", metric=metric, days=(-3, -2, -1, 0), values=values, judgement=judgement)
    assert judgement.low < 0
    assert _range(trend) == ("0.0000", "1.0000")


def test_a_sparkline_goes_from_the_smallest_to_the_greatest() -> None:
    assert sparkline([1, 2, 8]) == "▁▂█"
    assert sparkline([3, 3]) == "▄▄"
