"""Work on a stream of items in forked processes, in order and with bounded memory. Linux only."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from io import FileIO
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from rampline.data.parallel import Item, MapInOrder, Result, available_cores
from rampline.errors import DatasetError
from rampline.parent import end_with_parent

# On other systems a fork after importing TensorFlow is not safe, and there is no `memfd_create`.
CAN_FORK = sys.platform == "linux"


class _Worker:
    """A forked process; `slots` are those of the items that it has and has not answered, in order."""

    def __init__(self, slots: list[FileIO]) -> None:
        context = get_context("fork")
        self.connection, other_end = context.Pipe()
        # A daemon: Python ends it too, should a signal come between here and the `finally` that is to end it.
        self.process = context.Process(target=_serve, args=(slots, other_end, os.getpid()), daemon=True)
        self.process.start()
        # The worker has the only one then, and the connection tells when it is gone.
        other_end.close()
        self.slots: deque[int] = deque()

    def send(self, slot: int, function: Callable[[Any], Any], item: Any) -> None:
        self.slots.append(slot)
        try:
            self.connection.send((slot, function, item))
        except OSError as error:
            raise self._lost() from error

    def receive(self) -> int:
        """The slot that holds an answer now."""
        try:
            self.connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._lost() from error
        return self.slots.popleft()

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()
        self.connection.close()

    def _lost(self) -> DatasetError:
        self.process.join()
        status = self.process.exitcode or 0
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        hint = ", perhaps for want of memory" if status == -signal.SIGKILL else ""
        return DatasetError(f"a worker process of the preparation {how}{hint}; nothing was stored")


@contextmanager
def worker_processes() -> Iterator[MapInOrder]:
    """Gives a `map_in_order` that works in a process per core; the processes end with the block.

    To be entered before this process runs a TensorFlow operation: its threads do not survive a fork. Functions, items,
    results and exceptions are pickled. At most two results per process are held, whatever the number of items. An
    exception is raised in its turn; a process that dies is a `DatasetError`. An iterator that was not read to its end
    is the last one.
    """
    assert sys.platform == "linux"
    with ExitStack() as stack:
        # In memory, and not through a pipe: a worker goes on while this process does something else than to read.
        slots = [
            stack.enter_context(open(os.memfd_create("rampline-result"), "w+b", buffering=0))
            for _ in range(2 * available_cores())
        ]
        workers = []
        for _ in range(available_cores()):
            workers.append(_Worker(slots))
            stack.callback(workers[-1].end)
        yield partial(_map_in_order, workers, slots)


def _map_in_order(
    workers: list[_Worker], slots: list[FileIO], function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Result]:
    turns: deque[int] = deque()
    free, answered = deque(range(len(slots))), set[int]()

    def take_next() -> Result:
        while turns[0] not in answered:
            _receive(workers, answered, timeout=None)
        slot = turns.popleft()
        answered.remove(slot)
        free.append(slot)
        return _read_result(slots[slot])

    for item in items:
        if not free:
            yield take_next()
        _receive(workers, answered, timeout=0)
        turns.append(free.popleft())
        min(workers, key=lambda worker: len(worker.slots)).send(turns[-1], function, item)
    while turns:
        yield take_next()


def _receive(workers: list[_Worker], answered: set[int], timeout: float | None) -> None:
    """Note what has been answered, after `timeout` seconds at most; workers without work are looked after too."""
    by_connection = {worker.connection: worker for worker in workers}
    for connection in wait(list(by_connection), timeout):
        answered.add(by_connection[connection].receive())  # type: ignore[index]


def _read_result(slot: FileIO) -> Any:
    slot.seek(0)
    result, error = pickle.load(slot)
    if error is not None:
        raise error
    return result


def _serve(slots: list[FileIO], connection: Connection, parent_pid: int) -> None:
    """The life of a worker: the parent ends it."""
    # The parent's handlers clean up after the parent. A Ctrl-C is for the parent alone.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent_pid)
    # A collector that looks at what the parent has made would copy it.
    gc.freeze()
    while True:
        number, function, item = connection.recv()
        result, caught = None, None
        try:
            result = function(item)
        except Exception as error:  # noqa: BLE001 - raised by the parent
            error.add_note(traceback.format_exc())
            caught = error
        slots[number].seek(0)
        pickle.dump((result, caught), slots[number], protocol=5)
        connection.send_bytes(b"")
