"""One process that scores the checkpoints of several runs: TensorFlow is imported once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rampline.jobs.exit_status import MACHINE_LOST
from rampline.jobs.job import Job, JobFailed, run_job
from rampline.jobs.launchers import launcher_of_jobs
from rampline.record.checkpoints import Which
from rampline.record.run_directory import RunDirectory

RESTARTS = 2


def run_evaluation(
    run_directories: Sequence[Path],
    log_file: Path,
    *,
    other_data: Path | None = None,
    which: Which = "best",
    on_evaluated: Callable[[Path], None] | None = None,
) -> None:
    """Score a checkpoint of each run directory, in this order; whatever ends the call, the process is gone.

    A process that a signal ended, or whose machine was lost, is started again for those that are left.

    Args:
        run_directories: each gets its `evaluation.json`, or, as other data or the last checkpoint are asked for, its
            `evaluation-other.json`.
        log_file: gets what the process prints; the job's folder is beside it, without its suffix.
        other_data: prepared dataset to score on instead of each run's own.
        which: the checkpoint.
        on_evaluated: is called with a run directory as soon as it is scored.

    Raises:
        InputError: when a run cannot be scored as asked.
        JobFailed: when the process fails, naming its log.
    """
    left = list(run_directories)
    launcher = launcher_of_jobs(RunDirectory(left[0]).read_config())
    own_data = {Path(RunDirectory(path).read_identity().dataset) for path in left}

    def hear(event: dict[str, Any]) -> None:
        left.remove(Path(event["run_directory"]))
        if on_evaluated:
            on_evaluated(Path(event["run_directory"]))

    for restarts_left in reversed(range(RESTARTS + 1)):
        job = Job(
            function="evaluate",
            what="evaluation",
            folder=log_file.with_suffix(""),
            log=log_file,
            folders=[log_file.with_suffix(""), *left],
            datasets=sorted({*own_data, *([other_data] if other_data else [])}),
            gpus=range(1),
            arguments={
                "run_directories": list(map(str, left)),
                "data": str(other_data) if other_data else None,
                "which": which,
            },
        )
        try:
            run_job(job, launcher=launcher, on_event=hear)
            return
        except JobFailed as failure:
            if not left:
                return
            # What a signal ended, or its machine, had no chance to say why, and may go better the next time.
            is_lost = failure.status is not None and (failure.status < 0 or failure.status == MACHINE_LOST)
            if not is_lost or not restarts_left:
                raise
