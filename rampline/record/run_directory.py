"""The run directory: the truth about a run, and the names of the files in it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rampline.config import RunConfig, from_dict, to_dict
from rampline.files import read_json, write_json
from rampline.record.events import EventReader
from rampline.record.home import Home


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What a run is, beside its configuration (`run.json`).

    Attributes:
        study: name of the study, which is the MLflow experiment.
        name: name of the run in the study.
        dataset: directory of the prepared dataset.
        git_commit: commit of the code, or `unknown`.
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
    description: str = ""
    rungs: str = ""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """How far a run is trained for the time being, where it competes with others; see `rampline.study.halving`.

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

    @property
    def config_file(self) -> Path:
        """`RunConfig` as JSON."""
        return self.path / "config.json"

    @property
    def identity_file(self) -> Path:
        """`RunIdentity` as JSON."""
        return self.path / "run.json"

    @property
    def roles_file(self) -> Path:
        """Which processes the run has: `{"roles": [{"role", "index", "pid", "host", "address", "log"}, …]}`."""
        return self.path / "roles.json"

    @property
    def events_file(self) -> Path:
        """One JSON object per line, appended by the chief: what `rampline.record.events` describes."""
        return self.path / "events.jsonl"

    @property
    def tracking_file(self) -> Path:
        """The MLflow run that this directory is logged to."""
        return self.path / "mlflow.json"

    @property
    def result_file(self) -> Path:
        """Written last: its presence means that training is complete."""
        return self.path / "result.json"

    @property
    def goal_file(self) -> Path:
        """`Goal` as JSON, where the run has one."""
        return self.path / "goal.json"

    @property
    def rungs(self) -> Path:
        """`EPOCH.json` for each rung at which the run has rested: what its result would have been there."""
        return self.path / "rungs"

    def rung_file(self, epoch: int) -> Path:
        """What the run had come to at that rung; written last there, as `result_file` is at the end."""
        return self.rungs / f"{epoch}.json"

    def attempts_until(self, attempt: int) -> int:
        """How often the run was started until this attempt, without the attempts that ended at a rung."""
        return max(1, attempt - len(list(self.rungs.glob("*.json"))))

    @property
    def probes_file(self) -> Path:
        """What the run's own roles have measured after their last epoch; see `rampline.training.timings`."""
        return self.path / "probes.json"

    @property
    def replica_file(self) -> Path:
        """What processes of their own have measured of one replica's work."""
        return self.path / "replica.json"

    @property
    def explanation_file(self) -> Path:
        """Where the run's time went."""
        return self.path / "explanation.json"

    @property
    def forecast_file(self) -> Path:
        """What was expected of the run before it began."""
        return self.path / "forecast.json"

    @property
    def evaluation_file(self) -> Path:
        """Scores of the best checkpoint on the test split."""
        return self.path / "evaluation.json"

    @property
    def predictions_file(self) -> Path:
        """What the best checkpoint answered on each image of the test split."""
        return self.path / "predictions.csv"

    @property
    def other_evaluation_file(self) -> Path:
        """Scores of the last evaluation of other images, or of the last checkpoint."""
        return self.path / "evaluation-other.json"

    @property
    def other_predictions_file(self) -> Path:
        """The answers of that evaluation."""
        return self.path / "predictions-other.csv"

    @property
    def evaluation_lock(self) -> Path:
        """Held while a run of the execution is scored, and until the scores are read: evaluations of it share files."""
        return self.path.parent / ".evaluation.lock"

    @property
    def worst_errors_file(self) -> Path:
        """The wrong answers that the best checkpoint is most certain of, with their images."""
        return self.path / "worst_errors.json"

    @property
    def model(self) -> Path:
        """The evaluated model as MLflow saves it, complete or absent."""
        return self.path / "model"

    @property
    def artifacts(self) -> Path:
        """What is drawn for MLflow."""
        return self.path / "artifacts"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints, one folder each."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """`ROLE-INDEX.log` of every role."""
        return self.path / "logs"

    @property
    def attempts_file(self) -> Path:
        """One JSON object per line: every start of the run and how it ended; see `rampline.record.attempts`."""
        return self.path / "attempts.jsonl"

    def attempts_file_of(self, role: str) -> Path:
        """The same for `ROLE-INDEX` on a machine of its own, without the chief."""
        return self.path / f"attempts-{role}.jsonl"

    @property
    def stop_file(self) -> Path:
        """There while a role has passed on that it was asked to stop; see `rampline.jobs.stop`."""
        return self.path / "stop.json"

    def heartbeat_file(self, role: str) -> Path:
        """Changes about every second while the role `ROLE-INDEX` is healthy."""
        return self.path / "heartbeats" / role

    def examples_file(self, role: str) -> Path:
        """Which examples `ROLE-INDEX` used in each step, where `log_examples` is set."""
        return self.path / "examples" / f"{role}.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard event files."""
        return self.path / "tensorboard"

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
        write_json(self.identity_file, dataclasses.asdict(identity))
        write_json(self.config_file, to_dict(config))

    def read_config(self) -> RunConfig:
        """The run's configuration."""
        return from_dict(read_json(self.config_file))

    def write_goal(self, goal: Goal) -> None:
        """Say how far the run is trained; no role of it may be alive."""
        write_json(self.goal_file, dataclasses.asdict(goal))

    def read_goal(self) -> Goal | None:
        """How far the run is trained; `None` for one that makes all its epochs."""
        return Goal(**read_json(self.goal_file)) if self.goal_file.is_file() else None

    def read_identity(self) -> RunIdentity:
        """What the run is; its dataset is that of the home around it, where that has it."""
        identity = RunIdentity(**read_json(self.identity_file))
        home = Home.around(self.path.absolute().parent)
        own = home.data / Path(identity.dataset).name if home else None
        return dataclasses.replace(identity, dataset=str(own)) if own and own.is_dir() else identity

    def read_events(self, *kinds: str) -> list[dict[str, Any]]:
        """Complete events of these kinds (of all, where none is named) so far, oldest first."""
        return list(EventReader(self.events_file).read(*kinds))
