"""Prefect's server, without its faults and behind the gate: of `rampline up`, of a container, or of one command.

`python -m rampline.servers.prefect_server --host HOST --port PORT`, or `--command PID SOCKET` for `start_prefect`: a
server for the length of one command, where the user has none running. Prefect would start one by itself, but in the
terminal's process group (Ctrl-C would end it before the flow can report how it ended), with a 20 s limit, and with its
output in the terminal.
"""

from __future__ import annotations

import atexit
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path

from rampline.errors import RamplineError
from rampline.files import locked
from rampline.imports import importing
from rampline.jobs.parent import end_with_parent
from rampline.jobs.waiting import wait_until
from rampline.record.home import Home
from rampline.servers.addresses import LISTENER
from rampline.servers.environments import OWN_PREFECT, PREFECT_AUTH, private_prefect
from rampline.servers.running import answers, running_servers
from rampline.servers.secret import BYTES, LOGIN, USER, log_in

MODULE = "rampline.servers.prefect_server"
START_TIMEOUT_SECONDS = 120
STOP_TIMEOUT_SECONDS = 5
# After a `kill -9` of this process the execution's watchdog still has to tell the server how the flow run ended.
GRACE_SECONDS = 15
# Prefect's name of the thread that takes log lines to the server, and the time they may take; at the exit it has more.
LOG_THREAD, LOG_SECONDS = "APILogWorkerThread", 30.0


def start_prefect(home: Home) -> Callable[[], None] | None:
    """Begin to have a Prefect API at `PREFECT_API_URL`: the user's own if that is set, that of a `rampline up` of this
    home with its MLflow server, or else one of ours.

    Ours ends with this process. To be called before Prefect is imported: what Prefect still sends when the process ends
    (logs, events) goes out before our server is stopped, because exit handlers run in the reverse of their order.

    Returns:
        a function that waits until ours answers; importing the flows meanwhile takes no time of its own. `None` where
        another one is used.

    Raises:
        RamplineError: from that function, when our server does not answer within two minutes; names its log.
    """
    if os.environ.get("PREFECT_API_URL"):
        return None
    os.environ.update(private_prefect(home))
    if servers := running_servers(home):
        os.environ.update(servers.client_environment() | dict(os.environ))
        os.environ.update(log_in(home, os.environ))
        return None
    folder = Path(os.environ["PREFECT_HOME"])
    lock = ExitStack()
    lock.enter_context(hold_start(home))
    login = f"{USER}:{secrets.token_urlsafe(BYTES)}"
    # Listens from here on: were the port free until the server has imported Prefect, another user could take it, be
    # given the login, and answer in the server's place.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = _start(listener, login, folder / "server.log")
    atexit.register(_stop, server)
    url = f"http://127.0.0.1:{port}/api"
    os.environ |= {"PREFECT_API_URL": url, "PREFECT_API_AUTH_STRING": login, OWN_PREFECT: "1"}

    def wait() -> None:
        with lock:
            wait_until(lambda: answers(f"{url}/health") or server.poll() is not None, START_TIMEOUT_SECONDS, every=0.1)
            if server.poll() is not None or not answers(f"{url}/health"):
                log = folder / "server.log"
                raise RamplineError(f"the Prefect server did not start: see {log}, or run `rampline doctor`")

    return wait


def hold_start(home: Home) -> AbstractContextManager[bool]:
    """Two servers that migrate the same fresh database at once fail: the second waits until the first answers."""
    return locked(Path(private_prefect(home)["PREFECT_HOME"]) / "start.lock")


def flush_logs() -> bool:
    """Wait until Prefect's log handler, which sends in the background, has sent all lines or failed to.

    Returns:
        whether it has; else it still tries, to the end of the process.
    """
    from prefect.logging.handlers import APILogHandler

    APILogHandler().flush()
    # That waits 5 s at most, and not for what the flow has flushed before.
    threads = [thread for thread in threading.enumerate() if thread.name == LOG_THREAD]
    for thread in threads:
        thread.join(LOG_SECONDS)
    return not any(thread.is_alive() for thread in threads)


def _start(listener: socket.socket, login: str, log: Path) -> subprocess.Popen[bytes]:
    # Prefect's own name for servers that it starts itself: no UI, only services that a flow run needs.
    names = {"PREFECT__SERVER_EPHEMERAL": "1", "PREFECT_SERVER_LOGGING_LEVEL": "ERROR", LOGIN: login}
    with open(log, "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, "--command", str(os.getpid()), str(listener.fileno())],
            env={name: value for name, value in os.environ.items() if name != PREFECT_AUTH} | names,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=[listener.fileno()],
        )


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGINT)
    try:
        server.wait(STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def main() -> None:
    """Serve; the server of a command ends after the command, even after a `kill -9`."""
    parser = ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--command", type=int, nargs=2, metavar=("PID", "SOCKET"))
    options = parser.parse_args()
    listener = os.environ.get(LISTENER)
    if options.command:
        pid, listener = options.command
        # Slurm and systemd send SIGTERM to it and to the command at once; the flow has still to report how it ended.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        end_with_parent(pid, grace_seconds=GRACE_SECONDS)
    with importing():
        import uvicorn
        from prefect.server.api.server import create_app
        from prefect.settings import get_current_settings

        from rampline.servers.gate import Gate
        from rampline.servers.prefect_faults import mend_prefect
        from rampline.servers.prefect_tables import make_tables
    mend_prefect()
    settings = get_current_settings().server
    if settings.database.connection_url:
        make_tables(settings.database.connection_url.get_secret_value())
    config = uvicorn.Config(
        Gate.from_environment(create_app(final=True)),
        host=options.host,
        port=options.port,
        log_level=settings.logging_level.lower(),
        timeout_keep_alive=settings.api.keepalive_timeout,
        lifespan="on",
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run([socket.socket(fileno=int(listener))] if listener else None)


if __name__ == "__main__":
    main()
