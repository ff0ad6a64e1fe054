"""`rampline up`: Prefect server, MLflow server, deployments and a worker, for the two UIs and for schedules."""

from __future__ import annotations

from typing import Annotated

import typer

from rampline.home import Home
from rampline.servers.display import Display


def up(
    host: Annotated[
        str, typer.Option(help="Address to listen on. Beyond this machine (0.0.0.0) only with passwords.")
    ] = "127.0.0.1",
    prefect_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the Prefect server.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the MLflow server.")] = 5000,
    cpu_slots: Annotated[
        int | None, typer.Option(min=1, help="Runs that may train at once on a machine without a GPU.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Go to the background when all answers.")] = False,
) -> None:
    """Start Prefect, MLflow, the deployments and a worker; Ctrl-C ends all of it.

    PREFECT_API_URL and MLFLOW_TRACKING_URI, if set, name servers that are used instead of starting one.
    """
    # They bring in psutil and others: too slow for the other commands.
    from rampline.servers.background import start_in_background
    from rampline.servers.plan import Request
    from rampline.servers.up import run_servers

    request = Request(
        home=Home.from_environment(), host=host, prefect_port=prefect_port, mlflow_port=mlflow_port, cpu_slots=cpu_slots
    )
    if detach:
        start_in_background(request, Display())
    else:
        run_servers(request, Display())
