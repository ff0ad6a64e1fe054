"""Work on a stream of items on all cores, in order and with bounded memory."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Protocol, TypeVar

from rampline.devices import available_cores
from rampline.errors import DatasetError
from rampline.jobs.parent import end_with_parent

Item = TypeVar("Item")
Result = TypeVar("Result")


class MapInOrder(Protocol):
    """`map_in_order` below, or one that does the work elsewhere than in threads."""

    def __call__(self, function: Callable[[Item], Result], items: Iterable[Item], /) -> Iterator[Result]: ...


def map_in_order(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`map(function, items)` with a thread per core; see `map_with`."""
    pool = ThreadPoolExecutor(available_cores())
    try:
        yield from map_with(pool, function, items)
    finally:
        pool.shutdown(cancel_futures=True)


def map_with(pool: Executor, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`map(function, items)` in a pool that has a worker per core.

    At most two results per worker are held, whatever the number of items. An exception is raised in its turn.

    Raises:
        DatasetError: when a worker that is a process died.
    """
    pending: deque[Future[Result]] = deque()
    most = 2 * available_cores()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) >= most:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise DatasetError(
            "a worker process of the preparation was killed, perhaps for want of memory; nothing was stored"
        ) from error


def in_chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` items, the last one perhaps shorter."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


# On other systems a fork after importing TensorFlow is not safe.
CAN_FORK = sys.platform == "linux"


@contextmanager
def worker_processes() -> Iterator[MapInOrder]:
    """Gives a `map_in_order` that works in a process per core; the processes end with the block.

    To be entered before this process runs a TensorFlow operation: its threads do not survive a fork. Functions, items,
    results and exceptions are pickled. A process that dies is a `DatasetError`.
    """
    pool = ProcessPoolExecutor(
        available_cores(), mp_context=get_context("fork"), initializer=_begin, initargs=(os.getpid(),)
    )
    try:
        pool.submit(os.getpid).result()  # with "fork" this starts them all
        yield partial(map_with, pool)
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(parent_pid: int) -> None:
    # The parent's handlers clean up after the parent. A Ctrl-C is for the parent alone.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent_pid)
    # A collector that looks at what the parent has made would copy it.
    gc.freeze()
