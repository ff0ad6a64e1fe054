"""Debian's PostgreSQL on a free loopback port, with a data directory of its own and users that have passwords."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from rampline.devices import free_ports
from rampline.jobs.waiting import wait_until

DATABASES = Path(__file__).parents[2] / "deployments" / "postgresql" / "databases.sh"
PROGRAMS = Path("/usr/lib/postgresql")
PASSWORD = "administrator0"
PASSWORDS = {"PREFECT_DATABASE_PASSWORD": "prefect0secret", "MLFLOW_DATABASE_PASSWORD": "mlflow0secret"}
# Nothing that a test writes must survive a power failure.
FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
START_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class PostgreSql:
    """A running server with the users and databases that `deployments/postgresql/databases.sh` makes."""

    port: int
    programs: Path

    def query(self, database: str, sql: str) -> list[tuple[Any, ...]]:
        """The rows of one statement, as the administrator."""
        place = {"host": "127.0.0.1", "port": self.port, "user": "postgres", "password": PASSWORD}
        connection = psycopg2.connect(dbname=database, **place)
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return cursor.fetchall()
        finally:
            connection.close()

    def back_up(self, database: str, dump: Path) -> None:
        """Write a database to a file, as docs/operations.md says."""
        with open(dump, "wb") as file:
            self._run("pg_dump", "--format=custom", database, stdout=file)

    def restore(self, database: str, dump: Path) -> None:
        """Read it into the empty database of that name."""
        with open(dump, "rb") as file:
            self._run("pg_restore", "--exit-on-error", f"--dbname={database}", stdin=file)

    def _run(self, program: str, *arguments: str, **streams: Any) -> None:
        command = [str(self.programs / program), *arguments]
        subprocess.run(command, check=True, env=os.environ | _place(self.port), **streams)


@contextmanager
def start_postgresql() -> Iterator[PostgreSql]:
    """A server for as long as the block lasts; skips the test where PostgreSQL is not installed."""
    programs = _programs()
    # Not in pytest's folder, which only its owner can enter: the server refuses to run as root.
    folder = Path(tempfile.mkdtemp(prefix="rampline-postgresql-"))
    data = folder / "data"
    server = None
    try:
        (folder / "password").write_text(PASSWORD)
        owner = _owner()
        if owner:
            for path in (folder, folder / "password"):
                shutil.chown(path, owner["user"], owner["group"])
        initdb = [str(programs / "initdb"), "--pgdata", str(data), "--username=postgres", "--no-sync", "--no-locale"]
        initdb += ["--auth=scram-sha-256", "--encoding=UTF8", "--pwfile", str(folder / "password")]
        subprocess.run(initdb, check=True, capture_output=True, cwd=folder, **owner)
        (port,) = free_ports(1)
        settings = FAST | {"listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": ""}
        command = [str(programs / "postgres"), "-D", str(data)]
        command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with open(folder / "server.log", "w") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True, **owner)
        ready = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
        assert wait_until(lambda: subprocess.run(ready).returncode == 0, START_SECONDS)
        _make_databases(programs, port)
        yield PostgreSql(port=port, programs=programs)
    finally:
        if server:
            server.send_signal(signal.SIGINT)  # cuts off whoever is still connected
            server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    found = sorted(PROGRAMS.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if not found:
        pytest.skip("no PostgreSQL on this machine: nothing is run on it (Debian: apt install postgresql)")
    return found[-1].parent


def _owner() -> dict[str, Any]:
    if os.geteuid():
        return {}
    user = pwd.getpwnam("postgres")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _make_databases(programs: Path, port: int) -> None:
    image = {"POSTGRES_USER": "postgres", "PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run([str(DATABASES)], check=True, env=os.environ | _place(port) | PASSWORDS | image)


def _place(port: int) -> dict[str, str]:
    return {"PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": "postgres", "PGPASSWORD": PASSWORD}
