"""The run directory: the truth about a run, and the names of the files in it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rampline.config import RunConfig, from_dict, to_dict
from rampline.files import JsonData, read_json, write_json
from rampline.record.events import EventReader
from rampline.record.home import Below, Home


@dataclass(frozen=True, kw_only=True)
class RunIdentity(JsonData):
    """What a run is, beside its configuration (`run.json`).

    Attributes:
        study: its name, which is that of the MLflow experiment.
        dataset: directory of the prepared dataset.
        published: other people's figures for this run, by metric name.
        repeat_of: the run that this one trains once more, with another seed; empty for a first training.
        description: what the study says of it.
        rungs: when halving stops it, in words; empty where it does not.
    """

    study: str
    name: str
    dataset: str
    git_commit: str = "unknown"
    published: dict[str, float] = dataclasses.field(default_factory=dict)
    repeat_of: str = ""
    description: str | None = ""  # None in those of `parity` and `explain` once
    rungs: str = ""


@dataclass(frozen=True, kw_only=True)
class Goal(JsonData):
    """How far a run is trained for the time being, where it competes with others; see `rampline.study.halving`.

    No role of it may be alive when it is written.

    Attributes:
        epoch: where it rests, or ends; its last epoch, or a rung before it.
        stopped: why it goes no further than that rung; empty while it may.
    """

    epoch: int
    stopped: str = ""


@dataclass(frozen=True)
class RunDirectory:
    """A run directory by its path; reading and writing of its small files."""

    path: Path

    config_file = Below("config.json")  # `RunConfig` as JSON
    identity_file = Below("run.json")  # `RunIdentity` as JSON
    # Which processes the run has: `{"roles": [{"role", "index", "pid", "host", "address", "log"}, …]}`.
    roles_file = Below("roles.json")
    # One JSON object per line, appended by the chief: what `rampline.record.events` describes.
    events_file = Below("events.jsonl")
    tracking_file = Below("mlflow.json")  # the MLflow run that this directory is logged to
    result_file = Below("result.json")  # written last: its presence means that training is complete
    goal_file = Below("goal.json")  # `Goal` as JSON, where the run has one
    # `EPOCH.json` for each rung at which the run has rested: what its result would have been there.
    rungs = Below("rungs")
    # What the run's own roles have measured after their last epoch; see `rampline.training.timings`.
    probes_file = Below("probes.json")
    # There while the roles measure that, and for good where it has ended an attempt.
    probing_file = Below("probing.json")
    replica_file = Below("replica.json")  # what processes of their own have measured of one replica's work
    explanation_file = Below("explanation.json")  # where the run's time went
    forecast_file = Below("forecast.json")  # what was expected of the run before it began
    evaluation_file = Below("evaluation.json")  # scores of the best checkpoint on the test split
    predictions_file = Below("predictions.csv")  # what the best checkpoint answered on each image of the test split
    # Scores of the last evaluation of other images, or of the last checkpoint.
    other_evaluation_file = Below("evaluation-other.json")
    other_predictions_file = Below("predictions-other.csv")  # the answers of that evaluation
    # The wrong answers that the best checkpoint is most certain of, with their images.
    worst_errors_file = Below("worst_errors.json")
    model = Below("model")  # the evaluated model as MLflow saves it, complete or absent
    artifacts = Below("artifacts")  # what is drawn for MLflow
    checkpoints = Below("checkpoints")  # checkpoints, one folder each
    logs = Below("logs")  # `ROLE-INDEX.log` of every role
    # One JSON object per line: every start of the run and how it ended; see `rampline.record.attempts`.
    attempts_file = Below("attempts.jsonl")
    # There while a role has passed on that it was asked to stop; see `rampline.jobs.stop`.
    stop_file = Below("stop.json")
    tensorboard = Below("tensorboard")  # TensorBoard event files
    # In a copy on another machine: what `model.weights` names on that of the command, by its name.
    weights = Below("weights")

    def rung_file(self, epoch: int) -> Path:
        """What the run had come to at that rung; written last there, as `result_file` is at the end."""
        return self.rungs / f"{epoch}.json"

    def attempts_until(self, attempt: int) -> int:
        """How often the run was started until this attempt, without the attempts that ended at a rung."""
        return max(1, attempt - len(list(self.rungs.glob("*.json"))))

    @property
    def evaluation_lock(self) -> Path:
        """Held while a run of the execution is scored, and until the scores are read: evaluations of it share files."""
        return self.path.parent / ".evaluation.lock"

    def attempts_file_of(self, role: str) -> Path:
        """`attempts_file` of `ROLE-INDEX` on a machine of its own, without the chief."""
        return self.path / f"attempts-{role}.jsonl"

    def heartbeat_file(self, role: str) -> Path:
        """Changes about every second while the role `ROLE-INDEX` is healthy."""
        return self.path / "heartbeats" / role

    def examples_file(self, role: str) -> Path:
        """Which examples `ROLE-INDEX` used in each step, where `log_examples` is set."""
        return self.path / "examples" / f"{role}.jsonl"

    @property
    def is_complete(self) -> bool:
        """Whether training has ended well."""
        return self.result_file.is_file()

    @property
    def is_at_goal(self) -> bool:
        """Whether training has ended well, or rests at the rung that is its goal; nothing else is done for now."""
        goal = self.read_goal()
        return self.is_complete or (goal is not None and not goal.stopped and self.rung_file(goal.epoch).is_file())

    def create(self, config: RunConfig, identity: RunIdentity) -> None:
        """Write what a role needs to start. A directory that holds the same run already is left as it is.

        Raises:
            FileExistsError: when the directory holds another configuration.
        """
        if self.config_file.is_file() and self.identity_file.is_file():
            if self.read_config() != config:
                raise FileExistsError(f"{self.path} holds a run with another configuration")
            return
        identity.write(self.identity_file)
        write_json(self.config_file, to_dict(config))

    def read_config(self) -> RunConfig:
        """The run's configuration; the checkpoint of another run of its execution is the one beside it, if it is there.

        `run:NAME` is kept as an absolute path, which leads nowhere once the home has moved. A copy on another machine
        has the weights in it.
        """
        config = from_dict(read_json(self.config_file))
        execution, weights = self.path.absolute().parent, Path(config.model.weights)
        own, copied = execution.joinpath(*weights.parts[-3:]), self.weights / weights.name
        is_beside = weights.parts[-5:-3] == execution.parts[-2:] and own.parent.name == "checkpoints" and own.is_dir()
        if not is_beside and not copied.exists():
            return config
        here = copied if copied.exists() else own
        return dataclasses.replace(config, model=dataclasses.replace(config.model, weights=str(here)))

    def read_goal(self) -> Goal | None:
        """How far the run is trained; `None` for one that makes all its epochs."""
        return Goal.read(self.goal_file) if self.goal_file.is_file() else None

    def read_identity(self) -> RunIdentity:
        """What the run is; its dataset is that of the home around it, where that has it."""
        identity = RunIdentity.read(self.identity_file)
        home = Home.around(self.path.absolute().parent)
        own = home.data / Path(identity.dataset).name if home else None
        return dataclasses.replace(identity, dataset=str(own)) if own and own.is_dir() else identity

    def read_events(self, *kinds: str) -> list[dict[str, Any]]:
        """Complete events of these kinds (of all, where none is named) so far, oldest first."""
        return list(EventReader(self.events_file).read(*kinds))
