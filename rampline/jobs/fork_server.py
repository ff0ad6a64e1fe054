"""A process that has imported TensorFlow, has run no operation, and forks each worker that is to be started.

A worker of its own imports TensorFlow for seconds; a fork of this process is there at once, and shares the memory of
what was imported. `fork_server()` begins to start it, and `rampline.jobs.local` uses it where it can:
only on Linux, and as long as nothing has changed that TensorFlow may have read when it was imported.

A forked worker is as one that was started: it has its own session, environment, log and command line, and it is
gone as soon as the process that asked for it is. Devices, servers and threads come after the fork: a GPU is looked for
in the worker alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rampline.imports import import_tensorflow, importing
from rampline.jobs.parent import end_with_parent
from rampline.jobs.private_network import Network
from rampline.jobs.roles import worker_environment

FORK_SERVER = "--fork-server"
# Its import included, from a disk that is cold.
ANSWER_SECONDS = 300.0
# What TensorFlow and NCCL read when they make devices and servers. All else may have had its effect on import.
READ_LATE = ("TF_CONFIG", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TF_GRPC_DEFAULT_OPTIONS")
READ_LATE += ("CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME", "TF_CPP_MIN_LOG_LEVEL")
# Ray sets the last one in each process that talks to a cluster; COLUMNS is the width of a terminal.
NOT_OF_TENSORFLOW = ("RAMPLINE_", "PREFECT", "MLFLOW_", "PYTEST_", "COLUMNS", "RAY_", "PYTHONBREAKPOINT")
# Workers write their command line over the server's own, which is as long as a path may be, and some options.
ROOM_FOR_COMMAND_LINE = 4096 + 512
LONGEST_REQUEST, MOST_FILES = 2**20, 8
# The end of a job sends SIGTERM to all its processes: the server goes on until its workers have saved a checkpoint.
HELD_BACK = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ForkedProcess:
    """A forked worker, with what a role needs of `subprocess.Popen`; `pid` is that of its session and group, too."""

    def __init__(self, pid: int, status: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._polling = threading.Lock()

    def poll(self) -> int | None:
        """Its exit status, as in `returncode`."""
        with self._polling, contextlib.suppress(BlockingIOError):
            if self.returncode is None:
                text = self._status.recv(64, socket.MSG_DONTWAIT)
                # Without a word its server was killed, and the kernel has killed the worker with it.
                self.returncode = int(text) if text else -signal.SIGKILL
                self._status.close()
        return self.returncode


Process = subprocess.Popen[bytes] | ForkedProcess


@dataclass(kw_only=True)
class _Server:
    process: subprocess.Popen[bytes]
    requests: socket.socket
    environment: Mapping[str, str]


_active: list[_Server] = []


@contextmanager
def fork_server() -> Iterator[None]:
    """Workers that are started in the block are forks of one process; inside such a block this does nothing.

    To be entered by a thread that lives as long as the block.
    """
    if _active or sys.platform != "linux":
        yield
        return
    server = _start()
    _active.append(server)
    try:
        yield
    finally:
        _active.remove(server)
        server.requests.close()
        server.process.kill()
        server.process.wait()


def fork_worker(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str], network: Network
) -> ForkedProcess | None:
    """A fork of the server that runs `rampline.worker ARGUMENTS`; `None` where that would not be the same.

    The first one waits until the server has imported TensorFlow.

    Args:
        arguments: of the worker.
        log: its output is appended there.
        environment: the whole of it.
        network: to enter.
    """
    server = next(iter(_active), None)
    if server is None or server.process.poll() is not None or not _fits(server.environment, environment):
        return None
    request = {"arguments": list(arguments), "environment": dict(environment), "folder": os.getcwd()}
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with open(log, "ab") as output, other:
            files = [other.fileno(), output.fileno(), *network.descriptors]
            socket.send_fds(server.requests, [json.dumps(request).encode()], files)
        own.settimeout(ANSWER_SECONDS)
        pid = own.recv(64)
        own.settimeout(None)
    except OSError as error:  # it is gone, or the request is larger than a message may be
        pid = b""
        if isinstance(error, TimeoutError):  # it is stopped, or its import hangs: no worker of it is to be heard of
            server.process.kill()
    except BaseException:
        own.close()  # by which the server learns that nobody wants the worker any more
        raise
    if not pid:
        own.close()
        return None
    return ForkedProcess(int(pid), own)


def wait_for_fork_server() -> None:
    """Until it has imported TensorFlow: a worker that is started afterwards takes what each later one does."""
    for server in _active:
        with contextlib.suppress(OSError):  # it is gone
            server.requests.recv(1, socket.MSG_PEEK)


def _start() -> _Server:
    environment = worker_environment({})
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Without a name: what the import prints goes into the log of each worker.
    with other, tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "rampline.worker",
                FORK_SERVER,
                str(other.fileno()),
                " " * ROOM_FOR_COMMAND_LINE,
            ],
            env=environment,
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return _Server(process=process, requests=own, environment=environment)


def _fits(before: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    changed = {name for name in {*before, *environment} if before.get(name) != environment.get(name)}
    return not [name for name in changed if name not in READ_LATE and not name.startswith(NOT_OF_TENSORFLOW)]


def serve(modules: Sequence[str]) -> list[str]:
    """Be the server: import TensorFlow and `modules`, then fork a worker for each request.

    Returns:
        in each worker, its arguments; the server itself ends with the other end of its socket.
    """
    _write_command_line("rampline.jobs.fork_server", [])
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    end_with_parent(int(os.environ["RAMPLINE_PARENT_PID"]), watch=False)
    requests = socket.socket(fileno=int(sys.argv[2]))
    before = dict(os.environ)
    import_tensorflow()
    with importing():
        for name in modules:
            importlib.import_module(name)
    # From 3.12 on, for every process with threads; those of numpy and TensorFlow wait for work that comes later.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded, use of fork", DeprecationWarning)
    set_by_imports = {name: value for name, value in os.environ.items() if before.get(name) != value}
    return _serve(requests, set_by_imports)


def _serve(requests: socket.socket, set_by_imports: Mapping[str, str]) -> list[str]:
    told, tell = socket.socketpair()
    tell.setblocking(False)
    signal.set_wakeup_fd(tell.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    workers: dict[int, socket.socket] = {}
    with contextlib.suppress(BrokenPipeError):
        requests.send(b"!")  # see `wait_for_fork_server`
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(told, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if told in ready:
                told.recv(4096)
                _tell_ended(workers)
            if requests not in ready:
                continue
            message, files = b"", list[int]()
            with contextlib.suppress(ConnectionResetError):  # the end of one for which nobody had waited
                message, files, _, _ = socket.recv_fds(requests, LONGEST_REQUEST, MOST_FILES)
            if not message:
                os._exit(0)
            status, log, *network = files
            server, pid = os.getpid(), os.fork()
            if not pid:
                break
            for file in (log, *network):
                os.close(file)
            workers[pid] = socket.socket(fileno=status)
            try:
                workers[pid].send(str(pid).encode())
            except BrokenPipeError:
                os.kill(pid, signal.SIGKILL)
    for number in (requests, told, tell, *workers.values()):
        number.close()
    os.close(status)
    request = json.loads(message)
    # The server's process id by its own word: it may be gone before the fork looks.
    environment = {**request["environment"], **set_by_imports, "RAMPLINE_PARENT_PID": str(server)}
    _become_worker(request, environment, log, network)
    return request["arguments"]


def _tell_ended(workers: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with contextlib.suppress(BrokenPipeError), workers.pop(ended[0]) as status:
                status.send(str(os.waitstatus_to_exitcode(ended[1])).encode())


def _become_worker(
    request: Mapping[str, list[str]], environment: Mapping[str, str], log: int, network: list[int]
) -> None:
    """In the fork: what a process gets when it is started."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _append_import_output(log)
        for target in (1, 2):
            os.dup2(log, target)
        os.close(log)
        _write_command_line("rampline.worker", request["arguments"])
        _enter(network)
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)
        os.chdir(str(request["folder"]))
        sys.argv[1:] = request["arguments"]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
    except BaseException:  # noqa: BLE001 - the server's own work must not go on in the fork
        traceback.print_exc()
        os._exit(1)


def _append_import_output(log: int) -> None:
    """What the server has printed, as far as it goes to a file."""
    printed = os.pread(1, os.fstat(1).st_size, 0)
    if printed:
        os.write(log, printed)


def _enter(network: Sequence[int]) -> None:
    """A fork has one thread, so it can enter a user namespace too."""
    libc = ctypes.CDLL(None, use_errno=True)
    for descriptor in network:
        if libc.setns(descriptor, 0):
            raise OSError(ctypes.get_errno(), "the roles' network namespace cannot be entered")
        os.close(descriptor)


def _write_command_line(module: str, arguments: Sequence[str]) -> None:
    """Show as `python -P -m MODULE ARGUMENTS` in the list of processes, cut to the room there is."""
    start, end = (int(number) for number in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    line = b"".join(os.fsencode(part) + b"\0" for part in (sys.executable, "-P", "-m", module, *arguments))
    room = end - start
    ctypes.memmove(start, line[: room - 1].ljust(room, b"\0"), room)
