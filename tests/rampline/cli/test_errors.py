"""Wrong input is one clear line, exit status 2, and nothing is written."""

import pytest

STUDY = """
name: wide
runs:
  four: {set: {strategy: mirrored, cluster: {replicas: 4}}}
"""


def check_refused(result, home, *parts: str) -> None:
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("rampline: error: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr
    assert not home.exists()


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize(
    "arguments,parts",
    [
        (["nosuch"], ["no study 'nosuch'", "digits"]),
        (["nosuch.yaml"], ["nosuch.yaml"]),
        (["digits", "--only", "nosuch"], ["no run 'nosuch'", "baseline-fit"]),
        (["digits", "--set", "epoch=2"], ["unknown key epoch", "did you mean epochs?"]),
        (["digits", "--set", "epochs"], ["KEY=VALUE"]),
        (["digits", "--set", "batch.size=-4"], ["batch.size=-4", "at least 1"]),
        (["digits", "--set", "data.source=folder:/nosuch"], ["/nosuch"]),
        (["digits", "--nosuch"], ["--nosuch"]),
        ([], ["STUDY"]),
    ],
)
def test_wrong_arguments(command, arguments, parts, rampline, home):
    check_refused(rampline(command, *arguments), home, *parts)


@pytest.mark.parametrize("command", ["run", "plan"])
def test_four_replicas_on_one_device(command, rampline, home, tmp_path):
    (tmp_path / "wide.yaml").write_text(STUDY)
    result = rampline(command, "wide.yaml")
    check_refused(result, home, "run four: cluster.replicas=4 needs 4 devices", "set cluster.virtual_devices=4")


def test_resume_without_an_execution(rampline, home):
    check_refused(rampline("run", "digits", "--resume"), home, "study digits has no execution", "leave out --resume")


def test_resume_keeps_its_settings(rampline, home):
    check_refused(rampline("run", "digits", "--resume", "--set", "epochs=2"), home, "leave out --only and --set")


def test_compare_without_runs(rampline, home):
    check_refused(rampline("compare", "digits"), home, "there are no runs", "rampline run digits")


def test_unknown_command(rampline, home):
    check_refused(rampline("trian"), home, "No such command 'trian'")
