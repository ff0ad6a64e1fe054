"""The entry point of all TensorFlow processes: `python -m rampline.worker RUN_DIR`, one role of a run."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rampline.cluster.exit_status import FAILED, PEER_LOST, STOPPED, WILL_REPEAT, leave, one_line
from rampline.cluster.process import ERROR_MARK
from rampline.errors import InputError, Preempted, RamplineError
from rampline.events import EventWriter
from rampline.files import read_json, write_json
from rampline.imports import import_tensorflow, importing
from rampline.parent import end_with_parent
from rampline.role import run_role
from rampline.run_directory import RunDirectory

# Errors of our own code or of the user's: another attempt would meet them again.
MISTAKES = (ImportError, SyntaxError, NameError, AttributeError, TypeError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a role to its end, or another task of a process with TensorFlow; returns the exit status.

    0 done, 2 wrong input, and the others of `rampline.cluster.exit_status`.
    """
    parser = argparse.ArgumentParser(prog="rampline.worker", description="One role of a run, as TF_CONFIG says.")
    parser.add_argument("run_directories", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument(
        "--evaluate", type=Path, metavar="EVENTS", help="score the best checkpoint of each RUN_DIR instead"
    )
    parser.add_argument("--parity", type=Path, metavar="OUT_DIR", help="compare a few steps with one replica instead")
    parser.add_argument("--replica", type=int, metavar="INDEX", help="RUN_DIR is a plan: measure one replica's work")
    parser.add_argument(
        "--predict", type=Path, metavar="DIR", help="RUN_DIR is an MLflow model: label what DIR/request.json names"
    )
    parser.add_argument("--tune", action="store_true", help="RUN_DIR holds the tuner's request: measure its trials")
    parser.add_argument("--models", action="store_true", help="RUN_DIR names functions: check the models they return")
    parser.add_argument("--data", type=Path, metavar="DIR", help="with --evaluate: the prepared dataset to score on")
    options = parser.parse_args(arguments)
    if os.environ.get("RAMPLINE_PARENT_PID"):
        end_with_parent(int(os.environ["RAMPLINE_PARENT_PID"]))
    try:
        if options.evaluate:
            return _evaluate(options.run_directories, options.evaluate, options.data)
        if options.predict:
            import_tensorflow()
            from rampline.labelling.process import label_folder

            label_folder(options.run_directories[0], options.predict)
            return 0
        if options.tune:
            import_tensorflow()
            from rampline.tuning.measure import measure_trials

            measure_trials(options.run_directories[0])
        if options.models:
            return _check_models(options.run_directories[0])
        if options.replica is not None:
            import_tensorflow()
            from rampline.training.replica import probe_replicas

            return probe_replicas(options.run_directories[0], options.replica)
        return run_role(RunDirectory(options.run_directories[0]), parity=options.parity)
    except Preempted as stop:
        print(f"rampline: {stop}", file=sys.stderr)  # noqa: T201
        return STOPPED
    except RamplineError as error:
        print(f"{ERROR_MARK}{error}", file=sys.stderr)  # noqa: T201
        return error.exit_status if isinstance(error, InputError) else WILL_REPEAT
    except Exception as error:  # noqa: BLE001 - the last line of the log tells the launcher why the role ended
        traceback.print_exc()
        print(f"{ERROR_MARK}{one_line(error)}", file=sys.stderr)  # noqa: T201
        return _status_of(error)


def _status_of(error: Exception) -> int:
    if isinstance(error, MISTAKES):
        return WILL_REPEAT
    tf = sys.modules.get("tensorflow")
    if tf is None:
        return FAILED
    errors = tf.errors
    peers = (errors.UnavailableError, errors.AbortedError, errors.CancelledError, errors.DeadlineExceededError)
    return PEER_LOST if isinstance(error, peers) else FAILED


def _evaluate(run_directories: Sequence[Path], events_file: Path, data: Path | None) -> int:
    import_tensorflow()
    with importing():
        from rampline.evaluation import evaluate_run_directory

    events = EventWriter(events_file)
    for path in run_directories:
        evaluate_run_directory(RunDirectory(path), data)
        events.write("evaluated", run_directory=str(path))
    return 0


def _check_models(exchange: Path) -> int:
    import_tensorflow()
    from rampline.model_contract import MODELS, NOTES
    from rampline.models import check_own_model

    models = read_json(exchange / MODELS)
    notes = [note for model in models for note in check_own_model(**model)]
    write_json(exchange / NOTES, notes)
    return 0


def _has_peers() -> bool:
    """Whether this may be a role of several."""
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        return sum(len(addresses) for addresses in cluster.values()) > 1
    except (ValueError, AttributeError, TypeError):
        return True  # it cannot be read: then an orderly end is the safe one


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `main`, and end the process."""
    status = main(arguments)
    # After a failure TensorFlow's destructors may wait for peers that are gone. After a success they tell the peers;
    # where there are none they take a second for nothing.
    if status or not _has_peers():
        leave(status)
    sys.exit(status)


if __name__ == "__main__":
    run()
