"""`rampline.run` in scripts and notebooks."""

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from command_line import as_terminal_job
from processes import processes_with

import rampline
from rampline.config.formats import write_value
from rampline.errors import ConfigError, InputError
from rampline.files import write_csv
from rampline.jobs.waiting import wait_until
from rampline.record.home import Home
from rampline.result import Result, _command, _name_model, _write_study
from rampline.study import load_study
from rampline.tasks.page import comparison_rows

SCRIPT = """
import keras, rampline
UNITS = 8
def network(input_shape, classes):
    layers = [keras.Input(input_shape, dtype="uint8"), keras.layers.Rescaling(1 / 255), keras.layers.Flatten()]
    return keras.Sequential([*layers, keras.layers.Dense(UNITS), keras.layers.Dense(classes)])
result = rampline.run(
    model=network, strategies=["single", "mirrored"], set={"epochs": EPOCHS, "data.limit": 20, "explain.steps": 0}
)
print(*result.comparison["run"], result.model("mirrored").count_params(), "<iframe" in result.report._repr_html_())
"""


def start(folder: Path, epochs: int) -> subprocess.Popen[str]:
    """The script, in a folder and home of its own."""
    script = folder / "script.py"
    script.write_text(SCRIPT.replace("EPOCHS", str(epochs)))
    environment = {**os.environ, "RAMPLINE_HOME": str(folder / "home")}
    return subprocess.Popen(
        [sys.executable, "-P", str(script)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=as_terminal_job,
    )


def test_what_is_wrong_is_raised_with_the_line_that_the_command_says(
    capfd: pytest.CaptureFixture[str], rampline_home: Path
) -> None:
    with pytest.raises(InputError, match=r"run baseline: epochs=0 is not allowed") as refused:
        rampline.run("digits", only="baseline", set={"epochs": 0})
    assert f"rampline: error: {refused.value}" in capfd.readouterr().out


@pytest.mark.parametrize(
    "value, written", [(3, "3"), (0.001, "0.001"), (True, "true"), (None, "null"), ("disk", "disk"), ([3, 7], "[3, 7]")]
)
def test_a_value_is_written_as_set_reads_it(value: object, written: str) -> None:
    assert write_value(value) == written
    assert yaml.safe_load(write_value(value)) == value


def test_a_setting_that_is_no_plain_value_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^set=\{.*PosixPath\('x.h5'\)\} is not allowed: its values must be plain"):
        rampline.run("digits", set={"model.weights": Path("x.h5")})


def test_a_function_of_a_module_is_named_by_it(tmp_path: Path) -> None:
    assert _name_model(start, Home(root=tmp_path)) == (f"{__name__}:start", None)
    assert _name_model("convnet7", Home(root=tmp_path)) == ("convnet7", None)
    with pytest.raises(ConfigError, match="must be a function that is defined by def"):
        _name_model(lambda: None, Home(root=tmp_path))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be a function that is defined by def"):
        _name_model(functools.partial(start, tmp_path), Home(root=tmp_path))  # type: ignore[arg-type]


def test_a_study_of_a_model_has_a_run_per_strategy(tmp_path: Path) -> None:
    home = Home(root=tmp_path)
    file = _write_study(home, "nets:my_net", "digits", ["single", "multi_worker"], 3)
    content = yaml.safe_load(file.read_text())
    assert (content["name"], list(content["runs"])) == ("my-net", ["single", "multi-worker"])
    assert _write_study(home, "nets:my_net", "digits", ["single"], 3) != file  # which is still to be read
    for function, name in {"modèle": "mod-le", "net_" + 100 * "x": "net-" + 96 * "x", "сеть": "model"}.items():
        assert load_study(str(_write_study(home, f"nets:{function}", "digits", ["single"], 3))).name == name
    for strategies in ([], ["mirored"]):
        with pytest.raises(ConfigError, match="it must name some of single, mirrored"):
            _write_study(home, "convnet", "digits", strategies, 2)


def test_the_first_call_makes_a_home_as_a_command_does_and_leaves_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path / "home"))
    os.umask(0o002)
    with pytest.raises(InputError, match=r"epochs=0 is not allowed"):
        rampline.run(data="digits", strategies="single", set={"epochs": 0})
    assert os.umask(0o022) == 0o002
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700
    assert [path for path in (tmp_path / "home").rglob("*") if path.stat().st_mode & 0o077] == []


CHATTY = """#!{python}
import os, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(print("x" * 1_000_000) or 130))
print("trains", flush=True)
time.sleep(0.5)  # its caller listens by then
os.kill(os.getppid(), signal.SIGINT)
while True:
    time.sleep(0.1)
"""


def test_a_command_that_says_much_after_ctrl_c_can_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rampline").write_text(CHATTY.format(python=sys.executable))
    (tmp_path / "rampline").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            _command(["run"], {})
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_may_have_a_number_as_its_name(tmp_path: Path) -> None:
    names, file = ["1", "007", "null"], tmp_path / "comparison.csv"
    write_csv(file, pd.DataFrame({"run": names, "strategy": "single", "status": "complete"}))
    assert Result(folder=tmp_path, reports=tmp_path).comparison["run"].tolist() == names
    assert [row["run"] for row in comparison_rows(file)] == names


def test_the_package_names_what_it_has() -> None:
    assert rampline.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        _ = rampline.rum  # type: ignore[attr-defined]


@pytest.mark.long
def test_a_function_of_a_script_is_trained_and_its_model_comes_back(tmp_path: Path) -> None:
    said, _ = start(tmp_path, 1).communicate()
    assert said.splitlines()[-1] == f"single mirrored {(28 * 28 * 8 + 8) + (8 * 10 + 10)} True", said


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_caller(tmp_path: Path, number: signal.Signals) -> None:
    caller = start(tmp_path, 100_000)
    assert caller.stdout
    while "epoch" not in (line := caller.stdout.readline()):
        assert line, "it ended before it trained"
    caller.send_signal(number)
    caller.communicate()
    assert wait_until(lambda: not processes_with(tmp_path / "home"), 60), processes_with(tmp_path / "home")
