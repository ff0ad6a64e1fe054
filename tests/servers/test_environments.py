"""What the processes of `rampline up` are told."""

import socket

import pytest

from rampline.record.home import Home
from rampline.servers.environments import Access, mlflow_environment, prefect_environment
from rampline.servers.server_plan import Request, make_plan
from rampline.servers.services import worker_environment


def test_a_database_that_is_named_by_a_relative_path_is_that_of_the_commands_beside_it(tmp_path, monkeypatch):
    """The server works in another folder."""
    monkeypatch.chdir(tmp_path)
    home = Home(root=tmp_path / "home")
    for uri in ("sqlite:///runs.db", f"sqlite:///{tmp_path}/runs.db"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        environment = mlflow_environment(home, "127.0.0.1", 5000, Access())
        assert environment["MLFLOW_BACKEND_STORE_URI"] == f"sqlite:///{tmp_path}/runs.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me@host/mlflow")
    environment = mlflow_environment(home, "127.0.0.1", 5000, Access())
    assert environment["MLFLOW_BACKEND_STORE_URI"] == "postgresql://me@host/mlflow"


@pytest.mark.parametrize(
    "host, seen", [("0.0.0.0", socket.gethostname()), ("::", socket.gethostname()), ("::1", ""), ("127.0.0.1", "")]
)
def test_links_lead_where_other_machines_reach_the_servers(tmp_path, monkeypatch, host, seen):
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "team:a long password")
    monkeypatch.setenv("RAMPLINE_MLFLOW_USERNAME", "admin")
    monkeypatch.setenv("RAMPLINE_MLFLOW_PASSWORD", "another long password")
    plan = make_plan(Request(home=Home(root=tmp_path / "home"), host=host))
    prefect = prefect_environment(plan.request.home, plan.address, 4200, plan.access)
    links = prefect.get("PREFECT_UI_URL", ""), worker_environment(plan).get("RAMPLINE_MLFLOW_UI_URL", "")
    assert links == ((f"http://{seen}:4200", f"http://{seen}:5000") if seen else ("", ""))


def test_what_the_user_has_set_for_another_mlflow_server_is_none_of_ours(tmp_path, monkeypatch):
    """`mlflow_server` writes to the file that is named there."""
    monkeypatch.setenv("MLFLOW_AUTH_CONFIG_PATH", "/etc/mlflow/auth.ini")
    home = Home(root=tmp_path / "home")
    assert "MLFLOW_AUTH_CONFIG_PATH" not in mlflow_environment(home, "127.0.0.1", 5000, Access())
