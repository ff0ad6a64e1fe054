"""How a process ends: what its exit status and the last line of its log tell who has started it."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from rampline.errors import InputError

FAILED = 1
WRONG_INPUT = InputError.exit_status
# It would end the same way again: an import error, a loss that is not finite.
WILL_REPEAT = 3
# It could go on no longer because another role was gone or did not answer.
PEER_LOST = 4
# A step needs more memory than there is.
NO_MEMORY = 5
# A launcher's word for one whose machine does not answer: it cannot be started again there.
MACHINE_LOST = 6
# It could not begin on its GPU, because others have all of its memory.
GPU_TAKEN = 7
# What it would have downloaded did not come.
NO_DOWNLOAD = 8
# It was asked to stop; `stop.json` says whether a checkpoint is saved.
STOPPED = 128 + signal.SIGTERM
# It was asked again, seconds later, and ended where it was.
ENDED_AT_ONCE = 128 + signal.SIGINT


def leave(status: int) -> NoReturn:
    """End without waiting for TensorFlow, whose servers have no stop."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def one_line(error: BaseException) -> str:
    """The first line of an error that says something: TensorFlow puts the graph's call stack before it."""
    noise = ("Graph execution error", "Detected at node", "File ", "<stack traces", "Traceback")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(noise) and "root error(s) found" not in line] or lines
    return f"{type(error).__name__}: {telling[0] if telling else 'no message'}"[:500]
