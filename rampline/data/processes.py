"""`map_in_order` in forked processes: on two cores they prepare a sixth more photographs per second than threads do."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context

from rampline.data.parallel import Item, MapInOrder, Result, map_with
from rampline.devices import available_cores
from rampline.errors import DatasetError
from rampline.parent import end_with_parent

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
        yield partial(_map_in_order, pool)
    finally:
        pool.shutdown(cancel_futures=True)


def _map_in_order(pool: Executor, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    try:
        yield from map_with(pool, function, items)
    except BrokenProcessPool as error:
        raise DatasetError(
            "a worker process of the preparation was killed, perhaps for want of memory; nothing was stored"
        ) from error


def _begin(parent_pid: int) -> None:
    # The parent's handlers clean up after the parent. A Ctrl-C is for the parent alone.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent_pid)
    # A collector that looks at what the parent has made would copy it.
    gc.freeze()
