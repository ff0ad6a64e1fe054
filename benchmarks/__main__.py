"""Measure, and write docs/performance.md: `python -m benchmarks [--quick] [--only KEY]... [--write]`.

--quick         two rounds of the short measurements, under 5 minutes; printed, not written
--only KEY      this measurement alone (a key, or the start of several); several times
--rounds N      so many rounds
--write         measure nothing, write the page from benchmarks/results.json
--list          measure nothing, print the keys
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time

from benchmarks.claims import MEASUREMENTS
from benchmarks.measurement import QUICK_ROUNDS, Measurement, Rounds
from benchmarks.page import RESULTS, describe_ratio, write_page
from rampline.files import read_json, write_json


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="append", default=[], metavar="KEY")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    chosen = [item for item in MEASUREMENTS if is_chosen(item, options)]
    if options.list:
        print("\n".join(f"{item.key:40} {item.title}" for item in chosen))
        return 0
    if not chosen:
        print(f"benchmarks: nothing is called {', '.join(options.only)}; --list prints the keys", file=sys.stderr)
        return 2
    status = 0 if options.write else measure(chosen, options)
    if not options.quick:
        print(f"wrote {write_page(MEASUREMENTS, read_json(RESULTS))}")
    return status


def is_chosen(item: Measurement, options: argparse.Namespace) -> bool:
    """By --only; else all, or in the quick mode the quick ones."""
    if options.only:
        return any(item.key.startswith(key) for key in options.only)
    return item.in_quick or not options.quick


def measure(chosen: list[Measurement], options: argparse.Namespace) -> int:
    """Run everything; 0, 1 when a variant failed, 130 when it was interrupted (what was measured stays written)."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = tempfile.mkdtemp(prefix="rampline-bench-")
    os.environ["RAMPLINE_BENCH_FOLDER"] = folder
    os.environ["RAMPLINE_BENCH_QUICK"] = "1" if options.quick else ""
    started, failures = time.monotonic(), []
    groups: dict[str, list[Measurement]] = {}
    for item in chosen:
        groups.setdefault(item.together or item.key, []).append(item)
    try:
        for number, (name, members) in enumerate(groups.items(), start=1):
            place = f"{number}/{len(groups)} {name}"
            rounds = Rounds(
                measurements=members,
                rounds=options.rounds or (QUICK_ROUNDS if options.quick else max(item.rounds for item in members)),
                tell=lambda line, place=place: print(f"{place}: {line}", flush=True),
            )
            results = rounds.run()
            failures += rounds.failures
            for item in members:
                print(f"    {item.title}: {describe_ratio(item, results[item.key])}", flush=True)
            if not options.quick:
                write_json(RESULTS, read_json(RESULTS) | results)
    except KeyboardInterrupt:
        print("\nbenchmarks: interrupted; what was measured so far is written", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"benchmarks: {(time.monotonic() - started) / 60:.0f} min, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
