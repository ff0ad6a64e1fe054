"""The commands that start nothing; tests/test_golden.py has what they print."""

from importlib.metadata import version


def test_the_version_is_that_of_the_package(rampline, home):
    shown = rampline("--version")
    assert (shown.returncode, shown.stdout) == (0, f"rampline {version('rampline')}\n")


def test_worker_refuses_what_is_no_run_directory(rampline, tmp_path):
    result = rampline("worker", str(tmp_path))
    assert result.returncode == 2
    assert result.stderr.startswith("rampline: error: ")
    assert "is no run directory" in result.stderr


def test_the_card_of_a_study_with_nothing_but_a_run(rampline, home, tmp_path):
    (tmp_path / "mine.yaml").write_text("runs: {only: {set: {batch: {size: 48}}}}")
    text = " ".join(rampline("studies", "mine.yaml").stdout.split())
    assert "only (reference) single 1 48" in text
    for absent in ("teaches", "prices", "published"):
        assert absent not in text
    assert not home.exists()
