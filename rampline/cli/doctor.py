"""`rampline doctor`: whether this machine and its settings can run studies, and what to do where they cannot."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal

import psutil
import typer
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from rich.table import Table
from rich.text import Text

from rampline.cli.console import line_console
from rampline.credentials import mask, without_user
from rampline.devices import available_cores, find_devices
from rampline.errors import InputError
from rampline.files import lock_now
from rampline.jobs.private_network import SHARED, other_users, private_network
from rampline.record.home import Home
from rampline.record.object_store import VARIABLE, ObjectStore
from rampline.record.provenance import version_of
from rampline.record.units import GIBIBYTE, write_number_of
from rampline.servers.running import answers, running_servers

PACKAGES = ("tensorflow", "keras", "prefect", "mlflow", "tensorflow-datasets", "pandas", "fastapi", "sqlalchemy")
PYTHON = (3, 11), (3, 14)
MEMORY_GIBIBYTES = 4.0
DISK_GIBIBYTES = 5.0
STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True)
class Finding:
    """One line of `rampline doctor`: what was looked at, what was found, and what to do unless it is `ok`."""

    subject: str
    status: Literal["ok", "warn", "fail"]
    text: str
    remedy: str = ""


def doctor() -> None:
    """Check Python, packages, devices, memory, disk, ports and settings; exit status 1 if something must be mended."""
    findings = list(examine(Home.from_environment()))
    table = Table.grid(padding=(0, 2))
    for finding in findings:
        text = finding.text if finding.status == "ok" else f"{finding.text}: {finding.remedy}"
        table.add_row(Text(finding.status, style=STYLES[finding.status]), finding.subject, text)
    line_console().print(table)
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(1)


def examine(home: Home) -> Iterator[Finding]:
    """Look at everything a study needs; changes nothing that stays."""
    yield _python()
    yield from _packages()
    yield _devices()
    yield _amount("memory", psutil.virtual_memory().available / GIBIBYTE, MEMORY_GIBIBYTES, "end other programs")
    yield _writable(home)
    existing = _nearest_existing(home.root)
    free = shutil.disk_usage(existing).free / GIBIBYTE
    yield _amount("disk", free, DISK_GIBIBYTES, f"free some space on {existing}, or set RAMPLINE_HOME to another disk")
    yield _loopback()
    yield _other_users()
    up = running_servers(home)
    prefect = f"{up.prefect_url}, of `rampline up`" if up else "a server of its own for each command"
    yield _address("Prefect", "PREFECT_API_URL", prefect)
    mlflow = f"{up.mlflow_url}, of `rampline up`" if up else f"sqlite in {home.tracking_database}"
    yield _address("MLflow", "MLFLOW_TRACKING_URI", mlflow)
    yield from _store()
    yield from _tf_config()


def _python() -> Finding:
    low, high = PYTHON
    allowed = low <= sys.version_info[:2] < high
    text = f"{sys.version.split()[0]} ({sys.executable})"
    remedy = f"make a fresh environment with Python {low[0]}.{low[1]} to {high[0]}.{high[1] - 1}: `make setup PYTHON=…`"
    return Finding("Python", "ok" if allowed else "fail", text, remedy)


def _packages() -> Iterator[Finding]:
    """Those of `PACKAGES`, and every other one that is missing or outside the bounds of this Rampline."""
    bounds = _bounds()
    for name in dict.fromkeys((*PACKAGES, *bounds)):
        version, allowed = version_of(name), bounds.get(name, SpecifierSet())
        fits = version is not None and allowed.contains(version, prereleases=True)
        if name in PACKAGES or not fits:
            text = f"{version}, which is not {allowed}" if version and not fits else version or "not installed"
            remedy = f"run `make setup`, or `pip install '{name}{allowed}'`"
            yield Finding(name, "ok" if fits else "fail", text, remedy)


def _bounds() -> dict[str, SpecifierSet]:
    """The versions that the installed Rampline allows, by package; of its extras, those of packages that are there."""
    requirements = map(Requirement, importlib.metadata.requires("rampline") or ())
    return {each.name: each.specifier for each in requirements if not each.marker or version_of(each.name)}


def _devices() -> Finding:
    devices = find_devices()
    cores = available_cores()
    text = f"{', '.join(devices.gpus) or 'no GPU'}, {write_number_of('CPU core', cores)}"
    if devices.gpus and not _has_cuda():
        remedy = "TensorFlow will not see the GPU: run `make setup EXTRA=gpu`, or `pip install 'rampline[gpu]'`"
        return Finding("devices", "warn", f"{text}; no CUDA libraries for TensorFlow", remedy)
    return Finding("devices", "ok", text)


def _has_cuda() -> bool:
    """Whether the extra `gpu` is installed; a CUDA of the system's own may do as well, hence only a warning."""
    names = {distribution.metadata["Name"] for distribution in importlib.metadata.distributions()}
    return any(name.startswith("nvidia-cudnn") for name in names if name)


