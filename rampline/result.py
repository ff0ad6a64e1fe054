"""Rampline from Python: `rampline.run("digits")` in a script or a notebook, and what came out of it.

It is the command `rampline run` in a process of its own: an event loop of the caller, its signals and its TensorFlow
stay what they are, and what ends this process ends the command, too.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rampline.config.formats import write_value
from rampline.errors import ERROR_MARK, ConfigError, InputError, RunFailed
from rampline.files import read_csv, write_text
from rampline.record.home import Home, keep_private
from rampline.record.run_directory import RunDirectory
from rampline.study import load_study
from rampline.study.definition import make_name
from rampline.study.execution_file import new_execution

if TYPE_CHECKING:
    import keras
    import pandas as pd

MODULE = """\"\"\"A function of a notebook, for the processes that train its model.\"\"\"

import base64

import cloudpickle

{name} = cloudpickle.loads(base64.b64decode("{content}"))
"""
SETTINGS: dict[str, Callable[[int], dict[str, Any]]] = {
    "single": lambda _: {},
    "mirrored": lambda n: {"cluster": {"replicas": n, "virtual_devices": "auto"}},
    "multi_worker": lambda n: {"cluster": {"workers": n}},
    "parameter_server": lambda n: {"cluster": {"workers": n, "parameter_servers": 1}},
}


@dataclass(frozen=True)
class Report:
    """`report.html`, which a notebook shows in the cell.

    Attributes:
        path: of the file.
    """

    path: Path

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 800px; border: 0"></iframe>'


@dataclass(frozen=True)
class Result:
    """An execution of a study that has ended.

    Attributes:
        folder: with a run directory for each run.
        reports: with the comparison and the report.
    """

    folder: Path
    reports: Path

    @property
    def comparison(self) -> pd.DataFrame:
        """One row per run: `comparison.csv`, all figures in full precision."""
        return read_csv(self.reports / "comparison.csv", names="run")

    @property
    def report(self) -> Report:
        """The report: the last line of a notebook's cell shows it."""
        return Report(self.reports / "report.html")

    def model(self, run: str) -> keras.Model:
        """The best checkpoint of a run as a Keras model, from (n, height, width, channels) uint8 images to logits.

        Raises:
            InputError: when the run has no evaluated model.
        """
        file = RunDirectory(self.folder / run).model / "data" / "model.keras"
        if not file.is_file():
            known = ", ".join(sorted(path.parent.name for path in self.folder.glob("*/model")))
            raise InputError(f"{self.folder} has no model of {run!r}: it has those of {known or 'no run'}")
        import keras

        return keras.models.load_model(file, compile=False)


