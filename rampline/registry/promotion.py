"""`rampline promote`: a run's model becomes a version of its study's registered model, if it passes the gate."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from rampline.errors import RamplineError
from rampline.files import locked
from rampline.jobs.roles import variable
from rampline.record.home import Home
from rampline.record.units import write_markdown_table
from rampline.registry.candidate import (
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
    Candidate,
    Log,
    ModelReference,
    find_candidate,
    find_version,
    logged_model_id,
    registered_name,
)
from rampline.registry.checks import (
    ACCURACY,
    RECORD,
    RECORD_FILE,
    Check,
    check_accuracy,
    check_data,
    check_model,
    check_parity_of,
    check_run,
)
from rampline.registry.paired_test import LEVEL, PairedComparison
from rampline.tracking.store import open_tracking, tracking_errors


@dataclass(frozen=True, kw_only=True)
class GateRecord:
    """The gate's outcome for one run, as it is kept.

    The comparison is that with the champion, `None` where there was none, or it could not be compared; `alias` is what
    the new version was made.
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
        figures = {f"rampline.gate.{name}": value for name, value in self.figures().items()}
        return tags | {n: f"{v:.6g}" if isinstance(v, float) else str(v) for n, v in figures.items()}

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
        rows = ((check.name, "pass" if check.passed else "FAIL", check.reason) for check in self.checks)
        lines = [
            f"Run **{identity.name}** of the study {identity.study}: accuracy {accuracy}.",
            f"Made {self.alias} on {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())} by this gate:",
            write_markdown_table(["check", "result", "reason"], rows),
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
        client.log_artifact(self.candidate.run_id, str(self.candidate.directory.predictions_file), RECORD)
        client.log_dict(self.candidate.run_id, content, f"{RECORD}/{RECORD_FILE}")


class NotPromoted(RamplineError):
    """The gate has a check that the run does not pass; nothing was registered."""


@dataclass(frozen=True, kw_only=True)
class Promotion:
    """What a promotion has led to: the alias that a version of the registered model has now.

    `is_new` where the call has made the version; `previous` is that of the former champion, where another one took its
    place; `checks` are those of the gate, none where the run was the champion already.
    """

    model: str
    version: str
    alias: str
    is_new: bool = False
    previous: str | None = None
    checks: Sequence[Check] = ()

    def sentence(self) -> str:
        """What happened, in one line."""
        if not self.checks:
            return f"{self.model} version {self.version} is the champion already"
        what = "registered" if self.is_new else "known already:"
        text = f"{what} {self.model} version {self.version}, now {self.alias}"
        return f"{text}; version {self.previous} is {PREVIOUS}" if self.previous else text


def promote(run: str, *, alias: str = CHAMPION, home: Home, log: Log) -> Promotion:
    """Make the model of a run its study's champion, or a challenger.

    Args:
        run: an MLflow run id, a run directory, or a registered model such as `rampline-digits@challenger`.
        alias: `champion` or `challenger`.
        home: whose runs and MLflow store.
        log: gets a line per check.

    Returns:
        the version. The same run is registered once: promoting it again gives its version the alias.

    Raises:
        NotPromoted: when a check fails. A challenger may fail that of the accuracy.
        InputError: when there is no such run.
        TrackingError: when MLflow refuses.
    """
    client = open_tracking(home)
    # Two promotions of the same run at once would make two versions.
    waiting = locked(home.root / ".promotion.lock", lambda holder: log(f"waiting for {holder}, which promotes a model"))
    with waiting, tracking_errors(f"the model of {run} cannot be registered"):
        return _promote(client, find_candidate(client, run), alias, home, log)


def _promote(client: MlflowClient, candidate: Candidate, alias: str, home: Home, log: Log) -> Promotion:
    model = registered_name(candidate.directory.read_identity().study)
    champion = find_version(client, ModelReference(name=model, alias=CHAMPION))
    if champion is not None and champion.run_id == candidate.run_id:
        if alias == CHALLENGER:
            raise NotPromoted(f"{model} version {champion.version} is the champion: it cannot challenge itself")
        return Promotion(model=model, version=str(champion.version), alias=CHAMPION)
    model_id = logged_model_id(client, candidate.run)
    checks, comparison = _check(client, candidate, champion, model_id, home, log)
    _refuse(checks, alias)
    record = GateRecord(candidate=candidate, checks=checks, comparison=comparison, champion=champion, alias=alias)
    record.log_on_run(client)
    version, is_new = _register(client, model, candidate, model_id or "", record)
    previous = _set_alias(client, version, champion, alias)
    return Promotion(
        model=model, version=str(version.version), alias=alias, is_new=is_new, previous=previous, checks=checks
    )


def _check(
    client: MlflowClient,
    candidate: Candidate,
    champion: ModelVersion | None,
    model_id: str | None,
    home: Home,
    log: Log,
) -> tuple[list[Check], PairedComparison | None]:
    """The gate, a line each; what starts a process comes last, and a model only where the rest has passed."""
    checks = [check_run(candidate, model_id), check_parity_of(client, candidate), check_data(candidate)]
    for check in checks:
        log(check.line())
    if all(check.passed for check in checks):
        checks.append(check_model(client, candidate, model_id, home=home))
        log(checks[-1].line())
    accuracy, comparison = check_accuracy(client, candidate, champion, log=log)
    log(accuracy.line())
    return [*checks, accuracy], comparison


def _refuse(checks: Sequence[Check], alias: str) -> None:
    failed = [check for check in checks if not check.passed]
    needed = [check for check in failed if alias == CHAMPION or check.name != ACCURACY]
    if not needed:
        return
    reasons = "; ".join(f"{check.name}: {check.reason}" for check in needed)
    hint = " (`--as challenger` registers it beside the champion)" if [c.name for c in failed] == [ACCURACY] else ""
    raise NotPromoted(f"not promoted: {reasons}{hint}")


def _register(
    client: MlflowClient, model: str, candidate: Candidate, model_id: str, record: GateRecord
) -> tuple[ModelVersion, bool]:
    """The run's version, made if there is none, with what the gate has found; and whether it is new."""
    _make_registered_model(client, model, candidate.directory.read_identity().study)
    ours = f"name = '{model}' and run_id = '{candidate.run_id}'"
    found = max(client.search_model_versions(ours), key=lambda version: int(version.version), default=None)
    version = found
    if version is None:
        source = f"models:/{model_id}"
        # MLflow's sqlite registry looks for logged models in its default store.
        with variable("MLFLOW_TRACKING_URI", client.tracking_uri):
            version = client.create_model_version(model, source, candidate.run_id, record.tags(), model_id=model_id)
    number = str(version.version)
    for name, text in record.tags().items() if found else ():
        client.set_model_version_tag(model, number, name, text)
    client.update_model_version(model, number, record.markdown())
    return version, found is None


def _make_registered_model(client: MlflowClient, model: str, study: str) -> None:
    description = (
        f"Image classifiers of the study {study}, registered by `rampline promote`. "
        "The alias champion is the one that `rampline predict` uses."
    )
    try:
        client.create_registered_model(model, {"rampline.study": study}, description)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _set_alias(client: MlflowClient, version: ModelVersion, champion: ModelVersion | None, alias: str) -> str | None:
    """Give the version its alias; the number of the champion that it replaces."""
    model, number = version.name, str(version.version)
    previous = str(champion.version) if champion and alias == CHAMPION else None
    if previous:
        # First the way back, then the change: between the two the old champion has both names.
        client.set_registered_model_alias(model, PREVIOUS, previous)
    client.set_registered_model_alias(model, alias, number)
    challenger = find_version(client, ModelReference(name=model, alias=CHALLENGER))
    if alias == CHAMPION and challenger and str(challenger.version) == number:
        client.delete_registered_model_alias(model, CHALLENGER)
    return previous
