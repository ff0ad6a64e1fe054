"""Wrong input is one clear line, exit status 2, and nothing is written."""

import os
import re
import signal
import subprocess

import pytest
from command_line import RAMPLINE, read_until, wait_until
from file_server import serve
from other_user import NOBODY
from small_disk import small_disk

from rampline.data.sources.web_archive import download
from rampline.files import write_json
from rampline.record.home import Home
from rampline.study import load_study
from rampline.study.execution_file import Execution

STUDY = """
name: wide
runs:
  four: {set: {strategy: mirrored, cluster: {replicas: 4}}}
"""
SOFTMAX = """
import keras

def net(input_shape, classes):
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(x))
"""


def check_refused(result, home, *parts: str) -> None:
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("rampline: error: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr
    assert not home.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_home_that_another_user_has_put_there(tmp_path):
    home = tmp_path / ".rampline"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    unnamed = os.environ | {"RAMPLINE_HOME": ""}
    said = subprocess.run([RAMPLINE, "studies"], cwd=tmp_path, env=unnamed, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (2, "", 1)
    assert said.stderr.startswith(f"rampline: error: {home} belongs to another user, or all may write to it: ")


@pytest.mark.parametrize(
    "arguments,parts",
    [
        (["run", "nosuch"], ["no study 'nosuch'", "digits"]),
        (["run", "digits", "--only", "nosuch"], ["no run 'nosuch'", "baseline-fit"]),
        (["run", "digits", "--set", "epoch=2"], ["unknown key epoch", "did you mean epochs?"]),
        (["run", "digits", "--set", "data.source=folder:/nosuch"], ["/nosuch"]),
        (["run", "digits", "--set", "model.name=MobilNetV2"], ["run baseline: model.name='MobilNetV2' is not known"]),
        (
            ["run", "digits", "--set", "model.name=MobileNetV2", "--set", "model.weights=no.h5"],
            ["run baseline: model.weights='no.h5' cannot be found"],
        ),
        (
            ["run", "digits", "--only", "baseline", "--set", "mirrored-ramp:epochs=2"],
            ["--set mirrored-ramp:epochs has no effect: --only leaves run mirrored-ramp out"],
        ),
        (["run", "digits", "--overrides", "nothing.yaml"], ["nothing.yaml: cannot be read"]),
        (["run", "digits", "--execution", ".."], ["--execution=..: it must be the name of a folder of"]),
        (["run", "digits", "--resume", "--execution", "e1"], ["runs/digits/e1 is no execution"]),
        (["run", "digits", "--resume"], ["study digits has no execution", "leave out --resume"]),
        (["run", "digits", "--resume", "--set", "epochs=2"], ["leave out --only, --set"]),
        (["run", "digits", "--resume", "--launcher", "ray"], ["leave out", "--launcher"]),
        (["run", "digits", "--nosuch"], ["--nosuch"]),
        (["run"], ["STUDY"]),
        (["worker", "--nosuch"], ["No such option: --nosuch"]),
        (["compare", "digits"], ["there are no runs", "rampline run digits"]),
        (["explain", "digits"], ["study digits has no execution in"]),
        (["explain", "digits", "--set", "epochs=1"], ["--set changes what is measured: it goes with --measure"]),
        (["explain", "digits", "--measure", "--only", "nobody"], ["no run 'nobody'"]),
        (["parity", "digits", "--run", "nobody"], ["study digits has no run 'nobody'"]),
        (
            ["parity", "digits", "--run", "baseline", "--set", "model.name=resnet50"],
            ["model.name='resnet50' is not known"],
        ),
        (["tune", "digits", "--run", "nobody"], ["study digits has no run 'nobody'"]),
        (["trian"], ["No such command 'trian'"]),
        (["up", "--host", "192.0.2.200"], ["is no address of this machine"]),
        (
            ["up", "--host", "0.0.0.0"],
            ["PREFECT_SERVER_API_AUTH_STRING", "RAMPLINE_MLFLOW_USERNAME and RAMPLINE_MLFLOW_PASSWORD"],
        ),
    ],
)
def test_wrong_arguments(arguments, parts, rampline, home):
    check_refused(rampline(*arguments), home, *parts)


def test_a_password_that_everybody_knows(rampline, home):
    known = {"RAMPLINE_MLFLOW_USERNAME": "admin", "RAMPLINE_MLFLOW_PASSWORD": "password1234"}
    check_refused(rampline("up", prefect=known), home, "a password that everybody knows")


@pytest.mark.parametrize("command", ["run", "plan"])
def test_four_replicas_on_one_device(command, rampline, home, tmp_path):
    (tmp_path / "wide.yaml").write_text(STUDY)
    result = rampline(command, "wide.yaml")
    check_refused(result, home, "run four: cluster.replicas=4 needs 4 devices", "set cluster.virtual_devices=4")


def test_a_module_that_is_nowhere(rampline, home, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("")
    (tmp_path / "own.yaml").write_text("runs: {one: {set: {model: {name: 'mine.nets:net'}}}}")
    refused = f"run one: model.name='mine.nets:net' is not found: looked in {tmp_path}, PYTHONPATH and what is"
    check_refused(rampline("run", "own.yaml"), home, refused)


def test_what_was_not_begun_is_not_said_to_be_resumable(command, home):
    started = command("run", "digits")
    read_until(started, "study digits, execution ")
    wait_until((home / "prefect").is_dir, 30)
    os.killpg(started.pid, signal.SIGINT)
    rest, _ = started.communicate(timeout=60)
    assert started.returncode == 128 + signal.SIGINT
    assert rest == "interrupted\n"
    assert not list(home.glob("runs/digits/*/execution.json"))


@pytest.mark.long
def test_a_download_that_is_interrupted_leaves_its_part_for_the_next(command, home, tmp_path):
    with serve(bytes(3_000_000), pause_seconds=0.5) as server:
        (tmp_path / "far.yaml").write_text(f'base: {{data: {{source: "url:{server.url}"}}}}\nruns: {{one: {{}}}}')
        started = command("data", "far.yaml")
        read_until(started, "downloading 3.00 MB from ")
        wait_until(lambda: any(part.stat().st_size for part in home.glob("data/downloads/*/.*.part")), 30)
        os.killpg(started.pid, signal.SIGINT)
        started.communicate(timeout=60)
        assert started.returncode == 128 + signal.SIGINT
        (folder,) = home.glob("data/downloads/*")
        assert not (folder / "images.zip").exists()
        server.pause_seconds = 0.0
        download([server.url], folder / "images.zip", checksum=None, tell=lambda line: None)
    assert re.fullmatch(r"bytes=[1-9]\d*-", server.ranges[-1])
    assert (folder / "images.zip").read_bytes() == bytes(3_000_000)


def test_resume_continues_the_execution_that_is_named(rampline, home):
    study = load_study("digits", only=["baseline"])
    done, latest = (
        Execution(folder=home / "runs" / "digits" / name, study=study, home=Home(root=home)) for name in ("e1", "e2")
    )
    home.mkdir(mode=0o700)
    done.write()
    latest.write()
    run = done.directory("baseline")
    for file in (run.result_file, run.evaluation_file, done.reports / "comparison.csv"):
        write_json(file, {})
    result = rampline("run", "digits", "--resume", "--execution", "e1")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "rampline: error: execution of study digits, e1, is complete: leave out --resume\n"


@pytest.mark.parametrize("command", [["run", "digits"], ["up"], ["up", "--detach"]])
def test_a_home_that_cannot_be_written(command, rampline, home):
    with small_disk(home, 1, "ro"):
        result = rampline(*command)
        assert result.returncode == 1
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"rampline: error: {home}/")
        assert line.endswith(
            ": Read-only file system: use a folder that you may write to, or set RAMPLINE_HOME to another"
        )


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        pytest.param(["parity", "--run", "a"], marks=pytest.mark.long),
        pytest.param(["tune", "--run", "a"], marks=pytest.mark.long),
        pytest.param(["explain", "--measure"], marks=pytest.mark.long),
    ],
)
def test_a_model_that_ends_in_a_softmax_is_refused_before_data_is_prepared(
    arguments, rampline, home, tmp_path, prefect_server
):
    (tmp_path / "networks.py").write_text(SOFTMAX)
    (tmp_path / "own.yaml").write_text("name: own\nruns: {a: {set: {model: {name: 'networks:net'}}}}\n")
    result = rampline(*arguments, "own.yaml", prefect=prefect_server.prefect)
    assert result.returncode == 2
    error = "rampline: error: model.name='networks:net' ends in a softmax, but its loss takes logits and applies one: "
    assert error in result.stderr
    assert f"({tmp_path / 'networks.py'}, line 7: " in result.stderr
    assert not (home / "data").exists()
    assert not (home / "runs").exists()
