"""Roles on a Ray node of 3 CPUs train as they do by the local launcher."""

import dataclasses
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from command_line import Rampline, wait_until
from faults import assert_bit_equal
from own_prefect import PrefectServer
from ray_node import actors, make_address
from runs import make_config

from rampline.config import ModelConfig, RunConfig
from rampline.devices import free_ports
from rampline.errors import ClusterConfigError, RunFailed
from rampline.files import read_json
from rampline.jobs import ray_cluster
from rampline.jobs.device_queue import Ticket, hold_devices
from rampline.jobs.job import Job, JobFailed, run_job
from rampline.jobs.launcher import PlaceLost
from rampline.jobs.launchers import launcher_of, launcher_of_jobs, prepare_nodes
from rampline.jobs.mirror import replace_run
from rampline.jobs.ray_cluster import SETTINGS, RayCluster, _address
from rampline.jobs.ray_roles import RayHost, RayNode, RayPlacement
from rampline.jobs.supervisor import _check_room, supervise
from rampline.record.attempts import read_workers
from rampline.record.events import EventReader
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory, RunIdentity

pytestmark = pytest.mark.slow
SERVERS = make_config("parameter_server", workers=2, parameter_servers=1)
# Its data are those of `small_data`.
STUDY = """
name: both
base:
  epochs: 2
  data: {source: digits, image_size: 28, limit: 20}
  model: {name: "small_models:with_all_state"}
  explain: {steps: 0}
  parity: {steps: 0}
runs:
  multi-worker: {set: {strategy: multi_worker, cluster: {workers: 2}}}
  parameter-server: {set: {strategy: parameter_server, cluster: {workers: 2, parameter_servers: 1}}}
"""
JOIN = """
import pathlib, sys
from rampline.jobs import ray_cluster
ray_cluster.CURRENT_CLUSTER = pathlib.Path(sys.argv[1])
print(ray_cluster.connect().get_runtime_context().gcs_address)
"""
LOOK = """
import ray
from runs import make_config
from rampline.jobs.launchers import LAUNCHERS
launcher = LAUNCHERS["ray"](None)
launcher.check(make_config("multi_worker", workers=2))
print(launcher.nodes()[0].cores, ray.is_initialized())
"""
# As a command is interrupted.
HOLD = """
import signal, sys
from rampline.jobs.ray_cluster import connect
signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
connect()
print("connected", flush=True)
signal.pause()
"""


@pytest.fixture
def study(tmp_path: Path) -> str:
    (tmp_path / "both.yaml").write_text(STUDY)
    return str(tmp_path / "both.yaml")


