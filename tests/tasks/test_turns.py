"""What a flow run that waits for its turn shows of itself."""

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_TO_API_ENABLED, temporary_settings
from prefect.states import Cancelling

from rampline.tasks.flow_run import current_flow_run
from rampline.tasks.turns import WAITING, _show_state

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
