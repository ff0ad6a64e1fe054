"""Variants in turn, their ratios, and what becomes of one that fails; the variants are small processes."""

from pathlib import Path

import pytest
from processes import processes_of

from benchmarks.measurement import ROUNDS_OF_A_PROCESS, Measurement, Rounds, Variant

# Prints its figure, 10 more with each start; or does what its argument says.
SCRIPT = """
import json, pathlib, subprocess, sys, time
name, first = sys.argv[1], sys.argv[2]
if first == "fail":
    sys.exit("no such thing")
if first == "hang":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", name])
    time.sleep(60)
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
def make_variant(tmp_path: Path):
    (tmp_path / "variant.py").write_text(SCRIPT)

    def make(name: str, what: str, timeout_seconds: float = 30, *, takes_turns: bool = False) -> Variant:
        return Variant(
            name=name,
            arguments=("variant", str(tmp_path / name), what),
            environment={"PYTHONPATH": str(tmp_path)},
            timeout_seconds=timeout_seconds,
            takes_turns=takes_turns,
        )

    return make


def measurement(key: str, *variants: Variant, **settings) -> Measurement:
    return Measurement(key=key, title=key, figure="examples_per_second", variants=variants, **settings)


def test_ratios_are_of_rounds_and_equal_variants_run_once(make_variant) -> None:
    ours, theirs, other = make_variant("ours", "100"), make_variant("theirs", "50"), make_variant("other", "200")

    results = Rounds(measurements=[measurement("a", ours, theirs), measurement("b", ours, other)], rounds=3).run()

    # 100, 110, 120 over 50, 60, 70, and over 200, 210, 220.
    assert results["a"]["ratios"] == pytest.approx([2.0, 110 / 60, 120 / 70])
    assert results["a"]["ratio"] == pytest.approx(110 / 60)
    assert results["a"]["figures"]["ours"] == {"median": 110, "min": 100, "max": 120}
    assert results["b"]["ratios"] == pytest.approx([0.5, 110 / 210, 120 / 220])


def test_a_target_is_a_lower_or_an_upper_bound() -> None:
    assert measurement("a", target=1.7).is_met(1.7)
    assert not measurement("a", target=1.7).is_met(1.69)
    assert measurement("a", target=0.5, at_least=False).is_met(0.5)
    assert not measurement("a", target=0.5, at_least=False).is_met(0.51)
    assert measurement("a").is_met(1.0) is None


def test_others_go_on_when_a_variant_fails(make_variant, tmp_path: Path) -> None:
    ours, broken, hanging = (
        make_variant("ours", "100"),
        make_variant("x", "fail"),
        make_variant("hanging", "hang", timeout_seconds=1.5),
    )
    lines: list[str] = []

    both = [measurement("a", ours, broken), measurement("b", ours, hanging)]
    rounds = Rounds(measurements=both, rounds=2, tell=lines.append)
    results = rounds.run()

    assert results["a"]["ratio"] is None
    assert results["a"]["dropped"] == {"x": "exit status 1: no such thing"}
    assert results["b"]["dropped"] == {"hanging": "no end after 2 s"}
    assert results["a"]["figures"]["ours"]["max"] == 110
    assert len(rounds.failures) == 2
    assert set(rounds.failures) < set(lines)
    assert rounds.failures[0].startswith("x failed: exit status 1: no such thing (repeat with: PYTHONPATH=")
    assert processes_of(tmp_path) == [], "what it had started lives on"


def test_who_takes_turns_stays_for_five_rounds(make_variant) -> None:
    ours, theirs = make_variant("ours", "100", takes_turns=True), make_variant("theirs", "1")

    results = Rounds(measurements=[measurement("a", ours, theirs)], rounds=7).run()

    assert ROUNDS_OF_A_PROCESS == 5
    speeds = zip([100, 101, 102, 103, 104, 110, 111], [1, 11, 21, 31, 41, 51, 61], strict=True)
    assert results["a"]["ratios"] == pytest.approx([above / below for above, below in speeds])


@pytest.mark.long
def test_others_go_on_when_one_that_takes_turns_fails(make_variant, tmp_path: Path) -> None:
    first, second, hanging = (
        make_variant(name, what, seconds, takes_turns=True)
        for name, what, seconds in (("x", "50", 30), ("y", "70", 30), ("hanging", "hang", 2))
    )

    measurements = [measurement("a", first, second), measurement("b", first, hanging)]
    rounds = Rounds(measurements=measurements, rounds=4)
    results = rounds.run()

    assert results["a"]["ratios"] == pytest.approx([50 / 70, 51 / 71])
    assert results["a"]["dropped"] == {"y": "exit status 1: no memory left"}
    assert results["b"]["dropped"] == {"hanging": "no answer after 2 s"}
    assert results["b"]["figures"]["x"] == {"median": 51.5, "min": 50, "max": 53}
    assert [line.split(" failed")[0] for line in rounds.failures] == ["hanging", "y"]
    assert processes_of(tmp_path) == []
