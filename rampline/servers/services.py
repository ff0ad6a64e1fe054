"""The services of a plan: which program, with which environment, and how one sees that it works."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from datetime import datetime

from rampline.servers.environments import client_environment, mlflow_environment, prefect_environment
from rampline.servers.prefect_api import PrefectApi, PrefectError
from rampline.servers.running import POOL, answers, servers_folder
from rampline.servers.server_plan import Plan
from rampline.servers.service import Service

# Prefect's own 10 s make a person who has clicked Run wonder.
QUERY, QUERY_SECONDS = "PREFECT_WORKER_QUERY_SECONDS", "3"
CHILD, MLFLOW = "rampline.servers.child", "rampline.servers.mlflow_server"
PREFECT = "rampline.servers.prefect_server"


def prefect_service(plan: Plan) -> Service:
    """The Prefect server with its UI."""
    request = plan.request
    return Service(
        name="prefect",
        title="the Prefect server",
        home=request.home,
        module=CHILD,
        arguments=(PREFECT, "--host", plan.address, "--port", str(request.prefect_port)),
        environment=prefect_environment(request.home, plan.address, request.prefect_port, plan.access),
        folder=servers_folder(request.home),
        health=lambda _created: plan.api.answers(),
        port=request.prefect_port,
    )


def mlflow_service(plan: Plan) -> Service:
    """The MLflow server with its UI: two processes, the one that starts and the one that serves."""
    request = plan.request
    return Service(
        name="mlflow",
        title="the MLflow server",
        home=request.home,
        module=MLFLOW,
        arguments=("--host", plan.address, "--port", str(request.mlflow_port), "--workers", "1"),
        environment=mlflow_environment(request.home, plan.address, request.mlflow_port, plan.access),
        folder=servers_folder(request.home),
        health=lambda _created: answers(f"{plan.mlflow_url}/health"),
        port=request.mlflow_port,
    )


def worker_service(plan: Plan) -> Service:
    """The worker that starts a process per flow run."""
    name = worker_name()
    arguments = ("prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", name)
    return Service(
        name="worker",
        title="the worker",
        home=plan.request.home,
        module=CHILD,
        arguments=arguments,
        environment=worker_environment(plan),
        folder=plan.folder,
        health=_is_online(plan.api, name),
    )


def worker_environment(plan: Plan) -> dict[str, str]:
    """Of what talks to both servers."""
    return {QUERY: QUERY_SECONDS} | client_environment(
        plan.request.home,
        # With the credentials that the user may have written into them.
        plan.prefect_api_url if plan.starts_prefect else os.environ["PREFECT_API_URL"],
        plan.mlflow_url if plan.starts_mlflow else os.environ["MLFLOW_TRACKING_URI"],
        is_private=plan.starts_prefect,
    )


def worker_name() -> str:
    """One name per machine, so that the list of workers does not grow with every start."""
    return platform.node() or "worker"


def _is_online(api: PrefectApi, name: str) -> Callable[[float], bool]:
    """Whether the worker has reported since its process was created."""

    def is_online(created: float) -> bool:
        try:
            workers = api.post(f"/work_pools/{POOL}/workers/filter")
        except (OSError, PrefectError):
            return False
        last = [worker["last_heartbeat_time"] for worker in workers if worker["name"] == name]
        return any(datetime.fromisoformat(time).timestamp() >= created for time in last if time)

    return is_online
