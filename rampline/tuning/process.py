"""Starting the processes that measure trials; what they tell, and what it means when one dies. No TensorFlow."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rampline.cluster.process import end_processes, last_line, start_worker
from rampline.cluster.roles import local_tasks, role_environment
from rampline.config import RunConfig
from rampline.errors import RunFailed
from rampline.events import EventReader
from rampline.tuning.rounds import Rounds
from rampline.tuning.trial import DOES_NOT_FIT, FAILED, Request

POLL_SECONDS = 0.05
# Without a word: the start of TensorFlow and the compilation of a large network with XLA.
SILENCE_SECONDS = 300

# Fields of a `Trial`: `status`, `reason` and `rounds`.
Figures = dict[str, Any]
OnTrial = Callable[[int, Figures], None]


@dataclass(kw_only=True)
class Answers:
    """What a process has told.

    Attributes:
        trials: outcomes by the number of the candidate.
        running: the candidate that was being tried when it ended.
        input_share: of the step before, lost to the input; 0 where it was not asked for.
        baseline: images per second before, by round; empty where that was not asked for.
    """

    trials: dict[int, Figures] = field(default_factory=dict)
    running: int | None = None
    input_share: float = 0.0
    baseline: tuple[float, ...] = ()

    def take(self, event: Mapping[str, Any]) -> None:
        """One event of `rampline.tuning.measure`."""
        kind = event["event"]
        if kind == "input":
            self.input_share, self.baseline = event["share"], tuple(event["images_per_second"])
        elif kind == "begins":
            self.running = event["number"]
        elif kind == "trial":
            rounds = Rounds.from_dict(event["rounds"]) if event.get("rounds") else None
            outcome = {"status": event["status"], "reason": event.get("reason", ""), "rounds": rounds}
            self.trials[event["number"]], self.running = outcome, None


def run_request(request: Request, folder: Path, config: RunConfig, *, on_trial: OnTrial) -> Answers:
    """Measure a request in a process of its own, and in a further one for what is left when a trial has killed it.

    Whatever ends this call, none of the processes is alive afterwards.

    Args:
        request: what to measure.
        folder: for the request, the log and the events.
        config: of the run, whose share of cores and GPUs the process gets.
        on_trial: is called with the number and outcome of each candidate, as soon as it is known.

    Raises:
        RunFailed: when the settings before cannot be run themselves.
    """
    answers, numbers, attempt, began = Answers(), list(range(len(request.candidates))), 0, time.monotonic()
    while numbers or not attempt:
        chosen = tuple(request.candidates[number] for number in numbers)
        left = max(0.0, request.seconds - (time.monotonic() - began))
        part = dataclasses.replace(request, candidates=chosen, seconds=left)
        found = _run(part, folder / str(attempt), config, partial(_renumbered, on_trial, numbers))
        answers.trials |= {numbers[number]: outcome for number, outcome in found.trials.items()}
        if not attempt:
            answers.input_share, answers.baseline = found.input_share, found.baseline
            request = dataclasses.replace(request, with_input=False)
        if found.running is None:
            break
        attempt, numbers = attempt + 1, _not_tried(request, answers, numbers[found.running])
    return answers


def _renumbered(on_trial: OnTrial, numbers: Sequence[int], number: int, outcome: Figures) -> None:
    on_trial(numbers[number], outcome)


def _not_tried(request: Request, answers: Answers, killer: int) -> list[int]:
    """What can still be tried after the candidate `killer` took its process with it."""
    size = request.candidates[killer].config.per_replica_batch_size
    left = [number for number in range(killer + 1, len(request.candidates)) if number not in answers.trials]
    return [n for n in left if not request.is_ladder or request.candidates[n].config.per_replica_batch_size < size]


def _run(request: Request, folder: Path, config: RunConfig, on_trial: OnTrial) -> Answers:
    request.write(folder)
    log, answers, events = folder / "trials.log", Answers(), EventReader(folder / "events.jsonl")
    task = next(task for task in reversed(local_tasks(config)) if task.role != "ps")
    process = start_worker(["--tune", str(folder)], log, role_environment(task, config) | {"TF_CONFIG": "{}"})
    try:
        heard = time.monotonic()
        while True:
            ended = process.poll() is not None
            for event in events.read():
                answers.take(event)
                heard = time.monotonic()
                if event["event"] == "trial":
                    on_trial(event["number"], answers.trials[event["number"]])
            if ended or time.monotonic() - heard > SILENCE_SECONDS:
                break
            time.sleep(POLL_SECONDS)
    finally:
        end_processes([process])
    _check(answers, process.returncode if ended else None, log, on_trial)
    return answers


def _check(answers: Answers, status: int | None, log: Path, on_trial: OnTrial) -> None:
    """A process that ended badly took the candidate with it that it was trying; without one, nothing can be tried."""
    if status == 0:
        return
    how = f"nothing was heard for {SILENCE_SECONDS} s" if status is None else last_line(log)
    if status is not None and status < 0:
        how = f"its process was ended by {signal.Signals(-status).name}"
    if answers.running is None:
        raise RunFailed(f"the run cannot be measured: {how} (log: {log})")
    is_memory = status == -signal.SIGKILL
    outcome = {"status": DOES_NOT_FIT if is_memory else FAILED, "reason": how, "rounds": None}
    answers.trials[answers.running] = outcome
    on_trial(answers.running, outcome)
