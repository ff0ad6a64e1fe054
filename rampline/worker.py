"""The entry point of all processes with TensorFlow: `python -m rampline.worker FOLDER`.

The folder holds `job.json`: what to do. Or it is a run directory: then the process is the role of that run which
TF_CONFIG names.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rampline.errors import ERROR_MARK, DownloadFailed, InputError, Preempted, RamplineError
from rampline.files import read_json, write_json
from rampline.imports import import_tensorflow, importing
from rampline.jobs.exit_status import (
    FAILED,
    GPU_TAKEN,
    NO_DOWNLOAD,
    NO_MEMORY,
    PEER_LOST,
    STOPPED,
    WILL_REPEAT,
    leave,
    one_line,
)
from rampline.jobs.fork_server import FORK_SERVER, serve
from rampline.jobs.job import ANSWER, JOB
from rampline.jobs.memory import be_first_to_end, is_gpu_taken, is_out_of_memory
from rampline.jobs.parent import end_with_parent
from rampline.training.role import run_role

# What a job may be; a file names it, so nothing else can be called.
FUNCTIONS = {
    "evaluate": "rampline.training.evaluation:evaluate_all",
    "forecast": "rampline.forecast.reading_process:read_role",
    "label": "rampline.registry.labelling:label_folder",
    "models": "rampline.training.models:check_own_models",
    "networks": "rampline.training.models:measure_networks",
    "parity": "rampline.parity.check_process:check_role",
    "prepare": "rampline.data.ingest:prepare",
    "probe": "rampline.explain.replica_process:probe_replicas",
    "tune": "rampline.tuning.bench:measure_trial",
}
# What the fork server imports for all its workers.
OF_EVERY_WORKER = ("rampline.training.train", "rampline.training.strategy", "rampline.training.evaluation")
OF_EVERY_WORKER += ("rampline.parity.check_process", "rampline.explain.replica_process")
OF_EVERY_WORKER += ("rampline.forecast.reading_process",)
# Errors of our own code or of the user's: another attempt would meet them again.
MISTAKES = (ImportError, SyntaxError, NameError, AttributeError, TypeError)


def main(arguments: Sequence[str]) -> int:
    """Do what the folder says; returns the exit status: 0 done, and the others of `rampline.jobs.exit_status`."""
    if os.environ.get("RAMPLINE_PARENT_PID"):
        end_with_parent(int(os.environ["RAMPLINE_PARENT_PID"]))
    try:
        if len(arguments) != 1:
            raise InputError("python -m rampline.worker takes one folder: a run directory, or that of a job")
        folder = Path(arguments[0])
        return _call(folder) if (folder / JOB).is_file() else run_role(folder)
    except Preempted as stop:
        print(f"rampline: {stop}", file=sys.stderr)  # noqa: T201
        return STOPPED
    except RamplineError as error:
        print(f"{ERROR_MARK}{error}", file=sys.stderr)  # noqa: T201
        if isinstance(error, DownloadFailed):
            return NO_DOWNLOAD
        return error.exit_status if isinstance(error, InputError) else WILL_REPEAT
    except Exception as error:  # noqa: BLE001 - the last line of the log tells the launcher why the role ended
        traceback.print_exc()
        print(f"{ERROR_MARK}{one_line(error)}", file=sys.stderr)  # noqa: T201
        return _status_of(error)


def _status_of(error: Exception) -> int:
    if isinstance(error, MISTAKES):
        return WILL_REPEAT
    if is_gpu_taken(error):
        return GPU_TAKEN
    if is_out_of_memory(error):
        return NO_MEMORY
    tf = sys.modules.get("tensorflow")
    if tf is None:
        return FAILED
    errors = tf.errors
    peers = (errors.UnavailableError, errors.AbortedError, errors.CancelledError, errors.DeadlineExceededError)
    return PEER_LOST if isinstance(error, peers) else FAILED


def _call(folder: Path) -> int:
    job = read_json(folder / JOB)
    if job["ends_first"]:
        be_first_to_end()
    import_tensorflow()
    module, _, name = FUNCTIONS[job["function"]].partition(":")
    with importing():
        function = getattr(importlib.import_module(module), name)
    answer = function(folder, **job["arguments"])
    if answer is not None:
        write_json(folder / ANSWER, answer)
    return 0


def _has_peers() -> bool:
    """Whether this may be a role of several."""
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        return sum(len(addresses) for addresses in cluster.values()) > 1
    except (ValueError, AttributeError, TypeError):
        return True  # it cannot be read: then an orderly end is the safe one


def run(arguments: Sequence[str]) -> NoReturn:
    """Run `main`, and end the process."""
    status = main(arguments)
    # After a failure TensorFlow's destructors may wait for peers that are gone. After a success they tell the peers;
    # where there are none they take a second for nothing.
    if status or not _has_peers():
        leave(status)
    sys.exit(status)


if __name__ == "__main__":
    run(serve(OF_EVERY_WORKER) if sys.argv[1:2] == [FORK_SERVER] else sys.argv[1:])
