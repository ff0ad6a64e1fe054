"""The home's secret goes to the home's own servers, and to nobody else."""

import dataclasses
import os

import pytest

from rampline.record.home import Home
from rampline.record.provenance import process_identity
from rampline.servers.running import Servers, state_file
from rampline.servers.secret import log_in, make_login, secret_file, sign_in_lines, take_login_out, tighten

PREFECT, MLFLOW = "http://127.0.0.1:4200", "http://127.0.0.1:5000"


@pytest.fixture
def home(tmp_path):
    home = Home(root=tmp_path)
    SERVERS.write(state_file(home))
    make_login(home)
    return home


SERVERS = Servers(
    pid=os.getpid(),
    identity=process_identity(),
    ready=True,
    prefect_api_url=f"{PREFECT}/api",
    mlflow_url=MLFLOW,
    with_secret=("prefect", "mlflow"),
)


def test_what_an_earlier_version_left_open_is_closed(home):
    home.runs.mkdir(mode=0o755)
    home.tracking_database.touch()
    home.tracking_database.chmod(0o644)
    tighten(home)
    assert [path.stat().st_mode & 0o077 for path in (home.runs, home.tracking_database, secret_file(home))] == [0, 0, 0]


def test_what_is_closed_already_is_not_touched(home):
    """In the home of a group it may be another member's, who alone may change it."""
    tighten(home)
    before = secret_file(home).stat().st_ctime_ns
    tighten(home)
    assert secret_file(home).stat().st_ctime_ns == before


def test_it_is_made_once(home):
    secret = secret_file(home).read_text()
    assert len(secret) == 43
    assert make_login(home) == make_login(home) == f"rampline:{secret}"


def test_commands_log_in_to_the_servers_that_their_environment_leads_to(home):
    secret = secret_file(home).read_text()
    mlflow = {"MLFLOW_TRACKING_USERNAME": "rampline", "MLFLOW_TRACKING_PASSWORD": secret}
    assert log_in(home, {"MLFLOW_TRACKING_URI": "http://localhost:5000/"}) == mlflow
    prefect = {"PREFECT_API_URL": f"{PREFECT}/api"}
    assert log_in(home, prefect) == {"PREFECT_API_AUTH_STRING": f"rampline:{secret}"}
    assert log_in(home, {"PREFECT_API_URL": "http://127.0.0.1:4201/api", "MLFLOW_TRACKING_URI": "sqlite:///a.db"}) == {}


@pytest.mark.parametrize("change", [{"identity": SERVERS.identity[:-1]}, {"with_secret": ("mlflow",)}])
def test_servers_that_are_gone_or_have_passwords_of_their_own_are_not_told(home, change):
    dataclasses.replace(SERVERS, **change).write(state_file(home))
    assert log_in(home, {"PREFECT_API_URL": f"{PREFECT}/api"}) == {}


@pytest.mark.parametrize(
    ("address", "login"),
    [
        ("https://me:p%40ss@host/api", {"PREFECT_API_URL": "https://host/api", "PREFECT_API_AUTH_STRING": "me:p@ss"}),
        ("https://token@host/api", {"PREFECT_API_URL": "https://host/api", "PREFECT_API_AUTH_STRING": "token:"}),
        ("https://host/api", {}),
    ],
)
def test_a_login_in_the_address_is_one_of_all_clients_and_not_in_the_address(address, login):
    assert take_login_out({"PREFECT_API_URL": address, "PREFECT_API_AUTH_STRING": "other:one"}) == login
    assert take_login_out({}) == {}


def test_the_links_are_for_a_terminal(home):
    secret = secret_file(home).read_text()
    links = [line.split()[-1] for line in sign_in_lines(home, with_secret=True)]
    assert links == [
        f"http://rampline:{secret}@127.0.0.1:4200/sign-in/deployments",
        f"http://rampline:{secret}@127.0.0.1:5000/sign-in/",
    ]
    assert secret not in str(sign_in_lines(home, with_secret=False))
    # Another user's program may have got the ports of servers that were killed.
    dataclasses.replace(SERVERS, identity=SERVERS.identity[:-1]).write(state_file(home))
    assert sign_in_lines(home, with_secret=True) == []
