"""Work on a stream of items in threads, in order and with bounded memory."""

from __future__ import annotations

import itertools
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class MapInOrder(Protocol):
    """`map_in_order` below, or one that does the work elsewhere than in threads."""

    def __call__(self, function: Callable[[Item], Result], items: Iterable[Item], /) -> Iterator[Result]: ...


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def map_in_order(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`map(function, items)` with a thread per core.

    At most two results per thread are held, whatever the number of items. An exception is raised in its turn.
    """
    threads = available_cores()
    pending: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) >= 2 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def in_chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` items, the last one perhaps shorter."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk
