"""The work pool whose worker starts the flow runs."""

from __future__ import annotations

from rampline.prefect_api import PrefectApi
from rampline.servers.state import POOL

TYPE = "process"


def ensure_pool(api: PrefectApi) -> None:
    """Make the work pool `rampline` of type `process`, if there is none; one that is there is left as it is.

    Raises:
        PrefectError: when the server refuses.
        OSError: when it cannot be reached.
    """
    if api.post("/work_pools/filter", {"work_pools": {"name": {"any_": [POOL]}}}):
        return
    # As `prefect work-pool create` does: an empty template would take no job variables.
    known = api.request("GET", "/collections/views/aggregate-worker-metadata")
    template = known["prefect"][TYPE]["default_base_job_configuration"]
    api.post("/work_pools/", {"name": POOL, "type": TYPE, "base_job_template": template})
