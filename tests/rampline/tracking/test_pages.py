"""Addresses of MLflow's pages; tests/flows/test_in_the_browser.py looks at them."""

import json
import sys
from urllib.parse import parse_qs

import pytest

from rampline.record.home import Home
from rampline.tracking.pages import artifact_page, compare_page, how_to_open_tensorboard, model_version_link, run_page


def test_addresses():
    assert run_page("1", "ab") == "#/experiments/1/runs/ab?workflowType=machine_learning"
    assert artifact_page("1", "ab", "a b.html").startswith("#/experiments/1/runs/ab/artifacts/a%20b.html?")
    page, _, query = compare_page("1", ["ab", "cd"]).partition("?")
    assert page == "#/compare-runs"
    assert json.loads(parse_qs(query)["runs"][0]) == ["ab", "cd"]
    assert json.loads(parse_qs(query)["experiments"][0]) == ["1"]


def test_links_lead_where_people_reach_the_server(tmp_path, monkeypatch):
    page = "/#/models/m/versions/2?workflowType=machine_learning"
    home = Home(root=tmp_path)
    assert model_version_link("m", 2, home) == f"http://127.0.0.1:5000{page}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@mlflow:5000/")
    assert model_version_link("m", 2, home) == f"http://mlflow:5000{page}"
    monkeypatch.setenv("RAMPLINE_MLFLOW_UI_URL", "https://mlflow.example.org/")
    assert model_version_link("m", 2, home) == f"https://mlflow.example.org{page}"


@pytest.mark.parametrize("place, program", [("checkout", ".tools/bin/uvx"), ("elsewhere", "uvx")])
def test_tensorboard_is_opened_by_the_uvx_that_there_is(tmp_path, monkeypatch, place, program):
    uvx = tmp_path / "checkout" / ".tools" / "bin" / "uvx"
    uvx.parent.mkdir(parents=True)
    uvx.touch()
    (tmp_path / place).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / place)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / place / ".venv"))
    assert how_to_open_tensorboard(tmp_path / place / "run") == f"{program} --with xprof tensorboard --logdir run"
