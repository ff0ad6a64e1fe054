"""The work pool whose worker starts the flow runs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from rampline.files import read_json
from rampline.servers.prefect_api import PrefectApi
from rampline.servers.running import POOL

TYPE = "process"
# Prefect's own lets whoever starts a flow run say which command is run, where, and with which environment.
TEMPLATE = Path(__file__).with_name("process-job-template.json")
COMMAND = "command"


def ensure_pool(api: PrefectApi) -> list[str]:
    """Make the work pool `rampline` of type `process`, if there is none.

    One that is there is left as it is, but for a template that lets callers choose the command, as Prefect's own does:
    such a one is replaced.

    Returns:
        what was changed, for the user.

    Raises:
        PrefectError: when the server refuses.
        OSError: when it cannot be reached.
    """
    template = read_json(TEMPLATE)
    found = api.post("/work_pools/filter", {"work_pools": {"name": {"any_": [POOL]}}})
    if not found:
        api.post("/work_pools/", {"name": POOL, "type": TYPE, "base_job_template": template})
    elif found[0]["type"] == TYPE and COMMAND in _variables(found[0]):
        api.request("PATCH", f"/work_pools/{POOL}", {"base_job_template": template})
        return [f"locked the work pool {POOL}: callers no longer choose the command of a flow run"]
    return []


def _variables(pool: dict[str, Any]) -> Collection[str]:
    """What callers can set."""
    return pool["base_job_template"].get("variables", {}).get("properties", {})
