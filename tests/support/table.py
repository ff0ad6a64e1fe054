"""The table of measured recoveries, one row per case, and its place in a document."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faults import Recovery

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
HEAD = ("case", "moment", "faults", "detected after (s)", "training again after (s)", "steps repeated", "holds")


@dataclass
class Table:
    """Rows as they are measured; kept in a file, so that cases may be measured in several sessions."""

    file: Path
    rows: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.file.is_file():
            self.rows = json.loads(self.file.read_text())

    def add(self, case: str, moment: str, costs: Sequence[Recovery], holds: str) -> None:
        """A row of figures over several faults: median (highest)."""
        repeated = [cost.steps_repeated for cost in costs]
        figures = [
            _median_and_highest([cost.detected_after for cost in costs]),
            _median_and_highest([cost.resumed_after for cost in costs]),
            f"{statistics.median(repeated):.0f} ({max(repeated)})",
        ]
        self.add_row(case, moment, str(len(costs)), *figures, holds)

    def add_row(self, *cells: str) -> None:
        """A row as it is; an older one of the same case and moment is replaced."""
        self.rows[f"{cells[0]} / {cells[1]}"] = list(cells)
        self.file.write_text(json.dumps(self.rows, indent=1))

    def to_markdown(self) -> str:
        """The table, in the order in which the cases were measured first."""
        lines = [HEAD, tuple("---" for _ in HEAD), *self.rows.values()]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def write_into(self, document: Path) -> None:
        """Replace what is between the marks of `document`."""
        text = document.read_text()
        head, tail = text.partition(BEGIN)[0], text.partition(END)[2]
        document.write_text(f"{head}{BEGIN}\n{self.to_markdown()}\n{END}{tail}")


def _median_and_highest(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.1f} ({max(seconds):.1f})"
