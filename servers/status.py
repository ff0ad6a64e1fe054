"""`rampline status`: what of a home's `rampline up` runs and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rampline.record.home import Home
from rampline.record.provenance import process_runs
from rampline.record.units import write_number_of
from rampline.servers.processes import created, lock_holder
from rampline.servers.running import POOL, Servers, answers, read_state
from rampline.servers.secret import open_prefect
from rampline.servers.services import worker_name
from rampline.tracking.pages import shorten

REQUEST_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Part:
    """One line of `rampline status`; `about` is its address or its work pool, then what there is of its process."""

    name: str
    is_well: bool
    condition: str
    about: Sequence[str]


def look(home: Home) -> list[Part]:
    """What runs; empty if nothing does."""
    servers, holder = read_state(home), lock_holder(home)
    if servers is None:
        # A worker that was started by hand leaves no state.
        condition = "is starting, or is a worker that was started by hand"
        return [Part(name="up", is_well=False, condition=condition, about=_process(holder))] if holder else []
    is_up = holder == servers.pid and servers.is_up
    condition = ("running" if servers.ready else "is starting") if is_up else "was killed"
    about = [str(home.root), *(_process(servers.pid) if is_up else ())]
    up = Part(name="up", is_well=is_up and servers.ready, condition=condition, about=about)
    pages = {"prefect": (servers.prefect_url, servers.prefect_api_url), "mlflow": (servers.mlflow_url,) * 2}
    found = [
        _part(servers, name, where=url, is_there=answers(f"{api}/health"), otherwise="does not answer")
        for name, (url, api) in pages.items()
    ]
    return [up, *found, _worker(home, servers)]


def _worker(home: Home, servers: Servers) -> Part:
    online, running = _pool(home, servers) or (False, None)
    where = f"pool {POOL}" + ("" if running is None else f", {write_number_of('flow run', running)} running")
    is_ours = "worker" in servers.processes
    otherwise = "is not online" if is_ours else "not running"
    return _part(servers, "worker", where=where, is_there=online and is_ours, otherwise=otherwise)


def _part(servers: Servers, name: str, *, where: str, is_there: bool, otherwise: str) -> Part:
    """Of a server that was there before, nothing is known but whether it answers."""
    process = servers.processes.get(name)
    if process is None:
        return Part(name=name, is_well=is_there, condition="found" if is_there else otherwise, about=[where])
    runs = process_runs(process.identity)
    condition = ("running" if is_there else otherwise) if runs else "not running"
    about = [where, *(_process(process.pid) if runs else ()), f"log {shorten(Path(process.log))}"]
    return Part(name=name, is_well=runs and is_there, condition=condition, about=about)


def _pool(home: Home, servers: Servers) -> tuple[bool, int] | None:
    """Whether this machine's worker is online, and how many flow runs of the pool are running, if Prefect answers."""
    if not answers(f"{servers.prefect_api_url}/health"):
        return None
    import httpx
    from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter

    running = FlowRunFilter.model_validate({"state": {"type": {"any_": ["RUNNING"]}}})
    pool = WorkPoolFilter.model_validate({"name": {"any_": [POOL]}})
    try:
        with open_prefect(home, servers.prefect_api_url, timeout_seconds=REQUEST_SECONDS) as client:
            workers = client.read_workers_for_work_pool(POOL)
            online = any(worker.name == worker_name() and worker.status == "ONLINE" for worker in workers)
            return online, client.count_flow_runs(flow_run_filter=running, work_pool_filter=pool)
    except httpx.HTTPError:
        return None


def _process(pid: int) -> list[str]:
    return [f"process {pid}", f"since {datetime.fromtimestamp(created(pid)):%Y-%m-%d %H:%M:%S}"]
