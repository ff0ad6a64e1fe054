"""The page of a run while it trains: how far it is, and what its chief prints."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact

from rampline.config import RunConfig
from rampline.jobs.role_output import RoleOutput, last_lines
from rampline.jobs.roles import role_counts
from rampline.record.events import EventReader
from rampline.record.run_directory import RunDirectory
from rampline.tasks.keys import artifact_key

REFRESH_SECONDS = 2.0
JOIN_SECONDS = 5.0
LINES_ON_FAILURE = 50


@contextmanager
def live_page(directory: RunDirectory, config: RunConfig) -> Iterator[None]:
    """Keep a progress bar and the chief's lines up to date for the length of the block.

    After a failure the last lines of the other roles follow. It happens in a thread: training never waits for Prefect.
    """
    run, logger = directory.path.name, get_run_logger()
    key, description = artifact_key("progress", run), f"Progress of {run}"
    bar = create_progress_artifact(0.0, key=key, description=description)
    chief = directory.logs / f"{chief_name(config)}.log"
    page = _Page(directory, chief, cast(UUID, bar), logger)
    thread = threading.Thread(target=page.follow, name=f"page of {run}", daemon=True)
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
        if round(share) == round(self._shown):
            return
        try:
            update_progress_artifact(self._bar, share)
            self._shown = share
        except (httpx.HTTPError, OSError) as error:
            logging.getLogger(__name__).debug("the progress is not on the page: %s", error)

    def _share(self, event: dict[str, Any], share: float) -> float:
        """How much of the run is done, in percent."""
        if event["event"] == "started":
            self._steps = (event["epochs"], event["steps_per_epoch"])
        epochs, steps = self._steps
        if event["event"] == "progress":
            return 100 * (event["epoch"] - 1 + event["step"] / steps) / epochs
        if event["event"] == "epoch":
            return 100 * event["epoch"] / epochs
        return 100.0 if event["event"] == "finished" else share


def chief_name(config: RunConfig) -> str:
    """The role that tells how the run goes: `chief-0`, or `worker-0` where there is no chief."""
    return "chief-0" if "chief" in role_counts(config) else "worker-0"


def _write_others(directory: RunDirectory, chief: Path, logger: Any) -> None:
    for log in sorted(directory.logs.glob("*.log")):
        if log != chief:
            logger.error(f"last lines of {log.stem}, from {log}:")
            for level, text in last_lines(log, LINES_ON_FAILURE):
                logger.log(level, f"{log.stem}: {text}")
