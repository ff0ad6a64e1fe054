"""What Rampline has on a Prefect server: work pool, deployments, their schedules, the concurrency limit of the devices.

Each is made where it is missing. What is there may have been changed in the UI, and is left as it is.

`python -m rampline.servers.deployments` adds the schedules of prefect.yaml and the automations, after
`prefect --no-prompt deploy --all` by hand.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import (
    DeploymentScheduleCreate,
    GlobalConcurrencyLimitCreate,
    GlobalConcurrencyLimitUpdate,
    WorkPoolCreate,
    WorkPoolUpdate,
)
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectNotFound

from rampline.devices import CPU_SLOTS, find_devices
from rampline.errors import ERROR_MARK, RamplineError
from rampline.files import read_json
from rampline.record.home import Home
from rampline.record.units import write_number_of
from rampline.servers.automations import apply_automations
from rampline.servers.processes import start
from rampline.servers.running import POOL, servers_folder
from rampline.servers.server_plan import PACKAGE, PREFECT_YAML, prefect_yaml

DEPLOY_SECONDS = 300
COMMIT_DIGITS = 12
POOL_TYPE = "process"
# Prefect's own lets whoever starts a flow run say which command is run, where, and with which environment.
TEMPLATE = PACKAGE / "process-job-template.json"
COMMAND = "command"


def code_version() -> dict[str, str]:
    """`version` of the deployments, for `prefect deploy`, as prefect.yaml names this function.

    It is the commit, 12 digits; where that is not known, the version of the package.
    """
    # It brings in psutil and others.
    from rampline.record.provenance import UNKNOWN, git_commit

    commit = git_commit()
    return {"version": version("rampline") if commit == UNKNOWN else commit[:COMMIT_DIGITS]}


def deploy(home: Home, folder: Path, environment: Mapping[str, str]) -> None:
    """Apply `prefect.yaml` on the server that `environment` leads to; the work pool must be there.

    The deployments remember `folder`: their flow runs work in it.

    Raises:
        RamplineError: when Prefect refuses: naming the log.
    """
    log = servers_folder(home) / "deploy.log"
    log.unlink(missing_ok=True)
    command = ["-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(PREFECT_YAML)]
    process = start(command, part="deploy", home=home, environment=environment, folder=folder, log=log)
    try:
        status = process.wait(DEPLOY_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        status = process.wait()
    if status:
        raise RamplineError(f"{PREFECT_YAML} could not be deployed (exit status {status}): see {log}")


def ensure_pool(client: SyncPrefectClient) -> list[str]:
    """Make the work pool `rampline` of type `process`, if there is none; returns what was changed, for the user.

    One that is there is left as it is, but for a template that lets callers choose the command, as Prefect's own does:
    such a one is replaced.
    """
    template = read_json(TEMPLATE)
    try:
        pool = client.read_work_pool(POOL)
    except ObjectNotFound:
        client.create_work_pool(WorkPoolCreate(name=POOL, type=POOL_TYPE, base_job_template=template))
        return []
    if pool.type == POOL_TYPE and COMMAND in pool.base_job_template.get("variables", {}).get("properties", {}):
        client.update_work_pool(POOL, WorkPoolUpdate(base_job_template=template))
        return [f"locked the work pool {POOL}: callers no longer choose the command of a flow run"]
    return []


def add_schedules(client: SyncPrefectClient) -> None:
    """Give deployments the schedules of prefect.yaml that they do not have yet, switched off."""
    for name, schedules in prefect_yaml()["definitions"]["schedules"].items():
        deployment = client.read_deployment_by_name(name)
        known = {schedule.slug for schedule in deployment.schedules}
        missing = [
            DeploymentScheduleCreate(
                slug=slug,
                schedule={"cron": given["cron"], "timezone": given["timezone"]},  # pyright: ignore[reportArgumentType]
                parameters=given.get("parameters", {}),
                active=False,
            )
            for slug, given in schedules.items()
            if slug not in known
        ]
        if missing:
            client.create_deployment_schedules(deployment.id, missing)


def ensure_device_limit(client: SyncPrefectClient, *, cpu_slots: int | None = None, is_ours: bool = False) -> list[str]:
    """Make the limit `gpu` (without a GPU: `cpu-slots`) if there is none, with a slot per device of this machine.

    One that is there keeps its size, because a person may have set it in the UI; only `cpu_slots` changes it. Returns
    what was made or changed, a line each.

    Args:
        cpu_slots: how many flow runs may train at once on a machine without a GPU; ignored where there is one.
        is_ours: whether this `rampline up` has started the server: slots that are taken while no flow run is in
            progress are those of a command that was killed, and are freed.
    """
    devices = find_devices()
    asked = cpu_slots if devices.slots == CPU_SLOTS else None
    try:
        found = client.read_global_concurrency_limit_by_name(devices.slots)
    except ObjectNotFound:
        size = asked or devices.count
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=devices.slots, limit=size))
        return [f"made the concurrency limit {devices.slots}, with {write_number_of('slot', size)} to train on"]
    changes = []
    if asked and found.limit != asked:
        client.update_global_concurrency_limit(devices.slots, GlobalConcurrencyLimitUpdate(limit=asked))
        change = f"from {found.limit} to {write_number_of('slot', asked)}"
        changes.append(f"changed the concurrency limit {devices.slots} {change}")
    if is_ours and found.active_slots and not _has_flow_runs(client):
        client.update_global_concurrency_limit(devices.slots, GlobalConcurrencyLimitUpdate(active_slots=0))
        freed = write_number_of("slot", found.active_slots)
        changes.append(f"freed {freed} of the concurrency limit {devices.slots}: no flow run is in progress")
    return changes


def _has_flow_runs(client: SyncPrefectClient) -> bool:
    """Whether a flow run is in progress that may have slots."""
    states = FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.CANCELLING])
    return client.count_flow_runs(flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=states))) > 0


def main() -> None:
    """Add the schedules and the automations on the server that Prefect's settings name."""
    with get_client(sync_client=True) as client:
        add_schedules(client)
        try:
            apply_automations(client)
        except RamplineError as error:
            sys.exit(f"{ERROR_MARK}{error}")


if __name__ == "__main__":
    main()
