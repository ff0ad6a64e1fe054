"""The command of every pod of a training Job or JobSet: `start_role.py STUDY RUN [--set KEY=VALUE]...`.

Pod 0 runs the study (`rampline run STUDY --only RUN --execution EXECUTION`), which goes on where an earlier pod 0 has
stopped; every other pod its role of the run (`rampline worker RUN_DIR`). The pods meet in RAMPLINE_HOME, on a volume
that all of them mount.
"""

import json
import os
import sys
import time
from pathlib import Path

from tf_config import BadEnvironment, make_tf_config

BAD_INPUT = 2
RUN_TIMEOUT_SECONDS = 3600  # images are pulled, and the data is prepared, before the run directory is there


def main(study: str, run: str, *settings: str) -> int:
    """Become the pod's role: the process is replaced, so that signals reach it. Returns only if there is none."""
    try:
        tf_config = make_tf_config(os.environ)
    except BadEnvironment as error:
        print(f"start_role: {error}", file=sys.stderr)  # noqa: T201
        return BAD_INPUT
    os.environ["TF_CONFIG"] = json.dumps(tf_config)
    home, execution = Path(os.environ["RAMPLINE_HOME"]), os.environ["EXECUTION"]
    if os.environ["JOB_COMPLETION_INDEX"] == "0":
        if next(home.glob(f"reports/*/{execution}/comparison.csv"), None):
            _say("the run is complete and compared")
            return 0
        return _become("run", study, "--only", run, "--launcher", "hand", "--execution", execution, *settings)
    return _join(home, execution, run)


def _join(home: Path, execution: str, run: str) -> int:
    directory = _wait_for_run_directory(home, execution, run)
    if directory is None:
        print(f"start_role: pod 0 has not started the run in {home}/runs in time", file=sys.stderr)  # noqa: T201
        return 1
    if (directory / "result.json").is_file():
        _say("the run is complete")
        return 0
    return _become("worker", str(directory))


def _wait_for_run_directory(home: Path, execution: str, run: str) -> Path | None:
    deadline = time.monotonic() + float(os.environ.get("RUN_TIMEOUT_SECONDS", RUN_TIMEOUT_SECONDS))
    while time.monotonic() < deadline:
        # config.json is written last: everything that a role reads is there. stop.json stays from a stop until pod 0
        # has started again, which refuses a run directory with roles that it does not know.
        for file in home.glob(f"runs/*/{execution}/{run}/config.json"):
            if not (file.parent / "stop.json").is_file() or (file.parent / "result.json").is_file():
                return file.parent
        time.sleep(1)
    return None


def _become(*arguments: str) -> int:
    _say("rampline " + " ".join(arguments))
    os.execvp("rampline", ["rampline", *arguments])


def _say(text: str) -> None:
    print(f"start_role: {text}", flush=True)  # noqa: T201


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: start_role.py STUDY RUN [--set KEY=VALUE]...")
    sys.exit(main(*sys.argv[1:]))
