"""The worker of a container: Prefect's, which kills its flow runs at once when it is asked to end, but in order.

`python -m rampline.servers.compose_worker OPTION…` takes the options of `prefect worker start`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from rampline.record.home import Home, keep_private
from rampline.servers.processes import MARK, MODULE, PART, POLL_SECONDS, counting_signals, end_all, hold_lock


def main() -> None:
    """Run the worker; asked to end, let its flow runs save and report first; asked again, wait for nothing."""
    home = Home.from_environment()
    keep_private(home)
    # Where the lock is free: without a holder a `rampline up` takes the worker and its flow runs for leftovers.
    with hold_lock(home), counting_signals() as count:
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(os.getpid()), "prefect", "worker", "start", *sys.argv[1:]],
            env=os.environ | {"RAMPLINE_HOME": str(home.root), MARK: str(home.root), PART: "worker"},
            start_new_session=True,
        )
        while worker.poll() is None and not count():
            time.sleep(POLL_SECONDS)
        end_all(home, is_urgent=lambda: count() > 1)
    sys.exit(worker.wait())


if __name__ == "__main__":
    main()
