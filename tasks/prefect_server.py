"""`python -m tasks.prefect_server ARGUMENT…`: `prefect server start ARGUMENT…`, sound on sqlite."""

from __future__ import annotations

import sys

from prefect.cli import app

from tasks.sqlite_faults import mend_sqlite


def main() -> None:
    """Take the place of the program."""
    mend_sqlite()
    sys.argv = ["prefect", "server", "start", *sys.argv[1:]]
    app()


if __name__ == "__main__":
    main()
