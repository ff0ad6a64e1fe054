"""`python -m rampline.data REQUEST`: the preparation process, started by `rampline.data.preparation`.

`REQUEST` is JSON: `{"data": {…}, "home": PATH, "parent_pid": PID, "scored_classes": null}`.
Standard output carries a JSON object per line:
`{"progress": [done, total]}`, `{"log": text}`, and last `{"directory": PATH}` or `{"error": text}`. Whatever TensorFlow
and TFDS print goes to standard error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

from rampline.config import DataConfig
from rampline.errors import DatasetError
from rampline.jobs.parent import end_with_parent
from rampline.record.home import Home

_PROGRESS_SECONDS = 0.2


class Messages:
    """Writes messages to the parent; progress at most every `_PROGRESS_SECONDS` and at its end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next_progress = 0.0

    def send(self, **message: Any) -> None:
        """Write one message."""
        self._stream.write(json.dumps(message) + "\n")
        self._stream.flush()

    def progress(self, done: int, total: int) -> None:
        """Tell how far it is."""
        now = time.monotonic()
        if done == total or now >= self._next_progress:
            self._next_progress = now + _PROGRESS_SECONDS
            self.send(progress=[done, total])


def main(request: dict[str, Any]) -> int:
    """Prepare one dataset; the exit status is 0, or 2 where the source is at fault."""
    end_with_parent(request["parent_pid"])
    signal.signal(signal.SIGTERM, _exit_on_signal)
    messages = Messages(_claim_standard_output())
    # Imported after the above: it takes seconds, in which the parent may go.
    from rampline.data.ingest import Reporter, store_dataset

    reporter = Reporter(progress=messages.progress, log=lambda line: messages.send(log=line))
    try:
        home = Home(root=Path(request["home"]))
        config, scored_classes = DataConfig(**request["data"]), request["scored_classes"]
        directory = store_dataset(config, home, reporter, scored_classes, may_fork=True)
    except DatasetError as error:
        messages.send(error=str(error))
        return error.exit_status
    messages.send(directory=str(directory))
    return 0


def _claim_standard_output() -> TextIO:
    """The real standard output for messages; what libraries print lands on standard error."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return stream


def _exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    # As an exception, so that what was written aside is removed.
    raise SystemExit(128 + number)


if __name__ == "__main__":
    status = main(json.loads(sys.argv[1]))
    sys.stderr.flush()
    # All is written and synced; taking down TensorFlow's threads would cost the waiting parent two more seconds.
    os._exit(status)
