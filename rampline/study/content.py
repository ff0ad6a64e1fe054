"""The content of a study file as a `Study`: every run is checked, also those that are not kept.

The runs of a grid are every combination of its axes, or a sample of them: points of a Halton sequence (Halton 1960,
doi:10.1007/BF01386213). Each is far from those before it, and more samples leave those before as they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from rampline.config import RunConfig, apply_overrides, from_dict, merge
from rampline.config.formats import nest
from rampline.config.setting import Settings, check
from rampline.credentials import check_no_credentials, hide_credentials
from rampline.errors import ConfigError, InputError
from rampline.study.definition import GridKeys, RunKeys, Study, StudyKeys, StudyRun, StudyTexts
from rampline.study.yaml_file import read_yaml

# With another value of these, there are other training images than the study says.
SIZE_OF_DATA = ("data.source", "data.limit", "data.validation_fraction", "data.group")

Keys = TypeVar("Keys", bound=Settings)
PLACE = re.compile(r"\{([^{}]*)\}")
# A few lines of axes can ask for more runs than anybody trains, and than fit into memory.
MAX_RUNS = 1000
SAMPLE = "sample"
NO_KEY = "a list or a range is for a key, such as batch.size"
# Label of a value, and the settings that it stands for.
Value = tuple[str, Mapping[str, Any]]


def _with_price(config: RunConfig, prices: Mapping[str, float]) -> RunConfig:
    """`config` with the price per hour of its machines; one with a price of its own is at that of no machine."""
    cluster = config.cluster
    if cluster.price_per_hour is not None:
        return dataclasses.replace(config, cluster=dataclasses.replace(cluster, machine=None, machines=1))
    if cluster.machine is None:
        return config
    known = f"one of the study's prices: {', '.join(prices)}" if prices else "null, as the study has no prices"
    check(cluster.machine in prices, "cluster.machine", cluster.machine, known)
    priced = dataclasses.replace(cluster, price_per_hour=prices[cluster.machine] * cluster.machines)
    return dataclasses.replace(config, cluster=priced)


def read_keys(kind: type[Keys], content: Any) -> Keys:
    """Checked keys of a study, a run or a grid; one without a value is as one that is left out."""
    if isinstance(content, Mapping):
        content = {key: value for key, value in content.items() if value is not None}
    return TypeAdapter(kind).validate_python(content)


@contextlib.contextmanager
def told_of(what: str) -> Iterator[None]:
    """Say which part of the study an error is about."""
    try:
        yield
    except InputError as error:
        raise type(error)(f"{what}: {error}") from error


def read_study(content: Any, *, default_name: str, only: Sequence[str], overrides: Mapping[str, str]) -> Study:
    """The study that `content` describes; arguments as in `load_study`.

    Raises:
        ConfigError: naming the run and the key.
    """
    check_no_credentials("", content)
    check_no_credentials("", overrides)
    keys = read_keys(StudyKeys, content)
    runs, (listed, halving) = [], _list_runs(keys)
    asked = {name if name in listed else without_seed(name) for name in only}
    for name, run_keys in listed.items():
        changes = _of_run(overrides, name) if not only or name in asked else {}
        runs.append(_make_run(name, run_keys, keys, changes, halving.get(name, "")))
    _check_runs_of(overrides, listed)  # now that their names are texts
    about = {field.name: getattr(keys, field.name) for field in dataclasses.fields(StudyTexts)}
    about |= dataclasses.asdict(keys.recommend) | {"name": keys.name or default_name}
    reference = keys.reference or runs[0].name
    study = Study(**about, reference=reference, runs=tuple(_with_repeats(runs)))
    study.run(study.reference)
    return _check_halving(_keep_only(_check_order(study), only))


def _check_runs_of(overrides: Mapping[str, str], runs: Mapping[str, Any]) -> None:
    for key in overrides:
        run, separator, _ = key.rpartition(":")
        if separator and run not in runs:
            raise ConfigError(f"--set {key} is not allowed: there is no run {run!r}: name one of {', '.join(runs)}")


def _of_run(overrides: Mapping[str, str], run: str) -> dict[str, str]:
    """The overrides for every run, and over them those for this one (`RUN:KEY`)."""
    own = {key.rpartition(":")[2]: value for key, value in overrides.items() if key.rpartition(":")[0] == run}
    return {key: value for key, value in overrides.items() if ":" not in key} | own


def _list_runs(keys: StudyKeys) -> tuple[dict[str, RunKeys], dict[str, str]]:
    """Keys by name: those of `runs`, then those that each grid makes; and the grids of runs with `search: halving`."""
    if not keys.runs and not keys.grid:
        raise ConfigError("runs is missing: it must map the name of each run to its settings")
    listed: dict[str, RunKeys] = {}
    halving: dict[str, str] = {}
    for name, settings in keys.runs.items():
        with told_of(f"run {name}"):
            listed[name] = read_keys(RunKeys, {} if settings is None else settings)
    for grid, settings in keys.grid.items():
        with told_of(f"grid {grid}"):
            grid_keys = read_keys(GridKeys, settings)
            runs = runs_of_grid(str(grid), grid_keys)
            if twice := next((name for name in runs if name in listed), None):
                raise ConfigError(f"there is another run {twice}: give the grid a name that tells them apart")
        for name, made in runs.items():
            with told_of(f"run {name}"):
                listed[name] = read_keys(RunKeys, made)
        halving |= dict.fromkeys(runs, str(grid)) if grid_keys.search == "halving" else {}
    return listed, halving


def _make_run(name: str, keys: RunKeys, study: StudyKeys, overrides: Mapping[str, str], halving: str) -> StudyRun:
    own = merge(study.base, keys.set)
    with told_of(f"run {name}"):
        config = _with_price(from_dict(apply_overrides(own, overrides)), study.prices)
        _check_import(config.model.name, own)
    # `--set` may have changed the data.
    examples = None if any(key in overrides for key in SIZE_OF_DATA) else keys.train_examples or study.train_examples
    texts = {"description": keys.description, "published": keys.published, "train_examples": examples}
    return StudyRun(name=name, config=config, halving=halving, **texts)


def _with_repeats(runs: Sequence[StudyRun]) -> list[StudyRun]:
    """All runs once, then once more those that are repeated, and so on: what changes meanwhile changes for all."""
    by_name, all_repeats = {run.name: run for run in runs}, [run.config.repeats for run in runs]
    if len(runs) < sum(all_repeats) > MAX_RUNS:
        raise ConfigError(f"with its repeats the study has {sum(all_repeats)} runs: at most {MAX_RUNS} are allowed")
    times = range(max(all_repeats))
    repeated = [_repeat(run, number, by_name) for number in times for run in runs if number < run.config.repeats]
    names = Counter(run.name for run in repeated)
    if twice := next((name for name, count in names.items() if count > 1), None):
        raise ConfigError(f"run {twice} has the name that a repeat of another run gets: give it another")
    return repeated


def _repeat(run: StudyRun, number: int, runs: Mapping[str, StudyRun]) -> StudyRun:
    """The run with the seed of its repeat `number`; it starts from the weights of that repeat of its ancestor.

    Its parity was checked with the first one.
    """
    if not number:
        return run
    parity = dataclasses.replace(run.config.parity, steps=0)
    with told_of(f"repeat {number} of run {run.name}"):
        config = dataclasses.replace(run.config, seed=run.config.seed + number, parity=parity)
    ancestor = runs.get(run.starts_from or "")
    if ancestor and number < ancestor.config.repeats:
        weights = f"run:{_name_repeat(ancestor, number)}"
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, weights=weights))
    return dataclasses.replace(run, name=_name_repeat(run, number), config=config, repeat_of=run.name)


def _name_repeat(run: StudyRun, number: int) -> str:
    return f"{run.name}-seed{run.config.seed + number}"


def without_seed(name: str) -> str:
    """The run that a repeat of this name is of, or the name itself where it is none of a repeat."""
    run, separator, seed = name.rpartition("-seed")
    return run if separator and seed.isdecimal() else name


def _check_import(name: str, own: Mapping[str, Any]) -> None:
    """Overrides also come over the network, from Prefect: they must not name code to import."""
    model = own.get("model")
    if ":" in name and (not isinstance(model, Mapping) or model.get("name") != name):
        raise ConfigError(
            f"model.name={name!r} is not allowed in --set: code is imported only if the study file names it"
        )


def _check_order(study: Study) -> Study:
    earlier: set[str] = set()
    for run in study.runs:
        if run.starts_from is not None and run.starts_from not in earlier:
            raise ConfigError(f"run {run.name}: model.weights=run:{run.starts_from} must name a run above it")
        earlier.add(run.name)
    return study


def _keep_only(study: Study, only: Sequence[str]) -> Study:
    """These runs, each with its repeats."""
    asked = {study.run(name).name for name in only}
    kept = {run.name for run in study.runs if not asked or asked & {run.name, run.repeat_of}}
    for run in study.runs:
        if run.name in kept and run.starts_from and run.starts_from not in kept:
            raise ConfigError(f"run {run.name} starts from {run.starts_from}: add --only {run.starts_from}")
    return dataclasses.replace(study, runs=tuple(run for run in study.runs if run.name in kept))


def _check_halving(study: Study) -> Study:
    """Runs that are ranked after the same epochs, by a flow that starts and ends all their processes."""
    epochs: dict[str, int] = {}
    for run in study.runs:
        if not run.halving:
            continue
        whose, cluster = f"in grid {run.halving}, which has search: halving", run.config.cluster
        alike = epochs.setdefault(run.halving, run.config.epochs)
        with told_of(f"run {run.name}"):
            check(run.config.epochs == alike, "epochs", run.config.epochs, f"the same for all runs {whose}: {alike}")
            check(cluster.launcher != "hand", "cluster.launcher", cluster.launcher, f"local, ray or slurm {whose}")
            is_own = run.starts_from is not None and study.run(run.starts_from).halving == run.halving
            check(not is_own, "model.weights", run.config.model.weights, f"no run of the same grid {whose}")
    return study


BUILT_IN = Path(__file__).parents[1] / "studies"
LONGEST_MESSAGE = 1000


def built_in_studies() -> list[str]:
    """Names of the studies that come with Rampline."""
    return sorted(path.stem for path in BUILT_IN.glob("*.yaml"))


def load_study(
    name_or_path: str,
    *,
    only: Sequence[str] = (),
    overrides: Mapping[str, str] | None = None,
    strategy: str | None = None,
) -> Study:
    """Read a built-in study by name or any study by path, and check every run of it.

    Args:
        name_or_path: `digits`, or `path/to/study.yaml`.
        only: names of the runs to keep; all if empty. A run that one of them starts from must be kept too.
        overrides: dotted keys laid over every run that is kept, such as `{"epochs": "2"}`, or over one run, such as
            `{"baseline:epochs": "2"}`. A repeat has those of its run.
        strategy: keep those of these runs that the file gives this strategy, and those that they start from.

    Raises:
        ConfigError: when there is no such study, or anything in it is not allowed.
    """
    try:
        path = _find(name_or_path)
        content, name = read_yaml(path), path.stem
        with told_of(path.name):
            if strategy is not None:
                only = _of_strategy(read_study(content, default_name=name, only=(), overrides={}), only, strategy)
            return read_study(content, default_name=name, only=only, overrides=overrides or {})
    except ConfigError as error:
        raise ConfigError(_readable(str(error))) from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(_readable(f"a value of --set is too long or too deep: {error}")) from error


def study_name(name_or_path: str) -> str:
    """The name of a study that is given by it, or by the path of its file; one that is not there may have runs still.

    Raises:
        ConfigError: when the file is not that of a study.
    """
    return load_study(name_or_path).name if name_or_path.endswith((".yaml", ".yml")) else name_or_path


def _of_strategy(study: Study, only: Sequence[str], strategy: str) -> list[str]:
    runs = (run for run in study.runs if not run.repeat_of)
    chosen = [run for run in runs if run.config.strategy == strategy and (not only or run.name in only)]
    if not chosen:
        of = f"none of {', '.join(only)}" if only else "no run of the study"
        raise ConfigError(f"{of} has strategy {strategy}")
    return list(dict.fromkeys(name for run in chosen for name in study.with_ancestors(run.name)))


def _readable(message: str) -> str:
    """What was written may be a megabyte long, or hold a password."""
    hidden = hide_credentials(message)
    return hidden if len(hidden) <= LONGEST_MESSAGE else f"{hidden[: LONGEST_MESSAGE // 2]} … {hidden[-300:]}"


def _find(name_or_path: str) -> Path:
    if name_or_path in built_in_studies():
        return BUILT_IN / f"{name_or_path}.yaml"
    path = Path(name_or_path)
    with contextlib.suppress(OSError):  # a name longer than any file's
        if path.suffix in (".yaml", ".yml") and path.is_file():
            return path
    known = ", ".join(built_in_studies())
    raise ConfigError(f"no study {name_or_path!r}: name one of {known}, or give the path of a .yaml file")


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The values of an axis, by label."""

    settings: Mapping[str, Mapping[str, Any]]

    def at(self, share: float) -> Value:
        """The value at a share, below 1, of the way through them."""
        return list(self.settings.items())[int(share * len(self.settings))]


