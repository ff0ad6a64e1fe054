"""What Rampline keeps on a Prefect server besides its deployments: work pool, concurrency limit, automations.

All of it goes through the REST API, and all of it may be changed in the UI: what is there is left as the user has it.
"""

from __future__ import annotations

from rampline.servers.prefect_api import PrefectApi
from rampline.servers.prefect_objects.automations import apply_automations
from rampline.servers.prefect_objects.limits import apply_device_limit
from rampline.servers.prefect_objects.new_data import train_after_new_data
from rampline.servers.prefect_objects.notifications import notifying
from rampline.servers.prefect_objects.pool import ensure_pool
from rampline.servers.prefect_objects.schedules import keeping_schedules
from rampline.servers.prefect_objects.zombies import crash_zombies

__all__ = ["apply", "ensure_pool", "keeping_schedules"]


def apply(api: PrefectApi, *, cpu_slots: int | None = None) -> list[str]:
    """Make what is missing on the server; to be called after `prefect deploy --all`, which it needs the ids of.

    Applying twice changes nothing the second time.

    Args:
        cpu_slots: size of the concurrency limit on a machine without a GPU; without, an existing one keeps its size.

    Returns:
        what was made or changed, a line each, for the user.

    Raises:
        ConfigError: when `RAMPLINE_NOTIFY_URL` or `RAMPLINE_OVERRUN_HOURS` cannot be used.
        PrefectError: when the server refuses.
        OSError: when it cannot be reached.
    """
    messages, lines = notifying(api)
    lines += apply_device_limit(api, cpu_slots=cpu_slots)
    return lines + apply_automations(api, [crash_zombies(), *messages, *train_after_new_data(api)])
