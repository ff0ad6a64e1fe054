"""The life of one role: who it is (TF_CONFIG), the rendezvous, then training, serving, or a parity check."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rampline.cluster.exit_status import PEER_LOST, STOPPED, leave, one_line
from rampline.cluster.process import ERROR_MARK
from rampline.cluster.tf_config import ALONE, Task, parse_tf_config
from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.data.integrity import check_intact
from rampline.errors import ClusterConfigError, Preempted
from rampline.events import EventWriter
from rampline.heartbeat import Heartbeat
from rampline.imports import import_tensorflow
from rampline.parity import read_checked_config
from rampline.run_directory import RunDirectory
from rampline.stop import StopRequest
from rampline.system_metrics import SystemSampler
from rampline.tuning.memory import be_first_to_end

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
        from rampline.training.parity import check_role

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
    from rampline.cluster.loopback import listen_on_loopback

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
    from rampline.training.clock import Launch
    from rampline.training.lifeline import Lifeline
    from rampline.training.run import train

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
