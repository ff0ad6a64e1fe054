"""Flow runs of the deployments under a real `rampline up`: turns, cancelling, approval, bad input, lost servers."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from command_line import UNHURRIED, mlflow_tags, wait_until
from flow_runs import ENDED, Flows
from golden import visible_text

from rampline.record.attempts import tell_attempts
from rampline.record.run_directory import RunDirectory
from rampline.servers.running import answers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("mlflow_login")]

PRICED = {"cluster.price_per_hour": "3600"}
NOT_APPROVED = {"run_input": {"approved": False, "remark": "by the test"}}


@pytest.mark.long
def test_bad_input_is_refused_with_the_reason_and_starts_nothing(stack: Flows):
    before = list(stack.home.runs.glob("*/*"))
    devices = {"mirrored-ramp:cluster.virtual_devices": "0"}
    too_many = stack.start("finetune", replicas=3, overrides=devices)
    found = stack.until(too_many, *ENDED)
    assert found["state_type"] == "FAILED"
    assert "cluster.replicas=3 needs 3 devices: this machine has 1 (CPU)" in found["state"]["message"]
    assert list(stack.home.runs.glob("*/*")) == before
    assert stack.children(too_many) == {}


@pytest.fixture(scope="module")
def refused(stack: Flows) -> str:
    """A flow run that costs too much, as a person has said."""
    unknown = PRICED | {"data.limit": "21"}  # never measured
    flow_run = stack.start("study", only=["baseline"], epochs=2, overrides=unknown, approve_cost_above=0.01)
    answer(stack, flow_run, {})
    return flow_run


def test_a_study_that_costs_too_much_waits_for_a_person_who_refuses_it(stack: Flows, refused: str):
    expect_refusal(stack, refused)


@pytest.mark.long
def test_a_retry_of_a_study_that_was_refused_asks_again(stack: Flows, refused: str):
    stack.until(refused, *ENDED)
    stack.retry(refused)
    answer(stack, refused, NOT_APPROVED)
    expect_refusal(stack, refused)


def expect_refusal(stack: Flows, flow_run: str) -> None:
    """It is cancelled, and nothing has begun."""
    found = stack.until(flow_run, *ENDED)
    assert (found["state_type"], found["state"]["message"]) == ("CANCELLED", "its cost was not approved")
    assert stack.children(flow_run) == {}


@pytest.mark.long
def test_studies_take_turns_in_their_order_and_one_that_is_killed_frees_its_slot(stack: Flows):
    holder = stack.start("study", study=UNHURRIED, only=["baseline"])
    stack.until_training(holder, "baseline")
    first = stack.start("study", study=UNHURRIED, only=["baseline"])
    stack.until(first, "WaitingForDevices")
    stack.kill(holder)
    assert stack.until(holder, *ENDED)["state_type"] == "CRASHED"
    directory = stack.until_training(first, "baseline")
    second = stack.start("study", only=["baseline"], epochs=2, overrides=PRICED, approve_cost_above=0.01)
    answer(stack, second, {"run_input": {"approved": True, "remark": "by the test"}})
    assert stack.until(second, "WaitingForDevices", *ENDED)["state_type"] == "RUNNING"
    assert stack.children(second) == {}
    (directory / "go").touch(mode=0o600)
    for flow_run in (first, second):
        assert stack.until(flow_run, *ENDED)["state_type"] == "COMPLETED", stack.log(flow_run)
    lines = "\n".join(stack.log(second))
    assert "waiting for an approval: " in lines
    assert "waiting for 1 device: unhurried" in lines
    earlier, later = stack.children(first), stack.children(second)
    assert set(earlier) == {f"prepare data of {UNHURRIED}", "baseline", f"evaluate {UNHURRIED}"}
    assert set(later) == {"prepare data of digits", "baseline", "evaluate digits"}
    assert max(child["end_time"] for child in earlier.values()) <= min(child["start_time"] for child in later.values())
    plan = {"flow_run_id": {"any_": [second]}, "key": {"any_": ["plan-digits"]}}
    assert "| baseline | single | 1 chief |" in stack.api.post("/artifacts/filter", {"artifacts": plan})[0]["data"]
    assert stack.slots_in_use() == 0
    look_at_artifacts(stack)


@pytest.fixture(scope="module")
def cancelled(stack: Flows) -> tuple[str, RunDirectory]:
    """A flow run that was cancelled when two workers trained, and its run `multi-worker`."""
    flow_run = stack.start("study", study=UNHURRIED, only=["after", "multi-worker"])
    directory = RunDirectory(stack.until_training(flow_run, "multi-worker"))
    assert len(stack.roles()) == 2
    assert stack.slots_in_use() == 1
    stack.cancel(flow_run)
    return flow_run, directory


def test_cancelling_ends_every_role(stack: Flows, cancelled: tuple[str, RunDirectory]):
    flow_run, directory = cancelled
    wait_until(lambda: not stack.roles(), 20)
    # Where the process does not hear within a second that it is cancelled, it ends as crashed; Prefect corrects that.
    stack.until(flow_run, "CANCELLED")
    assert stack.children(flow_run)["multi-worker"]["state_type"] == "CANCELLED"
    log = stack.log(flow_run)
    assert "stopping: the run saves a checkpoint first" in "\n".join(log)
    tags = mlflow_tags(stack.state.mlflow_url, directory.path.parent.name)["multi-worker"]
    assert (tags["status"], tags["rampline.status"]) == ("KILLED", "PREEMPTED"), (tags, log)


@pytest.mark.long
@pytest.mark.flaky(reruns=0)  # `cancelled` is not made anew: it would wait for what is over
def test_a_retry_goes_on_where_it_was_cancelled(stack: Flows, cancelled: tuple[str, RunDirectory]):
    flow_run, directory = cancelled
    stack.until(flow_run, "CANCELLED")
    (directory.path / "go").touch(mode=0o600)
    stack.retry(flow_run)
    stack.until(flow_run, "RUNNING")
    assert stack.until(flow_run, *ENDED)["state_type"] == "COMPLETED", stack.log(flow_run)
    begins = [event["first_epoch"] for event in directory.read_events() if event["event"] == "started"]
    assert begins[0] == 1
    assert begins[1] > 1
    finished = RunDirectory(directory.path.parent / "after").read_events()
    assert sum(event["event"] == "started" for event in finished) == 1
    assert mlflow_tags(stack.state.mlflow_url, directory.path.parent.name)["multi-worker"]["status"] == "FINISHED"
    look_at_attempts(stack, directory)


def look_at_artifacts(stack: Flows) -> None:
    """What the page of a study shows."""
    artifacts = {found["key"]: found for found in stack.api.post("/artifacts/latest/filter")}
    assert artifacts["progress-baseline"]["data"] == 100
    assert {"data-report-digits", "epochs-baseline", "learning-rate-baseline", "comparison-digits"} <= set(artifacts)
    for shown in ("charts", "study", "report"):
        assert f"http://127.0.0.1:{stack.mlflow_port}/#/experiments/" in artifacts[f"mlflow-{shown}-digits"]["data"]


def look_at_attempts(stack: Flows, directory: RunDirectory) -> None:
    """Page and report tell of both, the one from the directory and the other from MLflow."""
    attempts = tell_attempts(directory)
    assert [(row[0], row[3]) for row in attempts] == [("1", "interrupted"), ("2", "complete")]
    # Other studies of this stack have runs of that name.
    pages = stack.api.post("/artifacts/filter", {"artifacts": {"key": {"any_": ["attempts-multi-worker"]}}})
    tables = [[line for line in page["data"].splitlines() if line.startswith("| ")][2:] for page in pages]
    assert [f"| {' | '.join(row)} |" for row in attempts] in tables
    report = visible_text((stack.home.reports / "unhurried" / directory.path.parent.name / "report.html").read_text())
    assert all(" | ".join(("multi-worker", *row)) in report for row in attempts)


def answer(stack: Flows, flow_run: str, body: dict[str, Any]) -> None:
    """What a person does on the page of a flow run that is paused."""
    stack.until(flow_run, "PAUSED")
    # It is refused as long as the form is not there, which follows upon the pause.
    wait_until(lambda: stack.api.post(f"/flow_runs/{flow_run}/resume", body)["status"] == "ACCEPT", 60)


@pytest.mark.long
def test_a_run_survives_the_end_of_the_server_and_of_the_worker(stack: Flows):
    flow_run = stack.start("study", study=UNHURRIED, only=["baseline"])
    directory = stack.until_training(flow_run, "baseline")
    os.kill(stack.state.processes["prefect"].pid, signal.SIGKILL)
    time.sleep(1)
    wait_until(lambda: answers(f"{stack.api.url}/health"), 120)
    os.kill(stack.state.processes["worker"].pid, signal.SIGKILL)
    (directory / "go").touch(mode=0o600)
    assert stack.until(flow_run, *ENDED)["state_type"] == "COMPLETED", stack.log(flow_run)
    assert stack.slots_in_use() == 0
