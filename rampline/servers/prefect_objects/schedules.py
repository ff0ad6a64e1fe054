"""Schedules stay as the user has them, whatever is deployed over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rampline.servers.prefect_api import PrefectApi

FIELDS = ("active", "schedule", "parameters")


@contextmanager
def keeping_schedules(api: PrefectApi) -> Iterator[None]:
    """Around `prefect deploy`, which sets times and parameters of schedules to those of prefect.yaml: set them back.

    Schedules that were not there before are left as prefect.yaml makes them; switched off, in ours.
    """
    before = _schedules(api)
    try:
        yield
    finally:
        after = _schedules(api)
        for (deployment, schedule), was in before.items():
            now = after.get((deployment, schedule))
            if now is not None and now != was:
                api.request("PATCH", f"/deployments/{deployment}/schedules/{schedule}", was)


def _schedules(api: PrefectApi) -> dict[tuple[str, str], Mapping[str, Any]]:
    """What can be set of each schedule, by the ids of its deployment and of itself."""
    return {
        (deployment["id"], schedule["id"]): {field: schedule[field] for field in FIELDS}
        for deployment in api.post("/deployments/filter")
        for schedule in deployment["schedules"]
    }
