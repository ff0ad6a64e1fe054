"""What the automations do: real events on a real server, with thresholds of seconds instead of hours."""

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from prefect_rest import PrefectApi
from stack import client_of, nothing_of_ours
from webhook import Received, receive_webhooks

from rampline.jobs.waiting import wait_until
from rampline.servers.automations import apply_automations

# Prefect takes no less for what does not happen, looks every 5 s, and messages take a moment.
THRESHOLD = 10
PATIENCE = 90
POLL_SECONDS = 0.5
HEARTBEAT_SECONDS = 2
# No other test announces it, and a flow run of it that outlives the test trains nothing.
NO_STUDY = "announced"
# What a sign of life is related to; another's flow may have the name of one of ours.
OURS = {"prefect.resource.id": "prefect.tag.rampline", "prefect.resource.role": "tag"}
OTHERS = {"prefect.resource.id": "prefect.flow.1", "prefect.resource.role": "flow", "prefect.resource.name": "prepare"}
# What becomes of a flow run after its first sign of life; only `paused` and `alive` give further ones.
FATES = {
    "zombie": ("RUNNING", "Running"),
    "alive": ("RUNNING", "Running"),
    "foreign": ("RUNNING", "Running"),
    "paused": ("PAUSED", "Paused"),
    "suspended": ("PAUSED", "Suspended"),
    "cancelled": ("CANCELLING", "Cancelling"),
    "skipped": ("CANCELLED", "Skipped"),
    "completed": ("COMPLETED", "Completed"),
    "unlucky": ("FAILED", "Failed"),
    "timed-out": ("FAILED", "TimedOut"),
}

pytestmark = pytest.mark.slow


@dataclass(frozen=True, kw_only=True)
class FlowRuns:
    """Flow runs of the deployments, moved from state to state by the API: no process runs them."""

    api: PrefectApi
    deployments: dict[str, dict[str, Any]]

    def create(self, name: str, state: str, deployment: str) -> str:
        body = {"name": name, "state": {"type": state}}
        return self.api.post(f"/deployments/{self.deployments[deployment]['id']}/create_flow_run", body)["id"]

    def set_state(self, flow_run: str, kind: str, name: str | None = None) -> None:
        state = {"type": kind, "name": name, "message": "the message of its state"}
        self.api.post(f"/flow_runs/{flow_run}/set_state", {"state": state, "force": True})

    def state(self, flow_run: str) -> dict[str, Any]:
        return self.api.request("GET", f"/flow_runs/{flow_run}")["state"]

    def emit(
        self, event: str, resource: dict[str, str], related: list[dict[str, str]], payload: dict[str, Any] | None = None
    ) -> None:
        occurred = datetime.now(UTC).isoformat()
        about = {"resource": resource, "related": related, "payload": payload or {}}
        body = {"id": str(uuid.uuid4()), "occurred": occurred, "event": event, **about}
        self.api.request("POST", "/events", [body])  # pyright: ignore[reportArgumentType]

    def give_sign_of_life(self, flow_run: str, related: dict[str, str] = OURS) -> None:
        self.emit("prefect.flow-run.heartbeat", {"prefect.resource.id": f"prefect.flow-run.{flow_run}"}, [related])

    def announce_data(self, study: str, deployment: str | None) -> None:
        labels = {"rampline.study": study, "rampline.fingerprint": "f" * 64}
        resource = {"prefect.resource.id": f"rampline.dataset.{uuid.uuid4().hex[:12]}", **labels}
        prepare = {
            "prefect.resource.id": f"prefect.deployment.{uuid.uuid4()}",
            "prefect.resource.role": "deployment",
            "prefect.resource.name": deployment or "",
        }
        self.emit("rampline.data.prepared", resource, [prepare] if deployment else [])

    def announce_changes(self, flow_run: str, *changes: str, deployment: bool = True) -> None:
        resource = {"prefect.resource.id": "rampline.study.digits", "rampline.study": "digits"}
        of_ours = (
            {"deployment": f"prefect.deployment.{uuid.uuid4()}", "tag": "prefect.tag.rampline"} if deployment else {}
        )
        ids = {"flow-run": f"prefect.flow-run.{flow_run}"} | of_ours
        related = [{"prefect.resource.role": role, "prefect.resource.id": name} for role, name in ids.items()]
        self.emit("rampline.study.changed", resource, related, {"changes": list(changes)})

    def of_study(self, study: str) -> list[dict[str, Any]]:
        found = self.api.post("/flow_runs/filter", {"deployments": {"name": {"any_": ["study"]}}})
        return [each for each in found if each["parameters"].get("study") == study]


