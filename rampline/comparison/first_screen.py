"""The first screen of the report: four answers, the parity certificate of each run, and what to know before trusting.

A **certificate** says whether a scaled run trains what one replica would: the result of the parity check that was made
before it was trained, see `docs/parity.md`. Of a run that was trained several times it is the worst.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rampline.comparison.recommendation import recommend
from rampline.comparison.runs import Comparison
from rampline.comparison.sentences import (
    list_warnings,
    list_weights,
    summarise_accuracy,
    summarise_cost,
    summarise_scaling,
    summarise_speed,
    tell_parity,
    tell_repeats,
)
from rampline.data.quality import DataReport
from rampline.record.units import list_names

# The worst first; without a status the check was left out.
STATUSES = {"fail": "failed", "": "not checked", "not_applicable": "not applicable", "pass": "passed"}
MOST_CERTIFICATES = 8  # lines; of more runs, those of one result are one line


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The result of the parity check of some runs.

    Attributes:
        status: a key of `STATUSES`.
        figures: how far they are from one replica, or why the check does not apply; empty where nothing is known.
    """

    runs: str
    status: str
    figures: str

    @property
    def result(self) -> str:
        """The status in words, with the figures."""
        return f"{STATUSES[self.status]}: {self.figures}" if self.figures else STATUSES[self.status]


@dataclass(frozen=True, kw_only=True)
class FirstScreen:
    """What the report begins with: whether another run is faster, and sentences by each other question of readers."""

    headline: str
    notes: tuple[str, ...]
    answers: Mapping[str, Sequence[str]]
    certificates: tuple[Certificate, ...]
    warnings: tuple[str, ...]


def make_first_screen(comparison: Comparison, reports: Iterable[DataReport]) -> FirstScreen:
    """The first screen of a comparison; `reports` are those of its datasets."""
    is_repeated, repeats = comparison.has_repeats, tell_repeats(comparison)
    take = recommend(comparison).sentence or "There are no two runs to choose between."
    return FirstScreen(
        headline=summarise_speed(comparison),
        notes=tuple(filter(None, (summarise_scaling(comparison), repeats if is_repeated else ""))),
        answers={
            "Which run to take?": (take,),
            "What does it cost?": (*summarise_cost(comparison), *list_weights(comparison)),
            "Is it the same model?": tuple(filter(None, (summarise_accuracy(comparison),))),
        },
        certificates=tuple(list_certificates(comparison)),
        warnings=(
            *(warning for report in reports for warning in report.leak_warnings()),
            *list_warnings(comparison),
            *([] if is_repeated else [repeats]),
        ),
    )


def list_certificates(comparison: Comparison) -> list[Certificate]:
    """The certificate of each run; where they are many, one for all runs of one result."""
    # Of a run that is trained several times, the first training is checked.
    of_run = {run: [row for row in rows if row["parity"]] or rows for run, rows in comparison.trainings_of.items()}
    found = [_certificate([run], rows) for run, rows in of_run.items()]
    if len(found) <= MOST_CERTIFICATES:
        return found
    alike = {status: [c.runs for c in found if c.status == status] for status in STATUSES}
    return [_certificate(runs, [row for run in runs for row in of_run[run]]) for runs in alike.values() if runs]


def _certificate(runs: Sequence[str], trainings: Sequence[dict[str, Any]]) -> Certificate:
    status = next(status for status in STATUSES if any(row["parity"] == status for row in trainings))
    return Certificate(runs=list_names(runs), status=status, figures=_figures(status, trainings))


def _figures(status: str, trainings: Sequence[dict[str, Any]]) -> str:
    """The largest figures of the trainings that have this status."""
    rows = [row for row in trainings if row["parity"] == status]
    if status == "not_applicable" and all(row["strategy"] == "single" for row in rows):
        return "one replica"
    return tell_parity(rows)