def run(
    study: str | Path = "",
    *,
    only: str | Sequence[str] = (),
    set: Mapping[str, Any] | None = None,
    model: str | Callable[..., keras.Model] = "convnet",
    data: str = "digits",
    strategies: str | Sequence[str] = ("single",),
    replicas: int = 2,
) -> Result:
    """Run a study as `rampline run` does, with its progress on standard output; Ctrl-C ends it in order.

    Args:
        study: its name, or the path of a study file; empty for one of the arguments `model` to `replicas`.
        only: the runs to train, or the one; none for all.
        set: settings by key, such as `{"epochs": 2, "baseline:batch.size": 64}`.
        model: a name as in a study, or a function of `(input_shape, classes)` that returns a model; it may be one of a
            notebook.
        data: where images come from, as `data.source` of a study.
        strategies: one, or a run each, in this order, of that name with `-` for `_`; the others are compared with the
            first.
        replicas: of all but `single`.

    Returns:
        the execution, which is complete.

    Raises:
        InputError: when something about the arguments is wrong, or the home is another user's.
        RunFailed: when a run failed, or the command was ended.
    """
    home, more = Home.from_environment(), dict[str, str]()
    only, strategies = ([each] if isinstance(each, str) else each for each in (only, strategies))
    if not study:
        umask = keep_private(home)
        try:
            name, folder = _name_model(model, home)
            study = _write_study(home, name, data, strategies, replicas)
        finally:
            os.umask(umask)  # the caller's own
        if folder:
            more["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    chosen = [part for run in only for part in ("--only", run)]
    try:
        texts = {key: value if isinstance(value, str) else write_value(value) for key, value in (set or {}).items()}
    except yaml.YAMLError as error:  # such as an array, or a path
        raise ConfigError(f"set={set!r} is not allowed: its values must be plain ones: {error}") from error
    settings = [part for key, text in texts.items() for part in ("--set", f"{key}={text}")]
    execution = new_execution()
    _command(["run", str(study), *chosen, *settings, "--execution", execution], more)
    where = Path(load_study(str(study)).name) / execution
    return Result(folder=home.runs / where, reports=home.reports / where)


def _command(arguments: Sequence[str], env: Mapping[str, str]) -> None:
    """Run a command of ours, its output on this process's."""
    process = subprocess.Popen(
        [Path(sys.executable).with_name("rampline"), *arguments],
        # It must not outlive its caller, such as the kernel of a notebook that is restarted.
        # A kernel asks its programs for colours, which would make ours believe that it is on a terminal.
        env={
            **os.environ,
            "TTY_COMPATIBLE": "0",
            **env,
            "RAMPLINE_CALLER_PID": str(os.getpid()),
            "PYTHONUNBUFFERED": "1",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    said = ""
    try:
        assert process.stdout
        for line in process.stdout:
            # Not the file descriptor: a notebook shows what is printed.
            print(line, end="", flush=True)  # noqa: T201
            said = line.removeprefix(ERROR_MARK).strip() if line.startswith(ERROR_MARK) else said
    except BaseException:
        process.send_signal(signal.SIGINT)
        raise
    finally:
        process.communicate()  # reads what it says meanwhile: it could not end while the pipe is full
    if status := process.returncode:
        kind = InputError if status == InputError.exit_status else RunFailed
        raise kind(said or f"rampline {arguments[0]} ended with status {status}")


def _name_model(model: str | Callable[..., keras.Model], home: Home) -> tuple[str, Path | None]:
    """`model.name`, and the folder that its module is found in, where that is nowhere yet."""
    if isinstance(model, str):
        return model, None
    name, module = getattr(model, "__name__", ""), model.__module__
    if not name.isidentifier():
        raise ConfigError(f"model={model!r} has no name: it must be a function that is defined by def")
    if module != "__main__":
        return f"{module}:{name}", None
    import cloudpickle

    content = cloudpickle.dumps(model)
    stem = f"{name}_{hashlib.sha256(content).hexdigest()[:12]}"
    folder = home.root / "models"
    write_text(folder / f"{stem}.py", MODULE.format(name=name, content=base64.b64encode(content).decode()))
    return f"{stem}:{name}", folder


def _write_study(home: Home, model: str, data: str, strategies: Sequence[str], replicas: int) -> Path:
    unknown = [strategy for strategy in strategies if strategy not in SETTINGS]
    if unknown or not strategies:
        raise ConfigError(f"strategies={list(strategies)!r} is not allowed: it must name some of {', '.join(SETTINGS)}")
    runs = {
        strategy.replace("_", "-"): {"set": {"strategy": strategy, **SETTINGS[strategy](replicas)}}
        for strategy in strategies
    }
    base = {"model": {"name": model}, "data": {"source": data}}
    name = make_name(model.rpartition(":")[2].replace("_", "-")) or "model"
    content = yaml.safe_dump({"name": name, "base": base, "runs": runs}, sort_keys=False)
    # A file of its own for each content: another call may write one before this one is read.
    file = home.root / "studies" / f"{name}_{hashlib.sha256(content.encode()).hexdigest()[:12]}.yaml"
    write_text(file, content)
    return file
