"""Malformed TF_CONFIGs and studies through the entry points: status 2, one line, no traceback, nothing written."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rampline import cli, worker
from rampline.config import ClusterConfig, RunConfig
from rampline.record.run_directory import RunDirectory, RunIdentity

A, B = "127.0.0.1:5001", "127.0.0.1:5002"


def tf_config(cluster: object, role: object = "worker", index: object = 0) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})


TF_CONFIGS = {
    "a word": ("worker", "is not JSON: Expecting value"),
    "Python": ("{'cluster': {}}", "is not JSON: Expecting property name"),
    "cut off": (tf_config({"worker": [A, B]})[:-9], "is not JSON: "),
    "a list": (f"[{tf_config({'worker': [A, B]})}]", "must be an object with cluster and task"),
    "JSON in JSON": (json.dumps(tf_config({"worker": [A, B]})), "must be an object with cluster and task"),
    "10^5 deep": ("[" * 10**5 + "]" * 10**5, "is not JSON: maximum recursion depth"),
    "no task": (json.dumps({"cluster": {"worker": [A, B]}}), "has no task: "),
    "no cluster": (json.dumps({"task": {"type": "worker", "index": 0}}), "has no cluster: "),
    "null cluster": (tf_config(None), "has no cluster: "),
    "evaluator": (tf_config({"worker": [A, B], "evaluator": ["h:1"]}), "role 'evaluator' is not known: "),
    "roles are numbers": (tf_config({1: [A, B]}, 1), "role '1' is not known: "),
    "hosts are one text": (tf_config({"worker": f"{A},{B}"}), "cluster.worker must be a list of host:port"),
    "port 0": (tf_config({"worker": ["127.0.0.1:0", B]}), "'127.0.0.1:0': it must be host:port"),
    "port 70000": (tf_config({"worker": ["127.0.0.1:70000", B]}), "'127.0.0.1:70000': it must be host:port"),
    "port of 5000 digits": (tf_config({"worker": ["h:" + "9" * 5000, B]}), "it must be host:port"),
    "unicode digits": (tf_config({"worker": ["127.0.0.1:\u0665\u0660\u0660\u0661", B]}), "it must be host:port"),
    "host with a blank": (tf_config({"worker": ["my host:5001", B]}), "'my host:5001': it must be host:port"),
    "index true": (tf_config({"worker": [A, B]}, index=True), "task.index=True must be 0 to 1 for worker"),
    "index 0.5": (tf_config({"worker": [A, B]}, index=0.5), "task.index=0.5 must be 0 to 1 for worker"),
    "index -1": (tf_config({"worker": [A, B]}, index=-1), "task.index=-1 must be 0 to 1 for worker"),
    "index 10^400": (tf_config({"worker": [A, B]}, index=10**400), "must be 0 to 1 for worker"),
    "no such role": (tf_config({"worker": [A, B]}, "ps"), "task.type='ps' must be one of the cluster's roles: worker"),
    "duplicate": (tf_config({"worker": [A, A]}), "two roles have the same address"),
    "key twice": (tf_config({"worker": [A, B]})[:-1] + ', "task": {"type": "worker", "index": 1}}', "given twice"),
    "three workers": (tf_config({"worker": [A, B, "127.0.0.1:5003"]}), "has 3 chief and workers, the run has"),
    "a megabyte": (tf_config({"worker": [A, "x" * 10**6]}), "it must be host:port"),
}
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGE_BOMB = "a: &a {x: 1}\n" + "".join(
    f"{new}: &{new} {{<<: [{', '.join([f'*{old}'] * 9)}]}}\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
STUDIES: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "None is not allowed: it must be a mapping of keys"),
    "binary": (bytes(range(256)), "cannot be read: 'utf-8' codec can't decode"),
    "Latin-1": ("description: Größe\nruns: {a: {}}".encode("latin-1"), "cannot be read: 'utf-8' codec can't decode"),
    "null bytes": ("name: x\0\nruns: {a: {}}", "not YAML: unacceptable character #x0000"),
    "tabs": ("runs:\n\ta: {}", "not YAML: while scanning for the next token found character '\\t'"),
    "two documents": ("runs: {a: {}}\n---\nruns: {b: {}}", "not YAML: expected a single document"),
    "JSON cut off": ('{"runs": {"a": {', "not YAML: "),
    "Python object": ("runs: !!python/object/apply:os.system ['touch executed']", "could not determine a constructor"),
    "Python name": ("runs: {a: {set: {epochs: !!python/name:os.system }}}", "could not determine a constructor"),
    "own tag": ("runs: !include secret.yaml", "could not determine a constructor for the tag '!include'"),
    "alias bomb": (BOMB + "runs: {a: {set: {seed: *i}}}", "not YAML: its aliases make more than 50000 values"),
    "merge bomb": (MERGE_BOMB + "runs: {a: {set: *i}}", "not YAML: its aliases make more than 50000 values"),
    "contains itself": ("runs: &r {a: {set: *r}}", "not YAML: line 1: a value contains itself"),
    "no such alias": ("runs: {a: *b}", "not YAML: found undefined alias 'b'"),
    "deep": ("runs: " + "[" * 10**5, "not YAML: it is nested too deeply"),
    "deep by indentation": ("".join(f"{' ' * i}a:\n" for i in range(600)), "not YAML: it is nested too deeply"),
    "large": ("# " + "x" * 10**6 + "\nruns: {a: {}}", "cannot be read: it is larger than 256 KiB"),
    "run twice": ("runs:\n  a: {}\n  a: {}", "line 3: key a is given twice"),
    "setting twice": ("runs:\n  a: {set: {epochs: 1, epochs: 2}}", "line 2: key epochs is given twice"),
    "NaN": ("runs: {a: {set: {learning_rate: {peak: .nan}}}}", "learning_rate.peak=nan is not allowed"),
    "infinity": ("runs: {a: {set: {learning_rate: {peak: .inf}}}}", "learning_rate.peak=inf is not allowed"),
    "infinite epochs": ("runs: {a: {set: {epochs: .inf}}}", "epochs=inf is not allowed: it must be a whole number"),
    "10^30": ("runs: {a: {set: {epochs: 1" + "0" * 30 + "}}}", "line 1: a whole number of more than 64 bits"),
    "5000 digits": ("runs: {a: {set: {epochs: " + "9" * 5000 + "}}}", "cannot be read: Exceeds the limit"),
    "hex digits": ("runs: {a: {set: {epochs: 0x" + "f" * 9999 + "}}}", "line 1: a whole number of more than 64 bits"),
    "true epochs": ("runs: {a: {set: {epochs: yes}}}", "epochs=True is not allowed: it must be a whole number"),
    "text epochs": ("runs: {a: {set: {epochs: ten}}}", "epochs='ten' is not allowed: it must be a whole number"),
    "a date": ("runs: {a: {set: {seed: 2026-01-01}}}", "seed=datetime.date(2026, 1, 1) is not allowed"),
    "a list of runs": ("runs: [{name: a}]", "runs=[{'name': 'a'}] is not allowed: it must be a mapping"),
    "path as a name": ("name: ../../escaped\nruns: {a: {}}", "name '../../escaped' is not allowed"),
    "path as a run": ("runs: {../escaped: {}}", "run name '../escaped' is not allowed"),
    "name of 200 KB": ("name: " + "n" * 200_000 + "\nruns: {a: {}}", "is not allowed: it must be lower-case"),
    "value of 200 KB": ("runs: {a: {set: {strategy: " + "s" * 200_000 + "}}}", "run a: strategy='sssss"),
    "weights of a path": ("runs: {a: {set: {model: {weights: 'run:../b'}}}}", "must name a run above it"),
    "null section": ("runs: {a: {set: {data: null}}}", "data=None is not allowed: it must be a mapping"),
    "list as a key": ("runs: {a: {set: {? [1] : 2}}}", "not YAML: while constructing a mapping"),
    "number as a key": ("runs: {a: {set: {7: 2}}}", "unknown key 7"),
    "number as a metric": ("runs: {a: {published: {7: 2}}}", "published metric 7 is not allowed"),
    "password": (
        "runs: {a: {set: {data: {source: 'tfds:https://me:hunter2@host/x'}}}}",
        "runs.a.set.data.source holds a user name, password or token in an address",
    ),
}


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else b"" for path in root.rglob("*")}


def check_line(error: str, prefix: str, part: str) -> None:
    assert error.startswith(prefix)
    assert part in error
    assert error.count("\n") == 1
    assert len(error) < 1500
    assert "Traceback" not in error


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder with RAMPLINE_HOME below it, not there yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def rampline(monkeypatch, capsys):
    """`rampline("plan", …)` in this process: (status, standard error); nothing may go to standard output."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    kept = dict(os.environ)

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["rampline", *arguments])
        status = cli.main()
        output = capsys.readouterr()
        assert output.out == ""
        return status, output.err

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)
    os.environ.clear()
    os.environ.update(kept)


