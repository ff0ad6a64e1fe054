"""What reaches the terminal from names and messages that others wrote."""

import io
import os
from contextlib import suppress

import pytest
from rich.table import Table
from rich.text import Text

from rampline.cli import _fail
from rampline.cli.console import SafeConsole, line_console, shows_bars
from rampline.errors import DatasetError
from rampline.progress import BarProgress, LineProgress

TITLE = "\x1b]0;owned\x07"  # sets the title of a terminal's window
SHOWN = r"\x1b]0;owned\x07"


def test_a_console_obeys_its_own_codes_alone():
    written = io.StringIO()
    console = SafeConsole(file=written, force_terminal=True, width=200)
    table = Table("class", TITLE)
    table.add_row(TITLE, Text(TITLE))
    console.print(TITLE, style="red")
    console.print(table)
    with BarProgress(console) as progress:
        progress.line(TITLE)
        progress.event(TITLE, {"event": "failed", "message": TITLE})
    shown = written.getvalue()
    assert "\x1b[31m" in shown
    assert shown.count(r"\x1b]0;") >= 6
    assert "\x1b]" not in shown


@pytest.mark.parametrize("open_pair", [os.pipe, os.openpty], ids=["pipe", "terminal"])
def test_a_reader_that_is_gone_ends_nothing(open_pair):
    """The pipe of `tee` or `head`, and a terminal that was closed."""
    reader, writer = open_pair()
    os.close(reader)
    gone = open(writer, "w")  # noqa: SIM115 - closed below
    try:
        for _ in range(2):
            SafeConsole(file=gone).print("a line")
        LineProgress(SafeConsole(file=gone).print).line("another")
    finally:
        with suppress(OSError):  # a terminal says once more that it is gone
            gone.close()


def test_colours_alone_make_no_terminal(monkeypatch, tmp_path):
    """Where bars would fill a log, and links hold the secret."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("TERM", raising=False)
    with open(tmp_path / "log", "w") as log:
        assert SafeConsole(file=log).is_terminal
        assert not shows_bars(SafeConsole(file=log))
    reader, writer = os.openpty()
    with open(writer, "w") as terminal, open(reader):
        assert shows_bars(SafeConsole(file=terminal))
        monkeypatch.setenv("TERM", "dumb")  # as in Emacs: rich would show its bars at the end
        assert not shows_bars(SafeConsole(file=terminal))


def test_names_are_shown_as_they_are(capsys):
    line_console().print("a:x:b [red]c[/red]")
    assert capsys.readouterr().out == "a:x:b [red]c[/red]\n"


def test_lines_without_a_terminal_hold_none():
    lines: list[str] = []
    progress = LineProgress(lines.append)
    progress.line(f"a\tb {TITLE}")
    progress.event("baseline", {"event": "failed", "message": TITLE})
    assert lines == [f"a\tb {SHOWN}", f"baseline: failed: {SHOWN}"]


def test_an_error_holds_none(capsys):
    assert _fail(f"class {TITLE}", DatasetError.exit_status) == 2
    assert capsys.readouterr().err == f"rampline: error: class {SHOWN}\n"
