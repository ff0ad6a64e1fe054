"""Two faults that Prefect's server meets on sqlite, and the way around them: `mend_sqlite`.

**It stands still, for up to a minute.** A cursor whose statement fails ("database is locked") is not closed:
SQLAlchemy's adapter of aiosqlite closes it after a success only, and it lives on in the exception. Whoever frees it
later, mostly the garbage collector, resets its statement and so waits for the mutex of its connection. By then that
connection may be waiting for a write lock that another one holds. If it is the event loop's thread that frees the
cursor, the holder of the lock, a coroutine, cannot go on either: all wait for sqlite's busy timeout, which Prefect
sets to 60 s. Seen with SQLAlchemy 2.0.58 and CPython 3.11 (`cursor_dealloc`). The way around: a cursor that fails is
closed at once, in its connection's own thread.

**It loses events.** A trigger reads before it writes, in one transaction. While another connection writes, sqlite
refuses that write at once, whatever the busy timeout (https://www.sqlite.org/c3ref/busy_handler.html), and Prefect
drops a message after three more tries, all within milliseconds. The way around: pauses between the tries.

Neither happens on PostgreSQL. `tests/tasks/test_sqlite_faults.py` fails once a library has lost its fault.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import aiosqlite
from prefect.server.utilities.messaging.memory import Subscription

# Before the second, third and fourth try; four tries are all there are.
PAUSE_SECONDS = (0.2, 1.0, 4.0)


def mend_sqlite() -> None:
    """To be called once, in the process of a Prefect server, before it serves."""
    aiosqlite.Cursor.execute = _closing_where_it_fails(aiosqlite.Cursor.execute)
    aiosqlite.Cursor.executemany = _closing_where_it_fails(aiosqlite.Cursor.executemany)
    Subscription.retry = _after_a_pause(Subscription.retry)


def _closing_where_it_fails(execute: Callable[..., Awaitable[Any]]) -> Any:
    @wraps(execute)
    async def closing(cursor: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return await execute(cursor, *arguments, **named)
        except sqlite3.Error:
            await cursor.close()
            raise

    return closing


def _after_a_pause(retry: Callable[..., Awaitable[None]]) -> Any:
    @wraps(retry)
    async def pausing(subscription: Any, message: Any) -> None:
        if message.retry_count < len(PAUSE_SECONDS):
            await asyncio.sleep(PAUSE_SECONDS[message.retry_count])
        await retry(subscription, message)

    return pausing
