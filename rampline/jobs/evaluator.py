"""One process that scores the best checkpoints of several runs: TensorFlow is imported once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rampline.errors import InputError, RunFailed
from rampline.jobs.process import end_processes, last_line, start_worker
from rampline.record.events import EventReader

POLL_SECONDS = 0.1
RESTARTS = 2


def run_evaluation(
    run_directories: Sequence[Path],
    log_file: Path,
    *,
    other_data: Path | None = None,
    on_evaluated: Callable[[Path], None] | None = None,
) -> None:
    """Score the best checkpoint of each run directory, in this order; whatever ends the call, the process is gone.

    A process that a signal ended is started again for those that are left.

    Args:
        run_directories: each gets its `evaluation.json`.
        log_file: gets what the process prints; what it tells is appended to a `.jsonl` beside it.
        other_data: prepared dataset to score on instead of each run's own.
        on_evaluated: is called with a run directory as soon as it is scored.

    Raises:
        InputError: when a run cannot be scored as asked.
        RunFailed: when the process fails, naming its log.
    """
    left = list(run_directories)

    def evaluated(path: Path) -> None:
        left.remove(path)
        if on_evaluated:
            on_evaluated(path)

    for restarts_left in reversed(range(RESTARTS + 1)):
        status = _score(left, log_file, other_data, evaluated)
        if status == 0 or not left:
            return
        if status == InputError.exit_status:
            raise InputError(f"evaluation failed: {last_line(log_file)} (log: {log_file})")
        # What a signal ended had no chance to say why, and may go better the next time.
        if status > 0 or not restarts_left:
            how = f"was ended by signal {-status}" if status < 0 else f"failed: {last_line(log_file)}"
            raise RunFailed(f"evaluation {how} (log: {log_file})")


def _score(
    run_directories: Sequence[Path], log_file: Path, other_data: Path | None, on_evaluated: Callable[[Path], None]
) -> int:
    """Run the process to its end; returns its exit status, negative for a signal."""
    events_file = log_file.with_suffix(".jsonl")
    events = EventReader(events_file, from_end=True)
    data = [f"--data={other_data}"] if other_data else []
    process = start_worker([f"--evaluate={events_file}", *data, *map(str, run_directories)], log_file, {})
    try:
        while True:
            ended = process.poll() is not None
            for event in events.read():
                on_evaluated(Path(event["run_directory"]))
            if ended:
                return process.wait()
            time.sleep(POLL_SECONDS)
    finally:
        end_processes([process])
