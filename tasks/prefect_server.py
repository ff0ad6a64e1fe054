"""`python -m tasks.prefect_server ARGUMENT…`: `prefect server start ARGUMENT…`, mended."""

from __future__ import annotations

import sys

from prefect.cli import app

from tasks.prefect_faults import mend_prefect


def main() -> None:
    """Take the place of the program."""
    mend_prefect()
    sys.argv = ["prefect", "server", "start", *sys.argv[1:]]
    app()


if __name__ == "__main__":
    main()
