"""One role of a run: `python -m rampline.worker RUN_DIR`. It learns from TF_CONFIG who it is."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rampline.cluster.process import ERROR_MARK
from rampline.cluster.tf_config import Task, parse_tf_config
from rampline.config import RunConfig
from rampline.errors import ClusterConfigError, RamplineError
from rampline.events import EventWriter
from rampline.parent import end_with_parent
from rampline.run_directory import RunDirectory
from rampline.system_metrics import SystemSampler


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a role to its end, or evaluate finished runs; returns the exit status (0, 1 failed, 2 wrong input)."""
    parser = argparse.ArgumentParser(prog="rampline.worker", description="One role of a run, as TF_CONFIG says.")
    parser.add_argument("run_directories", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument(
        "--evaluate", type=Path, metavar="EVENTS", help="score the best checkpoint of each RUN_DIR instead"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="with --evaluate: the prepared dataset to score on")
    options = parser.parse_args(arguments)
    if os.environ.get("RAMPLINE_PARENT_PID"):
        end_with_parent(int(os.environ["RAMPLINE_PARENT_PID"]))
    try:
        if options.evaluate:
            return _evaluate(options.run_directories, options.evaluate, options.data)
        return run_role(RunDirectory(options.run_directories[0]))
    except RamplineError as error:
        print(f"{ERROR_MARK}{error}", file=sys.stderr)  # noqa: T201
        return error.exit_status
    except Exception as error:  # noqa: BLE001 - the last line of the log tells the launcher why the role ended
        traceback.print_exc()
        print(f"{ERROR_MARK}{_one_line(error)}", file=sys.stderr)  # noqa: T201
        return 1


def _evaluate(run_directories: Sequence[Path], events_file: Path, data: Path | None) -> int:
    from rampline.evaluation import evaluate_run_directory

    events = EventWriter(events_file)
    for path in run_directories:
        evaluate_run_directory(RunDirectory(path), data)
        events.write("evaluated", run_directory=str(path))
    return 0


def run_role(run_directory: RunDirectory) -> int:
    """Train, or serve, as TF_CONFIG says.

    Raises:
        ClusterConfigError: when TF_CONFIG, or what it asks for, is wrong.
        RunFailed: when training cannot go on.
    """
    if not run_directory.config_file.is_file():
        raise ClusterConfigError(
            f"{run_directory.path} is no run directory: it has no {run_directory.config_file.name}"
        )
    config = run_directory.read_config()
    task = _read_task(config)
    if run_directory.is_complete:
        return 0
    SystemSampler(run_directory.path / "system" / f"{task.name}.jsonl").start()
    from rampline.training.strategy import configure_devices

    configure_devices(config)
    if len(task.cluster) > 1 or config.cluster.workers > 1:
        _guard_server(task)
    if config.strategy == "parameter_server" and task.role != "chief":
        return _serve(task, run_directory)
    return _train(config, task, run_directory)


def _read_task(config: RunConfig) -> Task:
    text = os.environ.get("TF_CONFIG")
    if text:
        return parse_tf_config(text, config)
    if config.strategy in ("single", "mirrored"):
        return Task(cluster={"chief": ("127.0.0.1:0",)}, role="chief", index=0)
    raise ClusterConfigError(f"TF_CONFIG is not set: a role of strategy {config.strategy} needs it")


def _guard_server(task: Task) -> None:
    """TensorFlow's gRPC server has no authentication: keep it on loopback where the cluster is, else warn."""
    from rampline.cluster.loopback import listen_on_loopback

    if task.is_on_loopback and listen_on_loopback():
        return
    address = task.cluster[task.role][task.index]
    warning = "TensorFlow's gRPC server has no authentication and listens on every interface"
    print(f"rampline: warning: {warning} (port of {address}): use a private network")  # noqa: T201


def _serve(task: Task, run_directory: RunDirectory) -> int:
    from rampline.training.strategy import serve

    server = serve(task.role, task.index)
    _leave_on_sigterm()
    while not run_directory.is_complete:
        time.sleep(0.5)
    del server
    # A TensorFlow server has no stop; the process ends without waiting for it.
    sys.stdout.flush()
    os._exit(0)


def _train(config: RunConfig, task: Task, run_directory: RunDirectory) -> int:
    from rampline.training.run import train
    from rampline.training.strategy import make_strategy

    with _rendezvous_deadline(config.cluster.rendezvous_timeout_seconds):
        strategy = make_strategy(config)
    _leave_on_sigterm()
    events = EventWriter(run_directory.events_file) if task.is_chief else None
    launched_at = float(os.environ.get("RAMPLINE_LAUNCHED_AT", time.time()))
    try:
        train(config, task, run_directory, strategy, events, launched_at)
    except Exception as error:
        if events:
            events.write("failed", message=_one_line(error))
        raise
    return 0


def _leave_on_sigterm() -> None:
    """TensorFlow's multi-worker runtime swallows SIGTERM unless a handler is installed after it."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))


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


def _one_line(error: BaseException) -> str:
    """The first line of an error that says something: TensorFlow puts the graph's call stack before it."""
    noise = ("Graph execution error", "Detected at node", "File ", "<stack traces", "Traceback")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(noise)] or lines
    return f"{type(error).__name__}: {telling[0] if telling else 'no message'}"[:500]


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # After a failure TensorFlow's destructors may wait for peers that are gone.
    if status:
        os._exit(status)
