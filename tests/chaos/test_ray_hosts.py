"""A Ray cluster of a head and three nodes, each with disks of its own: nodes, the driver and the head are lost.

And forecasts, where the link between the nodes is bad.
"""

import contextlib
import dataclasses
import os
import re
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from command_line import UNHURRIED, wait_until
from faults import assert_bit_equal, examples_seen, recoveries
from hosts import Host, why_not
from ray_hosts import BIN, RayHosts, RayRun, make_ray_hosts, put, supervise_on
from table import Table

from rampline.explain.explanation import Explanation
from rampline.files import read_json
from rampline.forecast.forecast import Forecast
from rampline.jobs.supervisor import supervise
from rampline.record.attempts import read_workers, tell_attempts
from rampline.record.events import EventReader
from rampline.record.run_directory import RunDirectory, RunIdentity

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]
# What the issue of the launcher asks for.
NOTICED_SECONDS, TRAINS_AGAIN_SECONDS = 15, 45
GONE_SECONDS = 20
# And that of forecasts.
MOST_FORECAST_ERROR = 0.15
LINKED = """
name: linked
base:
  epochs: 4
  strategy: multi_worker
  data: {source: digits, image_size: 28}
  batch: {size: 8, per: replica}
  cluster: {launcher: ray, workers: 2}
  parity: {steps: 0}
runs: {two: {}}
"""

CHAINED = """
name: chained
base:
  epochs: 1
  strategy: multi_worker
  data: {source: digits, image_size: 28, limit: 20}
  cluster: {launcher: ray, workers: 2}
  explain: {steps: 0}
  parity: {steps: 2}
runs:
  head: {}
  all: {set: {model: {weights: "run:head"}}}
"""


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHosts]:
    with make_ray_hosts(tmp_path_factory.mktemp("ray")) as made:
        yield made


@pytest.fixture
def run_on(bed: RayHosts, uninterrupted, chaos_dataset: Path, request: pytest.FixtureRequest) -> Callable[..., RayRun]:
    """`run_on(host)`: the run, supervised on a host of a whole cluster, once it has trained for two epochs."""
    # Before the test names a host: the head may be another one afterwards.
    bed.mend()

    def start(host: Host, **changes: object) -> RayRun:
        at, dataset = bed.disk / request.node.name / "run", bed.disk / "data"
        if not host.see(dataset).exists():
            put(chaos_dataset, host, dataset)
        config = dataclasses.replace(uninterrupted("multi_worker").read_config(), **changes)
        config = dataclasses.replace(config, cluster=dataclasses.replace(config.cluster, launcher="ray"))
        identity = RunIdentity(study="chaos", name="ray", dataset=str(dataset))
        RunDirectory(host.see(at)).create(config, identity)
        run = supervise_on(bed, host, at, request.node.name)
        run.wait_for(lambda: len(run.events("epoch")) >= 2, 150, "two epochs")
        return run

    return start


def node_of(run: RayRun, role: str) -> Host:
    """Where a role is."""
    roles = read_json(run.directory.roles_file)["roles"]
    address = next(r["address"] for r in roles if f"{r['role']}-{r['index']}" == role)
    return next(host for host in run.cluster.hosts if host.address == address.partition(":")[0])


def check(run: RayRun, hit: float, fault: str, uninterrupted: Callable[[str], RunDirectory], table: Table) -> None:
    """The run ends with the bits of one that nothing happened to, and what the fault cost is within its bounds."""
    run.wait_for(lambda: run.command.poll() is not None, 240, "the end of the run")
    assert_bit_equal(run.directory, uninterrupted("multi_worker"))
    assert examples_seen(run.directory) == examples_seen(uninterrupted("multi_worker"))
    (cost,) = recoveries(run.directory, [hit])
    row = (f"Ray: {fault}, multi_worker, private disks", "mid-epoch", "1", f"{cost.detected_after:.1f}")
    table.add_row(*row, f"{cost.resumed_after:.1f}", str(cost.steps_repeated), "weights bit-equal")
    assert cost.detected_after < NOTICED_SECONDS
    assert cost.resumed_after - cost.detected_after < TRAINS_AGAIN_SECONDS


def test_a_raylet_is_killed(bed, run_on, uninterrupted, table: Table) -> None:
    run = run_on(bed.head)
    victim, hit = node_of(run, "worker-1"), time.time()
    os.kill(bed.raylet(victim), signal.SIGKILL)
    check(run, hit, "raylet killed", uninterrupted, table)
    before, after = (row[1].split(", ") for row in tell_attempts(run.directory))
    assert (len(before), len(after), {*before} - {*after}) == (2, 2, {victim.name})
    assert not bed.roles(victim)


def test_a_node_is_powered_off_in_silence(bed, run_on, uninterrupted, table: Table) -> None:
    run = run_on(bed.head)
    victim, hit = node_of(run, "worker-1"), time.time()
    bed.hosts.power_off(victim)
    check(run, hit, "node powered off", uninterrupted, table)


