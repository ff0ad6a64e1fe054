"""Which code, on which machine, by which process a run was made."""

from __future__ import annotations

import getpass
import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from rampline.devices import find_devices
from rampline.files import lock_now

PACKAGE = Path(__file__).parents[1]
LIBRARIES = ("tensorflow", "keras", "numpy", "mlflow", "prefect")
START_TOLERANCE_SECONDS = 2.0
UNKNOWN = "unknown"
# An image has no git: its Dockerfile sets it.
COMMIT_VARIABLE = "RAMPLINE_GIT_COMMIT"


def git_commit() -> str:
    """Commit of the checkout this package is in, 40 hex digits; what an image was built from; else `unknown`."""
    # A package in the virtual environment of somebody else's checkout is not tracked there: that commit is not ours.
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return os.environ.get(COMMIT_VARIABLE) or UNKNOWN
    return _git("rev-parse", "HEAD") or UNKNOWN


def commit_tags(commit: str) -> dict[str, str]:
    """The tag of ours, and the one that MLflow links to; an unknown commit is no link."""
    return {"rampline.git_commit": commit} | ({"mlflow.source.git.commit": commit} if commit != UNKNOWN else {})


def source_tags(study: str) -> dict[str, str]:
    """What MLflow shows as a run's user and source: its name is cut at the last slash there, so no paths."""
    source = f"rampline run {study}"
    return {"mlflow.user": _user(), "mlflow.source.name": source, "mlflow.source.type": "LOCAL"}


def environment(machine: Mapping[str, str] | None = None, *, on_cpu: bool = False) -> dict[str, str]:
    """Host, CPU cores, GPUs, Python and library versions, without importing the libraries.

    Args:
        machine: host, CPU cores and GPUs; by default of this one.
        on_cpu: it counts as without a GPU: what is trained on its CPU is not compared with what is trained on its GPUs.
    """
    items = dict(machine or this_machine()) | ({"gpus": "none"} if on_cpu else {})
    items |= {"python": platform.python_version(), **{each: version_of(each) or "not installed" for each in LIBRARIES}}
    lock = lock_hash()
    return items | ({"lock": lock} if lock else {})


def version_of(package: str) -> str | None:
    """The version of an installed package; `None` where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def this_machine() -> dict[str, str]:
    """Host, CPU cores and the GPUs that this process sees."""
    gpus = ", ".join(find_devices().gpus)
    return {"host": platform.node(), "cpu cores": str(os.cpu_count()), "gpus": gpus or "none"}


def describe_machine(items: Mapping[str, str]) -> str:
    """`HOST (2 cores)` or `HOST (16 cores, NVIDIA H200)` of an `environment`; empty where it has no host."""
    if not items.get("host"):
        return ""
    gpus = items.get("gpus", "none")
    return f"{items['host']} ({items.get('cpu cores', '?')} cores{'' if gpus == 'none' else f', {gpus}'})"


def lock_hash() -> str:
    """The first 12 hex digits of the SHA-256 of the checkout's `uv.lock`; empty where the package is installed."""
    lock = PACKAGE.parent / "uv.lock"
    return hashlib.sha256(lock.read_bytes()).hexdigest()[:12] if lock.is_file() else ""


def process_identity(pid: int | None = None) -> str:
    """`HOST:PID:START` of a process, by default this one: told apart from a later process with the same number.

    START is `TICKS-BOOT/NAMESPACE`, which no step of the clock changes: clock ticks since the machine started, the
    kernel's id of that start, and whose numbers PID is of, because containers may share a host name. Without a /proc it
    is unix seconds, as it was for all processes once.
    """
    pid = pid or os.getpid()
    return f"{platform.node()}:{pid}:{_start_of(pid)}"


def process_runs(identity: str) -> bool:
    """Whether the process of that identity is on this machine, and runs."""
    return _lives(identity) is True


def process_is_gone(identity: str, folder: Path) -> bool:
    """Whether the process of that identity ran on this machine and does not exist any more.

    Args:
        identity: of the process.
        folder: of the execution or the run that it works on. Where it was in another container of this host name, or
            before the machine was started, or on another machine of that name, the folder's `.lock` decides, and that
            of the execution around it: a living process holds one, and it is not this one. A folder that is not here
            says nothing.
    """
    lives = _lives(identity)
    if lives is not None or not identity.startswith(f"{platform.node()}:"):
        return lives is False
    # The execution's first: a run's is asked for where nobody works on the execution, who could want it just then.
    # `Path.is_file` raises where another user's folder may not be looked into.
    locks = [lock for lock in (folder.parent / ".lock", folder / ".lock") if os.path.isfile(lock)]
    return bool(locks) and not any(map(_is_held, locks))


def _lives(identity: str) -> bool | None:
    """`None` of another machine, of another container, and of before the machine was started: nobody can look."""
    rest, _, started = identity.rpartition(":")
    host, _, pid = rest.rpartition(":")
    ticks, _, where = started.partition("-")
    own = _start_of(os.getpid()).partition("-")[2]
    if host != platform.node() or not pid.isdigit() or where not in ("", own):
        return None
    try:
        process = psutil.Process(int(pid))
        if where:
            is_same = ticks == _start_of(int(pid)).partition("-")[0]
        else:
            is_same = abs(process.create_time() - int(ticks)) <= START_TOLERANCE_SECONDS
        return is_same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def _is_held(lock: Path) -> bool:
    """By another process than this one."""
    if str(lock.resolve()) in {file.path for file in psutil.Process().open_files()}:
        return False
    try:
        with open(lock) as file:
            return not lock_now(file)
    except OSError:  # or it cannot be looked at
        return True


def _start_of(pid: int) -> str:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()  # a name may hold spaces
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{int(fields[19])}-{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return f"{psutil.Process(pid).create_time():.0f}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run as a number without a name
        return "unknown"


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(PACKAGE), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
