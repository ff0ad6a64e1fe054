"""The description of a run in MLflow, which grows with what the run directory knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rampline.config import RunConfig
from rampline.config.learning_rate import describe_schedule
from rampline.credentials import mask
from rampline.explain.explanation import Explanation
from rampline.files import read_json
from rampline.record.run_directory import RunDirectory
from rampline.study import built_in_studies
from rampline.training.early_stop import describe_stop

STRATEGIES = {
    "single": "one device",
    "mirrored": "{replicas} replicas in one process",
    "multi_worker": "{replicas} replicas in {workers} worker processes",
    "parameter_server": "{workers} workers, parameter servers: {servers}, asynchronous",
}


def describe_run(directory: RunDirectory, failure: str | None = None) -> str:
    """A few lines of markdown on a run in any state; `failure` is why it ended without being complete, one line."""
    identity = directory.read_identity()
    paragraphs = [
        identity.description,
        *_results(directory, failure),
        _set_up(directory, identity.rungs),
        _where(directory, identity.study),
    ]
    return mask("\n\n".join(paragraph for paragraph in paragraphs if paragraph))


def _set_up(directory: RunDirectory, rungs: str) -> str:
    config = directory.read_config()
    devices = STRATEGIES[config.strategy].format(
        replicas=config.replicas, workers=config.cluster.workers, servers=config.cluster.parameter_servers
    )
    facts = [
        f"**{config.strategy}**, {devices}",
        f"global batch {config.global_batch_size} ({config.per_replica_batch_size} per replica)",
        _learning_rate(config, directory),
        f"{_epochs(config, rungs)} of {config.model.name} in {config.precision}, engine {config.engine}",
    ]
    return "; ".join(facts) + "."


def _epochs(config: RunConfig, rungs: str) -> str:
    stops = describe_stop(config, rungs)
    return f"at most {config.epochs} epochs (it stops {stops})" if stops else f"{config.epochs} epochs"


def _learning_rate(config: RunConfig, directory: RunDirectory) -> str:
    for started in directory.read_events("started"):
        if brought := started.get("compiled_with"):
            return ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in brought.items())
    scaling = config.learning_rate.scale_with
    scaled = "" if scaling == "none" else f" (scaled with {scaling.replace('_', ' ')})"
    return f"learning rate {describe_schedule(config)}{scaled}"


def _results(directory: RunDirectory, failure: str | None) -> Iterator[str]:
    if failure:
        yield f"**Not complete:** {failure}"
    facts = []
    if directory.evaluation_file.is_file():
        scores = read_json(directory.evaluation_file)
        facts.append(f"**{scores['split']} accuracy {scores['test_accuracy']:.4f}** on {scores['examples']:,} images")
    if directory.is_complete:
        facts.append(_times(read_json(directory.result_file)))
    if facts:
        yield ", ".join(facts) + "."
    if directory.explanation_file.is_file():
        yield f"Where the time went: {Explanation.read(directory.explanation_file).verdict.sentence}."


def _times(result: dict[str, Any]) -> str:
    times = f"trained in {result['train_seconds']:.1f} s ({result['wall_seconds']:.1f} s with start-up)"
    best = f", best epoch {result['best_epoch']}" if result.get("best_epoch") else ""
    stopped = f", stopped {result['stopped']}" if result.get("stopped") else ""
    return f"{times}{best}{stopped}"


def _where(directory: RunDirectory, study: str) -> str:
    where = f"Run directory `{directory.path.absolute()}`"
    if directory.is_complete:
        return where
    return f"{where}; `rampline run {study if study in built_in_studies() else 'FILE'} --resume` continues it."
