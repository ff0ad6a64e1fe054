"""Contenders in turn, their ratios, and what becomes of one that fails; the contenders are small processes."""

import time
from pathlib import Path

import pytest

from benchmarks.measurement import ROUNDS_OF_A_PROCESS, Contender, Measurement, Procedure, run_together
from rampline.files import read_json

# Prints its figure, 10 more with each start; or does what its argument says.
SCRIPT = """
import json, pathlib, subprocess, sys, time
name, first = sys.argv[1], sys.argv[2]
if first == "fail":
    sys.exit("no such thing")
if first == "hang":
    subprocess.Popen([sys.executable, "-c", f"import time; time.sleep(3); open({name!r}, 'w')"])
    time.sleep(60)
if first == "absent":
    print(json.dumps({"not_measured": "install it"}))
    sys.exit()
counter = pathlib.Path(name)
starts = int(counter.read_text()) if counter.exists() else 0
counter.write_text(str(starts + 1))
if "--turns" in sys.argv:
    print("ready", flush=True)
    for block, _ in enumerate(sys.stdin):
        if first == "70" and block == 2:
            sys.exit("no memory left")
        print("a line of no interest")
        print(json.dumps({"examples_per_second": int(first) + 10 * starts + block}), flush=True)
    sys.exit()
print("a line of no interest")
print(json.dumps({"examples_per_second": int(first) + 10 * starts}))
"""


@pytest.fixture
def make_contender(tmp_path: Path):
    (tmp_path / "contender.py").write_text(SCRIPT)

    def make(name: str, what: str, timeout_seconds: float = 30, *, takes_turns: bool = False) -> Contender:
        return Contender(
            name=name,
            arguments=("contender", str(tmp_path / name), what),
            environment={"PYTHONPATH": str(tmp_path)},
            timeout_seconds=timeout_seconds,
            takes_turns=takes_turns,
        )

    return make


def measurement(key: str, numerator: Contender, denominator: Contender, **settings) -> Measurement:
    return Measurement(
        key=key,
        title=key,
        figure="examples_per_second",
        contenders=(numerator, denominator),
        numerator=numerator.name,
        denominator=denominator.name,
        **settings,
    )


def test_ratios_are_of_rounds_and_equal_contenders_run_once(make_contender, tmp_path: Path) -> None:
    ours, theirs, other = make_contender("ours", "100"), make_contender("theirs", "50"), make_contender("other", "200")
    pair = [measurement("a", ours, theirs, target=1.7), measurement("b", ours, other, target=0.5, at_least=False)]

    results = run_together(pair, Procedure(rounds=3, folder=tmp_path))

    # 100, 110, 120 over 50, 60, 70, and over 200, 210, 220.
    assert results[0]["ratios"] == pytest.approx([2.0, 110 / 60, 120 / 70])
    assert results[0]["ratio"] == pytest.approx(110 / 60)
    assert results[0]["figures"]["ours"] == {"median": 110, "min": 100, "max": 120}
    assert results[1]["ratios"] == pytest.approx([0.5, 110 / 210, 120 / 220])
    assert [result["met"] for result in results] == [True, False]
    assert read_json(tmp_path / "b.json") == results[1]


def test_others_go_on_when_a_contender_fails(make_contender, tmp_path: Path) -> None:
    ours, broken, absent = make_contender("ours", "100"), make_contender("x", "fail"), make_contender("y", "absent")
    lines: list[str] = []

    both = [measurement("a", ours, broken), measurement("b", ours, absent)]
    results = run_together(both, Procedure(rounds=2, folder=tmp_path, report=lines.append))

    assert results[0]["ratio"] is None
    assert results[0]["dropped"] == {"x": {"error": "exit status 1: no such thing"}}
    assert results[1]["dropped"] == {"y": {"not_measured": "install it"}}
    assert results[0]["figures"]["ours"]["max"] == 110
    assert len(lines) == 1
    assert lines[0].startswith("x failed: exit status 1: no such thing (repeat with: PYTHONPATH=")


def test_who_takes_turns_stays_for_five_rounds(make_contender, tmp_path: Path) -> None:
    ours, theirs = make_contender("ours", "100", takes_turns=True), make_contender("theirs", "1")

    [result] = run_together([measurement("a", ours, theirs)], Procedure(rounds=7, folder=tmp_path))

    assert ROUNDS_OF_A_PROCESS == 5
    speeds = [figures["ours"]["examples_per_second"] for figures in result["rounds"]]
    assert speeds == [100, 101, 102, 103, 104, 110, 111]
    assert [figures["theirs"]["examples_per_second"] for figures in result["rounds"]] == [1, 11, 21, 31, 41, 51, 61]


def test_others_go_on_when_one_that_takes_turns_fails(make_contender, tmp_path: Path) -> None:
    first, second, absent, hanging = (
        make_contender(name, what, seconds, takes_turns=True)
        for name, what, seconds in (("x", "50", 30), ("y", "70", 30), ("z", "absent", 30), ("written-late", "hang", 2))
    )
    lines: list[str] = []

    measurements = [measurement("a", first, second), measurement("b", first, absent), measurement("c", first, hanging)]
    results = run_together(measurements, Procedure(rounds=4, folder=tmp_path, report=lines.append))

    assert results[0]["ratios"] == pytest.approx([50 / 70, 51 / 71])
    assert results[0]["dropped"] == {"y": {"error": "exit status 1: no memory left"}}
    assert results[1]["dropped"] == {"z": {"not_measured": "install it"}}
    assert results[2]["dropped"] == {"written-late": {"error": "no answer after 2 s"}}
    assert results[2]["figures"]["x"] == {"median": 51.5, "min": 50, "max": 53}
    assert [line.split(" failed")[0] for line in lines] == ["written-late", "y"]
    time.sleep(2.5)
    assert not (tmp_path / "written-late").exists()


def test_a_contender_that_hangs_is_ended_with_what_it_started(make_contender, tmp_path: Path) -> None:
    hanging, lines = make_contender("written-late", "hang", timeout_seconds=1.5), []

    run_together(
        [measurement("a", make_contender("ours", "1"), hanging)],
        Procedure(rounds=1, folder=tmp_path, report=lines.append),
    )

    assert lines[0].startswith("written-late failed: no end after 2 s")
    time.sleep(2.5)
    assert not (tmp_path / "written-late").exists()
