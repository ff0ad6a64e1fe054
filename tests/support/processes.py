"""Which processes of a folder live: those that have it, or a path in it, among their arguments, or it as their home."""

import contextlib
from pathlib import Path

import psutil

from rampline.jobs.waiting import wait_until


def processes_of(folder: Path, *words: str) -> list[int]:
    """Process ids, with `words` among the arguments too; without zombies."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        arguments = process.info["cmdline"] or []
        is_ours = any(part == str(folder) or part.startswith(f"{folder}/") for part in arguments)
        if is_ours and set(words) <= set(arguments) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def started_processes_of(folder: Path, count: int, *words: str) -> list[int]:
    """The same, as soon as there are `count`.

    A process that has just been started shows no arguments for a moment: `Popen` returns when the child has its new
    memory, and the kernel writes them there after that. On busy cores the caller often looks in between.
    """
    assert wait_until(lambda: len(processes_of(folder, *words)) == count, 30, every=0.02), processes_of(folder)
    return processes_of(folder, *words)


def processes_with(home: Path) -> list[psutil.Process]:
    """Those that were started with that RAMPLINE_HOME."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("RAMPLINE_HOME") == str(home):
                found.append(process)
    return found
