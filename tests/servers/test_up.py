"""`rampline up` with the real servers: what it starts, what it survives, and that it leaves nothing.

The tests from `test_a_server_that_is_killed_comes_back` on kill servers, so this file is the last of those that use the
stack. One needs a `rampline up` of its own, because the stack is gone by then and others listen beyond loopback.
"""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from command_line import RAMPLINE, UNHURRIED, as_terminal_job, mlflow_tags, read_until, wait_until
from flow_runs import Flows
from prefect_rest import PrefectError
from processes import processes_with
from stack import find_deployments
from up_servers import UpServers, parts, status_of

from rampline.devices import free_ports
from rampline.errors import InputError
from rampline.servers.addresses import check_free
from rampline.servers.processes import start
from rampline.servers.running import answers, running_servers, servers_folder
from rampline.servers.secret import client_login

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
PREFECT_LOGIN, MLFLOW_LOGIN = "admin:prefect-secret-1", "chief:mlflow-secret-1"


@pytest.fixture
def servers(stack: Flows) -> Flows:
    """Up; a test may have left them killed."""
    if running_servers(stack.home) is None:
        stack.up()
    # Another test may have left a flow run that is about to end.
    running = {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}, "deployment_id": {"is_null_": False}}}
    wait_until(lambda: not stack.api.post("/flow_runs/filter", running), 120)
    return stack


def test_all_answers_is_deployed_and_waits_for_flow_runs(servers):
    assert {"prepare", "baseline", "finetune", "cluster", "evaluate", "study"} <= set(find_deployments(servers.api))
    (worker,) = servers.api.post("/work_pools/rampline/workers/filter")
    assert worker["status"] == "ONLINE"
    assert len(parts(servers)["mlflow"]) == 2
    found = running_servers(servers.home)
    assert found == servers.state
    assert found is not None
    assert found.client_environment()["MLFLOW_TRACKING_URI"] == f"http://127.0.0.1:{servers.mlflow_port}"
    status = servers.call("status")
    assert (status.returncode, status.stderr) == (0, "")
    assert [line.split()[:2] for line in status.stdout.splitlines()] == [
        [name, "running"] for name in ("up", "prefect", "mlflow", "worker")
    ]
    assert "pool rampline, 0 flow runs running" in status.stdout


