"""The global concurrency limit that flow runs take devices from: a slot per device of this machine."""

from __future__ import annotations

from typing import Any

from rampline.devices import CPU_SLOTS, find_devices
from rampline.servers.prefect_api import PrefectApi

ROUTE = "/v2/concurrency_limits"


def apply_device_limit(api: PrefectApi, *, cpu_slots: int | None = None) -> list[str]:
    """Make the limit `gpu` (without a GPU: `cpu-slots`) if there is none, with a slot per device.

    One that is there keeps its size, because a person may have set it in the UI; only `cpu_slots` changes it.

    Args:
        cpu_slots: how many flow runs may train at once on a machine without a GPU; ignored where there is one.

    Returns:
        what was made or changed, a line each.
    """
    devices = find_devices()
    asked = cpu_slots if devices.slots == CPU_SLOTS else None
    found = _find(api, devices.slots)
    if found is None:
        size = asked or devices.count
        api.post(f"{ROUTE}/", {"name": devices.slots, "limit": size})
        return [f"made the concurrency limit {devices.slots}, with {_slots(size)} to train on"]
    if asked and found["limit"] != asked:
        api.request("PATCH", f"{ROUTE}/{devices.slots}", {"limit": asked})
        return [f"changed the concurrency limit {devices.slots} from {found['limit']} to {_slots(asked)}"]
    return []


def _find(api: PrefectApi, name: str) -> dict[str, Any] | None:
    # Reading it by its name would answer 404, which is an error.
    return next((limit for limit in api.post(f"{ROUTE}/filter") if limit["name"] == name), None)


def _slots(number: int) -> str:
    return f"{number} slot{'s' if number != 1 else ''}"
