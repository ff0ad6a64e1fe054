"""A new database of Prefect has the tables that its migrations make, without their time."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from rampline.servers.prefect_tables import TABLES, make_tables


def tables_of(database: Path) -> set[str]:
    with closing(sqlite3.connect(database)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


@pytest.mark.long
def test_they_are_those_that_the_migrations_make(tmp_path: Path) -> None:
    """After another lower bound of Prefect: `python -m rampline.servers.prefect_tables servers/prefect_tables.sql`."""
    made = tmp_path / "made.sql"
    subprocess.run([sys.executable, "-m", "rampline.servers.prefect_tables", str(made)], check=True)
    # The constraints of a table have another order each time.
    found, expected = (sorted(line.rstrip(",\n") for line in file.open()) for file in (made, TABLES))
    assert found == expected


def test_only_an_empty_database_gets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, before in (("new #1.db", ""), ("old.db", "CREATE TABLE flow (id)")):
        with closing(sqlite3.connect(tmp_path / name)) as database:
            database.executescript(before)
        make_tables(f"sqlite+aiosqlite:///{tmp_path / name}")
    assert {"flow_run", "alembic_version"} < tables_of(tmp_path / "new #1.db")
    assert tables_of(tmp_path / "old.db") == {"flow"}
    for elsewhere in ("sqlite+aiosqlite:///:memory:", "sqlite+aiosqlite:///file::memory:?cache=shared&uri=true"):
        make_tables(elsewhere)
    make_tables("postgresql+asyncpg://me@127.0.0.1/prefect")
    assert len(list(tmp_path.iterdir())) == 2
