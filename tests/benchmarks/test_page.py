"""docs/performance.md from results, and what it says of those that are missing."""

from pathlib import Path

from benchmarks.claims import MEASUREMENTS
from benchmarks.measurement import Measurement, Variant, summarise
from benchmarks.page import PAGE, RESULTS, write_page
from rampline.files import read_json

LOOP, BARE = (Variant(name=name, arguments=("variant", name)) for name in ("loop", "bare"))
RATIO = Measurement(key="ratio", title="loop vs bare", figure="examples_per_second", variants=(LOOP, BARE), target=0.97)
SHARE = Measurement(
    key="share", title="checkpoint", figure="checkpoint_share", variants=(LOOP,), target=0.02, at_least=False
)
MISSING = Measurement(key="missing", title="not run", figure="seconds", variants=(LOOP,), target=3, at_least=False)


def test_page_has_medians_spread_targets_and_what_is_missing(tmp_path: Path) -> None:
    rates = [(90, 100), (96, 100), (110, 100)]
    rounds = [
        {
            LOOP.command: {"examples_per_second": a, "checkpoint_share": a / 10_000},
            BARE.command: {"examples_per_second": b},
        }
        for a, b in rates
    ]
    found = {item.key: summarise(item, rounds, {}) for item in (RATIO, SHARE)}

    text = write_page([RATIO, SHARE, MISSING], found, tmp_path / "page.md").read_text()

    assert "| loop vs bare | ≥ 0.97 | **0.96** | 0.90 to 1.10, 3 rounds | **no** |" in text
    assert "| checkpoint | ≤ 2.00 % | **0.96 %** | 0.90 % to 1.10 %, 3 rounds | yes |" in text
    assert "| not run | ≤ 3 s | not measured |  |  |" in text
    assert "| loop | 96 | 90 | 110 |" in text


def test_the_page_is_written_from_the_results(tmp_path: Path) -> None:
    assert write_page(MEASUREMENTS, read_json(RESULTS), tmp_path / "page.md").read_text() == PAGE.read_text()
