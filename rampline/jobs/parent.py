"""A process that ends when the process that started it is gone, whatever way it went."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

POLL_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int, *, grace_seconds: float = 0.0, watch: bool = True) -> None:
    """End this process, with SIGKILL, as soon as its parent is no longer `parent_pid`.

    To be called first thing by a process that must not outlive its parent. SIGKILL, because a parent that is gone
    cannot escalate and TensorFlow's distributed runtime swallows SIGTERM. A process that leads its process group
    takes the group with it. On Linux the kernel does it at once, and also when only the *thread* that started this
    process ends: start it from a thread that waits for it. Everywhere a thread looks every `POLL_SECONDS`.

    Args:
        parent_pid: process id of the parent, as the parent itself gave it: it may be gone before this is called.
        grace_seconds: how long this process serves on without its parent.
        watch: whether a thread looks, too; not in a process that forks.
    """
    if sys.platform == "linux" and not grace_seconds:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid and not grace_seconds:
        _end()
    if watch:
        threading.Thread(target=_watch, args=(parent_pid, grace_seconds), name="parent-watch", daemon=True).start()


def _watch(parent_pid: int, grace_seconds: float) -> None:
    while os.getppid() == parent_pid:
        time.sleep(POLL_SECONDS)
    time.sleep(grace_seconds)
    _end()


def _end() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
