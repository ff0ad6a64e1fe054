"""A launcher's process on a node: it starts roles there, signals them, and tells how they end.

`python -P -m rampline.jobs.node_agent PORTS` reads orders from its standard input and tells on its standard output, a
JSON object per line. When its input ends, or nobody reads what it tells, it ends its roles and itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rampline.jobs.launcher import Role

# The launcher takes an agent that tells nothing for several of these for lost.
BEAT_SECONDS = 0.5
POLL_SECONDS = 0.05


def main() -> None:
    """Serve until the launcher is gone."""
    # Whoever ends a job signals its agents, too: they go on until the roles have saved a checkpoint. A handler, because
    # what is ignored would be ignored by the roles as well.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    roles: dict[str, Role] = {}
    status = 0
    try:
        _tell(step=os.environ.get("SLURM_STEP_ID"), ports=_free_ports(int(sys.argv[1])))
        import rampline.jobs.local  # noqa: F401 - takes most of a second, in which the other agents come up

        _serve(roles)
    except BrokenPipeError:
        pass
    except Exception:  # noqa: BLE001 - its last line tells the launcher why the node has no agent any more
        traceback.print_exc()
        status = 1
    finally:
        from rampline.jobs.launcher import end_roles

        end_roles(list(roles.values()), grace_seconds=0)
        os._exit(status)  # a thread reads the input still


def _serve(roles: dict[str, Role]) -> None:
    orders: queue.Queue[dict[str, Any] | None] = queue.Queue()
    threading.Thread(target=_read, args=(orders,), daemon=True).start()
    told_at = time.monotonic()
    while True:
        with contextlib.suppress(queue.Empty):
            order = orders.get(timeout=POLL_SECONDS)
            if order is None:
                return
            if "start" in order:
                _start(order["start"], order, roles)
            elif role := roles.get(order["signal"]):
                role.signal(signal.Signals(order["number"]))
        for name, role in list(roles.items()):
            if role.exit_status is not None:
                _tell(ended=name, status=role.exit_status)
                del roles[name]
        if time.monotonic() - told_at > BEAT_SECONDS:
            told_at = time.monotonic()
            _tell()


def _start(name: str, order: dict[str, Any], roles: dict[str, Role]) -> None:
    """Start a role as this machine's launcher does: with the node's share of cores and GPUs."""
    from rampline.config import from_dict
    from rampline.errors import InputError
    from rampline.jobs.exit_status import WRONG_INPUT
    from rampline.jobs.job import Job
    from rampline.jobs.local import Local
    from rampline.jobs.tf_config import parse_tf_config

    config, environment = from_dict(order["config"]), dict(order["environment"])
    # A monotonic clock counts from the start of its machine.
    environment["RAMPLINE_LAUNCHED_AT"] = repr(time.monotonic() - order["age_seconds"])
    try:
        task = parse_tf_config(order["tf_config"], config)
        job = Job(function=order["function"], folder=Path(order["folder"]), environment=environment)
        roles[name] = Local([task]).place(config).start(task, job)
        _tell(started=name, pid=roles[name].describe()["pid"])
    except InputError as error:
        _tell(ended=name, status=WRONG_INPUT, why=str(error))


def _read(orders: queue.Queue[dict[str, Any] | None]) -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))
    orders.put(None)


def _tell(**what: object) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


if __name__ == "__main__":
    main()
