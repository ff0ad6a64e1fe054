"""The page of a flow run: live progress, tables and links, as artifacts."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate

from rampline.comparison.section import Section
from rampline.config import RunConfig
from rampline.files import read_csv
from rampline.forecast.plan import PlannedRun, plan_remarks, plan_table
from rampline.jobs.role_output import RoleOutput, last_lines
from rampline.jobs.roles import role_counts
from rampline.record.attempts import COLUMNS, tell_attempts
from rampline.record.events import EventReader
from rampline.record.metric import Output
from rampline.record.metrics import PAGE_RANK, metrics_of_run, shown_in
from rampline.record.run_directory import RunDirectory
from rampline.record.units import escape_markdown, write_markdown_table
from rampline.study import Study
from rampline.study.execution_file import Execution
from rampline.tracking.artifacts import LEARNING_RATE, draw_artifacts


def epoch_rows(run_directory: RunDirectory) -> list[dict[str, float | None]]:
    """A row per epoch, in order; of an epoch that was trained twice (after a kill) the later one."""
    epochs = {event["epoch"]: event["metrics"] for event in run_directory.read_events("epoch")}
    told = dict.fromkeys(name for metrics in epochs.values() for name in metrics)
    shown = shown_in(Output.EPOCH_PAGE, told)
    return [{"epoch": epoch} | {m.name: epochs[epoch].get(m.told_as) for m in shown} for epoch in sorted(epochs)]


def learning_rate_markdown(run_directory: RunDirectory) -> str:
    """The schedule and the recorded rates as a picture inside the markdown itself: the page can fetch no file."""
    heading = f"# Learning rate of {run_directory.path.name}"
    try:
        draw_artifacts(run_directory)  # MLflow's delivery has, where MLflow was there
        encoded = base64.b64encode((run_directory.artifacts / LEARNING_RATE).read_bytes()).decode()
    except OSError as error:  # the run is complete, and the others need no picture
        return f"{heading}\n\nNot drawn: {error.strerror}\n"
    return f"{heading}\n\n![learning rate over epochs](data:image/png;base64,{encoded})\n"


def comparison_rows(csv_file: Path) -> list[dict[str, object]]:
    """The columns of `comparison.csv` that fit on a page; figures as the file has them, nothing for what is missing."""
    table = read_csv(csv_file, names="run")
    metrics = [
        metric.name
        for metric in metrics_of_run(table.columns)
        if Output.TABLE in metric.shown and metric.rank <= PAGE_RANK
    ]
    columns = ("run", "strategy", "replicas", "global_batch_size", *metrics, "status")
    table = table[[column for column in columns if column in table.columns]]
    return json.loads(str(table.to_json(orient="records", double_precision=4)))


def quote_markdown(execution: Execution) -> str:
    """What was expected of each run, and what came out; empty where nothing was quoted."""
    from rampline.comparison.quote_section import make_quote_section  # pandas must not delay the first run

    section = execution.comparison and make_quote_section(execution.comparison)
    return section_markdown(section) if section else ""


def plan_markdown(study: Study, planned: Sequence[PlannedRun]) -> str:
    """What a study would run, with expected time and cost: what a person needs to say yes or no."""
    parts = [f"## Plan of {study.name}", write_markdown_table(*plan_table(planned)), study.description]
    if any(run.expected_seconds is None for run in planned) and study.expected_hours:
        parts.append(f"The study says how long it takes: {study.expected_hours}.")
    remarks = [escape_markdown(line) for line in plan_remarks(study, planned, whose="the flow run's")]
    return "\n\n".join(filter(None, [*parts, "\n".join(f"- {line}" for line in remarks)])) + "\n"


def attempts_markdown(run_directory: RunDirectory) -> str:
    """On which hosts each attempt was, and how it ended; empty for a run that was started once, on one host."""
    rows = tell_attempts(run_directory)
    return f"## Attempts of {run_directory.path.name}\n\n{write_markdown_table(COLUMNS, rows)}\n" if rows else ""


def section_markdown(section: Section) -> str:
    """Sentences and tables of a section of the report."""
    tables = [write_markdown_table(table.head, table.rows) for table in section.tables]
    return "\n\n".join([f"## {section.title}", *section.sentences, *tables, section.about]) + "\n"


def artifact_key(*parts: str) -> str:
    """The parts as Prefect allows a key: lower-case letters, digits and dashes; with a digest where that changes them.

    Other parts, such as `a-b` and `a_b`, have another key.
    """
    text = "-".join(parts)
    key = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return key if key == text else f"{key}-{hashlib.sha256(text.encode()).hexdigest()[:4]}"


REFRESH_SECONDS = 2.0
JOIN_SECONDS = 5.0
LINES_ON_FAILURE = 50


@contextmanager
def live_page(directory: RunDirectory, config: RunConfig) -> Iterator[None]:
    """Keep a progress bar, the chief's lines and the table of the attempts up to date for the length of the block.

    After a failure the last lines of the other roles follow. It happens in a thread: training never waits for Prefect.
    """
    run, logger = directory.path.name, get_run_logger()
    key, description = artifact_key("progress", run), f"Progress of {run}"
    bar = create_progress_artifact(0.0, key=key, description=description)
    chief = directory.logs / ("chief-0.log" if "chief" in role_counts(config) else "worker-0.log")
    page = _Page(directory, chief, cast(UUID, bar), logger)
    # With the settings of the flow run: without, Prefect would start a server for this thread.
    thread = threading.Thread(target=copy_context().run, args=(page.follow,), name=f"page of {run}", daemon=True)
    thread.start()
    try:
        yield
    except Exception:
        _write_others(directory, chief, logger)
        raise
    finally:
        page.ended.set()
        thread.join(JOIN_SECONDS)


class _Page:
    def __init__(self, directory: RunDirectory, chief: Path, bar: UUID, logger: Any) -> None:
        self.ended = threading.Event()
        self._directory, self._attempts_size = directory, 0
        self._attempts: UUID | None = None
        self._bar, self._logger, self._shown = bar, logger, 0.0
        self._events = EventReader(directory.events_file)
        # A run that is continued has lines of earlier attempts, which are on an earlier page.
        self._output = RoleOutput(chief, from_end=True)
        self._steps = (1, 1)

    def follow(self) -> None:
        while not self.ended.wait(REFRESH_SECONDS):
            self._refresh()
        self._refresh()

    def _refresh(self) -> None:
        for level, text in self._output.read():
            self._logger.log(level, text)
        share = self._shown
        for event in self._events.read():
            share = self._share(event, share)
        try:
            if round(share) != round(self._shown):
                update_progress_artifact(self._bar, share)
                self._shown = share
            self._refresh_attempts()
        except (httpx.HTTPError, OSError) as error:
            logging.getLogger(__name__).debug("the progress is not on the page: %s", error)

    def _refresh_attempts(self) -> None:
        file = self._directory.attempts_file
        size = file.stat().st_size if file.is_file() else 0
        if size == self._attempts_size:
            return
        if text := attempts_markdown(self._directory):
            if self._attempts is None:
                run = self._directory.path.name
                made = create_markdown_artifact(
                    text, key=artifact_key("attempts", run), description=f"Attempts of {run}"
                )
                self._attempts = cast(UUID, made)
            else:
                with get_client(sync_client=True) as client:
                    client.update_artifact(self._attempts, ArtifactUpdate(data=text))
        self._attempts_size = size

    def _share(self, event: dict[str, Any], share: float) -> float:
        """How much of the run is done, in percent."""
        if event["event"] == "started":
            self._steps = (event["epochs"], event["steps_per_epoch"])
            self._attempts_size = 0  # from which step on is known now
        epochs, steps = self._steps
        if event["event"] == "progress":
            return 100 * (event["epoch"] - 1 + event["step"] / steps) / epochs
        if event["event"] == "epoch":
            return 100 * event["epoch"] / epochs
        return 100.0 if event["event"] == "finished" else share


def _write_others(directory: RunDirectory, chief: Path, logger: Any) -> None:
    for log in sorted(directory.logs.glob("*.log")):
        if log != chief:
            logger.error(f"last lines of {log.stem}, from {log}:")
            for level, text in last_lines(log, LINES_ON_FAILURE):
                logger.log(level, f"{log.stem}: {text}")
