"""Where things are kept."""

from pathlib import Path

from rampline.home import Home


def test_the_home_is_what_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAMPLINE_HOME", "kept")
    home = Home.from_environment()
    assert home.root == tmp_path / "kept"
    folders = (home.data, home.runs, home.reports, home.tracking_database, home.artifacts)
    assert [path.name for path in folders] == ["data", "runs", "reports", "mlflow.db", "mlartifacts"]
    assert not home.root.exists()


def test_the_home_is_in_the_current_folder_otherwise(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAMPLINE_HOME", raising=False)
    assert Home.from_environment().root == Path(tmp_path / ".rampline")
    monkeypatch.setenv("RAMPLINE_HOME", "")
    assert Home.from_environment().root == Path(tmp_path / ".rampline")