@pytest.fixture(scope="module")
def cluster(prefect_server: PrefectServer) -> Iterator[str]:
    """The address of one node with 3 CPUs, in a cluster of its own.

    With the Prefect server that one of its tests needs all of them run in one process, and there is one cluster.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SETTINGS, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}.items():
            patch.setenv(name, value)
        import ray  # it reads them now

        ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        yield ray.get_runtime_context().gcs_address
        ray.shutdown()


def on_ray(config: RunConfig) -> RunConfig:
    return dataclasses.replace(config, cluster=dataclasses.replace(config.cluster, launcher="ray"))


@pytest.mark.usefixtures("forks", "prepared", "cluster")
def test_a_study_of_both_strategies_ends_with_the_bits_of_a_local_run(
    rampline: Rampline, home: Path, prefect_server: PrefectServer, study: str, tmp_path: Path
) -> None:
    result = rampline("run", study, "--launcher", "ray", "--execution", "e1", prefect=prefect_server.prefect)
    assert (result.returncode, result.stderr) == (0, "")
    runs = [RunDirectory(home / "runs" / "both" / "e1" / name) for name in ("multi-worker", "parameter-server")]
    assert "warning" not in result.stdout
    for run in runs:
        assert f"{run.path.name}: test: 200 images" in result.stdout
    config, local = runs[0].read_config(), RunDirectory(tmp_path / "local")
    alone = dataclasses.replace(config.cluster, launcher="local")
    local.create(dataclasses.replace(config, cluster=alone), runs[0].read_identity())
    supervise(local, on_event=lambda event: None, log=print)
    assert_bit_equal(runs[0], local)
    for run, where in zip([*runs, local], ("Ray", "Ray", "this machine"), strict=True):
        print(f"{run.path.name} on {where}: {start_seconds(run):.1f} s from the attempt to `started`")  # noqa: T201


def start_seconds(run: RunDirectory) -> float:
    (attempt,), (started,) = EventReader(run.attempts_file).read("attempt"), run.read_events("started")
    return started["time"] - attempt["time"]


def test_a_job_of_a_run_is_on_a_node_whose_actor_has_stayed(cluster: str, tmp_path: Path) -> None:
    model = {"name": "small_models:out_of_memory", "image_shape": [8, 8, 1], "classes": 3}
    job = Job(function="models", what="the look", folder=tmp_path / "job", arguments={"models": [model]})
    with pytest.raises(JobFailed, match=f"^the look on {socket.gethostname()} has no memory: MemoryError: 3 GiB"):
        run_job(job, launcher=launcher_of_jobs(on_ray(SERVERS)))
    assert len(actors(psutil.Process())) == 1


def test_a_run_that_the_cluster_can_never_hold_is_refused(cluster: str) -> None:
    config = on_ray(make_config("multi_worker", workers=4))
    assert launcher_of(config).room(config) == 3
    with pytest.raises(ClusterConfigError, match=r"has 3 CPUs and 0 GPUs on 1 nodes: the run's roles need 4 CPUs"):
        launcher_of(config).check(config)


def test_looking_at_the_cluster_starts_no_actor_and_no_cluster(cluster: str, tmp_path: Path) -> None:
    config = on_ray(make_config("multi_worker", workers=2))
    launcher = RayCluster()
    launcher.check(config)
    assert launcher._idle == {}
    launcher.prepare(config)
    assert len(launcher._idle) == 1
    environment = {**os.environ, "RAY_ADDRESS": "local", "RAY_TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "4 False\n"
    assert [*tmp_path.iterdir()] == []


@pytest.mark.usefixtures("four_gpus")
def test_a_cluster_of_this_machine_is_started_with_the_gpus_of_the_commands_turn_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect() -> Any:
        raise ClusterConfigError(f"started with {os.environ['CUDA_VISIBLE_DEVICES']}")

    monkeypatch.setattr(ray_cluster, "connect", connect)
    monkeypatch.setattr(ray_cluster, "RAY", RayCluster())
    monkeypatch.setattr(RayCluster, "is_to_start", True)
    config = on_ray(make_config("multi_worker", workers=1))
    prepare_nodes([config], has_turn=False)
    ticket = Ticket(name="digits/e1", submitted_at=1.0, devices=1)
    turn = hold_devices(Home(root=tmp_path), ticket, slots=4, log=pytest.fail)
    with turn, pytest.raises(ClusterConfigError, match=r"started with 0$"):
        prepare_nodes([config], has_turn=True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(ClusterConfigError, match=r"started with -1$"):  # there is nothing to wait for
        prepare_nodes([config], has_turn=False)


class Interrupted(RayCluster):
    """Ctrl-C while actors are asked."""

    def _begin(self, hosts: object, ports: object, gpus: object) -> None:
        raise KeyboardInterrupt


def test_a_placement_that_is_interrupted_leaves_nothing_reserved(cluster: str) -> None:
    config = on_ray(make_config("multi_worker", workers=3))
    with pytest.raises(KeyboardInterrupt):
        Interrupted().place(config)
    wait_until(lambda: RayCluster().room(config) == 3, 20)


def test_a_node_that_is_lost_before_a_role_starts_there_is_left_out(cluster: str, tmp_path: Path) -> None:
    """The supervisor places the run anew, without what `close` tells."""
    launcher = RayCluster()
    placement = launcher.place(on_ray(make_config("multi_worker", workers=1)))
    (host,) = placement.hosts.values()
    for actor in actors(psutil.Process()):
        actor.kill()
    with pytest.raises(PlaceLost, match="does not answer"):
        placement.start(placement.tasks[0], Job(function="role", folder=tmp_path))
    assert placement.close() == {host.node.id}
    assert launcher._idle == {}


def node(name: str, *, gpus: int = 0) -> RayNode:
    has = {"CPU": 1.0, "GPU": float(gpus)}
    told = {"id": name, "address": name, "port": 1, "name": name, "state": "alive", "cores": 1, "gpus": gpus}
    return RayNode(**told, gpu_kind="H200" if gpus else "", has=has, free=has)


class HalfBroken(RayCluster):
    """Two nodes that answer, on one of which no actor can start."""

    def _nodes(self, avoid: Collection[str] = ()) -> list[RayNode]:
        return [node(name) for name in ("broken", "whole") if name not in avoid]

    def _try(self, config: object, roles: Sequence[Any], shares: object, chosen: Sequence[RayNode]) -> Any:
        silent = {node.id for node in chosen} & {"broken"}
        return (None, silent) if silent else ([role for role, _ in roles], set())


def test_an_elastic_run_is_placed_on_fewer_nodes_where_no_actor_can_start_on_one() -> None:
    elastic, launcher = on_ray(make_config("multi_worker", workers=2, min_workers=1, sum="exact")), HalfBroken()
    assert launcher.room(elastic) == 2
    assert launcher.place(elastic, workers=2) == ["worker"]
    # It would leave at each checkpoint for a node that it cannot have.
    assert launcher.room(elastic) == 1


def test_a_node_that_is_out_of_order_takes_no_place_where_another_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for which it is left out is shorter than that in which an actor has to answer."""
    monkeypatch.setattr(ray_cluster, "AVOID_SECONDS", 0.0)
    config = on_ray(make_config("multi_worker", workers=1))
    assert HalfBroken().place(config) == ["worker"]


