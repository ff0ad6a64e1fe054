"""Flow runs that were submitted earlier, and are still on their way to the queue for devices."""

import time
from datetime import UTC, datetime, timedelta

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType

from rampline.jobs.device_queue import Ticket, owners
from rampline.record.home import Home
from rampline.tasks.flow_run import submitted_at

TAKES_DEVICES = ["study", "baseline", "finetune", "cluster", "evaluate"]
# A process takes some seconds from its start to the queue. What needs longer than this is not coming.
ARRIVAL_SECONDS = 60.0
POLL_SECONDS = 0.5


def let_earlier_arrive(ticket: Ticket, home: Home) -> None:
    """Wait until every flow run that was submitted before `ticket` has one too: the quicker start must not decide."""
    deadline = time.monotonic() + ARRIVAL_SECONDS
    while time.monotonic() < deadline and _on_their_way(ticket, home):
        time.sleep(POLL_SECONDS)


def _on_their_way(ticket: Ticket, home: Home) -> bool:
    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING]))
    with get_client(sync_client=True) as client:
        found = client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=TAKES_DEVICES)),
            flow_run_filter=FlowRunFilter(state=states),
        )
    earlier = [run for run in found if run.parent_task_run_id is None and submitted_at(run) < ticket.submitted_at]
    arrived = owners(home)
    return any(str(run.id) not in arrived and _is_new(run) for run in earlier)


def _is_new(flow_run: FlowRun) -> bool:
    """Whether it has been in its state for a short time only."""
    limit = timedelta(seconds=ARRIVAL_SECONDS)
    return flow_run.state is not None and datetime.now(UTC) - flow_run.state.timestamp < limit