@pytest.fixture(scope="module")
def receiver() -> Iterator[Received]:
    with receive_webhooks() as received:
        yield received


@pytest.fixture(scope="module")
def flow_runs(api: PrefectApi, deployments: dict[str, dict[str, Any]], receiver: Received) -> Iterator[FlowRuns]:
    """With all automations on, the patience of those that wait cut to 10 s, and a worker that starts nothing."""
    before = _ids(api)
    with _paused_pool(api):
        with nothing_of_ours(api):
            with pytest.MonkeyPatch.context() as patch, client_of(api) as client:
                patch.setenv("RAMPLINE_NOTIFY_URL", f"{receiver.url}/hook")
                apply_automations(client, silence_seconds=THRESHOLD)
                # Of an automation that is there already, whose message tells of the new hours.
                patch.setenv("RAMPLINE_OVERRUN_HOURS", str(THRESHOLD / 3600))
                apply_automations(client)
            yield FlowRuns(api=api, deployments=deployments)
        # Before a worker sees them; what an automation has been told to start may still come.
        for _ in range(5):
            for flow_run in _ids(api) - before:
                api.request("DELETE", f"/flow_runs/{flow_run}")
            time.sleep(1)


def _ids(api: PrefectApi) -> frozenset[str]:
    return frozenset(found["id"] for found in api.post("/flow_runs/filter", {"sort": "START_TIME_DESC"}))


@contextmanager
def _paused_pool(api: PrefectApi) -> Iterator[None]:
    api.request("PATCH", "/work_pools/rampline", {"is_paused": True})
    try:
        yield
    finally:
        api.request("PATCH", "/work_pools/rampline", {"is_paused": False})


@contextmanager
def signs_of_life(flow_runs: FlowRuns, *ids: str) -> Iterator[None]:
    """Of flow runs whose process is there, also of one that pauses in it."""
    end = threading.Event()

    def give() -> None:
        while not end.wait(HEARTBEAT_SECONDS):
            for flow_run in ids:
                flow_runs.give_sign_of_life(flow_run)

    thread = threading.Thread(target=give)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def texts_of(receiver: Received, name: str) -> list[str]:
    return [text for text in receiver.texts() if f" {name} " in text]


@dataclass(frozen=True, kw_only=True)
class Silence:
    """Flow runs by their name, after the patience with all of them has run out."""

    ids: dict[str, str]
    states: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def after_silence(flow_runs: FlowRuns, receiver: Received) -> Silence:
    """Several fates at once, because each of them takes its 10 s and more."""
    ids = {name: flow_runs.create(name, "RUNNING", "prepare") for name in ("late", *FATES)}
    with signs_of_life(flow_runs, ids["alive"], ids["paused"]):
        for name in FATES:
            flow_runs.give_sign_of_life(ids[name], OTHERS if name == "foreign" else OURS)
        for name, (kind, state) in FATES.items():
            if kind != "RUNNING":
                flow_runs.set_state(ids[name], kind, state)
        wait_until(
            lambda: (
                all(texts_of(receiver, name) for name in ("late", "timed-out", "unlucky"))
                and flow_runs.state(ids["zombie"])["type"] == "CRASHED"
                and any(" is Crashed" in text for text in texts_of(receiver, "zombie"))
            ),
            PATIENCE,
            every=POLL_SECONDS,
        )
    return Silence(ids=ids, states={name: flow_runs.state(flow_run) for name, flow_run in ids.items()})


