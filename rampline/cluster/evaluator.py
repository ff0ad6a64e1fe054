"""One process that scores the best checkpoints of several runs: TensorFlow is imported once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rampline.cluster.process import end_processes, last_line, start_worker
from rampline.errors import InputError, RunFailed
from rampline.events import EventReader

POLL_SECONDS = 0.1


def run_evaluation(
    run_directories: Sequence[Path],
    log_file: Path,
    *,
    other_data: Path | None = None,
    on_evaluated: Callable[[Path], None] | None = None,
) -> None:
    """Score the best checkpoint of each run directory, in this order; whatever ends the call, the process is gone.

    Args:
        run_directories: each gets its `evaluation.json`.
        log_file: gets what the process prints; what it tells is appended to a `.jsonl` beside it.
        other_data: prepared dataset to score on instead of each run's own.
        on_evaluated: is called with a run directory as soon as it is scored.

    Raises:
        InputError: when a run cannot be scored as asked.
        RunFailed: when the process fails, naming its log.
    """
    events_file = log_file.with_suffix(".jsonl")
    events = EventReader(events_file, from_end=True)
    data = [f"--data={other_data}"] if other_data else []
    arguments = [f"--evaluate={events_file}", *data, *map(str, run_directories)]
    process = start_worker(arguments, log_file, {})
    try:
        while True:
            ended = process.poll() is not None
            for event in events.read():
                if on_evaluated:
                    on_evaluated(Path(event["run_directory"]))
            if ended:
                break
            time.sleep(POLL_SECONDS)
    finally:
        end_processes([process])
    if process.returncode:
        kind = InputError if process.returncode == InputError.exit_status else RunFailed
        raise kind(f"evaluation failed: {last_line(log_file)} (log: {log_file})")