@pytest.mark.parametrize("text, part", TF_CONFIGS.values(), ids=TF_CONFIGS)
def test_a_role_refuses_a_malformed_tf_config(here, monkeypatch, capsys, text, part):
    directory = RunDirectory(here / "run")
    config = RunConfig(strategy="multi_worker", cluster=ClusterConfig(workers=2))
    directory.create(config, RunIdentity(study="s", name="run", dataset="/nowhere"))
    before = tree(here)
    monkeypatch.setenv("TF_CONFIG", text)
    monkeypatch.delenv("RAMPLINE_PARENT_PID", raising=False)
    assert worker.main([str(directory.path)]) == 2
    check_line(capsys.readouterr().err, "rampline: error: TF_CONFIG", part)
    assert tree(here) == before


@pytest.mark.parametrize("command", ["run", pytest.param("plan", marks=pytest.mark.long)])
@pytest.mark.parametrize("content, part", STUDIES.values(), ids=STUDIES)
def test_the_command_refuses_a_malformed_study(here, rampline, command, content, part):
    (here / "odd.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    before = tree(here)
    status, error = rampline(command, "odd.yaml")
    assert status == 2
    check_line(error, "rampline: error: ", part)
    assert "hunter2" not in error
    assert tree(here) == before


def test_a_study_that_is_no_file(here, rampline):
    (here / "folder.yaml").mkdir()
    os.mkfifo(here / "pipe.yaml")
    (here / "loop.yaml").symlink_to("loop.yaml")
    for name in ("folder.yaml", "pipe.yaml", "loop.yaml", "x" * 10**5 + ".yaml", "a\nb.yaml", "https://me:pw@h/x.yaml"):
        status, error = rampline("plan", name)
        assert status == 2
        check_line(error, "rampline: error: no study ", "give the path of a .yaml file")
        assert "pw" not in error


@pytest.mark.parametrize(
    "setting, part",
    [
        ("data.source=tfds:s3://key:hunter2@bucket", "data.source holds a user name, password or token"),
        ("data.source=folder:https://hunter2@host/x", "data.source holds a user name, password or token"),
        ("data.manual_dir=https://h/x?token=hunter2", "data.manual_dir holds a user name, password or token"),
        ("model.weights=HTTPS://u:hunter2@h/w.h5", "model.weights holds a user name, password or token"),
        ("model.name=os:system", "code is imported only if the study file names it"),
        ("seed=" + "[" * 2000, "a value of --set is too long or too deep"),
        ("seed=" + "9" * 5000, "seed="),
        ("epochs={a: 1}", "epochs={'a': 1} is not allowed"),
    ],
)
def test_overrides_that_are_refused(here, rampline, setting, part):
    status, error = rampline("run", "digits", "--only", "baseline", "--set", setting)
    assert status == 2
    check_line(error, "rampline: error: ", part)
    assert "hunter2" not in error
    assert tree(here) == {}


@pytest.mark.parametrize("name", ["10^5 deep", "port 70000"])
def test_a_role_as_a_process(here, name):
    directory = RunDirectory(here / "run")
    config = RunConfig(strategy="multi_worker", cluster=ClusterConfig(workers=2))
    directory.create(config, RunIdentity(study="s", name="run", dataset="/nowhere"))
    before = tree(here)
    text, part = TF_CONFIGS[name]
    command = [sys.executable, "-m", "rampline.worker", str(directory.path)]
    environment = {**os.environ, "TF_CONFIG": text.replace("[" * 10**5, "[" * 10**4).replace("]" * 10**5, "")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    check_line(done.stderr, "rampline: error: TF_CONFIG", part)
    assert tree(here) == before
