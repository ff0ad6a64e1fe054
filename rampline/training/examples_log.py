"""A record of which examples each step used, for whoever wants to see that none was lost or used twice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


class ExamplesLog:
    """Appends a line per call: `{"attempt", "first_step", "examples": [[index, …] per step]}`.

    Args:
        path: `RUN_DIR/examples/ROLE-INDEX.jsonl`; a restarted role appends to it.
        attempt: number of the run's attempt, from 1.
    """

    def __init__(self, path: Path, attempt: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._attempt = path, attempt

    def append(self, first_step: int, indices: np.ndarray) -> None:
        """Add (steps, rows) int64 indices of this role's replicas; -1 marks a row that counted for nothing."""
        examples = [[int(i) for i in row if i >= 0] for row in indices]
        line = json.dumps({"attempt": self._attempt, "first_step": first_step, "examples": examples})
        with open(self._path, "a") as file:
            file.write(line + "\n")
