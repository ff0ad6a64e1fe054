"""Turns and slots: what a flow run that waits shows of itself, and what it does not wait for."""

import threading

import pytest
from own_prefect import deployed_flow_run
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.objects import State
from prefect.concurrency import _leases
from prefect.context import FlowRunContext
from prefect.flow_engine import run_flow
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_LOGGING_TO_API_ENABLED,
    temporary_settings,
)
from prefect.states import Cancelling, Paused, Pending, Running

from rampline.devices import find_devices
from rampline.servers.environments import OWN_PREFECT
from rampline.servers.watchdog import FLOW_RUN
from rampline.tasks import turns
from rampline.tasks.flow_run import current_flow_run, flow_run_address, own_name
from rampline.tasks.turns import WAITING, _show_state, earlier_run_in_progress, slots

pytestmark = pytest.mark.slow


def test_waiting_is_shown_but_never_instead_of_a_cancel(prefect_server):
    seen: list[str] = []

    @flow
    def waits() -> State:
        with get_client(sync_client=True) as client:
            own = current_flow_run().id
            for name in (WAITING, "Running", "Cancelling", WAITING):
                if name == "Cancelling":
                    client.set_flow_run_state(own, Cancelling())
                else:
                    _show_state(name)
                seen.append(str(client.read_flow_run(own).state_name))
        return Cancelling()

    with temporary_settings({PREFECT_API_URL: prefect_server.api.url, PREFECT_LOGGING_TO_API_ENABLED: False}):
        waits(return_state=True)
    assert seen == [WAITING, "Running", "Cancelling", "Cancelling"]


def test_what_a_schedule_starts_is_named_by_when_it_was_to_begin_and_says_where_it_is_known(prefect_server):
    """Prefect makes its flow runs days ahead."""
    api = prefect_server.api

    @flow
    def nightly() -> dict[str, str]:
        return {"name": own_name(), **flow_run_address()}

    flow_id = api.post("/flows/", {"name": "nightly"})["id"]
    due = {"type": "SCHEDULED", "state_details": {"scheduled_time": "2026-01-02T03:04:05Z"}}
    made = api.post("/flow_runs/", {"flow_id": flow_id, "state": due})["id"]
    with temporary_settings(
        {PREFECT_API_URL: api.url, PREFECT_API_AUTH_STRING: "me:secret", PREFECT_LOGGING_TO_API_ENABLED: False}
    ):
        with get_client(sync_client=True) as client:
            flow_run = client.read_flow_run(made)
        told = run_flow(nightly, flow_run)
    assert isinstance(told, dict)
    expected = {FLOW_RUN: made, "PREFECT_API_URL": api.url, "PREFECT_API_AUTH_STRING": "me:secret"}
    assert told | expected == told
    assert told["name"] == f"20260102-030405-{flow_run.id.hex[-6:]}"


def test_a_command_with_a_server_of_its_own_takes_no_slots(prefect_server, monkeypatch):
    name = find_devices().slots

    with temporary_settings({PREFECT_API_URL: prefect_server.api.url}), get_client(sync_client=True) as client:

        def taken() -> float:
            with slots(1):
                return client.read_global_concurrency_limit_by_name(name).active_slots

        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
        try:
            assert taken() == 1
            monkeypatch.setenv(OWN_PREFECT, "1")
            assert taken() == 0
        finally:
            client.delete_global_concurrency_limit_by_name(name)


def test_a_fire_is_skipped_for_an_earlier_flow_run_but_not_for_one_that_never_started(prefect_server, monkeypatch):
    api = prefect_server.api

    @flow
    def fire(study: str = "digits") -> str | None:
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        context.flow_run.auto_scheduled = True
        return earlier_run_in_progress(study)

    with temporary_settings({PREFECT_API_URL: api.url, PREFECT_LOGGING_TO_API_ENABLED: False}):
        lost = deployed_flow_run(api, "fire")
        pending = {"state": {"type": "PENDING"}, "force": True}
        assert api.post(f"/flow_runs/{lost.id}/set_state", pending)["status"] == "ACCEPT"
        assert run_flow(fire, deployed_flow_run(api, "fire")) == lost.name
        monkeypatch.setattr(turns, "PENDING_SECONDS", 0.0)
        assert run_flow(fire, deployed_flow_run(api, "fire")) is None


def test_one_that_was_paused_goes_on_without_its_place_in_the_limit_of_its_deployment(prefect_server, monkeypatch):
    """As after an approval. Prefect asks for the place every 225 s, and would end the flow run then."""
    monkeypatch.setattr(_leases, "_RENEWAL_FRACTION", 0.001)
    api, ends = prefect_server.api, []

    @flow
    def asks() -> str:
        own = current_flow_run()
        (renewal,) = (thread for thread in threading.enumerate() if thread.name.startswith("concurrency-lease-renewal"))
        with get_client(sync_client=True) as client:
            for state in (Paused(), Running()):
                client.set_flow_run_state(own.id, state, force=True)
        renewal.join(60)
        ends.append(not renewal.is_alive())
        return "trained"

    with temporary_settings({PREFECT_API_URL: api.url, PREFECT_LOGGING_TO_API_ENABLED: False}):
        made = deployed_flow_run(api, "asks", concurrency_limit=1).id
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(made, Pending())
            assert run_flow(asks, client.read_flow_run(made)) == "trained"
    assert ends == [True]