def test_a_node_is_cut_off(bed, run_on, uninterrupted, table: Table) -> None:
    """That of the chief: what it writes meanwhile is on its own disk, and goes no further."""
    run = run_on(bed.head)
    victim, hit = node_of(run, "worker-0"), time.time()
    bed.hosts.cut(victim)
    check(run, hit, "node of the chief cut off", uninterrupted, table)


def test_the_driver_is_asked_to_stop(bed, run_on, uninterrupted, table: Table) -> None:
    run = run_on(bed.head)
    hit = time.time()
    run.signal_driver(signal.SIGTERM)
    run.wait_for(lambda: not any(map(bed.roles, bed.hosts)), GONE_SECONDS, "no role on any host")
    gone = time.time() - hit
    run.command.wait(timeout=GONE_SECONDS)
    (stopped,) = run.events("stopped")
    again = supervise_on(bed, run.host, run.at, "again")
    again.wait_for(lambda: again.command.poll() is not None, 240, "the end of the run")
    (resumed,) = run.events("started", since=hit)
    per_epoch = resumed["steps_per_epoch"]
    assert resumed["first_step"] == (stopped["epoch"] - 1) * per_epoch + stopped["step"] % per_epoch
    assert_bit_equal(again.directory, uninterrupted("multi_worker"))
    saved = f"{stopped['time'] - hit:.1f} (saved)"
    table.add_row("Ray: SIGTERM to the driver", "mid-epoch", "1", saved, f"{gone:.1f} (all gone)", "0", "bit-equal")


def test_a_flow_run_of_a_deployment_is_cancelled(bed: RayHosts, table: Table) -> None:
    """From its request on, which a command makes that takes seconds to start."""
    bed.mend()
    home = bed.disk / "home"
    environment = bed.environment | {"RAMPLINE_HOME": str(home)}

    def call(*command: str) -> str:
        done = bed.head.run([str(BIN / command[0]), *command[1:]], env=environment)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def train() -> bool:
        files = bed.head.see(home).glob("runs/unhurried/*/multi-worker/events.jsonl")
        return any(list(EventReader(file).read("epoch"))[1:] for file in files)

    call("rampline", "up", "--detach")
    login = f"rampline:{bed.head.see(home / 'servers/secret').read_text()}"
    environment |= {"PREFECT_API_URL": "http://127.0.0.1:4200/api", "PREFECT_API_AUTH_STRING": login}
    given = (f"study={UNHURRIED}", 'only=["multi-worker"]', "launcher=ray")
    said = call("prefect", "deployment", "run", "study/study", *(word for text in given for word in ("-p", text)))
    wait_until(train, 150)
    assert [len(bed.roles(host)) for host in bed.hosts].count(1) == 2
    hit = time.time()
    call("prefect", "flow-run", "cancel", said.partition("UUID:")[2].split()[0])
    gone = wait_until(lambda: not any(map(bed.roles, bed.hosts)), GONE_SECONDS) + time.time() - hit
    call("rampline", "down")
    table.add_row("Ray: flow run cancelled in Prefect", "mid-epoch", "1", "-", f"{gone:.1f} (all gone)", "-", "-")


def test_all_that_runs_tensorflow_for_a_run_is_on_the_nodes(bed: RayHosts, table: Table) -> None:
    """Nodes of one CPU without a shared disk; the command is on the head, which has none."""
    bed.mend()
    home, began = bed.disk / "whole", time.time()
    command = (str(BIN / "rampline"), "run", "digits", "--only", "multi-worker", "--launcher", "ray")
    running = bed.start(bed.head, [*command], "whole", RAMPLINE_HOME=str(home))
    seen: dict[bool, set[str]] = {True: set(), False: set()}
    while running.poll() is None:
        for host in bed.hosts:
            for pid in bed.roles(host):
                with contextlib.suppress(psutil.Error, IndexError):
                    seen[host is bed.head].add(Path(psutil.Process(pid).cmdline()[4]).parts[-1])
        time.sleep(0.05)
    assert running.returncode == 0, bed.said()
    assert {"multi-worker", "parity", "evaluation", "0"} <= seen[False]
    assert not seen[True] & seen[False]
    (directory,) = bed.head.see(home).glob("runs/digits/*/multi-worker")
    assert read_json(directory / "parity" / "parity.json")["status"] == "pass"
    found = {path.name for path in directory.iterdir()}
    assert {"evaluation.json", "predictions.csv", "model", "model_summary.txt", "replica.json"} <= found
    line = f"{time.time() - began:.0f} (command ended)"
    table.add_row("Ray: none; parity, probes and evaluation on nodes", "-", "0", "-", line, "-", "complete")


