"""Each fault is shown first as the libraries have it: if that fails, its way around can go.

The functions import Prefect's server: it takes more than a second, and every process of the tests loads this file.
"""

import asyncio
import gc
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

BUSY_SECONDS = 4.0


@pytest.fixture(params=["as it is", "mended"])
def mended(request: pytest.FixtureRequest) -> Iterator[bool]:
    from rampline.servers.prefect_faults import MENDED, mend_prefect

    with pytest.MonkeyPatch.context() as patch:
        for owner, name, _ in MENDED:
            patch.setattr(owner, name, getattr(owner, name))
        if request.param == "mended":
            mend_prefect()
        yield request.param == "mended"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Path]:
    """A new one of Prefect's, with its tables: in one process it asks its settings for a database once."""
    from prefect.server.database.configurations import AioSqliteConfiguration
    from prefect.server.database.dependencies import temporary_database_config

    from rampline.servers.prefect_tables import make_tables

    path = tmp_path / "database"
    url = f"sqlite+aiosqlite:///{path}"
    make_tables(url)
    with temporary_database_config(AioSqliteConfiguration(connection_url=url)):
        yield path


@pytest.mark.long
def test_freeing_a_cursor_that_failed_does_not_wait_for_its_connection(mended: bool, tmp_path: Path) -> None:
    gc.freeze()  # so that collecting takes no time of its own
    try:
        seconds = asyncio.run(seconds_to_free_a_cursor_that_failed(tmp_path / "database"))
    finally:
        gc.unfreeze()
    # CPython 3.12 and later free it without waiting, and nothing is mended there.
    assert (seconds < BUSY_SECONDS / 2) == (mended or sys.version_info >= (3, 12)), seconds


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


def test_a_trigger_can_write_although_another_has_written_since_it_read(mended: bool, database: Path) -> None:
    assert asyncio.run(writes_after_reading(database)) == mended


async def writes_after_reading(database: Path) -> bool:
    from prefect.server.database import provide_database_interface
    from prefect.server.events import triggers

    other = sqlite3.connect(database, isolation_level=None, timeout=0)
    other.executescript("PRAGMA journal_mode = WAL; CREATE TABLE numbers (number)")
    try:
        begin = triggers.automations_session  # pyright: ignore[reportPrivateImportUsage]
        async with begin(begin_transaction=True) as session:
            await session.execute(text("SELECT * FROM numbers"))
            with suppress(
                sqlite3.OperationalError
            ):  # where the trigger holds the lock, it is the other that has to wait
                other.execute("INSERT INTO numbers VALUES (1)")
            await session.execute(text("INSERT INTO numbers VALUES (2)"))
    except OperationalError as error:
        if "database is locked" not in str(error):
            raise
        return False
    finally:
        await (await provide_database_interface().engine()).dispose()
        other.close()
    return True


def test_a_task_gets_its_slots_although_another_has_written_since_they_were_read(
    mended: bool, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asyncio.run(acquires_after_reading(database, monkeypatch)) == mended


async def acquires_after_reading(database: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    from prefect.server.api import concurrency_limits_v2
    from prefect.server.database import provide_database_interface
    from prefect.server.models import concurrency_limits_v2 as model

    other = sqlite3.connect(database, isolation_level=None, timeout=0)
    increment = model.bulk_increment_active_slots

    async def increment_after_another_has_written(**named: object) -> bool:
        with suppress(sqlite3.OperationalError):  # it waits for the lock
            other.execute("INSERT INTO block_type (name, slug) VALUES ('another', 'another')")
        return await increment(**named)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(model, "bulk_increment_active_slots", increment_after_another_has_written)
    interface = provide_database_interface()
    try:
        async with interface.session_context(begin_transaction=True) as session:
            await concurrency_limits_v2._acquire_concurrency_slots(session, ["tag:one"], 1, "concurrency")
    except OperationalError as error:
        if "database is locked" not in str(error):
            raise
        return False
    finally:
        await (await interface.engine()).dispose()
        other.close()
    return True


def test_an_event_does_not_overtake_the_one_before_it(mended: bool) -> None:
    handled = asyncio.run(order_of_handling())
    assert handled == (["first", "second"] if mended else ["second", "first"])


async def order_of_handling() -> list[str]:
    """Of two events, of which the first takes longer."""
    from prefect.server.events.services import triggers as triggers_service
    from prefect.server.utilities.messaging import Message
    from prefect.server.utilities.messaging.memory import MemoryMessage, Topic

    handled: list[str] = []
    both = asyncio.Event()

    async def handle(message: Message) -> None:
        await asyncio.sleep({"first": 0.5, "second": 0.0}[str(message.data)])
        handled.append(str(message.data))
        if len(handled) == 2:
            both.set()

    create_consumer = triggers_service.create_consumer  # pyright: ignore[reportPrivateImportUsage]
    consumer = create_consumer("events", group="reactive-triggers", name="test", read_batch_size=1)
    consuming = asyncio.create_task(consumer.run(handle))
    for name in ("first", "second"):
        await Topic.by_name("events").publish(MemoryMessage(name, {}))
    await asyncio.wait_for(both.wait(), 10)
    consuming.cancel()
    await asyncio.gather(consuming, return_exceptions=True)
    await consumer.cleanup()
    return handled
