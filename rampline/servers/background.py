"""`rampline up --detach`: the same in a session of its own; its lines go to `servers/up.log`."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TextIO

from rampline.errors import InputError, RamplineError
from rampline.servers.display import Display
from rampline.servers.running import servers_folder
from rampline.servers.server_plan import Request
from rampline.servers.up import LAST_WORDS, tell_sign_in

POLL_SECONDS = 0.2
END_SECONDS = 90
# `-P`: the caller's folder is not searched for modules.
COMMAND = ("-P", "-c", "import sys; from rampline.cli import main; sys.exit(main())", "up")
ERROR = "rampline: error: "


def start_in_background(request: Request, display: Display) -> None:
    """Start it, and pass on what it says until all answers.

    Raises:
        RamplineError: when it ends before that: with its own words.
    """
    folder = servers_folder(request.home)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "up.log"
    with open(log, "ab") as output, open(log, encoding="utf-8") as lines:
        lines.seek(0, 2)
        process = subprocess.Popen(
            [sys.executable, *COMMAND, *_arguments(request)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            with display.waiting("starting in the background"):
                _follow(process, lines, display)
            if display.is_terminal:  # the log, which has just been shown, is none
                tell_sign_in(request.home, display)
        except (KeyboardInterrupt, SystemExit):
            # Before it was up: it is not wanted.
            process.terminate()
            process.wait(END_SECONDS)
            raise


def _arguments(request: Request) -> list[str]:
    arguments = ["--host", request.host]
    arguments += ["--prefect-port", str(request.prefect_port), "--mlflow-port", str(request.mlflow_port)]
    return arguments + (["--cpu-slots", str(request.cpu_slots)] if request.cpu_slots else [])


def _follow(process: subprocess.Popen[bytes], lines: TextIO, display: Display) -> None:
    while True:
        # Asked first: what it printed before it ended is read after that.
        status = process.poll()
        for line in lines:
            if line.startswith(ERROR) and status:
                raise (InputError if status == InputError.exit_status else RamplineError)(line.removeprefix(ERROR))
            display.say(line.rstrip("\n"))
            if line.startswith(LAST_WORDS):
                return
        if status == 0:
            return
        if status is not None:
            raise RamplineError(f"it ended with status {status}")
        time.sleep(POLL_SECONDS)
