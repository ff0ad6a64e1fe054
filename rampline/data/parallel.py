"""Work on a stream of items on all cores, in order and with bounded memory."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from rampline.devices import available_cores

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
    """
    pending: deque[Future[Result]] = deque()
    for item in items:
        pending.append(pool.submit(function, item))
        if len(pending) >= 2 * available_cores():
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def in_chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` items, the last one perhaps shorter."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk
