"""`rampline status`: what of a home's `rampline up` runs and answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rampline.record.home import Home
from rampline.record.provenance import process_runs
from rampline.record.units import write_number_of
from rampline.servers.processes import created, lock_holder
from rampline.servers.running import POOL, ProcessState, Servers, answers, read_state
from rampline.servers.secret import open_prefect
from rampline.servers.services import worker_name

REQUEST_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Part:
    """One line of `rampline status`.

    Attributes:
        name: `up`, `prefect`, `mlflow` or `worker`.
        is_well: whether it runs, and answers.
        condition: the same in words.
        where: its address, or its work pool.
        pid: its process id; `None` for a server that was there before, and for what does not run.
        since: when its process began, in local time; empty without one.
        log: path of what it prints; empty without one.
    """

    name: str
    is_well: bool
    condition: str
    where: str = ""
    pid: int | None = None
    since: str = ""
    log: str = ""


def look(home: Home) -> list[Part]:
    """What runs; empty if nothing does."""
    servers, holder = read_state(home), lock_holder(home)
    if servers is None:
        return [Part(name="up", is_well=False, condition="is starting", pid=holder)] if holder else []
    is_up = holder == servers.pid and servers.is_up
    condition = ("running" if servers.ready else "is starting") if is_up else "was killed"
    up = Part(
        name="up",
        is_well=is_up and servers.ready,
        condition=condition,
        where=str(home.root),
        pid=servers.pid if is_up else None,
        since=_since(servers.pid) if is_up else "",
    )
    return [up, _server(servers, "prefect"), _server(servers, "mlflow"), _worker(home, servers)]


def _server(servers: Servers, name: str) -> Part:
    url = servers.prefect_url if name == "prefect" else servers.mlflow_url
    page = f"{servers.prefect_api_url}/health" if name == "prefect" else f"{url}/health"
    return _part(name, servers.processes.get(name), where=url, is_there=answers(page), otherwise="does not answer")


def _worker(home: Home, servers: Servers) -> Part:
    online, where = False, f"pool {POOL}"
    if found := _pool(home, servers):
        online, running = found
        where += f", {write_number_of('flow run', running)} running"
    process = servers.processes.get("worker")
    if process is None:
        return Part(name="worker", is_well=False, condition="not running", where=where)
    return _part("worker", process, where=where, is_there=online, otherwise="is not online")


def _part(name: str, process: ProcessState | None, *, where: str, is_there: bool, otherwise: str) -> Part:
    if process is None:
        return Part(name=name, is_well=is_there, condition="found" if is_there else otherwise, where=where)
    runs = process_runs(process.identity)
    condition = ("running" if is_there else otherwise) if runs else "not running"
    return Part(
        name=name,
        is_well=runs and is_there,
        condition=condition,
        where=where,
        pid=process.pid if runs else None,
        since=_since(process.pid) if runs else "",
        log=process.log,
    )


def _pool(home: Home, servers: Servers) -> tuple[bool, int] | None:
    """Whether this machine's worker is online, and how many flow runs of the pool are running, if Prefect answers."""
    if not answers(f"{servers.prefect_api_url}/health"):
        return None
    import httpx
    from prefect.client.schemas import filters
    from prefect.client.schemas.objects import StateType

    states = filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=[StateType.RUNNING]))
    pool = filters.WorkPoolFilter(name=filters.WorkPoolFilterName(any_=[POOL]))
    try:
        with open_prefect(home, servers.prefect_api_url, timeout_seconds=REQUEST_SECONDS) as client:
            workers = client.read_workers_for_work_pool(POOL)
            online = any(worker.name == worker_name() and worker.status == "ONLINE" for worker in workers)
            chosen = filters.FlowRunFilter(state=states)
            return online, client.count_flow_runs(flow_run_filter=chosen, work_pool_filter=pool)
    except httpx.HTTPError:
        return None


def _since(pid: int) -> str:
    return datetime.fromtimestamp(created(pid)).strftime("%Y-%m-%d %H:%M:%S")
