"""`python -m rampline.servers.prefect_server ARGUMENT…`: `prefect server start`, mended and behind the gate."""

from __future__ import annotations

import sys

import uvicorn
from prefect.cli import app

from rampline.servers.gate import Gate
from rampline.servers.prefect_faults import mend_prefect


def main() -> None:
    """Take the place of the program."""
    mend_prefect()
    serve = uvicorn.run
    uvicorn.run = lambda app, **settings: serve(Gate.from_environment(app), **settings)
    sys.argv = ["prefect", "server", "start", *sys.argv[1:]]
    app()


if __name__ == "__main__":
    main()
