"""The tables of a new Prefect database: Prefect's own migrations, of all its years, take 5 to 15 s for them.

`prefect_tables.sql` is what they leave. `python -m rampline.servers.prefect_tables FILE` writes it anew, with the
oldest Prefect that `pyproject.toml` allows: a later one adds its own migrations, as to any database of an earlier
version.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import make_url

TABLES = Path(__file__).with_name("prefect_tables.sql")
DRIVER = "sqlite+aiosqlite"


def make_tables(url: str) -> None:
    """Fill an sqlite database that has no tables yet; any other one is left to Prefect.

    Args:
        url: of the database, as Prefect takes it.
    """
    parts = make_url(url)
    file = Path(parts.database or "")
    # Those in memory have other names.
    if parts.drivername != DRIVER or not file.is_absolute() or not file.parent.is_dir():
        return
    with closing(sqlite3.connect(file)) as database:
        if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
            database.executescript(TABLES.read_text())  # in one transaction


def _migrate(database: Path) -> str:
    os.environ["PREFECT_API_DATABASE_CONNECTION_URL"] = f"{DRIVER}:///{database}"
    from prefect.server.database import provide_database_interface

    asyncio.run(provide_database_interface().create_db())
    with closing(sqlite3.connect(database)) as tables:
        return "\n".join(line.rstrip() for line in "\n".join(tables.iterdump()).splitlines()) + "\n"


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        Path(sys.argv[1]).write_text(_migrate(Path(folder) / "prefect.db"))
