"""The commands that start nothing."""

from importlib.metadata import version


def test_the_version_is_that_of_the_package(rampline, home):
    shown = rampline("--version")
    assert (shown.returncode, shown.stdout) == (0, f"rampline {version('rampline')}\n")


def test_studies_lists_digits_and_shows_its_runs(rampline, home):
    listed, shown = rampline("studies"), rampline("studies", "digits")
    assert (listed.returncode, shown.returncode) == (0, 0)
    assert "digits" in listed.stdout
    for name in ("baseline-fit", "mirrored-ramp", "multi-worker", "parameter-server"):
        assert name in shown.stdout
    assert not home.exists()


def test_plan_shows_batches_and_processes_and_writes_nothing(rampline, home):
    result = rampline(
        "plan", "digits", "--set", "batch.size=96", "--set", "epochs=8", "--set", "cluster.price_per_hour=2"
    )
    assert (result.returncode, result.stderr) == (0, "")
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.strip()}
    assert rows["baseline"] == ["baseline", "single", "1", "chief", "CPU", "96", "96", "8", "?", "0.002", "?", "?"]
    assert rows["multi-worker"][1:7] == ["multi", "worker", "2", "worker", "CPU", "48"]
    assert "mirrored-ramp starts from the best weights of baseline" in result.stdout
    assert not home.exists()


def test_doctor_finds_this_machine_well(rampline, home):
    result = rampline("doctor")
    assert (result.returncode, result.stderr) == (0, "")
    assert {line.split()[0] for line in result.stdout.splitlines() if line[:1].strip()} <= {"ok", "warn"}
    assert not home.exists()


def test_worker_refuses_what_is_no_run_directory(rampline, tmp_path):
    result = rampline("worker", str(tmp_path))
    assert result.returncode == 2
    assert result.stderr.startswith("rampline: error: ")
    assert "is no run directory" in result.stderr
