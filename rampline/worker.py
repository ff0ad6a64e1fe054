"""The entry point of all TensorFlow processes: `python -m rampline.worker RUN_DIR`, one role of a run."""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.data.integrity import check_intact
from rampline.errors import ClusterConfigError, InputError, Preempted, RamplineError
from rampline.files import read_json, write_json
from rampline.imports import import_tensorflow, importing
from rampline.jobs.exit_status import FAILED, PEER_LOST, STOPPED, WILL_REPEAT, leave, one_line
from rampline.jobs.fork_server import FORK_SERVER, serve
from rampline.jobs.heartbeat import Heartbeat
from rampline.jobs.memory import be_first_to_end
from rampline.jobs.parent import end_with_parent
from rampline.jobs.process import ERROR_MARK
from rampline.jobs.stop import StopRequest
from rampline.jobs.system_metrics import SystemSampler
from rampline.jobs.tf_config import ALONE, Task, parse_tf_config
from rampline.parity.check import read_checked_config
from rampline.record.events import EventWriter
from rampline.record.run_directory import RunDirectory

# A parameter server's chief waits while a worker is started again: that is no freeze.
WORKER_RESTART_SECONDS = 120


def run_role(run_directory: RunDirectory, *, parity: Path | None = None) -> int:
    """Train, serve, or check parity, as TF_CONFIG says.

    Raises:
        ClusterConfigError: when TF_CONFIG, or what it asks for, is wrong.
        Preempted: when the run was asked to stop and has saved a checkpoint.
        RunFailed: when training cannot go on.
    """
    if not run_directory.config_file.is_file():
        raise ClusterConfigError(
            f"{run_directory.path} is no run directory: it has no {run_directory.config_file.name}"
        )
    config = run_directory.read_config()
    if parity:
        be_first_to_end()
        config = read_checked_config(parity)
    task = _read_task(config)
    if run_directory.is_complete and not parity:
        return 0
    if not parity:
        SystemSampler(run_directory.path / "system" / f"{task.name}.jsonl").start()
    import_tensorflow()
    from rampline.training.strategy import configure_devices, make_strategy

    configure_devices(config)
    if len(task.cluster) > 1 or config.cluster.workers > 1:
        _guard_server(task)
    if config.strategy == "parameter_server" and task.role != "chief":
        return _serve(config, task, run_directory, is_check=parity is not None)
    with _rendezvous_deadline(config.cluster.rendezvous_timeout_seconds):
        strategy = make_strategy(config)
    if parity:
        from rampline.parity.steps import check_role

        return check_role(config, task, run_directory, strategy, parity)
    return _train(config, task, run_directory, strategy)


def _read_task(config: RunConfig) -> Task:
    text = os.environ.get("TF_CONFIG")
    if text:
        return parse_tf_config(text, config)
    if config.strategy in ("single", "mirrored"):
        return ALONE
    raise ClusterConfigError(f"TF_CONFIG is not set: a role of strategy {config.strategy} needs it")


def _guard_server(task: Task) -> None:
    """TensorFlow's gRPC server has no authentication: keep it on loopback where the cluster is, else warn."""
    from rampline.jobs.loopback import listen_on_loopback

    if task.is_on_loopback and listen_on_loopback(task.host):
        return
    warning = task.network_warning or "TensorFlow's gRPC server could not be kept on loopback: any interface reaches it"
    print(f"rampline: warning: {warning}")  # noqa: T201


def _serve(config: RunConfig, task: Task, run_directory: RunDirectory, *, is_check: bool) -> int:
    from rampline.training.strategy import serve

    server = serve(task.role, task.index)
    if is_check:
        while True:  # until whoever started the check ends it
            signal.pause()
    stop, heartbeat = _come_alive(config, task, run_directory)
    while not run_directory.is_complete:
        heartbeat.advance("serve")
        if stop.signalled:
            stop.pass_on(task.name)
        if stop.is_saved():
            leave(STOPPED)
        time.sleep(0.5)
    del server
    leave(0)