def test_an_elastic_run_trains_on_while_the_head_is_silent_at_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "SILENT_SECONDS", 0.0)
    elastic, launcher = on_ray(make_config("multi_worker", workers=2, min_workers=1, sum="exact")), RayCluster()
    launcher.__dict__["_head"] = ("127.0.0.1", free_ports(1)[0])
    with pytest.raises(RunFailed, match=r"^the head of the Ray cluster, .* does not answer"):
        launcher.room(elastic)
    run = SimpleNamespace(is_at_goal=False)
    gang: Any = SimpleNamespace(workers=1, config=elastic, launcher=launcher, run_directory=run)
    _check_room(gang)  # it stops no role


def test_nodes_of_one_kind_count_as_one_machine(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def machine(*nodes: RayNode) -> Any:
        hosts = {f"worker-{i}": RayHost(node, None, cores=16) for i, node in enumerate(nodes)}
        return RayPlacement(
            config=None, tasks=[], group=None, bundles={}, hosts=hosts, head=("h", 1), idle={}, on_close=lambda _: None
        ).machine

    assert machine(node("a")) is None  # this machine is the only one of the cluster
    names = [{"NodeManagerHostname": name} for name in "abc"]
    monkeypatch.setattr("rampline.jobs.ray_roles._ray", lambda: SimpleNamespace(nodes=lambda: names))
    one, two = machine(node("a", gpus=2)), machine(node("a", gpus=2), node("b", gpus=2))
    assert one == two == {"host": "Ray cluster h", "cpu cores": "16", "gpus": "H200, H200"}
    assert machine(node("a", gpus=2), node("c"))["gpus"] == "H200, H200 or none"


@pytest.mark.parametrize("name", ["head/checkpoints/step-00000010", "own.keras"])
def test_a_copy_of_a_run_directory_has_the_weights_in_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of another run of the same execution, of which the node has nothing."""
    weights, run, there = tmp_path / "e1" / name, RunDirectory(tmp_path / "e1" / "all"), tmp_path / "node" / "e1"
    file = weights / "variables.npz" if weights.suffix == "" else weights
    file.parent.mkdir(parents=True)
    (tmp_path / "stored").write_text("trained")
    file.symlink_to(tmp_path / "stored") if file == weights else file.write_text("trained")
    config = RunConfig(model=ModelConfig(weights=str(weights)))
    run.create(config, RunIdentity(study="s", name="all", dataset=""))

    def call(method: str, *arguments: Any, **_: object) -> Any:
        if method == "stage_run":
            replace_run(arguments[1], there / Path(arguments[0]).name)
        return arguments[0] if method == "lacks" else None

    monkeypatch.setattr("rampline.jobs.ray_roles._ray", lambda: SimpleNamespace(put=lambda content: content))
    host: Any = SimpleNamespace(call=call, copies=None)
    job = Job(function="role", folder=run.path)
    RayPlacement._stage(SimpleNamespace(tasks=[], hosts={}), host, job, run.path / "log")  # type: ignore[arg-type]
    assert run.read_config() == config
    found = Path(RunDirectory(there / "all").read_config().model.weights)
    assert found == there / "all" / "weights" / weights.name
    assert (found / "variables.npz" if found.is_dir() else found).read_text() == "trained"
    # A checkpoint of its own has them in it; the parity check begins from the others all the same.
    (run.checkpoints / "step-00000010").mkdir(parents=True)
    for function in ("role", "parity"):
        job, host = dataclasses.replace(job, function=function), SimpleNamespace(call=call, copies=None)
        RayPlacement._stage(SimpleNamespace(tasks=[], hosts={}), host, job, run.path / "log")  # type: ignore[arg-type]
        assert (there / "all" / "checkpoints" / "step-00000010").is_dir()
        assert (there / "all" / "weights").exists() == (function == "parity")


def test_whatever_ends_the_hearing_of_a_node_loses_it(cluster: str) -> None:
    import ray

    def take(host: RayHost, update: object) -> bool:
        raise MemoryError

    updates = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: [ray.put("update")]))
    host = RayHost(node("a"), SimpleNamespace(updates=updates))
    host.follow(take)
    assert host.follower
    host.follower.join()
    assert host.why_lost == "node a is lost (MemoryError)"


def test_a_cluster_that_lets_in_without_a_token_is_told_of() -> None:
    code = "from rampline.jobs.ray_roles import token_warning; print(token_warning())"
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.startswith("the Ray cluster has no token (RAY_AUTH_MODE): ")


def test_without_a_name_only_a_cluster_of_ones_own_is_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other users may put what they like where the address is, and have clusters that Ray's `auto` would take."""
    current, own = tmp_path / "ray_current_cluster", tmp_path / "own"
    monkeypatch.setattr("rampline.jobs.ray_cluster.CURRENT_CLUSTER", current)
    for variable in ("", "auto"):
        monkeypatch.setenv("RAY_ADDRESS", variable)
        assert _address() == "local"
        current.write_text("10.0.0.1:6379\n")
        with pytest.raises(ClusterConfigError, match=r"^no node of the Ray cluster 10\.0\.0\.1:6379, "):
            _address()
        current.rename(own)
        current.symlink_to(own)
        assert _address() == "local"
        current.unlink()
        os.mkfifo(current)
        assert _address() == "local"
        current.unlink()
    current.write_text("10.0.0.1:6379")
    hidden = SimpleNamespace(info={"uids": None, "cmdline": None})  # as other users' processes are with hidepid
    with monkeypatch.context() as patched:
        patched.setattr(psutil, "process_iter", lambda _: [hidden])
        with pytest.raises(ClusterConfigError, match=r"^no node of the Ray cluster"):
            _address()
    monkeypatch.setattr(os, "getuid", lambda: current.stat().st_uid + 1)
    assert _address() == "local"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    assert _address() == "10.0.0.2:6379"


def test_a_named_cluster_that_does_not_answer_is_told_of() -> None:
    """By Ray itself after more than ten minutes."""
    environment = {**os.environ, **make_address()}
    command = [sys.executable, "-c", "from rampline.jobs.ray_cluster import connect; connect()"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    address = environment["RAY_ADDRESS"]
    assert f"ClusterConfigError: no Ray cluster answers at RAY_ADDRESS={address}: start it" in told.stderr


def test_the_cluster_that_this_user_has_started_is_joined(cluster: str, tmp_path: Path) -> None:
    (tmp_path / "current").write_text(cluster)
    command, unnamed = [sys.executable, "-c", JOIN, str(tmp_path / "current")], {**os.environ, "RAY_ADDRESS": ""}
    joined = subprocess.run(command, env=unnamed, capture_output=True, text=True, check=False)
    assert joined.stdout == f"{cluster}\n", joined.stderr


def test_the_sockets_of_a_cluster_of_ones_own_are_closed_to_others_and_go_with_the_command() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        environment = {**os.environ, "RAY_ADDRESS": "local", "RAY_TMPDIR": folder}
        with subprocess.Popen([sys.executable, "-c", HOLD], env=environment, stdout=subprocess.PIPE) as command:
            assert command.stdout
            assert command.stdout.readline() == b"connected\n"
            (around,) = Path(folder).iterdir()
            assert around.stat().st_mode & 0o777 == 0o700
            assert {"plasma_store", "raylet"} <= {path.name for path in around.glob("*/session_latest/sockets/*")}
            command.terminate()
        assert command.returncode == 128 + signal.SIGTERM
        assert [*Path(folder).iterdir()] == []


class Holder:
    """Holds what it reserves."""


@pytest.mark.long
def test_an_elastic_run_leaves_what_others_need_and_takes_it_back(make_run, cluster: str) -> None:
    """With `sum: exact` the weights are those of a run that had two workers all the time."""
    import ray

    elastic = make_config("multi_worker", model="small_models:with_all_state", workers=2, min_workers=1, sum="exact")
    elastic = dataclasses.replace(elastic, epochs=30)
    whole, run = make_run(elastic), make_run(on_ray(elastic))
    supervise(whole, on_event=lambda event: None, log=print)
    lines, holders, attempts = list[str](), list[Any](), list[int]()

    def hear(event: dict) -> None:
        if event["event"] == "started":
            attempts.append(event["attempt"])
        if event["event"] != "epoch":
            return
        if len(attempts) == 1 and not holders:
            holders.append(ray.remote(num_cpus=2)(Holder).remote())
            roles = read_json(run.roles_file)["roles"]
            os.kill(next(role["pid"] for role in roles if role["index"] == 1), signal.SIGKILL)
        elif len(attempts) == 2 and holders:
            ray.kill(holders.pop())

    supervise(run, on_event=hear, log=lines.append)
    assert read_workers(run.attempts_file) == [2, 1, 2]
    assert sum("there is room for 2 workers instead of 1" in line for line in lines) == 1
    assert_bit_equal(run, whole)
