"""A study: a dataset, a base configuration and a list of runs, as it was read and checked; and the keys of its file."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from rampline.config import DataConfig, RunConfig
from rampline.config.setting import Count, NotNegative, Number, OneOf, Positive, Settings, Text, setting, settings
from rampline.errors import ConfigError

if TYPE_CHECKING:
    from rampline.data.dataset import PreparedDataset

    Datasets = Mapping[DataConfig, PreparedDataset | None]
else:
    Datasets = dict[Any, Any]  # pydantic would import NumPy for the other, which light commands do without

# They become names of folders, MLflow experiments and runs.
NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
LONGEST_NAME = 100
# Folders of jobs beside the run directories, and folders in these that a store passes over wherever they are.
NO_RUNS = ("evaluation", "explain", "checkpoints", "heartbeats")


def make_name(text: str) -> str:
    """What of any text may be such a name, with - for other characters; empty where that is nothing."""
    return re.sub("[^a-z0-9_-]", "-", text.lower()).strip("-_")[:LONGEST_NAME]


def _named(what: str, taken: Collection[str] = ()) -> BeforeValidator:
    """Refuses what cannot be the name of a folder, an MLflow experiment and a metric."""

    def check(name: Any) -> Any:
        if not isinstance(name, str):
            allowed = "a text: put it into quotation marks, without which YAML takes no, off and 1 for something else"
            raise ConfigError(f"{what} {name!r} is not allowed: it must be {allowed}")
        if not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
            allowed = f"lower-case letters, digits, - and _, at most {LONGEST_NAME}"
            raise ConfigError(f"{what} {name!r} is not allowed: it must be {allowed}")
        if name in taken:
            allowed = f"none of {', '.join(taken)}, which are the names of other folders"
            raise ConfigError(f"{what} {name!r} is not allowed: it must be {allowed}")
        return name

    return BeforeValidator(check)


def _read_words(value: Any) -> str:
    if isinstance(value, dict | list | tuple):
        raise ValueError(value)
    return str(value).strip()


Words = Annotated[
    str,
    BeforeValidator(_read_words),
    WithJsonSchema({"type": ["string", "number", "boolean", "null"], "allowed": "a text"}),
]
Prices = dict[Text, NotNegative]
Figures = dict[Annotated[str, _named("published metric")], NotNegative]
SEARCHES = {
    "all": "every one",
    "halving": "successive halving: all train to an early epoch, the best third of them to three times that epoch, and "
    "so on",
}
# Their keys are checked when the settings of a run are put together.
Later = dict[Any, Any]


@settings("")
class RunTexts(Settings):
    """What a run of a study has besides its settings."""

    description: Words = setting("", "free text")
    published: Figures = setting(
        dict,
        "figures that others have published for this run, by metric name, such as `{train_seconds: 2090, "
        "test_accuracy: 0.94}`. They are shown beside your own and marked as published, never mixed with them",
    )
    train_examples: Count | None = setting(
        None,
        "number of images in the training split. With it, `rampline plan` shows the steps per epoch before the data is "
        "prepared, marked with `*`. It is not used with `--set data.source`, `data.limit`, "
        "`data.validation_fraction` or `data.group`",
    )


@settings("")
class RunKeys(RunTexts):
    """The keys of a run in a study file."""

    set: Later = setting(
        dict,
        "settings laid over `base`, section by section: what is not named keeps the value of `base`. This holds for "
        "each option of `model.options`, too, but `{}` empties them, and options beside another `model.name` replace "
        "them",
    )


@settings("")
class GridKeys(Settings):
    """The keys of a grid in a study file."""

    over: Annotated[Any, WithJsonSchema({"type": "object", "additionalProperties": {"type": ["array", "object"]}})] = (
        setting(
            None,
            "the axes, which must be given. One is a name of your own with settings by label, or a dotted key with a "
            "list of values, whose labels are the values, or, with `samples`, with a range",
        )
    )
    samples: Count | None = setting(
        None, "points that are sampled from the axes, a run each; `null` for every combination"
    )
    search: Annotated[str, OneOf(SEARCHES)] = setting("all", "which of its runs are trained to their last epoch")
    name: Words = setting(
        "",
        "name of each run, with `{AXIS}` for the label of each axis and `{sample}` for the number of a sample; the "
        "grid's name and the labels, or the number, joined by `-`, if left out",
    )
    description: Words = setting("", "as in a run, with `{AXIS}` too; of a sample its values, if left out")
    set: Later = setting(
        dict,
        "settings of all its runs, laid over `base`; those of the axes are laid over them, the last axis last",
    )
    published: dict[Any, dict[Any, Any]] = setting(dict, "figures of others by the name of the run, then by metric")
    train_examples: Count | None = setting(None, "as in a run")


@settings("recommend")
class Recommend(Settings):
    """What a recommended set-up must keep to."""

    deadline_hours: Positive | None = setting(None, "hours that it may take at most; `null` for no limit")
    accuracy_tolerance: Number = setting(
        0.01, "accuracy that it may lose against the most accurate run; 0.01 is one point", ge=0, le=1
    )


@settings("")
class StudyTexts(Settings):
    """What a study has besides its runs."""

    name: Words = setting(
        "",
        "name of the study and of its MLflow experiment: lower-case letters, digits, `-`, `_`; the file's name without "
        "`.yaml` if left out",
    )
    description: Words = setting("", "free text")
    teaches: Words = setting("", "free text: what it is there to show")
    hardware: Words = setting("", "free text: what it was written for")
    expected_hours: Words = setting("", "free text: how long it takes there")
    published_source: Words = setting(
        "", "free text: where the `published` figures of the runs come from, and on what they were measured"
    )
    prices: Prices = setting(dict, "USD per hour by machine type")


@settings("")
class StudyKeys(StudyTexts):
    """The keys of a study file."""

    reference: Words = setting(
        "", "name of the run that speed-up and efficiency are measured against; the first run if left out"
    )
    recommend: Recommend = setting(Recommend, "what a recommended set-up must keep to")
    train_examples: Count | None = setting(None, "number of training images, for every run that does not give its own")
    base: Later = setting(dict, "settings of every run")
    runs: Later = setting(dict, "the runs by name, trained in this order, one after the other")
    grid: Later = setting(dict, "sets of runs, made from every combination of some settings; trained after `runs`")


@settings("")
class StudyRun(RunTexts):
    """One run of a study: its name, its checked configuration and what others published for it."""

    name: Annotated[str, _named("run name", NO_RUNS)]
    config: RunConfig = setting(RunConfig, "its settings; `cluster.virtual_devices` may still be `auto`")
    repeat_of: str = setting(
        "", "the run that this one trains once more, with another seed; empty for a first training"
    )
    halving: str = setting("", "the grid with `search: halving` that the run belongs to; empty for none")

    @property
    def listed(self) -> str:
        """The run that a study lists: of a repeat the one that it trains once more."""
        return self.repeat_of or self.name

    @property
    def starts_from(self) -> str | None:
        """The run whose best checkpoint this one starts from (`model.weights: run:NAME`), if any."""
        kind, _, name = self.config.model.weights.partition(":")
        return name if kind == "run" else None


@settings("")
class Study(StudyTexts, Recommend):
    """A named list of runs, in the order they are trained, and the run that the others are compared with."""

    name: Annotated[str, _named("name")]  # type: ignore[misc]  # of a study it must be given
    reference: str
    runs: tuple[StudyRun, ...]
    # What is prepared of its data on this machine, `None` where nothing is; `check_study` has looked.
    datasets: Datasets = dataclasses.field(default_factory=dict, compare=False)

    @property
    def published_metrics(self) -> tuple[str, ...]:
        """Metrics that others have published for any of the runs, in the order of the file."""
        return tuple(dict.fromkeys(metric for run in self.runs for metric in run.published))

    @property
    def data(self) -> tuple[DataConfig, ...]:
        """The distinct data settings of the runs, in the order of the runs."""
        return tuple(dict.fromkeys(run.config.data for run in self.runs))

    @property
    def first_trainings(self) -> tuple[StudyRun, ...]:
        """Of the trainings of each run the first that the study has, which `--only` may leave with a repeat alone."""
        first: dict[str, StudyRun] = {}
        for run in self.runs:
            first.setdefault(run.listed, run)
        return tuple(first.values())

    @property
    def needs_tensorflow_here(self) -> bool:
        """Whether the machine of the command has to compute; nodes of Ray prepare no data, and have fork servers."""
        return any(run.config.cluster.launcher != "ray" or not self.datasets.get(run.config.data) for run in self.runs)

    def with_ancestors(self, run: str) -> list[str]:
        """The runs whose weights a run starts from, directly or not, the first of them first; then the run."""
        runs = [run]
        while parent := self.run(runs[0]).starts_from:
            runs.insert(0, parent)
        return runs

    def run(self, name: str) -> StudyRun:
        """The run of that name.

        Raises:
            ConfigError: when the study has none.
        """
        for run in self.runs:
            if run.name == name:
                return run
        raise ConfigError(f"study {self.name} has no run {name!r}: it has {', '.join(r.name for r in self.runs)}")