def _train(config: RunConfig, task: Task, run_directory: RunDirectory, strategy: Any) -> int:
    from rampline.training.controller import Launch
    from rampline.training.engine import Lifeline
    from rampline.training.train import train

    # TensorFlow's multi-worker runtime swallows SIGTERM unless a handler is installed after it.
    stop, heartbeat = _come_alive(config, task, run_directory)
    events = EventWriter(run_directory.events_file) if task.is_chief else None
    launch = Launch(
        at=float(os.environ.get("RAMPLINE_LAUNCHED_AT", time.monotonic())),
        wall_seconds_before=float(os.environ.get("RAMPLINE_WALL_SECONDS_BEFORE", "0")),
    )
    attempt = int(os.environ.get("RAMPLINE_ATTEMPT", "1"))
    lifeline = Lifeline(advance=heartbeat.advance, should_stop=stop.is_set if task.is_chief else lambda: stop.signalled)
    try:
        train(config, task, run_directory, strategy, events, attempt=attempt, launch=launch, lifeline=lifeline)
    except Preempted:
        if task.is_chief:
            stop.tell_saved()
        raise
    except Exception as error:
        _look_at_data(error, run_directory)
        if events:
            events.write("failed", message=one_line(error))
        raise
    return 0


def _look_at_data(error: Exception, run_directory: RunDirectory) -> None:
    """A file that became unreadable in the middle of training is named, instead of the operation that read it.

    Raises:
        DatasetError: when the dataset is no longer as it was prepared.
    """
    import tensorflow as tf

    if isinstance(error, tf.errors.InvalidArgumentError | tf.errors.DataLossError | tf.errors.NotFoundError):
        dataset = PreparedDataset.open(Path(run_directory.read_identity().dataset))
        check_intact(dataset, everything=True)


def _come_alive(config: RunConfig, task: Task, run_directory: RunDirectory) -> tuple[StopRequest, Heartbeat]:
    """Begin to listen for a stop, and to beat: the rendezvous before holds the interpreter's lock."""
    stop = StopRequest(run_directory.stop_file)
    stop.listen()
    timeout = config.cluster.heartbeat_timeout_seconds
    patience = timeout if config.is_synchronous else timeout + WORKER_RESTART_SECONDS
    heartbeat = Heartbeat(run_directory.heartbeat_file(task.name), timeout_seconds=patience, on_overdue=_give_up)
    heartbeat.start()
    return stop, heartbeat


def _give_up(call: str, seconds: float) -> None:
    """The main thread waits for something that does not come: a peer behind a dead network, or a deadlock."""
    faulthandler.dump_traceback()
    print(f"{ERROR_MARK}no {call} call has come back for {seconds:.0f} s", file=sys.stderr)  # noqa: T201
    leave(PEER_LOST)


@contextmanager
def _rendezvous_deadline(seconds: int) -> Iterator[None]:
    """End the process with SIGALRM unless the block is left in time.

    TensorFlow waits for the other roles for ever, holds the interpreter's lock meanwhile and swallows SIGTERM: no
    thread and no Python handler would run, so the kernel has to do it.
    """
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


# What the fork server imports for all its workers.
OF_EVERY_WORKER = ("rampline.training.train", "rampline.training.strategy", "rampline.training.evaluation")
OF_EVERY_WORKER += ("rampline.parity.steps", "rampline.explain.replica_process")
# Errors of our own code or of the user's: another attempt would meet them again.
MISTAKES = (ImportError, SyntaxError, NameError, AttributeError, TypeError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a role to its end, or another task of a process with TensorFlow; returns the exit status.

    0 done, 2 wrong input, and the others of `rampline.jobs.exit_status`.
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
            from rampline.registry.labelling import label_folder

            label_folder(options.run_directories[0], options.predict)
            return 0
        if options.tune:
            import_tensorflow()
            from rampline.tuning.bench import measure_trials

            measure_trials(options.run_directories[0])
        if options.models:
            return _check_models(options.run_directories[0])
        if options.replica is not None:
            import_tensorflow()
            from rampline.explain.replica_process import probe_replicas

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
        from rampline.training.evaluation import evaluate_run_directory

    events = EventWriter(events_file)
    for path in run_directories:
        evaluate_run_directory(RunDirectory(path), data)
        events.write("evaluated", run_directory=str(path))
    return 0


def _check_models(exchange: Path) -> int:
    import_tensorflow()
    from rampline.training.model_contract import MODELS, NOTES
    from rampline.training.models import check_own_model

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
    run(serve(OF_EVERY_WORKER) if sys.argv[1:2] == [FORK_SERVER] else None)
