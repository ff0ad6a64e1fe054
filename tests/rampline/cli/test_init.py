"""`rampline init`: a project that plans, tests and trains as it was written."""

import pytest
import yaml

from rampline.flows.study import study
from rampline.study import load_study

FILES = ["README.md", "networks.py", "prefect.yaml", "study.yaml", "test_networks.py"]


def test_a_project_is_written_once_and_can_be_planned(rampline, tmp_path):
    folder = tmp_path  # where the command runs
    made = rampline("init", ".")
    assert made.returncode == 0
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == FILES
    (folder / "networks.py").write_text("mine")
    again = rampline("init", str(folder))
    assert again.returncode == 2
    assert "has README.md, networks.py, prefect.yaml, study.yaml, test_networks.py already" in again.stderr
    assert (folder / "networks.py").read_text() == "mine"
    planned = rampline("plan", "study.yaml")
    assert planned.returncode == 0
    assert f"imports networks:network from {folder}/networks.py" in planned.stdout


def test_what_comes_next_can_be_pasted(rampline):
    assert "now: cd 'my flowers' && rampline run study.yaml\n" in rampline("init", "my flowers").stdout


@pytest.mark.parametrize("below", ["", "/project"])
def test_a_file_is_not_made_a_folder(rampline, tmp_path, below):
    (tmp_path / "notes.txt").write_text("mine")
    refused = rampline("init", f"notes.txt{below}")
    assert refused.returncode == 2
    assert refused.stderr == "rampline: error: notes.txt is no folder: choose another one\n"
    assert (tmp_path / "notes.txt").read_text() == "mine"


NAMES = {"My Flowers!": "my-flowers", "2024": "2024", "§": "my-project", "Digits": "digits-project"}


@pytest.mark.parametrize("folder, name", NAMES.items())
def test_its_study_and_deployment_are_named_after_the_folder(rampline, tmp_path, folder, name):
    """No other study of the home, and no other deployment of the server, has the name."""
    assert rampline("init", folder).returncode == 0
    assert load_study(str(tmp_path / folder / "study.yaml")).name == name
    (deployment,) = yaml.safe_load((tmp_path / folder / "prefect.yaml").read_text())["deployments"]
    assert deployment["name"] == f"{name}-nightly"


def test_its_deployment_names_the_flow_and_the_parameters_that_there_are(rampline, tmp_path):
    rampline("init", str(tmp_path))
    (deployment,) = yaml.safe_load((tmp_path / "prefect.yaml").read_text())["deployments"]
    module, _, name = deployment["entrypoint"].rpartition(".")
    assert (module, name) == (study.fn.__module__, study.fn.__name__)
    assert set(deployment["parameters"]) <= set(study.parameters.properties)