def _amount(subject: str, gibibytes: float, wanted: float, remedy: str) -> Finding:
    enough = gibibytes >= wanted
    text = f"{gibibytes:.1f} GiB free" + ("" if enough else f", {wanted:g} GiB are advisable")
    return Finding(subject, "ok" if enough else "warn", text, remedy)


def _writable(home: Home) -> Finding:
    existing = _nearest_existing(home.root)
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    if writable:
        try:
            with TemporaryFile("w", dir=existing) as file:
                lock_now(file)
        except (InputError, OSError) as error:
            return Finding("RAMPLINE_HOME", "fail", str(error), "set RAMPLINE_HOME to a folder of another disk")
    text = f"{home.root} {'can' if writable else 'cannot'} be written to"
    return Finding("RAMPLINE_HOME", "ok" if writable else "fail", text, "set RAMPLINE_HOME to a folder of yours")


def _nearest_existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _loopback() -> Finding:
    """Roles, and our Prefect server, listen on free ports of 127.0.0.1 and connect to each other there."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        remedy = "allow connections on 127.0.0.1 (firewall, container settings)"
        return Finding("loopback", "fail", f"no connection on 127.0.0.1: {error}", remedy)
    return Finding("loopback", "ok", "ports of 127.0.0.1 can be used")


def _other_users() -> Finding:
    """Who reaches TensorFlow's servers of local runs, which ask nobody for a password; docs/trust.md."""
    others, has_private = ", ".join(other_users()), private_network() is not SHARED
    network = f"roles of one run {'get' if has_private else 'cannot have'} a network of their own"
    if not others:
        return Finding("other users", "ok", f"none on this machine; {network}")
    open_to = "runs with a model function or imagenet weights" if has_private else "runs"
    remedy = f"train multi_worker and parameter_server {open_to} where nobody else has an account: see docs/trust.md"
    return Finding("other users", "warn", f"{others}; {network}", remedy)


def _address(subject: str, variable: str, otherwise: str) -> Finding:
    """The user's own server if the variable names one, and whether somebody listens there."""
    value = os.environ.get(variable)
    if not value:
        return Finding(subject, "ok", f"{otherwise} ({variable} is not set)")
    if not value.startswith(("http://", "https://")):
        return Finding(subject, "ok", f"{variable}={mask(value)}")
    if not answers(f"{without_user(value).rstrip('/')}/health"):
        return Finding(
            subject, "fail", f"{variable}={mask(value)} does not answer", f"start that server, or unset {variable}"
        )
    return Finding(subject, "ok", f"{variable}={mask(value)} answers")


def _store() -> Iterator[Finding]:
    if not os.environ.get(VARIABLE):
        return
    try:
        store = ObjectStore.from_environment()
        assert store
        store.check()
        yield Finding("store", "ok", f"{VARIABLE}={store.url} can be written to")
    except InputError as error:
        yield Finding("store", "fail", str(error), f"mend that, or unset {VARIABLE}: see docs/store.md")


def _tf_config() -> Iterator[Finding]:
    text = os.environ.get("TF_CONFIG")
    if text is None:
        return
    try:
        task = json.loads(text)["task"]
        role = f"{task['type']} {task['index']}"
        found = f"`rampline run` and `rampline worker` would be {role} of a run of several processes"
        yield Finding("TF_CONFIG", "ok", found)
    except (ValueError, TypeError, KeyError, RecursionError):
        remedy = 'set it to {"cluster": {ROLE: ["HOST:PORT", …]}, "task": {"type": ROLE, "index": N}}, or unset it'
        yield Finding("TF_CONFIG", "fail", "is set, but is not JSON with cluster and task", remedy)
