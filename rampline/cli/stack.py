"""`rampline up`: Prefect server, MLflow server, deployments and a worker, for the two UIs and for schedules."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from rampline.cli.console import line_console
from rampline.record.home import Home
from rampline.servers.secret import sign_in_lines
from rampline.servers.status import look


def up(
    host: Annotated[
        str, typer.Option(help="Address to listen on. Beyond this machine (0.0.0.0) only with passwords.")
    ] = "127.0.0.1",
    prefect_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the Prefect server.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the MLflow server.")] = 5000,
    cpu_slots: Annotated[
        int | None, typer.Option(min=1, help="Runs that may train at once on a machine without a GPU.")
    ] = None,
    when_idle: Annotated[
        str,
        typer.Option(
            metavar="COMMAND", help="Run this when no flow run and no `rampline run` is left, such as 'sudo poweroff'."
        ),
    ] = "",
    idle_minutes: Annotated[float, typer.Option(min=0.1, help="Minutes without a run before --when-idle.")] = 15.0,
    detach: Annotated[bool, typer.Option("--detach", help="Go to the background when all answers.")] = False,
) -> None:
    """Start Prefect, MLflow, the deployments and a worker; Ctrl-C ends all of it.

    PREFECT_API_URL and MLFLOW_TRACKING_URI, if set, name servers that are used instead of starting one.
    """
    # They bring in psutil and others: too slow for the other commands.
    from rampline.servers.server_plan import Request
    from rampline.servers.up import start_servers

    ports = {"prefect_port": prefect_port, "mlflow_port": mlflow_port}
    idle = {"when_idle": when_idle, "idle_minutes": idle_minutes}
    request = Request(home=Home.from_environment(), host=host, cpu_slots=cpu_slots, **ports, **idle)
    start_servers(request, line_console(), detach=detach)


def status() -> None:
    """Show each process of `rampline up`: address, process id, since when, log; exit status 1 if one is not well."""
    home, console = Home.from_environment(), line_console()
    parts = look(home)
    if not parts:
        console.print(f"nothing is up in {home.root}: `rampline up` starts it")
        raise typer.Exit(1)
    for part in parts:
        condition = Text(f"{part.condition:<15} ", style="green" if part.is_well else "red")
        console.print(Text(f"{part.name:<9}"), condition, ", ".join(part.about), sep="")
    if console.file.isatty():
        for line in sign_in_lines(home, with_secret=True):
            console.print(line)
    if not all(part.is_well for part in parts):
        raise typer.Exit(1)


def down() -> None:
    """End the servers and the worker of `rampline up`; flow runs in progress save a checkpoint first."""
    from rampline.servers.up import end_servers, waiting

    console = line_console()
    with waiting(console, "ending the worker and its flow runs, then the servers"):
        console.print(end_servers(Home.from_environment()))
