"""`python -m rampline.servers.child PARENT MODULE ARGUMENT…`: the module, ending with its parent."""

from __future__ import annotations

import runpy
import sys

from rampline.parent import end_with_parent

# The caretaker ends all in order when the parent was killed; this is for the case that it was killed as well.
GRACE_SECONDS = 90.0


def main() -> None:
    """Take the place of the module, with its arguments."""
    parent, module, *arguments = sys.argv[1:]
    end_with_parent(int(parent), grace_seconds=GRACE_SECONDS)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