@dataclass(frozen=True, kw_only=True)
class Range:
    """The values of a setting from `low` to `high`, whole numbers where both bounds are; `log`: by their logarithms."""

    key: str
    low: float
    high: float
    log: bool

    def at(self, share: float) -> Value:
        """The value at a share of the way, with four digits."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        value = low + share * (high - low)
        value = math.exp(value) if self.log else value
        is_whole = isinstance(self.low, int) and isinstance(self.high, int)
        value = round(value) if is_whole else float(f"{value:.4g}")
        return str(value), nest(self.key, value, otherwise=NO_KEY)


Axes = dict[str, Choices | Range]


def runs_of_grid(grid_name: str, grid: GridKeys) -> dict[str, dict[str, Any]]:
    """The runs of a grid by name, each as `runs:` would hold it; the last axis changes first.

    Raises:
        ConfigError: naming the key.
    """
    axes = _read_axes(grid.over)
    points = _combine(axes) if grid.samples is None else _sample(axes, grid.samples)
    own = [SAMPLE] if grid.samples else [*axes]  # what tells its runs apart
    template = grid.name or f"{grid_name}-{_whole(own)}"
    about = grid.description or ", ".join(f"{axis} {{{axis}}}" for axis in axes if grid.samples)
    runs: dict[str, dict[str, Any]] = {}
    for number, point in enumerate(points, 1):
        labels = {axis: label for axis, (label, _) in point.items()}
        labels |= {SAMPLE: str(number)} if grid.samples else {}
        name = _fill(template, labels)
        if name in runs:
            raise ConfigError(f"it makes two runs {name}: its name must hold {_whole(own)}")
        settings = grid.set
        for _, changes in point.values():
            settings = merge(settings, changes)
        runs[name] = {"set": settings, "description": _fill(about, labels), "train_examples": grid.train_examples}
    for name, figures in grid.published.items():
        if name not in runs:
            raise ConfigError(f"published names {name}, which it does not make: it makes {', '.join(runs)}")
        runs[name]["published"] = figures
    return runs


def _combine(axes: Axes) -> Iterator[dict[str, Value]]:
    listed = {axis: values.settings for axis, values in axes.items() if isinstance(values, Choices)}
    if ranges := [axis for axis in axes if axis not in listed]:
        raise ConfigError(f"over.{ranges[0]} is a range: samples must say how many points are sampled")
    number = math.prod(len(values) for values in listed.values())
    if number > MAX_RUNS:
        raise ConfigError(f"it makes {number} runs: at most {MAX_RUNS} are allowed")
    for values in itertools.product(*(settings.items() for settings in listed.values())):
        yield dict(zip(axes, values, strict=True))


def _sample(axes: Axes, samples: int) -> Iterator[dict[str, Value]]:
    """One point for each sample, but those once alone that have the same values."""
    from scipy.stats import qmc  # 1 s to import

    check(samples <= MAX_RUNS, "samples", samples, f"at most {MAX_RUNS}")
    sequence = qmc.Halton(len(axes), scramble=False)
    sequence.fast_forward(1)  # the first point is a corner
    known = set[tuple[str, ...]]()
    for shares in sequence.random(samples):
        point = {axis: values.at(float(share)) for (axis, values), share in zip(axes.items(), shares, strict=True)}
        labels = tuple(label for label, _ in point.values())
        if labels not in known:
            yield point
        known.add(labels)


def _read_axes(over: Any) -> Axes:
    if not isinstance(over, Mapping) or not over:
        raise ConfigError("over is missing: it must map each axis to its values")
    return {str(axis): _read_axis(str(axis), values) for axis, values in over.items()}


def _read_axis(axis: str, values: Any) -> Choices | Range:
    if not isinstance(values, Mapping | list) or not values:
        raise ConfigError(f"over.{axis} must be settings by label, or a list of values of a key, not {values!r}")
    is_named = isinstance(values, Mapping)
    if (
        is_named
        and {*values} <= {"low", "high", "log"}
        and not any(isinstance(value, Mapping) for value in values.values())
    ):
        return _read_range(axis, values)
    settings = [*values.values()] if is_named else [nest(axis, value, otherwise=NO_KEY) for value in values]
    labels = [str(label).lower() for label in values]
    if len(set(labels)) < len(labels):
        raise ConfigError(f"over.{axis} has a value twice: {', '.join(labels)}")
    for label, changes in zip(labels, settings, strict=True):
        check(isinstance(changes, Mapping), f"over.{axis}.{label}", changes, "a mapping of keys")
    return Choices(settings=dict(zip(labels, settings, strict=True)))


def _read_range(axis: str, values: Mapping[Any, Any]) -> Range:
    for name in ("low", "high"):
        bound: Any = values.get(name)
        is_number = isinstance(bound, int | float) and not isinstance(bound, bool) and math.isfinite(bound)
        check(is_number, f"over.{axis}.{name}", bound, "a number: low and high are the ends of a range")
    low, high, log = values["low"], values["high"], values.get("log", False)
    check(isinstance(log, bool), f"over.{axis}.log", log, "true or false")
    check(low < high, f"over.{axis}.high", high, f"greater than low, {low}")
    check(low > 0 or not log, f"over.{axis}.low", low, "greater than 0 with log: true")
    found = Range(key=axis, low=low, high=high, log=log)
    found.at(0.0)  # a key that there is
    return found


def _fill(template: str, labels: Mapping[str, str]) -> str:
    """`template` with the label of each axis for its `{axis}`."""
    unknown = [axis for axis in PLACE.findall(template) if axis not in labels]
    if unknown:
        raise ConfigError(f"{{{unknown[0]}}} is no axis: there is {_whole(labels)}")
    return PLACE.sub(lambda place: labels[place[1]], template)


def _whole(axes: Iterable[str]) -> str:
    return "-".join(f"{{{axis}}}" for axis in axes)
