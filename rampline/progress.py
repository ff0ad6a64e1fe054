"""What a person sees while runs train: a bar per run in a terminal, one line per event that matters elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress

from rampline.record.metric import Metric, Output
from rampline.record.metrics import shown_in
from rampline.record.units import escape_controls, write_number_of

Event = Mapping[str, Any]


class Progress(Protocol):
    """A listener; events are those of `rampline.record.events`, `preparing` and `evaluated`."""

    def line(self, text: str) -> None:
        """A sentence, such as that a dataset was prepared already."""

    def event(self, name: str, event: Event) -> None:
        """An event of the run, or of the preparation, of that name."""


# Set by the command line round a flow that it calls: what the flow's tasks report is shown in the terminal as well.
TERMINAL: ContextVar[Progress | None] = ContextVar("terminal", default=None)


class LineProgress:
    """One line per event that matters, given to `write`: a logger's `info`, or `print`; `beside` is told all, too."""

    def __init__(self, write: Callable[[str], object], *, beside: Progress | None = None) -> None:
        self._write, self._beside = write, beside
        self._epochs: dict[str, int] = {}

    def line(self, text: str) -> None:
        """Pass the sentence on."""
        self._write(escape_controls(text))
        if self._beside:
            self._beside.line(text)

    def event(self, name: str, event: Event) -> None:
        """Write the event's line; steps inside an epoch have none."""
        if event["event"] == "started":
            self._epochs[name] = event["epochs"]
        text = describe(event, epochs=self._epochs.get(name))
        if text:
            self._write(escape_controls(f"{name}: {text}"))
        if self._beside:
            self._beside.event(name, event)


class BarProgress(AbstractContextManager["BarProgress"]):
    """A bar per run and per preparation; the bars of what is done stay."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.fields[name]}", style="bold", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
        )
        self._bars = RichProgress(*columns, console=console, refresh_per_second=8)
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, Event] = {}

    def __enter__(self) -> BarProgress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def line(self, text: str) -> None:
        """Print the sentence above the bars."""
        self._bars.console.print(escape_controls(text), highlight=False, markup=False)

    def event(self, name: str, event: Event) -> None:
        """Move the bar of `name` to where the event says."""
        kind = event["event"]
        if kind in ("warning", "decided"):
            self.line(f"{name}: {describe(event, epochs=None)}")
        if kind == "warning":
            return
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task("", name=name, total=None)
        task = self._tasks[name]
        if kind == "preparing":
            # Each image is counted twice, when it is read and when it is decoded: a share says more than the counts.
            text = "prepared" if event["done"] >= event["total"] else f"preparing {event['done'] / event['total']:.0%}"
            self._bars.update(task, total=event["total"], completed=event["done"], description=text)
        elif kind == "started":
            self._started[name] = event
            done = (event["first_epoch"] - 1) * event["steps_per_epoch"]
            self._bars.update(
                task, total=event["epochs"] * event["steps_per_epoch"], completed=done, description="compiling"
            )
        elif kind in ("progress", "epoch"):
            self._move(name, event)
        elif kind == "decided":
            self._bars.update(task, total=self._bars.tasks[task].completed)
        elif text := describe(event, epochs=None):
            self._bars.update(task, description=escape(escape_controls(text)))

    def _move(self, name: str, event: Event) -> None:
        started = self._started.get(name)
        if started is None:
            return
        steps = started["steps_per_epoch"]
        done = event["epoch"] * steps if event["event"] == "epoch" else (event["epoch"] - 1) * steps + event["step"]
        text = describe(event, epochs=started["epochs"]) or describe_step(event, epochs=started["epochs"])
        self._bars.update(self._tasks[name], completed=done, description=text)


def progress_to(write: Callable[[str], object]) -> Progress:
    """Progress as lines to `write` (a flow run's logger), and to the terminal where a command shows one."""
    return LineProgress(write, beside=TERMINAL.get())


def describe(event: Event, *, epochs: int | None) -> str | None:
    """The line for an event; `None` for those that need none. Images per second are global, times are in seconds."""
    kind = event["event"]
    if kind == "started":
        replicas = write_number_of("replica", event["replicas"])
        each = f"{event['per_replica_batch_size']} per replica"
        each += f", {event['micro_batch_size']} at once" if event.get("micro_batch_size") else ""
        batch = f"global batch {event['global_batch_size']} ({each})"
        steps = f"{event['steps_per_epoch']} steps per epoch, peak learning rate {event['peak_learning_rate']:g}"
        stops = f", at most {event['epochs']} epochs: stops {event['stops']}" if "stops" in event else ""
        return f"{replicas}, {batch}, {steps}{stops}"
    if kind == "epoch":
        return _line(
            event, epochs, event["metrics"], [(m, m.told_as) for m in shown_in(Output.EPOCH_LINE, event["metrics"])]
        )
    if kind == "finished":
        best = f"best validation accuracy {_number(event['best_val_accuracy'], '.4f')} (epoch {event['best_epoch']})"
        return f"trained in {event['metrics']['train_seconds']:.1f} s, {best}"
    if kind == "evaluated":
        scores = f"accuracy {_number(event['test_accuracy'], '.4f')}, loss {_number(event['test_loss'], '.4f')}"
        return f"{event['split']}: {event['examples']:,} images, {scores}"
    if kind == "decided":
        return f"stopped {event['stopped']}"
    if kind == "rested":
        return f"waits after epoch {event['epoch']} for the other runs of its grid"
    if kind == "stopped":
        return f"stopped on request, with a checkpoint at step {event['step']} (epoch {event['epoch']})"
    return f"{kind}: {event['message']}" if kind in ("failed", "warning") else None


def describe_step(event: Event, *, epochs: int) -> str:
    """The text beside a bar inside an epoch."""
    return _line(event, epochs, event, [(m, m.told_in_steps) for m in shown_in(Output.EPOCH_LINE)])


def _line(event: Event, epochs: int | None, told: Mapping[str, Any], metrics: Iterable[tuple[Metric, str]]) -> str:
    """The epoch, and the metrics that were told of it, each by its name there."""
    epoch = f"epoch {event['epoch']}" + (f"/{epochs}" if epochs else "")
    return f"{epoch}  " + "  ".join(metric.write_line(told[name]) for metric, name in metrics if name in told)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
