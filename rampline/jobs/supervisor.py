"""The supervisor: attempts of a run, one after the other, until it is complete or another one would not help."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rampline.errors import RunFailed
from rampline.files import read_json
from rampline.jobs.launcher import Log, OnEvent, Restarts, RoleLost, run_attempt
from rampline.jobs.roles import network_warning, tasks_to_start
from rampline.jobs.tf_config import Task
from rampline.record.attempts import Attempts
from rampline.record.checkpoints import last_checkpoint, step_of
from rampline.record.run_directory import RunDirectory


def supervise(
    run_directory: RunDirectory, *, on_event: OnEvent, log: Log, tasks: Sequence[Task] | None = None
) -> dict[str, Any]:
    """Run a run directory to its end, from its last checkpoint, and again whenever a role is lost.

    At most `cluster.max_restarts` times, after a pause that doubles from 1 s to 60 s while no step is won; not again
    after a failure that would repeat: wrong input, a mistake in the code, a loss that is not finite, or the same error
    (out of memory, for one) twice with no checkpoint in between.

    Args:
        run_directory: created, not complete; whoever calls holds its lock.
        on_event: gets the chief's events as they come.
        log: gets a line for what a user acts on.
        tasks: the roles of this machine; chosen anew for each attempt if `None`, so that a port that was taken
            meanwhile is not chosen again.

    Returns:
        the content of `result.json`; on a machine without the chief, nothing.

    Raises:
        RunFailed: naming the role that was lost and its log.
        Preempted: when the run was asked to stop, and has saved a checkpoint.
        InputError: when a role found the configuration wrong.
    """
    config = run_directory.read_config()
    attempts, restarts = Attempts(_attempts_file(run_directory, tasks)), Restarts(config.cluster.max_restarts)
    while True:
        attempt = attempts.begin()
        how, lost_at = "interrupted", None
        try:
            chosen = tasks_to_start(config) if tasks is None else tasks
            if attempt.number == 1 and (warning := network_warning(config, chosen)):
                log(f"warning: {warning}")
            parts = {"attempts": attempts, "attempt": attempt, "restarts": restarts}
            run_attempt(run_directory, chosen, **parts, on_event=on_event, log=log)
            how = "complete"
            return read_json(run_directory.result_file) if run_directory.is_complete else {}
        except RoleLost as lost:
            how, lost_at, reason = str(lost), lost.at, lost
        except OSError as error:
            # `TimeoutError` and what a web library raises are of this class, too, and say neither file nor errno.
            how = f"{error.filename or run_directory.path}: {error.strerror}" if error.strerror else repr(error)
            raise RunFailed(f"the run cannot go on: {how}") from error
        except Exception as error:
            how = str(error)
            raise
        finally:
            attempts.end(how, lost_at)
        step = _last_step(run_directory)
        pause = restarts.take_for_run(reason, step)
        log(f"{how}: starting again from step {step} in {pause:.0f} s")
        time.sleep(pause)


def _attempts_file(run_directory: RunDirectory, tasks: Sequence[Task] | None) -> Path:
    alone = next((task for task in tasks or () if not task.is_chief), None)
    return run_directory.attempts_file_of(alone.name) if alone else run_directory.attempts_file


def _last_step(run_directory: RunDirectory) -> int:
    checkpoint = last_checkpoint(run_directory.checkpoints)
    return step_of(checkpoint) if checkpoint else 0
