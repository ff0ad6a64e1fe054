"""Who reaches TensorFlow's servers of a run: its roles alone where that can be had, else all local users."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from runs import SUPPORT, make_config

from rampline.files import read_json
from rampline.jobs import private_network as module
from rampline.jobs.private_network import SHARED, Network, other_users, private_network
from rampline.jobs.roles import local_tasks, network_of
from rampline.jobs.supervisor import supervise

STRANGER = 23456
AS_ANOTHER = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"]
AS_STRANGER = [*AS_ANOTHER, "--inh-caps=-all", "--ambient-caps=-all"]
# One that can read our Python, which may lie in a home: it is the network that is tried.
AS_READER = [*AS_ANOTHER, "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="a second user needs root and setpriv"
)


@needs_root
@pytest.mark.long
@pytest.mark.parametrize(("model", "is_open"), [("small_models:with_batch_norm", True), ("convnet", False)])
def test_another_user_can_write_our_files_only_where_the_network_is_shared(model, is_open, make_run, tmp_path) -> None:
    """The attack needs the address of a parameter server alone; a model function may need the network."""
    directory = make_run(make_config("parameter_server", model=model, workers=1, parameter_servers=1), epochs=9999)
    (private := tmp_path / "private").mkdir(mode=0o700)
    answers, lines = list[subprocess.CompletedProcess[str]](), list[str]()

    def attack(event: dict) -> None:
        if event["event"] == "epoch":
            roles = {role["role"]: role for role in read_json(directory.roles_file)["roles"]}
            command = [*AS_READER, sys.executable, str(SUPPORT / "intruder.py")]
            command += [roles["ps"]["address"], str(private / "written")]
            # Training would take the processors from the intruder, and is not needed for what it does.
            os.kill(roles["chief"]["pid"], signal.SIGSTOP)
            answers.append(subprocess.run(command, capture_output=True, text=True, timeout=100, check=False))
            os.kill(roles["chief"]["pid"], signal.SIGCONT)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervise(directory, on_event=attack, log=lines.append)
    assert (private / "written").is_file() == is_open, answers[0].stderr
    assert is_open or "refused" in answers[0].stderr
    assert directory.roles_file.stat().st_mode & 0o777 == 0o600
    told = any("can run code as you" in line for line in lines)
    assert told == (is_open and bool(other_users()))


WITHOUT_RIGHTS = """
import socket, subprocess, sys
from network import SHARED, private_network
network = private_network()
assert network is private_network() is not SHARED
inside = '''
import os, socket, sys
open("mine", "w").close()
rights = open("/proc/self/status").read().split("CapEff:")[1].split()[0]
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
print(os.getuid(), [name for _, name in socket.if_nameindex()], rights, flush=True)
print(server.getsockname()[1], file=sys.stderr, flush=True)
sys.stdin.read()
'''
role = subprocess.Popen(
    [*network.command, sys.executable, "-c", inside],
    pass_fds=network.descriptors, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
)
port = int(role.stderr.readline())
try:
    socket.create_connection(("127.0.0.1", port))
except ConnectionRefusedError:
    print("refused")
role.communicate()
"""


@needs_root
def test_a_user_without_rights_gets_a_network_and_stays_the_same_user(tmp_path: Path) -> None:
    # By a shell: `setpriv` itself still has root's rights when it starts a program.
    pythons = (sys.executable, "/usr/bin/python3")
    python = next((p for p in pythons if _runs([*AS_STRANGER, "sh", "-c", f"{p} -c ''"])), None)
    if python is None or not _runs([*AS_STRANGER, "unshare", "--user", "--net", "true"]):
        pytest.skip("another user cannot run Python here, or must not make namespaces")
    shutil.copytree(Path(psutil.__file__).parent, tmp_path / "psutil")
    shutil.copy(module.__file__, tmp_path / "network.py")
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents:
        if folder.stat().st_mode & 0o005 != 0o005:  # pytest's own
            folder.chmod(0o755)
    command = [*AS_STRANGER, python, "-c", WITHOUT_RIGHTS]
    place = {"cwd": tmp_path, "env": {"PATH": os.environ["PATH"]}}
    done = subprocess.run(command, **place, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == [f"{STRANGER} ['lo'] 0000000000000000", "refused"], done.stderr
    assert (tmp_path / "mine").stat().st_uid == STRANGER


def _runs(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False, cwd="/").returncode == 0


def test_the_network_is_shared_where_a_run_needs_another_or_others_take_part() -> None:
    counts = {"single": {}, "multi_worker": {"workers": 2}, "parameter_server": {"workers": 2, "parameter_servers": 1}}

    def network(strategy: str = "multi_worker", first: int = 9, host: str = "127.0.0.1", **model: str) -> Network:
        config = make_config(strategy, **counts[strategy])
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, **model))
        tasks = local_tasks(config)[:first]
        cluster = {role: tuple(a.replace("127.0.0.1", host) for a in at) for role, at in tasks[0].cluster.items()}
        return network_of(config, [dataclasses.replace(task, cluster=cluster) for task in tasks])

    assert network() is network("parameter_server") is private_network()
    assert network("single") is SHARED
    assert network(name="my.package:network") is SHARED
    assert network(name="MobileNetV2", weights="imagenet") is SHARED
    assert network(first=1) is SHARED
    assert network(host="10.1.2.3") is SHARED