def test_nothing_but_loopback_listens(servers):
    listening = {
        connection.laddr[0]
        for process in servers.processes()
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_neither_a_web_page_nor_another_user_starts_anything(servers):
    login, before = f"rampline:{servers.secret}", servers.api.post("/flow_runs/count")
    study = servers.api.request("GET", "/deployments/name/study/study")["id"]
    start = f"{servers.api.url}/deployments/{study}/create_flow_run"
    experiments = f"http://127.0.0.1:{servers.mlflow_port}/api/2.0/mlflow/experiments/search"
    for url in (start, f"{servers.api.url}/automations/", f"{servers.api.url}/block_documents/filter", experiments):
        assert status_of(url) == 401
        assert status_of(url, Origin="http://evil.example") == 403
        # Even from a browser that is signed in.
        assert status_of(url, login, Origin="http://evil.example") == 403
        assert status_of(url, login, Host="evil.example") == 403
        assert status_of(url, login, **{"Sec-Fetch-Site": "cross-site"}) == 403
    health = urllib.request.Request(f"{servers.api.url}/health", headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(health, timeout=10)
    assert servers.api.post("/flow_runs/count") == before
    refused = {"command": "touch pwned"}, {"env": {"LD_PRELOAD": "x"}}, {"env.LD_PRELOAD": "x"}, {"working_dir": "/"}
    for job_variables in refused:
        with pytest.raises(PrefectError, match="refused POST"):
            servers.api.post(f"/deployments/{study}/create_flow_run", {"job_variables": job_variables})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_reads_no_secret_and_no_database(servers):
    private = [path for path in servers.home.root.rglob("*") if path.stat().st_mode & 0o077]
    assert private == []
    # The folders above are pytest's own, 0700 as well: opened, so that only what Rampline does counts.
    above = [folder for folder in servers.home.root.parents if folder.stat().st_mode & 0o005 != 0o005]
    try:
        for folder in above:
            folder.chmod(folder.stat().st_mode | 0o005)
        wanted = [servers.home.root / name for name in ("servers/secret", "servers/state.json", "prefect/prefect.db")]
        for path in wanted:
            read = subprocess.run([*NOBODY, "cat", str(path)], capture_output=True, text=True)
            assert "Permission denied" in read.stderr
    finally:
        for folder in above:
            folder.chmod(0o700)


def test_the_secret_is_in_no_log_and_no_argument_and_shown_in_a_terminal(servers):
    secret, workspaces = servers.secret.encode(), servers_folder(servers.home) / "tmp/prefect-workspace-attempt-"
    # A flow run that is about to end has its environment there, in a file that Prefect makes for this user alone.
    others = [path for path in servers.home.root.rglob("*") if not str(path).startswith(str(workspaces))]
    files = [path for path in others if path.is_file() and path.name != "secret"]
    assert [path for path in files if secret in path.read_bytes()] == []
    assert not any(secret in " ".join(process.cmdline()).encode() for process in servers.processes())
    assert servers.secret not in servers.call("status").stdout
    reader, writer = os.openpty()
    subprocess.run([str(RAMPLINE), "status"], stdout=writer, env=servers.environment, check=True)
    assert (
        f"http://rampline:{servers.secret}@127.0.0.1:{servers.prefect_port}/sign-in/" in os.read(reader, 9999).decode()
    )


def test_a_second_one_tells_the_addresses(servers):
    began = servers.state
    second = servers.call("up", *servers.options)
    assert (second.returncode, second.stderr) == (0, "")
    assert second.stdout.startswith(f"already up in {servers.home.root} (process {began.pid})")
    assert f"http://127.0.0.1:{servers.mlflow_port}" in second.stdout
    assert servers.state == began


def test_a_server_that_has_the_port_is_named(servers, rampline, home):
    refused = rampline("up", "--prefect-port", str(servers.prefect_port), "--mlflow-port", str(free_ports(1)[0]))
    assert refused.returncode == 2
    assert f"port {servers.prefect_port} of 127.0.0.1 is taken by a Prefect server" in refused.stderr
    # Who has none of its secret cannot use it.
    assert "): choose another port with --prefect-port" in refused.stderr
    assert processes_with(home) == []
    mlflow = f"port {servers.mlflow_port} of 127.0.0.1 is taken by an MLflow server.*another port with --mlflow-port"
    with pytest.raises(InputError, match=mlflow):
        check_free("127.0.0.1", servers.mlflow_port, flag="--mlflow-port")


@pytest.mark.long
def test_a_server_that_is_killed_comes_back(servers):
    before = servers.state.processes["mlflow"].pid
    os.kill(before, signal.SIGKILL)
    while servers.state.processes["mlflow"].pid == before:
        # Another user who listened there now would be told the secret.
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", servers.mlflow_port))
        time.sleep(0.1)
    wait_until(lambda: running_servers(servers.home) is not None, 60)
    assert len(parts(servers)["mlflow"]) == 2
    assert "the MLflow server ended (SIGKILL) and is started again in 1 s" in log_of(servers, "up")


@pytest.mark.long
def test_servers_that_are_there_are_used(servers, tmp_path):
    """Two workers in one pool for a moment; the login to Prefect is in its address."""
    mlflow = {"MLFLOW_TRACKING_URI": servers.state.mlflow_url, **client_login(servers.home, ["mlflow"])}
    found = UpServers(tmp_path, mlflow | {"PREFECT_API_URL": servers.api.url.replace("://", f"://{servers.api.auth}@")})
    try:
        said = found.up()
        assert f"{servers.state.mlflow_url} (found)" in said
        assert set(found.state.processes) == {"worker"}
        assert found.state.prefect_api_url == servers.api.url
        assert found.call("status").returncode == 0
        written = [path for path in found.home.root.rglob("*") if path.is_file()]
        assert not [path for path in written if servers.secret.encode() in path.read_bytes()]
        assert servers.secret not in said
        down = found.call("down")
        assert (down.returncode, down.stderr) == (0, "")
        assert found.processes() == []
        assert running_servers(servers.home) is not None
    finally:
        found.stop()


@pytest.mark.long
def test_a_flow_run_outlives_its_worker_and_after_kill_9_of_all_saves_a_checkpoint(servers):
    flow_run = servers.start("baseline", study=UNHURRIED, run="baseline", epochs=200)
    directory = servers.until_training(flow_run, "baseline")
    before = servers.state.processes["worker"].pid
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: servers.state.processes["worker"].pid != before, 30)
    wait_until(lambda: log_of(servers, "up").count("the worker is back") == 1, 60)
    assert servers.flow_run(flow_run)["state_type"] == "RUNNING"
    assert "1 flow run running" in servers.call("status").stdout
    os.kill(servers.state.pid, signal.SIGKILL)
    seconds = wait_until(lambda: not servers.processes(), 60)
    sys.stdout.write(f"kill -9 of `rampline up`: nothing left after {seconds:.1f} s\n")
    attempts = [json.loads(line) for line in (directory / "attempts.jsonl").read_text().splitlines()]
    assert attempts[-1]["how"] == "interrupted"
    tags = mlflow_tags(f"sqlite:///{servers.home.tracking_database}", directory.parent.name)
    assert {run["status"] for run in tags.values()} == {"KILLED"}
    with closing(sqlite3.connect(servers.home.root / "prefect" / "prefect.db")) as database:
        states = database.execute("SELECT state_type FROM flow_run WHERE id = ?", (flow_run,)).fetchall()
    assert states == [("CRASHED",)]
    assert servers.call("status").returncode == 1


@pytest.fixture(scope="module")
def beyond(stack: Flows) -> Iterator[tuple[UpServers, subprocess.Popen[str], list[str]]]:
    """A `rampline up` in the foreground for other machines, in a home of before with something left to end.

    Yields the servers, its process, and what it has said so far.
    """
    stack.stop()
    user, password = MLFLOW_LOGIN.split(":")
    login = {"RAMPLINE_MLFLOW_USERNAME": user, "RAMPLINE_MLFLOW_PASSWORD": password}
    servers = UpServers(stack.folder, login | {"PREFECT_SERVER_API_AUTH_STRING": PREFECT_LOGIN})
    for path in open_to_all(servers):
        path.chmod(0o777)
    leave_a_server(servers)
    place = {"cwd": servers.folder, "env": servers.environment, "start_new_session": True}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [str(RAMPLINE), "up", "--host", "0.0.0.0", *servers.options]
    process = subprocess.Popen(command, preexec_fn=as_terminal_job, **place, **output)
    try:
        yield servers, process, read_until(process, "logs in").splitlines()
    finally:
        servers.stop()
        process.wait(60)


def open_to_all(servers: UpServers) -> list[Path]:
    """What earlier versions let everybody read."""
    return [servers.home.root / name for name in ("mlflow.db", "prefect", "servers", "servers/secret")]


def leave_a_server(servers: UpServers) -> None:
    """What is left of a `rampline up` that was killed with its services: its mark, and somebody on its port."""
    left = ["-m", "http.server", "--bind", "127.0.0.1", str(servers.prefect_port)]
    place = {"home": servers.home, "folder": servers.folder, "log": servers.folder / "left.log"}
    start(left, part="prefect", environment=servers.environment, **place)
    wait_until(lambda: answers(f"http://127.0.0.1:{servers.prefect_port}"), 30)


@pytest.mark.long
def test_what_a_killed_one_has_left_is_ended_by_the_next_which_locks_a_home_of_before(beyond):
    servers, _, said = beyond
    assert said[0].startswith("ended what an earlier `rampline up` that was killed has left")
    assert not [process for process in servers.processes() if "http.server" in process.cmdline()]
    assert [path for path in open_to_all(servers) if path.stat().st_mode & 0o077] == []


@pytest.mark.long
def test_beyond_loopback_both_servers_want_passwords(beyond):
    servers, _, _ = beyond
    flows = f"http://127.0.0.1:{servers.prefect_port}/api/flows/filter"
    experiments = f"http://127.0.0.1:{servers.mlflow_port}/api/2.0/mlflow/experiments/search"
    assert [status_of(flows), status_of(flows, PREFECT_LOGIN)] == [401, 200]
    assert [status_of(experiments), status_of(experiments, MLFLOW_LOGIN)] == [401, 200]
    assert status_of(experiments, "admin:password1234") == 401
    assert status_of(experiments, MLFLOW_LOGIN, Host="evil.example") == 403
    assert servers.call("status").returncode == 0
    worker = psutil.Process(servers.state.processes["worker"].pid).environ()
    passwords = worker["PREFECT_API_AUTH_STRING"], worker["MLFLOW_TRACKING_PASSWORD"]
    assert passwords == (PREFECT_LOGIN, MLFLOW_LOGIN.split(":")[1])
    written = [file.read_bytes() for file in servers.home.root.rglob("*") if file.is_file()]
    arguments = [" ".join(process.cmdline()).encode() for process in servers.processes()]
    assert not any(secret in text for text in written + arguments for secret in (b"prefect-secret", b"mlflow-secret"))


@pytest.mark.long
def test_ctrl_c_ends_all(beyond):
    servers, process, _ = beyond
    time.sleep(0.5)  # rich writes a line again that Ctrl-C finds it writing
    os.kill(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert rest.splitlines() == ["ending: the servers end", "all ended"]
    assert servers.processes() == []
    assert not (servers.home.root / "servers" / "state.json").exists()
    nothing = servers.call("down")
    assert (nothing.returncode, nothing.stdout) == (0, f"nothing is up in {servers.home.root}\n")


def log_of(servers: UpServers, name: str) -> str:
    return (servers.home.root / "servers" / f"{name}.log").read_text()
