"""`rampline doctor`: what is wrong with this machine or its settings."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table

from rampline.doctor import examine
from rampline.home import Home

STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor() -> None:
    """Check Python, packages, devices, memory, disk, ports and settings; exit status 1 if something must be mended."""
    findings = list(examine(Home.from_environment()))
    table = Table.grid(padding=(0, 2))
    for finding in findings:
        text = finding.text if finding.status == "ok" else f"{finding.text}: {finding.remedy}"
        table.add_row(f"[{STYLES[finding.status]}]{finding.status}[/]", finding.subject, text)
    Console(soft_wrap=True).print(table)
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(1)
