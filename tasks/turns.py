"""Whose turn it is: executions share a machine's devices in the order in which they were submitted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from inspect import signature

from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import GlobalConcurrencyLimitResponse
from prefect.concurrency.sync import concurrency
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.states import Running

from rampline.devices import find_devices
from rampline.jobs.device_queue import Ticket, devices_of, hold_devices, owners
from rampline.jobs.fork_server import fork_server
from rampline.jobs.launchers import prepare_nodes
from rampline.jobs.waiting import wait_until
from rampline.progress import progress_to
from rampline.record.home import Home
from rampline.servers.environments import OWN_PREFECT
from rampline.servers.server_plan import prefect_yaml
from rampline.study import Study
from rampline.tasks.flow_run import current_flow_run, submitted_at

# The flows whose deployments have one of these tags.
TAKES_DEVICES = [each["name"] for each in prefect_yaml()["deployments"] if {"training", "evaluation"} & {*each["tags"]}]
# A process takes some seconds from its start to the queue. What needs longer than this is not coming.
ARRIVAL_SECONDS = 60.0
# A flow run that has been pending for longer than this is not coming either: its worker is gone.
PENDING_SECONDS = 3600.0
POLL_SECONDS = 0.5


def _on_their_way(ticket: Ticket, home: Home) -> bool:
    flows = FlowFilter.model_validate({"name": {"any_": TAKES_DEVICES}})
    states = FlowRunFilter.model_validate({"state": {"type": {"any_": [StateType.PENDING, StateType.RUNNING]}}})
    with get_client(sync_client=True) as client:
        found = client.read_flow_runs(flow_filter=flows, flow_run_filter=states)
    earlier = [run for run in found if run.parent_task_run_id is None and submitted_at(run) < ticket.submitted_at]
    arrived = owners(home)
    return any(str(run.id) not in arrived and _is_new(run, ARRIVAL_SECONDS) for run in earlier)


def _is_new(flow_run: FlowRun, seconds: float) -> bool:
    """Whether it has been in its state for a short time only."""
    limit = timedelta(seconds=seconds)
    return flow_run.state is not None and datetime.now(UTC) - flow_run.state.timestamp < limit


WAITING = "WaitingForDevices"
# Slots of a flow run that was killed are free after this long; the least that Prefect allows.
LEASE_SECONDS = 60.0
_HAS_TURN: ContextVar[bool] = ContextVar("has_turn", default=False)


@contextmanager
def in_turn(study: Study) -> Iterator[None]:
    """Wait until this machine's devices are free for the study, in the order in which flow runs were submitted.

    It holds as many as its largest run needs, to the end of the block: another training beside it would spoil what is
    measured. All that computes in the block is forked from one process. Inside the block of a parent flow this does
    nothing.
    """
    if _HAS_TURN.get():
        yield
        return
    devices = max(devices_of(run.config) for run in study.runs)
    flow_run = current_flow_run()
    name, submitted = f"{study.name} ({flow_run.name})", submitted_at(flow_run)
    ticket = Ticket(name=name, submitted_at=submitted, devices=devices, owner=str(flow_run.id))
    home, token = Home.from_environment(), _HAS_TURN.set(True)
    try:
        with ExitStack() as stack:
            told: list[str] = []
            if devices:
                # Until all that were submitted before have a ticket too: the quicker start must not decide.
                wait_until(lambda: not _on_their_way(ticket, home), ARRIVAL_SECONDS, every=POLL_SECONDS)
            stack.enter_context(hold_devices(home, ticket, slots=_slots(), log=lambda text: _wait(text, told)))
            if told:
                _show_state("Running")
            prepare_nodes((run.config for run in study.runs), has_turn=True)
            if study.needs_tensorflow_here:
                stack.enter_context(fork_server())
            yield
    finally:
        _HAS_TURN.reset(token)


@contextmanager
def slots(devices: int) -> Iterator[None]:
    """Take slots of the limit `gpu` or `cpu-slots` for the length of the block, where the server has that limit.

    The lease is renewed while the block goes on; one that lapses while the server is away does not end the training.
    A command with a Prefect server of its own takes none: nobody would free those of one that was killed.
    """
    name = find_devices().slots
    limit = None if os.environ.get(OWN_PREFECT) else _limit(name)
    if not devices or limit is None:
        yield
        return
    if limit.active_slots + devices > limit.limit:
        get_run_logger().info(f"waiting for {devices} of {limit.limit} slots of {name}: {limit.active_slots} are taken")
    with concurrency(
        name, occupy=devices, strict=True, lease_duration=LEASE_SECONDS, raise_on_lease_renewal_failure=False
    ):
        yield


def _slots() -> int:
    """What may be in use at once: the devices of this machine; a limit in Prefect may set fewer, or more of a CPU."""
    devices = find_devices()
    limit = _limit(devices.slots)
    if limit is None:
        return devices.count
    return min(limit.limit, devices.count) if devices.gpus else limit.limit


def _limit(name: str) -> GlobalConcurrencyLimitResponse | None:
    with get_client(sync_client=True) as client:
        try:
            found = client.read_global_concurrency_limit_by_name(name)
        except ObjectNotFound:
            return None
    return found if found.active else None


def _wait(text: str, told: list[str]) -> None:
    progress_to(get_run_logger().info).line(text)
    if not told:
        _show_state(WAITING)
    told.append(text)


def _show_state(name: str) -> None:
    with get_client(sync_client=True) as client:
        # Prefect refuses it to a flow run that is being cancelled.
        client.set_flow_run_state(current_flow_run().id, Running(name=name))


IN_PROGRESS = [StateType.PENDING, StateType.RUNNING, StateType.PAUSED, StateType.CANCELLING]


def earlier_run_in_progress(study: str) -> str | None:
    """The flow run of this deployment that trains the study already, where this one was started by a schedule.

    Returns:
        its name; `None` for a flow run that a person started, which takes its turn instead.
    """
    context = FlowRunContext.get()
    own = context.flow_run if context else None
    if own is None or own.deployment_id is None or not own.auto_scheduled:
        return None
    states = FlowRunFilter.model_validate({"state": {"type": {"any_": IN_PROGRESS}}})
    deployment = DeploymentFilter.model_validate({"id": {"any_": [own.deployment_id]}})
    with get_client(sync_client=True) as client:
        found = client.read_flow_runs(flow_run_filter=states, deployment_filter=deployment)
    # A flow run on the defaults has no parameters.
    default = signature(context.flow.fn).parameters["study"].default if context and context.flow else study
    others = [other for other in found if other.id != own.id and other.parameters.get("study", default) == study]
    earlier = [other for other in others if submitted_at(other) < submitted_at(own)]
    return next((other.name for other in earlier if not _is_lost(other)), None)


def _is_lost(flow_run: FlowRun) -> bool:
    """Whether the worker that was to start it is gone."""
    is_pending = flow_run.state is not None and flow_run.state.type is StateType.PENDING
    return is_pending and not _is_new(flow_run, PENDING_SECONDS)
