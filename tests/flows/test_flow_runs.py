"""Flow runs of the deployments under a real `rampline up`: turns, cancelling, approval, bad input, lost servers."""

from __future__ import annotations

import os
import signal
import time

import pytest
from command_line import mlflow_tags, wait_until
from flow_runs import ENDED, FOR_EVER, Flows

from rampline.record.run_directory import RunDirectory
from rampline.servers.running import answers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_bad_input_is_refused_with_the_reason_and_starts_nothing(flows: Flows):
    unknown = flows.start("study", study="nosuch")
    devices = {"mirrored-ramp:cluster.virtual_devices": "0"}
    too_many = flows.start("finetune", replicas=3, overrides=devices)
    found = flows.until(unknown, *ENDED)
    assert found["state_type"] == "FAILED"
    assert "no study 'nosuch'" in found["state"]["message"]
    found = flows.until(too_many, *ENDED)
    assert found["state_type"] == "FAILED"
    assert "cluster.replicas=3 needs 3 devices: this machine has 1 (CPU)" in found["state"]["message"]
    assert not flows.home.runs.exists()
    assert flows.children(unknown) == flows.children(too_many) == {}


@pytest.fixture(scope="module")
def two_studies(flows: Flows) -> tuple[str, str]:
    """The ids of two flow runs, submitted one after the other, that have completed; the second has waited."""
    first = flows.start("study", only=["baseline"], epochs=40)
    second = flows.start("study", only=["baseline-fit"], epochs=2)
    waiting = flows.until(second, "WaitingForDevices", *ENDED)
    assert waiting["state_type"] == "RUNNING"
    assert flows.children(second) == {}
    for flow_run in (first, second):
        assert flows.until(flow_run, *ENDED)["state_type"] == "COMPLETED", flows.log(flow_run)
    return first, second


def test_two_studies_take_turns_in_the_order_in_which_they_were_submitted(flows: Flows, two_studies):
    first, second = two_studies
    earlier, later = flows.children(first), flows.children(second)
    assert set(earlier) == {"prepare data of digits", "baseline", "evaluate digits"}
    assert max(child["end_time"] for child in earlier.values()) <= min(child["start_time"] for child in later.values())
    assert any("waiting for 1 device: digits" in line for line in flows.log(second))
    assert flows.slots_in_use() == 0


@pytest.mark.usefixtures("two_studies")
def test_what_the_page_of_a_study_shows(flows: Flows):
    """Artifacts, and the chief's lines."""
    artifacts = {found["key"]: found for found in flows.api.post("/artifacts/latest/filter")}
    assert artifacts["progress-baseline"]["data"] == 100
    assert {"data-report-digits", "epochs-baseline", "learning-rate-baseline", "comparison-digits"} <= set(artifacts)
    for shown in ("charts", "study", "report"):
        assert f"http://127.0.0.1:{flows.mlflow_port}/#/experiments/" in artifacts[f"mlflow-{shown}-digits"]["data"]


def test_cancelling_ends_every_role_and_a_retry_goes_on_from_there(flows: Flows):
    flow_run = flows.start("study", only=["baseline", "multi-worker"], epochs=80)
    directory = flows.until_training(flow_run, "multi-worker")
    assert len(flows.roles()) == 2
    assert flows.slots_in_use() == 1
    flows.cancel(flow_run)
    assert wait_until(lambda: not flows.roles(), 20) < 20
    assert flows.until(flow_run, *ENDED)["state_type"] == "CANCELLED"
    assert flows.children(flow_run)["multi-worker"]["state_type"] == "CANCELLED"
    log = flows.log(flow_run)
    assert "stopping: the run saves a checkpoint first" in "\n".join(log)
    tags = mlflow_tags(flows.state.mlflow_url)["multi-worker"]
    assert (tags["status"], tags["rampline.status"]) == ("KILLED", "PREEMPTED"), (tags, log)
    flows.retry(flow_run)
    flows.until(flow_run, "RUNNING")
    assert flows.until(flow_run, *ENDED)["state_type"] == "COMPLETED", flows.log(flow_run)
    first, second = [event for event in RunDirectory(directory).read_events() if event["event"] == "started"]
    assert first["first_epoch"] == 1
    assert second["first_epoch"] > 1
    finished = RunDirectory(directory.parent / "baseline").read_events()
    assert sum(event["event"] == "started" for event in finished) == 1
    assert mlflow_tags(flows.state.mlflow_url)["multi-worker"]["status"] == "FINISHED"


def test_a_study_that_costs_too_much_waits_for_a_person(flows: Flows):
    priced = {"cluster.price_per_hour": "3600"}
    unknown = priced | {"data.limit": "21"}  # never measured
    refused = flows.start("study", only=["baseline"], epochs=2, overrides=unknown, approve_cost_above=0.01)
    agreed = flows.start("study", only=["baseline"], epochs=2, overrides=priced, approve_cost_above=0.01)
    for flow_run, approved in ((refused, False), (agreed, True)):
        flows.until(flow_run, "PAUSED")
        answer = {"run_input": {"approved": approved, "remark": "by the test"}}
        flows.api.post(f"/flow_runs/{flow_run}/resume", answer)
    found = flows.until(refused, *ENDED)
    assert (found["state_type"], found["state"]["message"]) == ("CANCELLED", "its cost was not approved")
    assert flows.children(refused) == {}
    assert flows.until(agreed, *ENDED)["state_type"] == "COMPLETED", flows.log(agreed)
    plans = flows.api.post(
        "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [agreed]}, "key": {"any_": ["plan-digits"]}}}
    )
    assert "| baseline | single | 1 |" in plans[0]["data"]


@pytest.mark.long
def test_a_run_survives_the_end_of_the_server_and_of_the_worker(flows: Flows):
    flow_run = flows.start("study", only=["baseline"], epochs=600)
    flows.until_training(flow_run, "baseline")
    os.kill(flows.state.processes["prefect"].pid, signal.SIGKILL)
    time.sleep(1)
    wait_until(lambda: answers(f"{flows.api.url}/health"), 120)
    os.kill(flows.state.processes["worker"].pid, signal.SIGKILL)
    assert flows.until(flow_run, *ENDED)["state_type"] == "COMPLETED", flows.log(flow_run)
    assert flows.slots_in_use() == 0


@pytest.mark.long
def test_a_holder_that_is_killed_frees_its_slot_and_the_next_has_its_turn(flows: Flows):
    holder = flows.start("study", only=["baseline"], epochs=FOR_EVER)
    flows.until_training(holder, "baseline")
    waits = flows.start("study", only=["baseline-fit"], epochs=2)
    flows.until(waits, "WaitingForDevices")
    flows.kill(holder)
    assert flows.until(holder, *ENDED)["state_type"] == "CRASHED"
    assert flows.until(waits, *ENDED)["state_type"] == "COMPLETED", flows.log(waits)
    assert flows.slots_in_use() == 0
