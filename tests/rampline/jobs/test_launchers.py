"""Which launcher a run has, by its configuration and TF_CONFIG."""

import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from runs import make_config

from rampline.config import RunConfig
from rampline.devices import available_cores
from rampline.errors import ClusterConfigError, Preempted, RunFailed
from rampline.jobs import slurm
from rampline.jobs.launchers import LAUNCHERS, launcher_of
from rampline.jobs.local import LOCAL
from rampline.jobs.supervisor import _place

TWO = {"worker": ["127.0.0.1:20001", "127.0.0.1:20002"]}


def config_of(strategy: str, launcher: str) -> RunConfig:
    return make_config(strategy, workers=2 if strategy == "multi_worker" else 1, launcher=launcher)


@pytest.mark.parametrize("launcher", ["local", "hand"])
def test_tf_config_says_which_role_is_started_here(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": TWO, "task": {"type": "worker", "index": 0}}))
    config = config_of("multi_worker", launcher)
    (task,) = launcher_of(config).place(config).tasks
    assert task.address == TWO["worker"][0]
    assert launcher_of(config_of("single", launcher)) is LOCAL
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": TWO, "task": {"type": "worker", "index": 1}}))
    with pytest.raises(ClusterConfigError, match="TF_CONFIG names worker 1: a run is started as worker 0"):
        launcher_of(config)


def test_by_hand_a_run_of_several_processes_needs_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert launcher_of(config_of("multi_worker", "local")) is LOCAL
    assert launcher_of(config_of("mirrored", "hand")) is LOCAL
    with pytest.raises(ClusterConfigError, match="hand needs TF_CONFIG"):
        launcher_of(config_of("multi_worker", "hand"))


@pytest.mark.parametrize("launcher", ["local", "hand"])
def test_this_machine_is_the_only_node(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rampline.devices._gpus_of_driver", lambda: ("NVIDIA H100", "NVIDIA H100"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (node,) = LAUNCHERS[launcher](RunConfig()).nodes()
    assert (node.name, node.gpus, node.gpu_kind) == (socket.gethostname(), 2, "NVIDIA H100")
    assert node.cores == available_cores()


def test_slurm_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ClusterConfigError, match="Slurm does not answer: `sinfo` says why"):
        LAUNCHERS["slurm"](RunConfig()).nodes()


def add_command(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is found before all others, as `bash` reads it."""
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "7")


# The first two times it fails; what it was asked is in the file `asked`.
LATE = 'echo "$@" >> {0}/asked; [ $(wc --lines < {0}/asked) -gt 2 ] && echo RUNNING'


def test_a_job_in_slurm_goes_on_although_slurm_is_silent_for_a_moment_when_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, asked = list[str](), tmp_path / "asked"
    monkeypatch.setattr("signal.pthread_sigmask", lambda *_: None)
    for command in ("squeue", "scontrol"):
        add_command(tmp_path, command, LATE.format(tmp_path), monkeypatch)
    assert slurm.is_running(lines.append)
    asked.unlink()
    slurm._requeue(lines.append)
    assert asked.read_text().splitlines() == ["requeue 7"] * 3 + ["update jobid=7 starttime=now+10"]
    assert lines == []


def test_a_job_that_slurm_does_not_queue_again_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list[str]()
    monkeypatch.setattr("signal.pthread_sigmask", lambda *_: None)
    monkeypatch.setattr(slurm, "LEAVE_SECONDS", 0.0)
    for command in ("squeue", "scontrol"):
        add_command(tmp_path, command, "exit 1", monkeypatch)
    assert not slurm.is_running(lines.append)
    slurm._requeue(lines.append)
    assert lines == [
        "job 7 is not queued again: Slurm does not answer, `squeue` says why",
        "job 7 is not queued again: Slurm does not take it, `scontrol requeue 7` says why",
    ]


def test_a_job_that_has_all_its_nodes_and_too_few_is_not_queued_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would begin, find the same, and be queued again, for ever."""
    config = make_config("multi_worker", workers=2, launcher="slurm")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(slurm, "_nodes", lambda _: {"n1": "10.0.0.1"})
    for nodes, error in (("1", RunFailed), ("2", Preempted)):
        monkeypatch.setenv("SLURM_JOB_NUM_NODES", nodes)
        with pytest.raises(error, match="job 7 of Slurm has 1 of the 2 nodes that the run needs"):
            slurm.Slurm().place(config)


def test_nodes_of_a_hidden_partition_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_command(tmp_path, "squeue", "echo n1", monkeypatch)
    listed = '[ "$1" = --all ] && case "$*" in *--Format*) echo n1 own idle 0/2/0/2 "(null) (null)" 4000;;'
    add_command(tmp_path, "sinfo", f"{listed} *) echo n1 idle 10.0.0.1;; esac; exit 0", monkeypatch)
    (node,) = LAUNCHERS["slurm"](RunConfig()).nodes()
    assert (node.name, node.cores, node.groups) == ("n1", 2, ("own",))
    assert slurm._nodes("7") == {"n1": "10.0.0.1"}


def test_an_elastic_run_in_slurm_is_no_smaller_because_the_controller_is_silent_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([None, {"n1": "10.0.0.1", "n2": "10.0.0.2"}])

    def nodes(_: str) -> dict[str, str] | None:
        return next(answers, None)

    def start(nodes: dict[str, str], *, ports: int) -> list[SimpleNamespace]:
        running = SimpleNamespace(poll=lambda: None)
        return [SimpleNamespace(node=n, address=a, ports=[1], step=running) for n, a in nodes.items()]

    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setattr(slurm, "_nodes", nodes)
    monkeypatch.setattr(slurm, "_start_agents", start)
    config = make_config("multi_worker", workers=3, min_workers=1, sum="exact", launcher="slurm")
    assert [task.address for task in _place(slurm.Slurm(), config).tasks] == ["10.0.0.1:1", "10.0.0.2:1"]
