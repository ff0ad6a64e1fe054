"""What the processes of `rampline up` are told."""

from rampline.record.home import Home
from rampline.servers.environments import Access, mlflow_environment


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


def test_what_the_user_has_set_for_another_mlflow_server_is_none_of_ours(tmp_path, monkeypatch):
    """`mlflow_server` writes to the file that is named there."""
    monkeypatch.setenv("MLFLOW_AUTH_CONFIG_PATH", "/etc/mlflow/auth.ini")
    home = Home(root=tmp_path / "home")
    assert "MLFLOW_AUTH_CONFIG_PATH" not in mlflow_environment(home, "127.0.0.1", 5000, Access())
