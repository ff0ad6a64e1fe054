"""What users see does not change by accident: help texts, what the commands that start nothing print, and the forms."""

import importlib
import io
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from demo_golden import mask_names
from golden import check_golden, mask_numbers, visible_text
from mlflow import MlflowClient
from recorded_demo import replay
from rich.console import Console
from typer.main import get_group
from typer.testing import CliRunner

from rampline.cli import app
from rampline.comparison.errors_section import read_scores
from rampline.comparison.report import write_comparison
from rampline.comparison.runs import Comparison, read_comparison
from rampline.comparison.summary import summarise
from rampline.comparison.terminal import print_comparison
from rampline.study import built_in_studies

FLOWS = ("prepare", "baseline", "finetune", "cluster", "evaluate", "study", "predict")
# What `rampline doctor` says of these is about the machine.
OF_THE_MACHINE = ("devices", "memory", "disk", "other users")


@pytest.fixture(autouse=True)
def plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 100)
    monkeypatch.setattr("typer.rich_utils.FORCE_TERMINAL", False)
    for name in ("FORCE_COLOR", "TF_CONFIG", "PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


def output(*arguments: str, columns: int = 100) -> str:
    environment = {"COLUMNS": str(columns), "CUDA_VISIBLE_DEVICES": ""}
    result = CliRunner().invoke(app, arguments, prog_name="rampline", env=environment)
    assert result.exit_code == 0, result.output
    return f"$ rampline {' '.join(arguments)}\n{result.output.strip(chr(10))}\n"


def test_help_of_every_command() -> None:
    commands = [[], *([name] for name in sorted(get_group(app).commands))]
    check_golden("help.txt", "\n".join(output(*command, "--help") for command in commands))


def test_plan_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path / "home"))
    check_golden("plan.txt", output("plan", "digits"))
    assert not (tmp_path / "home").exists()


def test_studies() -> None:
    shown = [output("studies", name) for name in built_in_studies()]
    check_golden("studies.txt", "\n".join([output("studies"), *shown]))


def test_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path / "home"))
    lines = []
    for line in output("doctor", columns=1000).splitlines()[1:]:
        _, subject, text = re.split(r"\s{2,}", line.strip(), maxsplit=2)
        known = text.replace(str(tmp_path), "FOLDER").replace(sys.executable, "PYTHON")
        lines.append(f"{subject}: {'…' if subject in OF_THE_MACHINE else mask_numbers(known)}")
    check_golden("doctor.txt", "\n".join(lines))
    assert not (tmp_path / "home").exists()


def test_forms_of_the_flows() -> None:
    texts = []
    for name in FLOWS:
        flow = getattr(importlib.import_module(f"flows.{name}"), name)
        form = json.dumps(flow.parameters.model_dump(), indent=1, ensure_ascii=False)
        texts.append(f"FLOW {flow.name}, runs called {flow.flow_run_name}\n{flow.description}\n\n{form}\n")
    check_golden("forms.txt", "\n".join(texts))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, initialised: Path) -> MlflowClient:
    """A store with the recorded demo."""
    folder = tmp_path_factory.mktemp("mlflow")
    shutil.copy(initialised, folder / "mlflow.db")
    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    replay(client, folder / "artifacts")
    return client


@pytest.fixture(scope="module")
def recorded(store: MlflowClient) -> Comparison:
    """The comparison of the recorded demo."""
    return read_comparison(store, "digits")


@pytest.mark.parametrize("width", [80, 200])
def test_comparison_of_the_recorded_demo_in_the_terminal(recorded: Comparison, width: int) -> None:
    text = io.StringIO()
    print_comparison(recorded, Console(file=text, width=width))
    check_golden(f"comparison-{width}.txt", text.getvalue())


def test_report_of_the_recorded_demo(store: MlflowClient, recorded: Comparison, tmp_path: Path) -> None:
    report = write_comparison(recorded, tmp_path, scores=read_scores(store, recorded))
    check_golden("report.txt", mask_names(visible_text(report.read_text())))
    check_golden("comparison.csv", mask_names(report.with_name("comparison.csv").read_text()))


def test_summary_of_the_recorded_demo_in_mlflow(recorded: Comparison) -> None:
    summary = summarise(recorded, (), 0.0)
    words = (*summary.params.items(), *summary.tags.items())
    lines = [f"{name} = {value}" for name, value in words if value is not None]
    lines += [f"{name} = {value:.6g}" for name, value in summary.moments[0].figures.items()]
    check_golden("summary.txt", mask_names("\n".join(lines)))
