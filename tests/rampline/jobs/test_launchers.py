"""Which launcher a run has, by its configuration and TF_CONFIG."""

import json
import socket
from types import SimpleNamespace

import pytest
from runs import make_config

from rampline.config import RunConfig
from rampline.devices import available_cores
from rampline.errors import ClusterConfigError
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


def test_an_elastic_run_in_slurm_is_no_smaller_because_the_controller_is_silent_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([None, {"n1": "10.0.0.1", "n2": "10.0.0.2"}])
    known: list[dict[str, str] | None] = []

    def nodes(_: str) -> dict[str, str] | None:
        known.append(next(answers, known[-1] if known else None))
        return known[-1]

    def start(nodes: dict[str, str], *, ports: int) -> list[SimpleNamespace]:
        running = SimpleNamespace(poll=lambda: None)
        return [SimpleNamespace(node=n, address=a, ports=[1], step=running) for n, a in nodes.items()]

    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setattr(slurm, "_nodes", nodes)
    monkeypatch.setattr(slurm, "_start_agents", start)
    config = make_config("multi_worker", workers=3, min_workers=1, sum="exact", launcher="slurm")
    assert [task.address for task in _place(slurm.Slurm(), config).tasks] == ["10.0.0.1:1", "10.0.0.2:1"]
