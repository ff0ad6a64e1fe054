"""Who asks a variant for its timed blocks: `python -m benchmarks`, one at a time, or a person, all at once.

With `--turns` a variant says when it is ready, and answers each line of standard input with the figures of a block, a
line of JSON. So variants that are all warm take turns within seconds, and what else happens on the machine happens to
each of them. Nothing but the standard library is needed: PyTorch's processes have no other.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

OPTION = "--turns"
READY = "ready"
BLOCKS = 3

Figures = Mapping[str, float]


def add_option(parser: ArgumentParser) -> None:
    """Let a variant be told that it is asked for its blocks."""
    parser.add_argument(OPTION, action="store_true", help="time a block for each line of standard input")


class Turns:
    """The blocks that are wanted of this process: `for _ in turns: turns.tell(time_block())`, then `turns.end()`."""

    def __init__(self, options: Namespace | None = None) -> None:
        """Of a process with the options of `add_option`; without, of one that is asked."""
        self.asked = options is None or options.turns
        self.told: list[Figures] = []
        self._is_ready = False

    def __iter__(self) -> Iterator[None]:
        while self.wanted():
            yield

    def wanted(self) -> bool:
        """Whether there is to be another block; waits until it is asked for."""
        if not self.asked:
            return len(self.told) < BLOCKS
        if not self._is_ready:
            print(READY, flush=True)
            self._is_ready = True
        return bool(sys.stdin.readline())

    def tell(self, figures: Figures) -> None:
        """Of the block that was wanted."""
        self.told.append(figures)
        if self.asked:
            print(json.dumps(figures), flush=True)

    def end(self) -> NoReturn:
        """End the process; one that was not asked prints the medians of its blocks."""
        if self.asked:
            os._exit(0)
        print_figures({name: statistics.median(figures[name] for figures in self.told) for name in self.told[0]})


def print_figures(figures: Mapping[str, Any]) -> NoReturn:
    """Print the last line, and end: TensorFlow's threads may never."""
    print(json.dumps(figures), flush=True)
    os._exit(0)


def relay(
    processes: Sequence[subprocess.Popen[str]], turns: Turns, merge: Callable[[list[dict[str, float]]], Figures]
) -> None:
    """Have processes that are asked time every block at once; ends them, and this one.

    Args:
        processes: with pipes as standard input and output.
        turns: of the process that has started them.
        merge: makes the figures of all from those of each, in their order.
    """
    try:
        for process in processes:
            _read(process, READY)
        for _ in turns:
            for process in processes:
                assert process.stdin
                process.stdin.write("go\n")
                process.stdin.flush()
            turns.tell(merge([json.loads(_read(process, "{")) for process in processes]))
    finally:
        # All at once: one that left earlier would end the collectives of the others.
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
    turns.end()


def _read(process: subprocess.Popen[str], beginning: str) -> str:
    """The next line of a process that begins so; the libraries print others."""
    assert process.stdout
    for line in process.stdout:
        if line.startswith(beginning):
            return line
    sys.exit(f"a process of it ended with {process.wait()}")
