"""The explanation of a run: where its time went, what holds it back, and what the machine allows."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rampline.config import RunConfig
from rampline.explain.parts import RunParts, StepParts, noise_of_parts, run_parts, step_parts
from rampline.explain.probes import ReplicaProbes, StrategyProbes
from rampline.explain.verdict import Verdict, judge
from rampline.files import read_json, write_json
from rampline.metrics import Source, to_log
from rampline.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Content of `explanation.json`.

    Attributes:
        step: parts of the run's usual training step, in milliseconds: in the proportions that the probes have found.
        run: parts of the wall time, in seconds.
        verdict: what holds the run back.
        ceiling_images_per_second: what as many independent replicas reach at once on this machine, with no all-reduce
            and no pipeline; `None` where it was not measured.
        noise: milliseconds by part of `step`, for the parts that are not told apart from noise of that size.
        slowdown: the usual step divided by the probed one: away from 1, the machine was busier, or idler, while the run
            trained than while it was probed.
    """

    step: StepParts
    run: RunParts
    verdict: Verdict
    ceiling_images_per_second: float | None
    slowdown: float
    noise: dict[str, float] = dataclasses.field(default_factory=dict)

    def figures(self) -> dict[str, float | None]:
        """The figures by the names they have in MLflow."""
        return to_log(Source.EXPLANATION, dataclasses.asdict(self))

    def write(self, path: Path) -> None:
        """Write it as JSON, complete or not at all."""
        write_json(path, dataclasses.asdict(self))

    @classmethod
    def read(cls, path: Path) -> Explanation:
        """The explanation in that file."""
        values: dict[str, Any] = read_json(path)
        kinds = {"step": StepParts, "run": RunParts, "verdict": Verdict}
        return cls(**values | {name: kind(**values[name]) for name, kind in kinds.items()})


def explain_run(run_directory: RunDirectory) -> Explanation:
    """Explain a complete run whose probes were made.

    Args:
        run_directory: with `probes.json`, and `replica.json` if one replica's work was measured.
    """
    config = run_directory.read_config()
    probes = StrategyProbes.read(run_directory.probes_file)
    replica = ReplicaProbes.read(run_directory.replica_file) if run_directory.replica_file.is_file() else None
    events, result = run_directory.read_events("started", "epoch", "checkpoint"), read_json(run_directory.result_file)
    usual = _usual_step(events, result) or probes.real.median
    slowdown = usual / probes.real.median
    is_alone = config.is_synchronous and config.replicas == 1
    at_once = 1 if config.is_synchronous else config.cluster.workers
    step = step_parts(probes, replica, is_alone=is_alone, updates_at_once=at_once).scaled(slowdown)
    noise = noise_of_parts(probes, replica, is_alone=is_alone, updates_at_once=at_once)
    noise = {part: ms * slowdown for part, ms in noise.items()}
    return Explanation(
        step=step,
        run=run_parts(events, result, step_milliseconds=usual),
        verdict=judge(config, step, probes, noise),
        ceiling_images_per_second=replica and _ceiling(config, replica),
        slowdown=slowdown,
        noise=noise,
    )


def _ceiling(config: RunConfig, replica: ReplicaProbes) -> float:
    at_once = replica.at_once or replica.alone
    return 1000 * replica.batch_size * config.replicas / at_once.median


def _usual_step(events: list[dict[str, Any]], result: dict[str, Any]) -> float | None:
    """Milliseconds of a step in the median of the run's epochs; `None` for one epoch, which holds the tracing."""
    epochs = {event["epoch"]: event["metrics"]["epoch_seconds"] for event in events if event["event"] == "epoch"}
    seconds = [epochs[number] for number in sorted(epochs)]
    return 1000 * statistics.median(seconds[1:]) * result["epochs"] / result["steps"] if len(seconds) > 1 else None