def test_weights_of_another_run_get_to_the_nodes_and_no_copy_stays_there(bed: RayHosts, tmp_path: Path) -> None:
    bed.mend()
    study, home = tmp_path / "chained.yaml", bed.disk / "chained"
    study.write_text(CHAINED)
    environment = bed.environment | {"RAMPLINE_HOME": str(home)}
    done = bed.head.run([str(BIN / "rampline"), "run", str(study)], env=environment)
    assert done.returncode == 0, (done.stdout, done.stderr)
    (directory,) = map(RunDirectory, bed.head.see(home).glob("runs/chained/*/all"))
    assert Path(directory.read_config().model.weights).parts[-3:-1] == ("head", "checkpoints")
    assert read_json(directory.path / "parity" / "parity.json")["status"] == "pass"
    assert directory.evaluation_file.is_file()
    used = [host.see(home) for host in bed.nodes if host.see(home / "data").is_dir()]
    assert len(used) >= 2
    assert not [path for there in used for path in there.glob("runs/chained/*/*") if path.is_dir()]


@pytest.mark.parametrize("link", [{"mbit": 50}, {"delay_ms": 5}], ids=["50 Mbit per second", "5 ms of delay"])
def test_a_forecast_knows_the_link(bed: RayHosts, link: dict[str, float], tmp_path: Path) -> None:
    bed.mend()
    bed.hosts.degrade(**link)
    study, home = tmp_path / "linked.yaml", bed.disk / "-".join(link)
    study.write_text(LINKED)
    environment = bed.environment | {"RAMPLINE_HOME": str(home)}
    for command in ("forecast", "run"):
        done = bed.head.run([str(BIN / "rampline"), command, str(study)], env=environment)
        assert done.returncode == 0, (done.stdout, done.stderr)
    (path,) = bed.head.see(home).glob("runs/linked/*/two")
    directory = RunDirectory(path)
    forecast, explanation = Forecast.read(directory.forecast_file), Explanation.read(directory.explanation_file)
    began, *epochs = directory.read_events("started", "epoch")
    speed = statistics.median(epoch["metrics"]["images_per_second"] for epoch in epochs[1:])
    error = forecast.images_per_second / speed - 1
    figures = f"{link}: {forecast.images_per_second:.1f} images/s forecast, {speed:.1f} came out ({error:+.1%})\n"
    figures += f"{forecast.step}\n{explanation.step}\n{explanation.verdict.sentence}"
    print(figures)  # noqa: T201
    assert forecast.source == "readings"
    assert directory.forecast_file.stat().st_mtime < began["time"]
    assert (forecast.bound, explanation.verdict.bound) == ("sync", "sync"), figures
    assert abs(error) <= MOST_FORECAST_ERROR, figures


def test_the_head_is_lost(bed, run_on, uninterrupted, table: Table) -> None:
    """One line says so; the run goes on under another head."""
    driver = bed.nodes[-1]
    run = run_on(driver)
    hit = time.time()
    bed.hosts.power_off(bed.head)
    assert run.command.wait(timeout=90) == 1, bed.said()
    ended = time.time() - hit
    lines = (bed.logs / f"{run.at.parent.name}.log").read_text().splitlines()
    assert re.fullmatch(r"error: the head of the Ray cluster, \S+, does not answer: .*", lines[-1]), lines
    assert not any(map(bed.roles, bed.nodes))
    new_head, *nodes = bed.nodes
    for host in bed.nodes:
        bed.end_ray(host)
    bed.start_head(new_head)
    for host in nodes:
        bed.start_node(host)
    again = supervise_on(bed, run.host, run.at, "again")
    again.wait_for(lambda: again.command.poll() is not None, 240, "the end of the run")
    assert_bit_equal(again.directory, uninterrupted("multi_worker"))
    table.add_row("Ray: head powered off", "mid-epoch", "1", f"{ended:.1f} (command ended)", "-", "-", "bit-equal")


def test_an_elastic_run_has_the_nodes_that_there_are(bed, run_on, make_run, uninterrupted, table: Table) -> None:
    config = uninterrupted("multi_worker").read_config()
    cluster = dataclasses.replace(config.cluster, workers=3, min_workers=1, sum="exact")
    whole = make_run("multi_worker", epochs=40, cluster=cluster)
    supervise(whole, on_event=lambda event: None, log=print)
    run = run_on(bed.head, epochs=40, cluster=cluster)
    for workers in (2, 1):
        hit = time.time()
        bed.hosts.power_off(node_of(run, f"worker-{workers}"))
        run.wait_for(lambda: len(run.events("epoch", since=hit)) >= 2, 150, f"training of {workers} workers")  # noqa: B023
    bed.mend()
    run.wait_for(lambda: run.command.poll() is not None, 300, "the end of the run")
    sizes = read_workers(run.directory.attempts_file)
    assert (sizes[:3], sizes[-1]) == ([3, 2, 1], 3)
    assert_bit_equal(run.directory, whole)
    assert examples_seen(run.directory) == examples_seen(whole)
    row = ("Ray: two of three nodes powered off, and on again; elastic, `exact`", "mid-epoch", "2", "-", "-", "-")
    table.add_row(*row, f"{' → '.join(map(str, sizes))} workers, weights bit-equal")
