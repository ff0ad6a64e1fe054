"""Steps of `prefect deploy`: prefect.yaml names them, and takes over what they return."""

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound

from rampline.servers.deploy import version


def code_version() -> dict[str, str]:
    """`version` of the deployments."""
    return {"version": version()}


def keep_schedules(deployment: str, slugs: list[str]) -> dict[str, bool]:
    """`False` by the slug of each schedule that the server does not have yet: to begin switched off.

    A slug that it has is left out: then prefect.yaml says nothing about `active`, and the server keeps what it has.
    Schedules that were added in the UI get a slug: if one has none, Prefect removes and makes anew all of them.

    Args:
        deployment: such as `study/study`.
        slugs: of the schedules that prefect.yaml gives it.
    """
    with get_client(sync_client=True) as client:
        try:
            found = client.read_deployment_by_name(deployment)
        except ObjectNotFound:
            return dict.fromkeys(slugs, False)
        for schedule in found.schedules:
            if not schedule.slug:
                slug = f"added-{str(schedule.id)[-8:]}"
                # With all that it has: Prefect empties the parameters that a change does not name.
                values = {"active": schedule.active, "parameters": schedule.parameters}
                client.update_deployment_schedule(found.id, schedule.id, **values, slug=slug)
    known = {schedule.slug for schedule in found.schedules}
    return {slug: False for slug in slugs if slug not in known}
