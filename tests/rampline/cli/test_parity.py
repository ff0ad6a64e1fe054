"""`rampline parity`, as a user runs it."""

import json
import re
from pathlib import Path

import pytest

SMALL = ("--set", "data.limit=20")


@pytest.mark.long
@pytest.mark.usefixtures("forks", "prepared")
def test_a_run_that_starts_from_another_is_checked_with_fresh_weights(rampline, home: Path) -> None:
    result = rampline("parity", "digits", "--run", "mirrored-ramp", "--steps", "4", *SMALL)
    assert (result.returncode, result.stderr) == (0, "")
    assert "model.weights=run:baseline: the check starts from fresh weights" in result.stdout
    assert re.search(r"^parity   pass$", result.stdout, re.MULTILINE)
    assert re.search(r"^weights  differ by \d\S* at most, in \S+$", result.stdout, re.MULTILINE)
    assert "(rounding: up to 1e-09, float64)" in result.stdout
    (file,) = home.glob("runs/digits/parity-*/mirrored-ramp/parity/parity.json")
    content = json.loads(file.read_text())
    assert (content["status"], content["steps"]) == ("pass", 4)


@pytest.mark.slow
@pytest.mark.usefixtures("forks", "prepared")
def test_a_failed_check_has_its_exit_status(rampline) -> None:
    result = rampline("parity", "digits", "--run", "mirrored-ramp", *SMALL, "--set", "learning_rate.peak=1e300")
    assert result.returncode == 1
    assert "parity   fail: the loss is" in result.stdout
