"""The services of deployments/compose.yaml on a real PostgreSQL: Prefect server, MLflow server, deployments, worker."""

import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import RAMPLINE, SMALL
from mlflow.tracking import MlflowClient
from postgresql import PostgreSql, start_postgresql
from team_servers import Team, start_team

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

ONE_RUN = ["-p", "epochs=1", "-p", 'only=["baseline"]', "-p", 'overrides={"data.limit": "20", "explain.steps": "0"}']


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgreSql]:
    with start_postgresql() as running:
        yield running


@pytest.fixture(scope="module")
def team(postgresql: PostgreSql, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    with start_team(postgresql, tmp_path_factory.mktemp("team")) as running:
        yield running


def test_two_studies_at_once(team, postgresql, tmp_path):
    environment = team.client | {"RAMPLINE_HOME": str(tmp_path / "home")}
    command = [str(RAMPLINE), *SMALL, "--set", "epochs=1", "--set", "explain.steps=0"]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    studies = [subprocess.Popen(command, env=environment, cwd=tmp_path, **output) for _ in range(2)]
    texts = [study.communicate(timeout=1000)[0] for study in studies]
    assert [study.returncode for study in studies] == [0, 0], "\n".join(texts)

    states = postgresql.query("prefect", "SELECT name, state_type FROM flow_run")
    assert len([name for name, _ in states if name == "study digits"]) == 2
    assert {state for _, state in states} == {"COMPLETED"}
    kinds = "SELECT value, status FROM runs JOIN tags USING (run_uuid) WHERE key = 'rampline.kind' ORDER BY value"
    assert postgresql.query("mlflow", kinds) == [("run", "FINISHED")] * 2 + [("study", "FINISHED")] * 2
    # Artifacts go through MLflow's server; nothing of it is in the home.
    assert not (tmp_path / "home" / "mlflow.db").exists()
    assert not (tmp_path / "home" / "prefect").exists()


def test_worker_serves_the_deployment(team, postgresql, monkeypatch):
    command = ["prefect", "deployment", "run", "study/study", *ONE_RUN, "--watch", "--watch-interval", "2"]
    done = subprocess.run(command, env=team.client, capture_output=True, text=True, timeout=1000, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [report] = team.home.glob("reports/digits/*/report.html")
    assert report.is_file()
    for variable in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(variable, team.client[variable])
    client = MlflowClient(tracking_uri=team.mlflow_url)
    query = "SELECT run_uuid FROM tags WHERE key = 'rampline.run_dir' AND value LIKE %s"
    [(run_id,)] = postgresql.query("mlflow", query.replace("%s", f"'{team.home}/%'"))
    assert "test_accuracy" in client.get_run(run_id).data.metrics
    assert "config.json" in [artifact.path for artifact in client.list_artifacts(run_id)]


@pytest.mark.usefixtures("team")
def test_without_the_password_nobody_gets_in(team):
    addresses = [f"{team.prefect_url}/admin/settings", f"{team.mlflow_url}/api/2.0/mlflow/experiments/search"]
    for address in addresses:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(address, timeout=10)
        assert refused.value.code == 401


def test_back_up_and_restore(team, postgresql, tmp_path: Path):
    with start_postgresql() as new:
        for database, table in (("prefect", "flow_run"), ("mlflow", "runs"), ("mlflow_auth", "users")):
            dump = tmp_path / f"{database}.dump"
            postgresql.back_up(database, dump)
            new.restore(database, dump)
            count = f"SELECT count(*) FROM {table}"
            [(rows,)] = postgresql.query(database, count)
            assert rows > 0
            assert new.query(database, count) == [(rows,)]
