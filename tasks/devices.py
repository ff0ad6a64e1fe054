"""Devices as a shared resource: executions take their turn, and what they use shows as slots of a limit in the UI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.responses import GlobalConcurrencyLimitResponse
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound
from prefect.states import Running

from rampline.devices import find_devices
from rampline.jobs.device_queue import Ticket, devices_of, hold_devices
from rampline.jobs.fork_server import fork_server
from rampline.progress import progress_to
from rampline.record.home import Home
from rampline.study import Study
from rampline.tasks.arrivals import let_earlier_arrive
from rampline.tasks.flow_run import current_flow_run, submitted_at

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
    devices = max(devices_of(run.config) for run in study.runs)
    if _HAS_TURN.get() or not devices:
        yield
        return
    flow_run = current_flow_run()
    name, submitted = f"{study.name} ({flow_run.name})", submitted_at(flow_run)
    ticket = Ticket(name=name, submitted_at=submitted, devices=devices, owner=str(flow_run.id))
    home, token = Home.from_environment(), _HAS_TURN.set(True)
    try:
        with ExitStack() as stack:
            told: list[str] = []
            let_earlier_arrive(ticket, home)
            stack.enter_context(hold_devices(home, ticket, slots=_slots(), log=lambda text: _wait(text, told)))
            if told:
                _show_state("Running")
            stack.enter_context(fork_server())
            yield
    finally:
        _HAS_TURN.reset(token)


@contextmanager
def slots(devices: int) -> Iterator[None]:
    """Take slots of the limit `gpu` or `cpu-slots` for the length of the block, where the server has that limit.

    The lease is renewed while the block goes on; one that lapses while the server is away does not end the training.
    """
    name = find_devices().slots
    limit = _limit(name)
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
        client.set_flow_run_state(current_flow_run().id, Running(name=name), force=True)
