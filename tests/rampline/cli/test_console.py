"""What reaches the terminal from names and messages that others wrote."""

import io

from rich.table import Table
from rich.text import Text

from rampline.cli import _fail
from rampline.cli.console import SafeConsole
from rampline.errors import DatasetError
from rampline.progress import BarProgress, LineProgress

TITLE = "\x1b]0;owned\x07"  # sets the title of a terminal's window
SHOWN = r"\x1b]0;owned\x07"


def test_a_console_obeys_its_own_codes_alone():
    written = io.StringIO()
    console = SafeConsole(file=written, force_terminal=True, highlight=False, width=200)
    table = Table("class", TITLE)
    table.add_row(TITLE, Text(TITLE))
    console.print(TITLE, style="red", markup=False)
    console.print(table)
    with BarProgress(console) as progress:
        progress.line(TITLE)
        progress.event(TITLE, {"event": "failed", "message": TITLE})
    shown = written.getvalue()
    assert "\x1b[31m" in shown
    assert shown.count(r"\x1b]0;") >= 6
    assert "\x1b]" not in shown


def test_lines_without_a_terminal_hold_none():
    lines: list[str] = []
    progress = LineProgress(lines.append)
    progress.line(f"a\tb {TITLE}")
    progress.event("baseline", {"event": "failed", "message": TITLE})
    assert lines == [f"a\tb {SHOWN}", f"baseline: failed: {SHOWN}"]


def test_an_error_holds_none(capsys):
    assert _fail(f"class {TITLE}", DatasetError.exit_status) == 2
    assert capsys.readouterr().err == f"rampline: error: class {SHOWN}\n"
