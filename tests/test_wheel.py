"""What a wheel installs, and that it works in a folder of the user's, without the checkout."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import version
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from command_line import as_terminal_job, environment_with, read_until
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from served_model import ask_service
from up_servers import UpServers

from rampline.data.dataset import PreparedDataset
from rampline.record.run_directory import RunDirectory

ROOT = Path(__file__).parents[1]
UV = ROOT / ".tools" / "bin" / "uv"
OWN_STUDY = "base: {epochs: 1, data: {source: digits, limit: 20}, explain: {steps: 0}}\nruns: {only: {}}"


def build(source: Path, target: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    [built] = folder.iterdir()
    return built


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new virtual environment that has the wheel, the packages that it needs, and their programs."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    place = ("--quiet", "--offline", "--no-deps", "--python", folder)
    subprocess.run([UV, "pip", "install", *place, wheel], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    python = Path(sys.executable)
    for name in ("mlflow", "uvicorn"):
        program = folder / "bin" / name
        program.write_text(python.with_name(name).read_text().replace(str(python), str(folder / "bin" / "python")))
        program.chmod(0o755)
    return folder / "bin"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder of a user with names like those in the checkout."""
    folder = tmp_path / "work"
    (folder / "flows").mkdir(parents=True)
    (folder / "flows" / "__init__.py").write_text("raise SystemExit('flows of the folder was imported')")
    (folder / "tasks.py").write_text("this is no Python")
    (folder / "own.yaml").write_text(OWN_STUDY)
    return folder


@pytest.mark.parametrize("name", ["flows", "tasks", "servers", "prefect.yaml"])
def test_the_package_has_links_to_what_stands_at_the_top(name):
    assert (ROOT / "rampline" / name).samefile(ROOT / name)


def test_it_installs_rampline_and_nothing_else(wheel):
    found = names(wheel)
    assert {name.split("/")[0] for name in found if ".dist-info/" not in name} == {"rampline"}
    expected = {
        str((Path(folder) / file).relative_to(ROOT))
        for folder, _, files in os.walk(ROOT / "rampline", followlinks=True)
        for file in files
        if not file.endswith(".pyc")
    }
    assert {name for name in found if ".dist-info/" not in name} == expected
    assert {"rampline/flows/study.py", "rampline/tasks/steps.py", "rampline/prefect.yaml"} < found


def test_the_source_distribution_makes_the_same_wheel(wheel, tmp_path):
    shutil.unpack_archive(build(ROOT, "sdist", tmp_path / "sdist"), tmp_path)
    [source] = tmp_path.glob("rampline-*")
    assert names(build(source, "wheel", tmp_path / "wheel")) == names(wheel)


def run(programs: Path, folder: Path, *command: str) -> str:
    """What a command prints in a folder of the user's."""
    place = {"cwd": folder, "env": environment_with(folder / ".rampline")}
    arguments = [programs / command[0], *command[1:]]
    done = subprocess.run(arguments, **place, capture_output=True, text=True, check=False, timeout=280)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_project_of_init_is_tested_trained_and_served_from_it(programs, tmp_path):
    """As its README and docs/operations.md have it, in a folder that was empty."""
    project = tmp_path / "flowers"
    project.mkdir()
    run(programs, project, "rampline", "init", ".")
    assert "1 passed" in run(programs, project, "python", "-m", "pytest", "-p", "no:cacheprovider")
    short = ("--set", "data.limit=20", "--set", "epochs=1", "--set", "explain.steps=0")
    said = run(programs, project, "rampline", "run", "study.yaml", *short)
    assert "two: parity pass" in said
    [trained] = project.glob(".rampline/runs/flowers/*/one")
    promoted = run(programs, project, "rampline", "promote", str(trained))
    assert "model  models:/rampline-flowers@champion" in promoted
    dataset = PreparedDataset.open(Path(RunDirectory(trained).read_identity().dataset))
    images = np.fromfile(dataset.images_file("test"), np.uint8).reshape(-1, *dataset.image_shape)[:5]
    tracking = {"MLFLOW_TRACKING_URI": f"sqlite:///{project}/.rampline/mlflow.db"}
    place = {"programs": programs, "environment": environment_with(project) | tracking, "folder": project}
    logits = ask_service("models:/rampline-flowers@champion", images, **place)
    assert logits.shape == (5, 10)
    assert list(logits.argmax(axis=1)) == list(pd.read_csv(trained / "predictions.csv")["prediction"][:5])


@pytest.mark.long
def test_the_notebook_runs_from_it(programs, work, monkeypatch):
    notebook = nbformat.read(ROOT / "docs" / "notebook.ipynb", as_version=4)
    monkeypatch.setenv("RAMPLINE_HOME", str(work / "home"))
    kernel = KernelManager(kernel_name="python3")
    assert kernel.kernel_spec
    kernel.kernel_spec.argv[0] = str(programs / "python")
    NotebookClient(notebook, km=kernel, timeout=280, resources={"metadata": {"path": str(work)}}).execute()
    told = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    progress = "".join(output.get("text", "") for output in told[1])
    assert "multi-worker: epoch 3/3" in progress
    assert "\x1b" not in progress, "lines, and no terminal's cursor"
    assert f"{programs.parent.name}/bin/rampline up" in progress
    table = told[2][0].data["text/html"]
    assert [f"<td>{run}</td>" in table for run in ("baseline", "multi-worker")] == [True, True]
    # Keras shows it as HTML.
    assert "Total params" in json.dumps(told[4])
    assert "<iframe" in told[5][0].data["text/html"]


@pytest.mark.long
def test_a_deployment_runs_from_it(programs, work):
    servers = UpServers(work)
    place = {"cwd": work, "env": servers.environment, "preexec_fn": as_terminal_job}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    up = subprocess.Popen([programs / "rampline", "up", *servers.options], **place, **output)
    try:
        said = read_until(up, "logs in")
        assert f"deployed from {programs.parent}" in said
        deployment = servers.api.request("GET", "/deployments/name/study/study")
        assert deployment["version"] == version("rampline")
        # A relative path counts from the folder in which `rampline up` was started.
        arguments = ("deployment", "run", "study/study", "--param", "study=own.yaml", "--watch")
        way_in = {"PREFECT_API_URL": servers.api.url, "PREFECT_API_AUTH_STRING": servers.api.auth}
        done = subprocess.run(
            [programs / "python", "-P", "-m", "prefect", *arguments],
            cwd=work,
            env=servers.environment | way_in,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert list(servers.home.reports.glob("own/*/report.html"))
        up.send_signal(signal.SIGTERM)
        assert "all ended" in up.communicate(timeout=120)[0]
        assert up.returncode == 0
        assert servers.processes() == []
    finally:
        servers.stop()
