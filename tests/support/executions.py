"""Executions of a study as the flows begin them, and folders that count as such."""

import time
from collections.abc import Sequence
from pathlib import Path

from rampline.files import write_json
from rampline.record.home import Home
from rampline.study import load_study
from rampline.study.execution_file import FILE, VERSION, Execution
from rampline.study.preflight import check_study


def begin(study: Path | str, home: Home, name: str = "e1", *, only: Sequence[str] = ()) -> Execution:
    """An execution of a study that was checked, begun in `home` and in its MLflow."""
    # Every test session loads this file: what takes seconds to import waits until a test asks for it.
    from rampline.execution import start_execution

    checked = check_study(load_study(str(study), only=only), home)
    execution = Execution(folder=home.runs / checked.name / name, study=checked, home=home)
    start_execution(execution)
    return execution


def count_as_begun(folder: Path) -> None:
    """Let a folder count as an execution that begins now."""
    write_json(folder / FILE, {"version": VERSION, "began": time.time()})
