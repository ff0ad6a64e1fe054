"""Nights of a real study on this machine: its noise is not told of, an input pipeline that gets slower is."""

from pathlib import Path

import pytest
from command_line import Rampline
from own_prefect import PrefectServer

from rampline.comparison.history_section import list_changes
from rampline.comparison.runs import read_comparison
from rampline.record.home import Home
from rampline.tracking.store import open_tracking

NAME = "nights"
STUDY = f"""
name: {NAME}
base:
  epochs: 4
  data: {{source: digits, limit: 30, cache: none, prefetch: "off"}}
  batch: {{size: 16}}
  model: {{name: "bound_models:slow_to_decode"}}
  explain: {{steps: 0}}
runs: {{baseline: {{}}}}
"""
# What each image's decoder sleeps, most of a step: other load on the machine hardly shows. All else stays as it is.
USUAL_SECONDS, SLOW_SECONDS = "0.005", "0.02"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("forks")
def test_four_nights_are_as_usual_and_a_slow_pipeline_is_told_of(
    rampline: Rampline, home: Path, prefect_server: PrefectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nights.yaml").write_text(STUDY)

    def night(decode_seconds: str) -> list[str]:
        monkeypatch.setenv("RAMPLINE_DECODE_SECONDS", decode_seconds)
        ran = rampline("run", "nights.yaml", prefect=prefect_server.prefect)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        changes = list_changes(read_comparison(open_tracking(Home(root=home)), NAME).trends)
        assert all(change in ran.stdout + ran.stderr for change in changes)
        return changes

    assert [night(USUAL_SECONDS) for _ in range(4)] == [[]] * 4
    (change,) = night(SLOW_SECONDS)
    assert change.startswith("baseline: images/s ")
