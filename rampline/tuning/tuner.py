"""The search: one group of settings after the other, each from the best of those before (coordinate descent)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rampline.config import RunConfig, flatten, to_dict
from rampline.errors import InputError, RunFailed
from rampline.jobs.job import Job, JobFailed, run_job
from rampline.jobs.launchers import launcher_of_jobs
from rampline.jobs.memory import lacking_bytes
from rampline.record.units import GIBIBYTE
from rampline.tuning.outcome import Outcome, best_of
from rampline.tuning.trial import (
    BATCH,
    DOES_NOT_FIT,
    FAILED,
    MEASURED,
    Limits,
    Rounds,
    Trial,
    candidates,
    config_to_measure,
    order_groups,
    with_changes,
)

# Without a word: the start of TensorFlow and the compilation of a large network with XLA.
SILENCE_SECONDS = 300
OUT_OF_TIME = "no time was left for it"
ONE_REPLICA = (
    "{strategy}: one replica was measured, alone in one process with its share of the cores; what replicas wait for "
    "each other is not in the figures"
)


class Tuner:
    """Searches the settings of one run. Each trial has a process of its own, so that none takes the search with it.

    Args:
        run: its name.
        config: its settings before.
        dataset: directory of its prepared dataset.
        limits: what may be tried, and what adopted.
        seconds: for all trials; one that has begun is finished, and the last comparison is always made.
        folder: for the processes.
        log: gets a line per trial.
    """

    def __init__(
        self,
        *,
        run: str,
        config: RunConfig,
        dataset: str,
        limits: Limits,
        seconds: float,
        folder: Path,
        log: Callable[[str], None],
    ) -> None:
        self._run, self._original, self._config, self._dataset = run, config, config, dataset
        self._limits, self._folder, self._log = limits, folder, log
        self._began = time.monotonic()
        self._deadline, self._longest = self._began + seconds, 0.0
        self._is_compiled = False
        self._trials: list[Trial] = []
        self._shown: list[Trial] = []

    def tune(self) -> Outcome:
        """Search until everything was tried or the time is over.

        Raises:
            RunFailed: when the run's own settings cannot be measured.
        """
        for group in order_groups(self._limits):
            self._search(group)
        original = flatten(self._original)
        changed = {key: value for key, value in flatten(self._config).items() if original[key] != value}
        if self._is_compiled:
            changed = {key: value for key, value in changed.items() if not key.startswith("learning_rate.")}
        before_after = None
        if changed:
            # Once more in turns: gains need not multiply, and the best of many trials was also the luckiest.
            self._log("before against after")
            last = self._measure("after", self._original, changed)
            if last.rounds is None:
                raise RunFailed(f"what was found does not run together: {last.reason}")
            before_after = last.rounds
        measured = (trial.rounds.before for trial in self._trials if trial.rounds)
        is_alone = self._original.strategy in ("single", "mirrored")
        return Outcome(
            run=self._run,
            config=self._original,
            adopted=changed if before_after and before_after.is_gain else {},
            before_after=before_after,
            baseline=next(measured, ()),
            shown=tuple(self._shown),
            trials=tuple(self._trials),
            is_compiled=self._is_compiled,
            notes=() if is_alone else (ONE_REPLICA.format(strategy=self._original.strategy),),
            seconds=time.monotonic() - self._began,
        )

    def _search(self, group: str) -> None:
        """Try a group; adopt the best, or keep it to be shown."""
        before, tried = self._config, []
        for changes in candidates(group, before, self._limits):
            refused = self._refuse(before, changes, tried) if group == BATCH else None
            if refused:
                trial = Trial(group=group, changes=changes, **refused)
            elif self._trials + tried and self._is_late():
                trial = Trial(group=group, changes=changes, reason=OUT_OF_TIME)
            else:
                trial = self._measure(group, before, changes)
                self._log(str(trial))
            tried.append(trial)
        self._trials += tried
        best = best_of(tried)
        if best is None:
            return
        if self._limits.adopts(group):
            self._config = with_changes(before, best.changes)
        else:
            self._shown.append(best)

    def _is_late(self) -> bool:
        """Whether another trial, and the last comparison, would not end in time if they took as long as the longest."""
        return time.monotonic() + 2 * self._longest > self._deadline

    def _refuse(self, before: RunConfig, changes: Mapping[str, Any], tried: list[Trial]) -> dict[str, Any] | None:
        """Why a batch is not tried: a smaller one did not fit, or the memory will not do."""
        if with_changes(before, changes).per_replica_batch_size < before.per_replica_batch_size:
            return None
        if any(trial.status == DOES_NOT_FIT for trial in tried):
            return {"reason": "larger than one that does not fit"}
        measured = [trial.rounds for trial in tried if trial.rounds]
        free = measured[-1].free_bytes if measured else None
        lacking = lacking_bytes([rounds.memory_bytes or 0 for rounds in measured], free) if free else 0
        if not lacking:
            return None
        return {"status": DOES_NOT_FIT, "reason": f"about {lacking / GIBIBYTE:.1f} GiB of memory are missing"}

    def _measure(self, group: str, before: RunConfig, changes: Mapping[str, Any]) -> Trial:
        """A trial in a process of its own; whatever ends this call, the process is gone.

        Raises:
            RunFailed: when the settings before cannot be measured.
        """
        began, told = time.monotonic(), []
        configs = {"before": before, "after": with_changes(before, changes)}
        measured = {name: to_dict(config_to_measure(config)) for name, config in configs.items()}
        cluster = self._original.cluster
        # As a role of the run, whose others are not there.
        devices = cluster.replicas if self._original.is_synchronous else 1
        folder = self._folder / f"{group}-{len(list(self._folder.glob(f'{group}-*')))}"
        job = Job(
            function="tune",
            what="its process",
            folder=folder,
            arguments={**measured, "dataset": self._dataset},
            datasets=[Path(self._dataset)],
            gpus=range(0 if cluster.virtual_devices else devices),
            at_once=cluster.workers * (cluster.replicas if cluster.virtual_devices else 1),
            silence_seconds=SILENCE_SECONDS,
            ends_first=True,
        )
        answer: dict[str, Any]
        try:
            answer = run_job(job, launcher=launcher_of_jobs(self._original), on_event=told.append)
        except (JobFailed, InputError) as error:
            if not told:
                raise RunFailed(f"the run cannot be measured: {error}") from error
            is_memory = isinstance(error, JobFailed) and error.lacks_memory
            answer = {"status": DOES_NOT_FIT if is_memory else FAILED, "reason": str(error)}
        self._is_compiled |= any(event.get("is_compiled", False) for event in told)
        self._longest = max(self._longest, time.monotonic() - began)
        rounds = Rounds.from_dict(answer["rounds"]) if answer["status"] == MEASURED else None
        return Trial(
            group=group, changes=changes, status=answer["status"], reason=answer.get("reason", ""), rounds=rounds
        )
