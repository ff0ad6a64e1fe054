"""How much later a command trains on Ray than by itself, on a machine that does nothing else."""

import time
from pathlib import Path

import pytest
from command_line import Rampline
from own_prefect import PrefectServer
from table import Table

from rampline.record.run_directory import RunDirectory

STUDY = """
name: both
base:
  epochs: 2
  data: {source: digits, image_size: 28, limit: 20}
  explain: {steps: 0}
  parity: {steps: 0}
runs:
  multi-worker: {set: {strategy: multi_worker, cluster: {workers: 2}}}
  parameter-server: {set: {strategy: parameter_server, cluster: {workers: 2, parameter_servers: 1}}}
"""
# A cluster of Ray is started for the command.
LATER_SECONDS = 8


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("run", ["multi-worker", "parameter-server"])
def test_a_command_starts_training_soon(
    rampline_process: Rampline, home: Path, prefect_server: PrefectServer, tmp_path: Path, run: str, table: Table
) -> None:
    study, seconds = tmp_path / "both.yaml", dict[str, float]()
    study.write_text(STUDY)
    for launcher in ("local", "ray"):
        began_at = time.time()
        chosen = ("--only", run, "--launcher", launcher, "--execution", launcher)
        result = rampline_process("run", str(study), *chosen, prefect=prefect_server.prefect)
        assert result.returncode == 0, result.stderr
        (started,) = RunDirectory(home / "runs" / "both" / launcher / run).read_events("started")
        seconds[launcher] = started["time"] - began_at
    took = f"trains {seconds['ray']:.1f} s after the command, {seconds['local']:.1f} s without Ray"
    table.add_row(f"no fault: {run} on Ray, which is started for it", "-", "0", "-", "-", "-", took)
    assert seconds["ray"] < seconds["local"] + LATER_SECONDS
