"""Three faults of Prefect's server, two of them on sqlite only, and the ways around them: `mend_prefect`.

**It stands still, for up to a minute.** A cursor whose statement fails ("database is locked") is not closed:
SQLAlchemy's adapter of aiosqlite closes it after a success only, and it lives on in the exception. Whoever frees it
later, mostly the garbage collector, resets its statement and so waits for the mutex of its connection. By then that
connection may be waiting for a write lock that another one holds. If it is the event loop's thread that frees the
cursor, the holder of the lock, a coroutine, cannot go on either: all wait for sqlite's busy timeout, which Prefect
sets to 60 s. Seen with SQLAlchemy 2.0.58 and CPython 3.11 (`cursor_dealloc`); CPython 3.12 frees it without waiting.
The way around: a cursor that fails is closed at once, in its connection's own thread.

**It loses events, and sends tasks away for 2 s.** A trigger of an automation reads before it writes, in one
transaction. If another connection has written in between, sqlite refuses the trigger's write at once, whatever the busy
timeout (https://www.sqlite.org/isolation.html), and after three more tries, all within milliseconds, the event is
dropped. The question for the free slots of a limit, which precedes each task with a tag, is refused in the same way:
the server answers 503, and the client sleeps. The way around: such a transaction takes the write lock when it begins,
as Prefect's own do for flow runs, and so waits.

**It takes events out of turn.** Two consumers feed the triggers of automations, so an event can overtake the one before
it while that waits for the database. What a trigger `expects` then comes before what it is to come `after`, counts for
nothing, and a flow run that was suspended or has ended is taken for one that fell silent. Seen with the memory broker,
Prefect's default on any database (https://github.com/PrefectHQ/prefect/issues/21932). The way around: one consumer.

`tests/servers/test_prefect_faults.py` fails once a library has lost its fault.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any

import aiosqlite
from prefect.server.api import concurrency_limits_v2
from prefect.server.database import provide_database_interface
from prefect.server.database.configurations import SQLITE_BEGIN_MODE
from prefect.server.events import triggers
from prefect.server.events.services import triggers as triggers_service
from prefect.server.utilities.messaging.memory import Consumer


def _closing_where_it_fails(execute: Callable[..., Awaitable[Any]]) -> Any:
    @wraps(execute)
    async def closing(cursor: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return await execute(cursor, *arguments, **named)
        except sqlite3.Error:
            await cursor.close()
            raise

    return closing


def _locking_from_the_start(automations_session: Callable[..., Any]) -> Any:
    @wraps(automations_session)
    def locking(begin_transaction: bool = False) -> AbstractAsyncContextManager[Any]:
        database = provide_database_interface()
        return database.session_context(begin_transaction, with_for_update=begin_transaction)

    return locking


def _locking_where_it_begins(acquire_slots: Callable[..., Awaitable[Any]]) -> Any:
    @wraps(acquire_slots)
    async def locking(*arguments: Any, **named: Any) -> Any:
        # Read at the first statement of the transaction, which is still to come; who began the transaction resets it.
        SQLITE_BEGIN_MODE.set("IMMEDIATE")
        return await acquire_slots(*arguments, **named)

    return locking


def _one_at_a_time(create_consumer: Callable[..., Any]) -> Any:
    @wraps(create_consumer)
    def creating(topic: str, **settings: Any) -> Any:
        consumer = create_consumer(topic, **settings)
        # Other brokers have their own ways, and most of them one consumer.
        if isinstance(consumer, Consumer):
            consumer.concurrency = 1
        return consumer

    return creating


OF_CURSORS = ("execute", "executemany") if sys.version_info < (3, 12) else ()
# What is replaced where it is looked up, and by what of it.
MENDED: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
    *((aiosqlite.Cursor, name, _closing_where_it_fails) for name in OF_CURSORS),
    (triggers, "automations_session", _locking_from_the_start),
    (concurrency_limits_v2, "_acquire_concurrency_slots", _locking_where_it_begins),
    (triggers_service, "create_consumer", _one_at_a_time),
)


def mend_prefect() -> None:
    """To be called once, in the process of a Prefect server, before it serves."""
    for owner, name, mended in MENDED:
        setattr(owner, name, mended(getattr(owner, name)))
