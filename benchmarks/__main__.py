"""Measure, and write docs/performance.md: `python -m benchmarks [--quick | --growth] [--only KEY]... [--write]`.

--growth        the curves over sizes, instead of all else
--quick         two rounds of the short measurements, under 5 minutes; written to benchmarks/.quick, no page
--only KEY      this measurement or curve alone (a key, or the start of several); several times
--rounds N      so many rounds
--write         measure nothing, write the page from benchmarks/results
--list          measure nothing, print the keys
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import signal
import sys
import tempfile
from types import ModuleType

from benchmarks.curve import Curve
from benchmarks.measurement import Measurement
from benchmarks.page import items_of, write_page
from benchmarks.session import Session

GROWTH = "growth"
TOPICS = ("training", "gpu", "distributed", "input", "startup", "overheads", GROWTH)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--only", action="append", default=[], metavar="KEY")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    topics = load_topics()
    chosen = [item for module in topics for item in items_of(module) if is_chosen(item, module, options)]
    if options.list:
        print("\n".join(f"{item.key:40} {item.title}" for item in chosen))
        return 0
    if not chosen:
        print(f"benchmarks: nothing is called {', '.join(options.only)}; --list prints the keys", file=sys.stderr)
        return 2
    status = 0 if options.write else measure(chosen, options)
    if not options.quick:
        print(f"wrote {write_page(topics)}")
    return status


def load_topics() -> list[ModuleType]:
    """The modules that say what is measured, in the order of the page."""
    return [importlib.import_module(f"benchmarks.{name}") for name in TOPICS]


def is_chosen(item: Measurement | Curve, topic: ModuleType, options: argparse.Namespace) -> bool:
    """By --only; else with --growth that topic, without it the others; in the quick mode the quick ones."""
    if options.only:
        return any(item.key.startswith(key) for key in options.only)
    if options.list or options.quick:
        return item.in_quick or not options.quick
    return topic.__name__.endswith(GROWTH) == options.growth


def measure(chosen: list[Measurement | Curve], options: argparse.Namespace) -> int:
    """Run everything; 0, 1 when a contender failed, 130 when it was interrupted (what was measured stays written)."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = tempfile.mkdtemp(prefix="rampline-bench-")
    os.environ["RAMPLINE_BENCH_FOLDER"] = folder
    os.environ.pop("RAMPLINE_BENCH_QUICK", None)
    if options.quick:
        os.environ["RAMPLINE_BENCH_QUICK"] = "1"
    session = Session(chosen, quick=options.quick, rounds=options.rounds, arguments=sys.argv[1:])
    try:
        session.run()
    except KeyboardInterrupt:
        print("\nbenchmarks: interrupted; what was measured so far is written", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if session.failures else 0


if __name__ == "__main__":
    sys.exit(main())
