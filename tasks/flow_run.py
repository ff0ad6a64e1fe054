"""Which flow run this is, for those who must reach it when this process cannot any more."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any
from uuid import UUID

from prefect import flow_engine
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.settings import get_current_settings

from rampline.servers.watchdog import FLOW_RUN


def _going_on(maintain: Callable[..., AbstractContextManager[None]]) -> Callable[..., AbstractContextManager[None]]:
    """A flow run goes on that has lost its place in the limit of its deployment; devices have a limit of their own.

    Prefect takes the place from one that pauses, or whose server is away for minutes, and ends it minutes later
    (https://github.com/PrefectHQ/prefect/issues/22885, https://github.com/PrefectHQ/prefect/issues/18839).
    """

    @wraps(maintain)
    def maintaining(lease_id: UUID, seconds: float, **_: Any) -> AbstractContextManager[None]:
        return maintain(lease_id, seconds, raise_on_lease_renewal_failure=False, suppress_warnings=True)

    return maintaining


# Flows import this module before the engine takes the place.
_ENGINE = flow_engine.__dict__
_ENGINE["maintain_concurrency_lease"] = _going_on(_ENGINE["maintain_concurrency_lease"])


def current_flow_run() -> FlowRun:
    """The flow run that this is called in.

    Raises:
        RuntimeError: outside of one.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        raise RuntimeError("this is a step of a flow: call it from one")
    return context.flow_run


def submitted_at(flow_run: FlowRun) -> float:
    """When somebody, or a schedule, asked for it to begin; in seconds since 1970."""
    submitted = flow_run.expected_start_time or flow_run.created
    return submitted.timestamp() if submitted else 0.0


def own_name() -> str:
    """A name for what the current flow run makes: a retry goes on with it, or makes it again.

    By the time at which it was to begin: what a schedule starts has been there for days then.
    """
    flow_run = current_flow_run()
    return f"{flow_run.expected_start_time or flow_run.created:%Y%m%d-%H%M%S}-{flow_run.id.hex[-6:]}"


def flow_run_address() -> dict[str, str]:
    """Id of the current flow run, and the API that knows it with the way in, as environment variables."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return {}
    api = get_current_settings().api.to_environment_variables(exclude_unset=True)
    return {FLOW_RUN: str(context.flow_run.id), **api}
