"""Each fault is shown first as the libraries have it: if that fails, its way around can go."""

import asyncio
import gc
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import aiosqlite
import pytest
from prefect.server.utilities.messaging import Message
from prefect.server.utilities.messaging.memory import Consumer, MemoryMessage, Subscription, Topic
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from tasks.sqlite_faults import mend_sqlite

BUSY_SECONDS = 4.0


@pytest.fixture(params=["as it is", "mended"])
def mended(request: pytest.FixtureRequest) -> Iterator[bool]:
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((aiosqlite.Cursor, "execute"), (aiosqlite.Cursor, "executemany"), (Subscription, "retry")):
            patch.setattr(owner, name, getattr(owner, name))
        if request.param == "mended":
            mend_sqlite()
        yield request.param == "mended"


def test_freeing_a_cursor_that_failed_does_not_wait_for_its_connection(mended: bool, tmp_path: Path) -> None:
    gc.freeze()  # so that collecting takes no time of its own
    try:
        seconds = asyncio.run(seconds_to_free_a_cursor_that_failed(tmp_path / "database"))
    finally:
        gc.unfreeze()
    assert (seconds < BUSY_SECONDS / 2) == mended, seconds


async def seconds_to_free_a_cursor_that_failed(database: Path) -> float:
    """How long this thread stands still, while the cursor's connection waits for a lock that a third one holds."""
    holder = sqlite3.connect(database, isolation_level=None)
    holder.executescript("PRAGMA journal_mode = WAL; CREATE TABLE numbers (number); BEGIN IMMEDIATE")
    insert = text("INSERT INTO numbers VALUES (1)")
    engine = create_async_engine(f"sqlite+aiosqlite:///{database}", connect_args={"timeout": 0.1})
    async with engine.connect() as connection:
        with pytest.raises(OperationalError, match="database is locked") as failure:
            await connection.execute(insert)
        await connection.rollback()
        await connection.execute(text(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}"))
        waiting = asyncio.create_task(connection.execute(insert))
        await asyncio.sleep(BUSY_SECONDS / 8)
        started = time.monotonic()
        del failure
        gc.collect()
        seconds = time.monotonic() - started
        holder.execute("ROLLBACK")
        await asyncio.gather(waiting, return_exceptions=True)
    await engine.dispose()
    holder.close()
    return seconds


def test_a_message_that_fails_for_a_moment_is_not_lost(mended: bool, tmp_path: Path) -> None:
    tries = asyncio.run(
        tries_until_delivered(Subscription(Topic.by_name("test"), dead_letter_queue_path=tmp_path / "dead"))
    )
    assert bool(tries) == mended
    assert (tmp_path / "dead").exists() != mended


async def tries_until_delivered(subscription: Subscription) -> int:
    """To a handler that refuses for 0.4 s; 0 where it never is."""
    tries, delivered, works_at = 0, asyncio.Event(), time.monotonic() + 0.4

    async def handle(_message: Message) -> None:
        nonlocal tries
        tries += 1
        if time.monotonic() < works_at:
            raise sqlite3.OperationalError("database is locked")
        delivered.set()

    consumer = Consumer("test", subscription=subscription, concurrency=1)
    consuming = asyncio.create_task(consumer.run(handle))
    await subscription.deliver(MemoryMessage("event", {}))
    try:
        await asyncio.wait_for(delivered.wait(), 3)
    except TimeoutError:
        return 0
    finally:
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
    return tries
