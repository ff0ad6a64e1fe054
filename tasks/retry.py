"""When another attempt helps."""

from prefect import Task
from prefect.client.schemas.objects import State, TaskRun

from rampline.errors import RamplineError


def unless_ours(_task: Task, _task_run: TaskRun, state: State) -> bool:
    """Try again after what the world did (network, database), not after wrong input or a run that failed."""
    return not isinstance(state.result(raise_on_failure=False), RamplineError)
