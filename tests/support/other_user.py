"""What another user's closed folder is to this process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def closed(folder: Path) -> Iterator[None]:
    """In the block this process may not look into `folder`; root becomes nobody meanwhile."""
    mode = folder.stat().st_mode
    folder.chmod(0o700 if os.geteuid() == 0 else 0)
    if was_root := os.geteuid() == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if was_root:
            os.seteuid(0)
        folder.chmod(mode)