def test_only_a_flow_run_that_falls_silent_is_crashed(after_silence: Silence) -> None:
    states = {name: (state["type"], state["name"]) for name, state in after_silence.states.items()}
    assert after_silence.states["zombie"]["message"].startswith("No sign of life for 10 s: ")
    expected = {name: (kind, state) for name, (kind, state) in FATES.items()}
    assert states == expected | {"zombie": ("CRASHED", "Crashed"), "late": ("RUNNING", "Running")}


def test_a_crashed_flow_run_that_was_only_away_can_still_complete(flow_runs: FlowRuns, after_silence: Silence) -> None:
    zombie = after_silence.ids["zombie"]
    flow_runs.api.post(f"/flow_runs/{zombie}/set_state", {"state": {"type": "COMPLETED"}})
    assert flow_runs.state(zombie)["type"] == "COMPLETED"


def test_failed_crashed_and_overrunning_flow_runs_reach_the_receiver(
    after_silence: Silence, receiver: Received
) -> None:
    assert {path for path, _ in receiver.posts} == {"/hook"}
    text = texts_of(receiver, "unlucky")[0]
    assert text.splitlines()[:2] == ["Rampline: unlucky is Failed", "the message of its state"]
    assert text.splitlines()[2].endswith(f"/runs/flow-run/{after_silence.ids['unlucky']}")
    assert any(text.startswith("Rampline: timed-out is TimedOut\n") for text in texts_of(receiver, "timed-out"))
    assert any("is Crashed\nNo sign of life" in text for text in texts_of(receiver, "zombie"))
    [text] = texts_of(receiver, "late")
    assert text.startswith("Rampline: late has not ended after 0.00277778 hours\n")
    assert text.endswith(f"/runs/flow-run/{after_silence.ids['late']}")
    # Not "has not ended".
    for name in ("completed", "skipped", "unlucky", "timed-out"):
        assert not [text for text in texts_of(receiver, name) if "has not ended" in text]


def test_changes_of_a_study_reach_the_receiver_where_a_deployment_has_trained_it(
    flow_runs: FlowRuns, receiver: Received
) -> None:
    flow_run = flow_runs.create("night", "RUNNING", "study")
    flow_runs.announce_changes(flow_run, "of nobody's deployment", deployment=False)
    flow_runs.announce_changes(flow_run, "baseline: images/s 100; usually 1,005", "baseline: cost $0.20")

    def told() -> list[str]:
        return [text for text in receiver.texts() if " digits has changed" in text]

    wait_until(lambda: bool(told()), PATIENCE, every=POLL_SECONDS)
    (text,) = told()
    subject, *changes, page = text.splitlines()
    assert subject == "Rampline: digits has changed"
    assert changes == ["baseline: images/s 100; usually 1,005", "baseline: cost $0.20"]
    assert page.endswith(f"/runs/flow-run/{flow_run}")


def test_new_data_of_the_deployment_prepare_starts_its_study_once_switched_on(flow_runs: FlowRuns) -> None:
    api = flow_runs.api
    flow_runs.announce_data("cassava", "prepare")
    automation = next(each for each in api.post("/automations/filter") if each["name"].endswith("new data"))
    assert automation["enabled"] is False
    api.request("PATCH", f"/automations/{automation['id']}", {"enabled": True})

    def has_started() -> bool:
        # Of a study that prepares its own data, and of no deployment at all: they are trained on already.
        flow_runs.announce_data("mnist", "study")
        flow_runs.announce_data("svhn", None)
        flow_runs.announce_data(NO_STUDY, "prepare")
        return bool(flow_runs.of_study(NO_STUDY))

    # Again and again: Prefect answers the request before its triggers know that the automation is on.
    wait_until(has_started, PATIENCE, every=POLL_SECONDS)
    started = flow_runs.of_study(NO_STUDY)
    assert started
    assert all(flow_run["parameters"] == {"study": NO_STUDY} for flow_run in started)
    assert [flow_runs.of_study(study) for study in ("cassava", "mnist", "svhn")] == [[], [], []]
