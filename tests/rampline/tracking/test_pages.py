"""Addresses of MLflow's pages; tests/flows/test_in_the_browser.py looks at them."""

import json
from urllib.parse import parse_qs

from rampline.tracking.pages import artifact_page, compare_page, run_page


def test_addresses():
    assert run_page("1", "ab") == "#/experiments/1/runs/ab?workflowType=machine_learning"
    assert artifact_page("1", "ab", "a b.html").startswith("#/experiments/1/runs/ab/artifacts/a%20b.html?")
    page, _, query = compare_page("1", ["ab", "cd"]).partition("?")
    assert page == "#/compare-runs"
    assert json.loads(parse_qs(query)["runs"][0]) == ["ab", "cd"]
    assert json.loads(parse_qs(query)["experiments"][0]) == ["1"]
