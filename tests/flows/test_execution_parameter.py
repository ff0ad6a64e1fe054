"""The parameter `execution` of two flows: whoever may start flow runs gives it."""

import shutil
from pathlib import Path

import pytest
from executions import begin

from rampline.errors import InputError
from rampline.files import write_json
from rampline.flows.evaluate import evaluate
from rampline.flows.study import study
from rampline.record.home import Home
from rampline.tasks.form import find_trained, own_execution


@pytest.fixture(scope="module")
def made(tmp_path_factory, initialised):
    """Folder of an execution of another home."""
    home = Home(root=tmp_path_factory.mktemp("home"))
    shutil.copy(initialised, home.tracking_database)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        return begin("digits", home).folder


@pytest.mark.parametrize("flow", [evaluate, study], ids=lambda flow: flow.name)
def test_an_execution_outside_the_home_is_refused(flow, made, rampline_home):
    inside = f"{rampline_home}/runs/digits/e1"
    for folder in (made, f"{inside}/../../../../{made}", f"{rampline_home}/runs/e1", f"{inside}/baseline", "/"):
        with pytest.raises(InputError, match=r"must be a folder .*/runs/STUDY/EXECUTION, or empty"):
            flow.fn(study="digits", execution=str(folder))


def test_a_run_that_is_named_and_not_trained_is_refused(made, monkeypatch):
    monkeypatch.setenv("RAMPLINE_HOME", str(made.parents[2]))
    with pytest.raises(InputError, match="nothing to evaluate of baseline, "):
        find_trained("digits", str(made), [])
    write_json(made / "baseline" / "result.json", {})
    assert find_trained("digits", str(made), [])[1] == ["baseline"]
    with pytest.raises(InputError, match="nothing to evaluate of baseline-fit: not trained in"):
        find_trained("digits", str(made), ["baseline", "baseline-fit"])


def test_an_execution_of_the_home_may_be_named_in_any_way(tmp_path, monkeypatch):
    runs = tmp_path / "home" / "runs"
    (tmp_path / "disk").mkdir()
    runs.mkdir(parents=True)
    (runs / "digits").symlink_to(tmp_path / "disk")
    (tmp_path / "link").symlink_to(tmp_path / "home")
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path / "link"))
    monkeypatch.chdir(tmp_path)
    for folder in ("home/runs/digits/e1", f"{tmp_path}/link/runs/digits/e1", f"{runs}/digits/x/../e1"):
        assert Path(own_execution(folder)).parent.resolve() == tmp_path / "disk"
    assert own_execution("") == ""
