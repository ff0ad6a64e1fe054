"""`python -m rampline.servers.child PARENT MODULE ARGUMENT…`: the module, ending with its parent."""

from __future__ import annotations

import runpy
import sys
import tempfile

from rampline.jobs.parent import end_with_parent
from rampline.record.home import Home
from rampline.servers.running import servers_folder

# The caretaker ends all in order when the parent was killed; this is for the case that it was killed as well.
GRACE_SECONDS = 90.0


def main() -> None:
    """Take the place of the module, with its arguments."""
    parent, module, *arguments = sys.argv[1:]
    end_with_parent(int(parent), grace_seconds=GRACE_SECONDS)
    # Prefect's worker works in `runner_storage` there, which in the machine's own folder belongs to the first user.
    temporary = servers_folder(Home.from_environment()) / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = str(temporary)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
