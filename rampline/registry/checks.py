"""What a run must show before its model is registered, one check each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from mlflow.tracking import MlflowClient

from rampline.data.report import DataReport, read_report
from rampline.errors import DatasetError, RamplineError
from rampline.home import Home
from rampline.parity import ParityResult, result_file
from rampline.prediction import try_model
from rampline.registry.candidate import Candidate
from rampline.tracking.parity_log import PARITY_TAG

RUN, PARITY, DATA, MODEL, ACCURACY = "run", "parity", "data", "model", "accuracy"


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check, whether it passed, and the reason either way, in one line."""

    name: str
    passed: bool
    reason: str

    def line(self) -> str:
        """For a terminal or a log."""
        return f"{'pass' if self.passed else 'FAIL'}  {self.name:<8}  {self.reason}"


def check_run(candidate: Candidate, model_id: str | None) -> Check:
    """The run is complete and evaluated, and its model is in MLflow."""
    evaluation = candidate.read_evaluation()
    status = candidate.run.info.status
    study = candidate.directory.read_identity().study
    if not candidate.directory.is_complete:
        reason = f"training is not complete: {candidate.directory.path} has no result.json"
    elif evaluation is None:
        reason = f"it is not evaluated: `rampline evaluate {candidate.run_id}` does that"
    elif status != "FINISHED":
        reason = f"its MLflow run is {status}, not FINISHED: `rampline sync {study}` delivers what is missing"
    elif model_id is None:
        reason = f"its model is not in MLflow: `rampline evaluate {candidate.run_id}` logs it"
    else:
        split = "" if evaluation["split"] == "test" else f" (the data has no test split: {evaluation['split']})"
        figures = f"accuracy {evaluation['test_accuracy']:.4f} on {evaluation['examples']:,} images{split}"
        return Check(name=RUN, passed=True, reason=f"complete and evaluated: {figures}")
    return Check(name=RUN, passed=False, reason=reason)


def check_parity_of(candidate: Candidate) -> Check:
    """Its parity check passed; where MLflow and the run directory differ, the worse one counts."""
    file = result_file(candidate.directory)
    result = ParityResult.read(file) if file.is_file() else None
    tag = candidate.run.data.tags.get(PARITY_TAG)
    statuses = {status for status in (tag, result.status if result else None) if status}
    is_single = candidate.directory.read_config().strategy == "single"
    allowed = {"pass", "not_applicable"} if is_single else {"pass"}
    if statuses and statuses <= allowed:
        return Check(name=PARITY, passed=True, reason=_parity_reason(result, is_single=is_single))
    return Check(name=PARITY, passed=False, reason=_parity_failure(statuses, tag, result))


def _parity_reason(result: ParityResult | None, *, is_single: bool) -> str:
    if is_single:
        return "one replica: there is nothing to compare"
    return result.sentence() if result else f"MLflow's tag {PARITY_TAG} is pass"


def _parity_failure(statuses: set[str], tag: str | None, result: ParityResult | None) -> str:
    if not statuses:
        return "it was not checked (parity.steps=0): train it with the check, or its model stays unregistered"
    if "fail" in statuses:
        if result is not None and result.status == "fail":
            return result.sentence()
        return f"MLflow's tag {PARITY_TAG} is {tag}"
    if result is not None and result.status == "not_applicable":
        return f"nothing shows that it trains as one replica would: {result.sentence()}"
    return f"MLflow's tag {PARITY_TAG} is {tag}: it must be pass"


def check_model(client: MlflowClient, candidate: Candidate, model_id: str | None, *, home: Home) -> Check:
    """The model that MLflow has labels an image in the process that `rampline predict` starts."""
    if model_id is None:
        return Check(name=MODEL, passed=False, reason="it is not in MLflow")
    study = candidate.directory.read_identity().study
    try:
        try_model(client, model_id, study, candidate.directory.path, home=home)
    except RamplineError as error:
        return Check(name=MODEL, passed=False, reason=f"`rampline predict` cannot use it: {error}")
    return Check(name=MODEL, passed=True, reason="loaded from MLflow, it labels an image")


def check_data(candidate: Candidate) -> Check:
    """The data report has no unreadable file, no image in two splits, and none with two labels."""
    try:
        report = read_report(candidate.dataset_directory)
    except DatasetError as error:
        return Check(name=DATA, passed=False, reason=str(error))
    across, conflicting = _images(report, "across"), _conflicting(report)
    findings = {
        "files that do not decode": len(report.undecodable),
        "images in more than one split": across,
        "images with more than one label": conflicting,
    }
    found = _list(findings)
    if found:
        reason = f"the data report of {report.source} is not clean: {found} (see {candidate.dataset_directory})"
        return Check(name=DATA, passed=False, reason=reason)
    repeated = _images(report, "within")
    note = f"; {repeated:,} images are more than once in one split" if repeated else ""
    reason = f"{report.source}: all files decode, no image in two splits or with two labels{note}"
    return Check(name=DATA, passed=True, reason=reason)


def _images(report: DataReport, kind: str) -> int:
    return report.repeated(kind)["group"].drop_duplicates().size


def _conflicting(report: DataReport) -> int:
    """Images, by their bytes, that stand in more than one class: one of the labels is wrong."""
    classes: defaultdict[str, set[str]] = defaultdict(set)
    for image, name in zip(report.duplicates["sha256"], report.duplicates["class"], strict=True):
        classes[image].add(name)
    return sum(len(names) > 1 for names in classes.values())


def _list(findings: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in findings.items() if count)
