"""Malformed TF_CONFIGs and studies through the entry points: status 2, one line, no traceback, nothing written."""

import os
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from rampline.config import ClusterConfig, RunConfig
from rampline.record.run_directory import RunDirectory, RunIdentity

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGE_BOMB = "a: &a {x: 1}\n" + "".join(
    f"{new}: &{new} {{<<: [{', '.join([f'*{old}'] * 9)}]}}\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
STUDIES: dict[str, tuple[str | bytes, str]] = {
    "binary": (bytes(range(256)), "mine/odd.yaml: cannot be read: 'utf-8' codec can't decode"),
    "null bytes": ("name: x\0\nruns: {a: {}}", "not YAML: unacceptable character #x0000"),
    "two documents": ("runs: {a: {}}\n---\nruns: {b: {}}", "not YAML: expected a single document"),
    "a list as a key": ("runs: {? [a] : 1}", "mine/odd.yaml: not YAML: "),
    "no date": ("name: 2024-13-45\nruns: {a: {}}", "mine/odd.yaml: cannot be read: month must be in 1..12"),
    "Python name": ("runs: {a: {set: {epochs: !!python/name:os.system }}}", "could not determine a constructor"),
    "alias bomb": (BOMB + "runs: {a: {set: {seed: *i}}}", "not YAML: its aliases make more than 50000 values"),
    "merge bomb": (MERGE_BOMB + "runs: {a: {set: *i}}", "not YAML: its aliases make more than 50000 values"),
    "contains itself": ("runs: &r {a: {set: *r}}", "not YAML: line 1: a value contains itself"),
    "deep": ("runs: " + "[" * 10**5, "not YAML: it is nested too deeply"),
    "deep by indentation": ("".join(f"{' ' * i}a:\n" for i in range(600)), "not YAML: it is nested too deeply"),
    "large": ("# " + "x" * 10**6 + "\nruns: {a: {}}", "cannot be read: it is larger than 256 KiB"),
    "NaN": ("runs: {a: {set: {learning_rate: {peak: .nan}}}}", "learning_rate.peak=nan is not allowed"),
    "infinite epochs": ("runs: {a: {set: {epochs: .inf}}}", "epochs=inf is not allowed: it must be a whole number"),
    "5000 digits": ("runs: {a: {set: {epochs: " + "9" * 5000 + "}}}", "cannot be read: Exceeds the limit"),
    "hex digits": ("runs: {a: {set: {epochs: 0x" + "f" * 9999 + "}}}", "line 1: a whole number of more than 64 bits"),
    "a date": ("runs: {a: {set: {seed: 2026-01-01}}}", "seed=datetime.date(2026, 1, 1) is not allowed"),
    "name of 200 KB": ("name: " + "n" * 200_000 + "\nruns: {a: {}}", "is not allowed: it must be lower-case"),
    "value of 200 KB": ("runs: {a: {set: {strategy: " + "s" * 200_000 + "}}}", "run a: strategy='sssss"),
    "number as a metric": ("runs: {a: {published: {7: 2}}}", "published metric 7 is not allowed"),
    "password": (
        "runs: {a: {set: {data: {source: 'tfds:https://me:hunter2@host/x'}}}}",
        "runs.a.set.data.source holds a user name, password or token in an address",
    ),
}


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else b"" for path in root.rglob("*")}


def check_line(result: CompletedProcess[str], prefix: str, part: str) -> None:
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(prefix)
    assert part in result.stderr
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) < 1500
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("content, part", STUDIES.values(), ids=STUDIES)
def test_the_command_refuses_a_malformed_study(tmp_path, rampline, content, part):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "odd.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    before = tree(tmp_path)
    refused = rampline("run", "mine/odd.yaml")
    check_line(refused, "rampline: error: ", part)
    assert "hunter2" not in refused.stderr
    assert tree(tmp_path) == before


def test_a_study_that_is_no_file(tmp_path, rampline):
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    for name in ("folder.yaml", "pipe.yaml", "loop.yaml", "x" * 10**5 + ".yaml", "a\nb.yaml", "https://me:pw@h/x.yaml"):
        refused = rampline("plan", name)
        check_line(refused, "rampline: error: no study ", "give the path of a .yaml file")
        assert "pw" not in refused.stderr


@pytest.mark.parametrize(
    "setting, part",
    [
        ("data.source=tfds:s3://key:hunter2@bucket", "data.source holds a user name, password or token"),
        ("data.manual_dir=https://h/x?token=hunter2", "data.manual_dir holds a user name, password or token"),
        ("model.weights=HTTPS://u:hunter2@h/w.h5", "model.weights holds a user name, password or token"),
        ("seed=" + "[" * 2000, "a value of --set is too long or too deep"),
        ("seed=" + "9" * 5000, "seed="),
    ],
)
def test_overrides_that_are_refused(tmp_path, rampline, setting, part):
    refused = rampline("run", "digits", "--only", "baseline", "--set", setting)
    check_line(refused, "rampline: error: ", part)
    assert "hunter2" not in refused.stderr
    assert tree(tmp_path) == {}


def test_a_role_refuses_a_malformed_tf_config(tmp_path, home):
    directory = RunDirectory(tmp_path / "run")
    config = RunConfig(strategy="multi_worker", cluster=ClusterConfig(workers=2))
    directory.create(config, RunIdentity(study="s", name="run", dataset="/nowhere"))
    before = tree(tmp_path)
    command = [sys.executable, "-m", "rampline.worker", str(directory.path)]
    place = {"cwd": tmp_path, "env": {**os.environ, "TF_CONFIG": "[" * 10**4, "RAMPLINE_HOME": str(home)}}
    done = subprocess.run(command, **place, capture_output=True, text=True, check=False, timeout=60)
    check_line(done, "rampline: error: TF_CONFIG", "is not JSON: maximum recursion depth")
    assert tree(tmp_path) == before
