"""`python -m rampline.servers.prefect_server PARENT ARGUMENT…`: `prefect server start ARGUMENT…`, sound on sqlite."""

from __future__ import annotations

import sys

from rampline.parent import end_with_parent
from rampline.servers.child import GRACE_SECONDS
from rampline.servers.sqlite_faults import mend_sqlite


def main() -> None:
    """Take the place of the program."""
    parent, *arguments = sys.argv[1:]
    end_with_parent(int(parent), grace_seconds=GRACE_SECONDS)
    # It takes a second, and the lines above should not.
    from prefect.cli import app

    mend_sqlite()
    sys.argv = ["prefect", "server", "start", *arguments]
    app()


if __name__ == "__main__":
    main()
