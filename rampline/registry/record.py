"""What a registered version says of itself: its tags, its description, and what is left on its run."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from mlflow.entities.model_registry import ModelVersion
from mlflow.tracking import MlflowClient

from rampline.registry.candidate import Candidate
from rampline.registry.checks import Check
from rampline.registry.comparison import RECORD, RECORD_FILE
from rampline.registry.paired_test import LEVEL, PairedComparison


@dataclasses.dataclass(frozen=True, kw_only=True)
class GateRecord:
    """The gate's outcome for one run, as it is kept.

    Attributes:
        candidate: the run.
        checks: all of them, in order.
        comparison: with the champion; `None` where there was none, or it could not be compared.
        champion: the version it was compared with.
        alias: what the new version was made.
    """

    candidate: Candidate
    checks: Sequence[Check]
    comparison: PairedComparison | None
    champion: ModelVersion | None
    alias: str

    def tags(self) -> dict[str, str]:
        """Tags of the version, for filters and scripts."""
        identity, evaluation = self.candidate.directory.read_identity(), self.candidate.read_evaluation() or {}
        tags = {
            "rampline.run": identity.name,
            "rampline.study": identity.study,
            "rampline.git_commit": identity.git_commit,
            "rampline.data_fingerprint": self.candidate.run.data.tags.get("rampline.data_fingerprint", "unknown"),
            "rampline.test_accuracy": f"{evaluation['test_accuracy']:.6g}",
            "rampline.test_examples": str(evaluation["examples"]),
            "rampline.gate": ", ".join(f"{check.name} {'pass' if check.passed else 'fail'}" for check in self.checks),
        }
        return tags | {f"rampline.gate.{name}": _text(value) for name, value in self.figures().items()}

    def figures(self) -> dict[str, Any]:
        """What the comparison has counted; nothing without one."""
        if self.comparison is None or self.champion is None:
            return {}
        low, high = self.comparison.interval
        return {
            "champion_version": self.champion.version,
            "champion_accuracy": self.comparison.old_accuracy,
            "difference": self.comparison.difference,
            "difference_low": low,
            "difference_high": high,
            "right_only_new": self.comparison.only_new,
            "right_only_champion": self.comparison.only_old,
            "p_value": self.comparison.p_value,
        }

    def markdown(self) -> str:
        """The description of the version."""
        identity, evaluation = self.candidate.directory.read_identity(), self.candidate.read_evaluation() or {}
        accuracy = f"{evaluation['test_accuracy']:.4f} on {evaluation['examples']:,} {evaluation['split']} images"
        rows = [
            f"| {check.name} | {'pass' if check.passed else '**fail**'} | {_cell(check)} |" for check in self.checks
        ]
        lines = [
            f"Run **{identity.name}** of the study {identity.study}: accuracy {accuracy}.",
            f"Made {self.alias} on {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())} by this gate:",
            "\n".join(["| check | result | reason |", "|---|---|---|", *rows]),
            "accuracy: McNemar's exact test on the same test images, one-sided, "
            f"level {LEVEL:g}; interval of the difference by Newcombe (1998), method 10.",
        ]
        return "\n\n".join(lines) + "\n"

    def log_on_run(self, client: MlflowClient) -> None:
        """Keep the gate's figures and the run's answers in MLflow: later champions are compared with them."""
        content = {
            "alias": self.alias,
            "dataset": self.candidate.dataset_directory.name,
            "checks": [dataclasses.asdict(check) for check in self.checks],
            **self.figures(),
        }
        client.log_artifact(self.candidate.run_id, str(self.candidate.predictions_file), RECORD)
        client.log_dict(self.candidate.run_id, content, f"{RECORD}/{RECORD_FILE}")


def model_description(study: str) -> str:
    """Of the registered model."""
    return (
        f"Image classifiers of the study {study}, registered by `rampline promote`. "
        "The alias champion is the one that `rampline predict` uses."
    )


def _cell(check: Check) -> str:
    return check.reason.replace("|", "\\|")


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
