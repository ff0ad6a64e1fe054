"""The life of a role: it learns who it is, meets the others, trains or serves, and stops when it is asked to."""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.data.integrity import check_intact
from rampline.errors import ERROR_MARK, ClusterConfigError, Preempted
from rampline.imports import import_tensorflow
from rampline.jobs.exit_status import PEER_LOST, STOPPED, leave, one_line
from rampline.jobs.heartbeat import Heartbeat
from rampline.jobs.stop import StopRequest
from rampline.jobs.system_metrics import SystemSampler
from rampline.jobs.tf_config import ALONE, Task, parse_tf_config
from rampline.jobs.waiting import POLL_SECONDS, wait_until
from rampline.record.events import EventWriter
from rampline.record.run_directory import RunDirectory

if TYPE_CHECKING:
    import tensorflow as tf

# A parameter server's chief waits while a worker is started again: that is no freeze.
WORKER_RESTART_SECONDS = 120
# For the checkpoint of the chief, which leaves first; shorter than the launcher waits for all of them.
SAVE_SECONDS = 10.0


def run_role(folder: Path) -> int:
    """Train or serve as TF_CONFIG says; returns the exit status.

    Raises:
        ClusterConfigError: when TF_CONFIG, or what it asks for, is wrong.
        Preempted: when the run was asked to stop and has saved a checkpoint.
        RunFailed: when training cannot go on.
    """
    run_directory = RunDirectory(folder)
    if not run_directory.config_file.is_file():
        raise ClusterConfigError(f"{folder} is no run directory: it has no {run_directory.config_file.name}")
    config = run_directory.read_config()
    if accumulate := os.environ.get("RAMPLINE_ACCUMULATE"):
        config = dataclasses.replace(config, batch=dataclasses.replace(config.batch, accumulate=int(accumulate)))
    task = read_task(config)
    if run_directory.is_at_goal:
        return 0
    SystemSampler(run_directory.path / "system" / f"{task.name}.jsonl").start()
    get_ready(config, task)
    if is_server(config, task):
        return _serve(config, task, run_directory)
    return _train(config, task, run_directory, meet(config))


def take_part(config: RunConfig) -> tuple[Task, tf.distribute.Strategy]:
    """Become a role of a job that has those of a run: which one, and the strategy, as soon as they have met.

    A server does what the chief tells it until the process that started the job ends it.
    """
    task = read_task(config)
    get_ready(config, task)
    if is_server(config, task):
        from rampline.training.strategy import serve

        server = serve(task.role, task.index)
        while server:
            signal.pause()
    strategy = meet(config)
    # TensorFlow's multi-worker runtime swallows SIGTERM unless a handler is installed after it.
    signal.signal(signal.SIGTERM, lambda *_: leave(STOPPED))
    return task, strategy


def leave_with(result: Path) -> NoReturn:
    """End the process of such a role, as soon as the chief has written the result: it needs its workers until then."""
    while not result.is_file():
        time.sleep(POLL_SECONDS)
    leave(0)


def get_ready(config: RunConfig, task: Task) -> None:
    """Import TensorFlow, and set up what it must find before its first operation."""
    import_tensorflow()
    from rampline.training.strategy import configure_devices

    configure_devices(config)
    if len(task.cluster) > 1 or config.cluster.workers > 1:
        _guard_server(task)


def is_server(config: RunConfig, task: Task) -> bool:
    """Whether this role does what the chief tells it, and nothing by itself."""
    return config.strategy == "parameter_server" and task.role != "chief"


def meet(config: RunConfig) -> tf.distribute.Strategy:
    """The strategy, as soon as the roles have met; where they do not in time, SIGALRM ends the process."""
    from rampline.training.strategy import make_strategy

    # TensorFlow waits for the other roles for ever, holds the interpreter's lock meanwhile and swallows SIGTERM: no
    # thread and no Python handler would run, so the kernel has to end it.
    signal.alarm(config.cluster.rendezvous_timeout_seconds)
    try:
        return make_strategy(config)
    finally:
        signal.alarm(0)


def read_task(config: RunConfig) -> Task:
    """Which role this process is."""
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


def _serve(config: RunConfig, task: Task, run_directory: RunDirectory) -> int:
    from rampline.training.strategy import serve

    server = serve(task.role, task.index)
    stop, heartbeat = _come_alive(config, task, run_directory)
    while not run_directory.is_at_goal:
        heartbeat.advance("serve")
        if stop.signalled:
            stop.pass_on(task.name)
        if stop.is_saved():
            leave(STOPPED)
        time.sleep(0.5)
    del server
    leave(0)


def _train(config: RunConfig, task: Task, run_directory: RunDirectory, strategy: tf.distribute.Strategy) -> int:
    from rampline.training.controller import Launch
    from rampline.training.engine import StepCallback
    from rampline.training.train import train

    # TensorFlow's multi-worker runtime swallows SIGTERM unless a handler is installed after it.
    stop, heartbeat = _come_alive(config, task, run_directory)
    events = EventWriter(run_directory.events_file) if task.is_chief else None
    if events:
        events.write("met")
    launch = Launch(
        at=float(os.environ.get("RAMPLINE_LAUNCHED_AT", time.monotonic())),
        wall_seconds_before=float(os.environ.get("RAMPLINE_WALL_SECONDS_BEFORE", "0")),
    )
    attempt = int(os.environ.get("RAMPLINE_ATTEMPT", "1"))
    callback = StepCallback(
        advance=heartbeat.advance, should_stop=stop.is_set if task.is_chief else lambda: stop.signalled
    )
    try:
        with _naming_damage(run_directory, heartbeat):
            train(config, task, run_directory, strategy, events, attempt=attempt, launch=launch, callback=callback)
    except Preempted:
        if task.is_chief:
            stop.tell_saved()
        else:
            # The chief may still receive this role's part of the sum in which all agreed to stop.
            wait_until(stop.is_saved, SAVE_SECONDS)
        raise
    except Exception as error:
        if events:
            events.write("failed", message=one_line(error))
        raise
    return 0


@contextmanager
def _naming_damage(run_directory: RunDirectory, heartbeat: Heartbeat) -> Iterator[None]:
    """A file that became unreadable in the middle of training is named, instead of the operation that read it.

    Raises:
        DatasetError: when the dataset is no longer as it was prepared.
    """
    import tensorflow as tf

    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.DataLossError, tf.errors.NotFoundError):
        heartbeat.advance("check")
        dataset = PreparedDataset.open(Path(run_directory.read_identity().dataset))
        check_intact(dataset, everything=True, advance=lambda: heartbeat.advance("check"))
        raise


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
