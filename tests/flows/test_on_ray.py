"""A flow run of a deployment whose form says `launcher: ray`, on one node that it has not started."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from command_line import UNHURRIED, wait_until
from flow_runs import Flows
from ray_node import actors, ray_node

from rampline.jobs.ray_cluster import CURRENT_CLUSTER, _has_node
from rampline.record.run_directory import RunDirectory

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(600)]
GONE_SECONDS = 20


@pytest.fixture
def node(stack: Flows) -> Iterator[psutil.Process]:
    with ray_node(stack.environment, cpus=3) as process:
        yield process


def test_cancelling_ends_every_role_and_every_actor(stack: Flows, node: psutil.Process) -> None:
    folder = next(word for word in node.cmdline() if word.startswith("--temp-dir=")).partition("=")[2]
    assert _has_node((Path(folder) / CURRENT_CLUSTER.name).read_text())
    flow_run = stack.start("study", study=UNHURRIED, only=["multi-worker"], launcher="ray")
    directory = RunDirectory(stack.until_training(flow_run, "multi-worker"))
    (actor,) = actors(node)
    assert set(stack.roles()) <= {process.pid for process in actor.children(recursive=True)}
    assert len(stack.roles()) == 2
    stack.cancel(flow_run)
    gone = wait_until(lambda: not stack.roles() and not actors(node), GONE_SECONDS)
    print(f"no role and no actor {gone:.1f} s after the request")  # noqa: T201
    assert [event["event"] for event in directory.read_events("stopped")] == ["stopped"]
    # Also what roles have written, whose node was started with the usual umask.
    assert [path for path in directory.path.rglob("*") if path.stat().st_mode & 0o077] == []
    # Where the process does not hear within a second that it is cancelled, it ends as crashed; Prefect corrects that.
    stack.until(flow_run, "CANCELLED")
