"""Schedules that fire while an earlier flow run still trains."""

from inspect import signature

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.context import FlowRunContext

from rampline.tasks.flow_run import submitted_at

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
    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=IN_PROGRESS))
    with get_client(sync_client=True) as client:
        found = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(state=states),
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[own.deployment_id])),
        )
    # A flow run on the defaults has no parameters.
    default = signature(context.flow.fn).parameters["study"].default if context and context.flow else study
    earlier = [other for other in found if other.id != own.id and other.parameters.get("study", default) == study]
    return next((other.name for other in earlier if submitted_at(other) < submitted_at(own)), None)
