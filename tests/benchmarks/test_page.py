"""docs/performance.md from results, and what it says of those that are missing."""

from pathlib import Path
from types import ModuleType

from benchmarks.curve import Curve, summarise_curve
from benchmarks.measurement import Contender, Measurement, summarise
from benchmarks.page import write_page
from rampline.files import write_json

LOOP, BARE = (Contender(name=name, arguments=("contender", name)) for name in ("loop", "bare"))
RATIO = Measurement(
    key="ratio",
    title="loop vs bare",
    figure="examples_per_second",
    contenders=(LOOP, BARE),
    numerator="loop",
    denominator="bare",
    target=0.97,
)
SHARE = Measurement(
    key="share",
    title="checkpoint",
    figure="checkpoint_share",
    contenders=(LOOP,),
    numerator="loop",
    target=0.02,
    at_least=False,
)
MISSING = Measurement(
    key="missing", title="not run", figure="seconds", contenders=(LOOP,), numerator="loop", target=3, at_least=False
)
CURVE = Curve(
    key="curve",
    title="Images",
    x="images",
    points=((1000, LOOP), (9000, BARE)),
    figures={"peak_mib": "memory (MiB)"},
    target=600,
    target_figure="peak_mib",
)


def test_page_has_medians_spread_targets_and_what_is_missing(tmp_path: Path) -> None:
    rates = [(90, 100), (96, 100), (110, 100)]
    rounds = [
        {"loop": {"examples_per_second": a, "checkpoint_share": a / 10_000}, "bare": {"examples_per_second": b}}
        for a, b in rates
    ]
    for item in (RATIO, SHARE):
        write_json(tmp_path / f"{item.key}.json", summarise(item, rounds, {}, "python -m benchmarks"))
    curve = summarise_curve(CURVE, {"1000": [{"peak_mib": 512.4}], "9000": []}, {"9000": "no memory"}, "command")
    write_json(tmp_path / "curve.json", curve)
    topic = ModuleType("topic", "Training: on one machine.")
    topic.__dict__.update(MEASUREMENTS=(RATIO, SHARE, MISSING), CURVES=(CURVE,))

    text = write_page([topic], tmp_path, tmp_path / "page.md").read_text()

    assert "| loop vs bare | ≥ 0.97 | **0.96** | 0.90 to 1.10, 3 rounds | **no** |" in text
    assert "| checkpoint | ≤ 2.00 % | **0.96 %** | 0.90 % to 1.10 %, 3 rounds | yes |" in text
    assert "| not run | ≤ 3 s | not measured |  |  |" in text
    assert "| Images, images 9000 | ≤ 600 MiB | not measured |  |  |" in text
    assert "## Training: on one machine\n" in text
    assert "| loop | 96 | 90 | 110 |" in text
    assert "| 1000 | 512 |\n| 9000 | - |" in text
    assert "- at 9000: no memory" in text
