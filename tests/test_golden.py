"""What users see of the command line does not change by accident: help texts are those of tests/golden."""

import pytest
from golden import check_golden
from typer.main import get_group
from typer.testing import CliRunner

from rampline.cli import app


def test_help_of_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 100)
    monkeypatch.setattr("typer.rich_utils.FORCE_TERMINAL", False)
    commands = [[], *([name] for name in sorted(get_group(app).commands))]
    results = [CliRunner().invoke(app, [*command, "--help"], prog_name="rampline") for command in commands]
    check_golden("help.txt", "\n".join(result.output for result in results))
