"""A launcher's process on a node: it starts roles there, signals them, and tells how they end.

`python -P -m rampline.jobs.node_agent PORTS` reads orders from its standard input and tells on its standard output, a
JSON object per line. When its input ends or falls silent, or nobody reads what it tells, it ends its roles and itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rampline.devices import free_ports
from rampline.jobs.heartbeat import RunningClock

if TYPE_CHECKING:
    from rampline.jobs.role_host import RoleHost

# The launcher takes an agent that tells nothing for several of these for lost.
BEAT_SECONDS = 0.5
# The launcher answers each beat. Nobody closes the input where `slurmd` has died, and then the launcher.
LONGEST_SILENCE_SECONDS = 60.0
POLL_SECONDS = 0.05
_telling = threading.Lock()


def main() -> None:
    """Serve until the launcher is gone."""
    # Whoever ends a job signals its agents, too: they go on until the roles have saved a checkpoint. A handler, because
    # what is ignored would be ignored by the roles as well.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    host: RoleHost | None = None
    status = 0
    try:
        _tell(step=os.environ.get("SLURM_STEP_ID"), ports=free_ports(int(sys.argv[1]), host=""))
        from rampline.jobs.role_host import RoleHost  # takes most of a second, in which the other agents come up

        host = RoleHost({}, os.getcwd())
        _serve(host)
    except BrokenPipeError:
        pass
    except Exception:  # noqa: BLE001 - its last line tells the launcher why the node has no agent any more
        traceback.print_exc()
        status = 1
    finally:
        with contextlib.suppress(RuntimeError):  # of one that waits for a disk; the kernel ends it with this process
            if host:
                host.end()
        os._exit(status)  # a thread reads the input still


def _serve(host: RoleHost) -> None:
    orders: queue.Queue[dict[str, Any] | None] = queue.Queue()
    for target in (_read, _beat):
        threading.Thread(target=target, args=(orders,), daemon=True).start()
    told = set[str]()
    clock = RunningClock()
    heard_at = clock()
    while clock() - heard_at < LONGEST_SILENCE_SECONDS:
        with contextlib.suppress(queue.Empty):
            order = orders.get(timeout=POLL_SECONDS)
            if order is None:
                return
            if "start" in order:
                _start(order["start"], order, host)
            elif "signal" in order:
                host.signal(order["signal"], order["number"])
            heard_at = clock()
        for name, status in host.statuses().items():
            if name not in told:
                told.add(name)
                _tell(ended=name, status=status)


def _start(name: str, order: dict[str, Any], host: RoleHost) -> None:
    """Start a role as this machine's launcher does: with the node's share of cores and GPUs."""
    from rampline.config import from_dict
    from rampline.errors import InputError
    from rampline.jobs.exit_status import WRONG_INPUT
    from rampline.jobs.job import Job
    from rampline.jobs.tf_config import parse_tf_config

    config = from_dict(order["config"])
    try:
        task = parse_tf_config(order["tf_config"], config)
        job = Job(function=order["function"], folder=Path(order["folder"]), environment=order["environment"])
        _tell(started=name, pid=host.start(name, job, task, [task], config, order["age_seconds"])["pid"])
    except InputError as error:
        _tell(ended=name, status=WRONG_INPUT, why=str(error))


def _read(orders: queue.Queue[dict[str, Any] | None]) -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))
    orders.put(None)


def _beat(orders: queue.Queue[dict[str, Any] | None]) -> None:
    """In a thread: the first role waits until TensorFlow is imported."""
    with contextlib.suppress(BrokenPipeError):
        while True:
            _tell()
            time.sleep(BEAT_SECONDS)
    orders.put(None)


def _tell(**what: object) -> None:
    with _telling:
        print(json.dumps(what), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
