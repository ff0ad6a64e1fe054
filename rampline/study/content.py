"""The content of a study file as a `Study`: every run is checked, also those that are not kept."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rampline.config import apply_overrides, from_dict, merge
from rampline.config.formats import known_keys
from rampline.config.sections import check_integer, check_number, check_text
from rampline.credentials import check_no_credentials, hide_credentials
from rampline.errors import ConfigError
from rampline.study.definition import Study, StudyRun, check_mapping, check_name, read_text
from rampline.study.yaml_file import read_yaml

GRID_KEYS = ("name", "description", "set", "over", "published", "train_examples")
PLACE = re.compile(r"\{([^{}]*)\}")
# A few lines of axes can ask for more runs than anybody trains, and than fit into memory.
MAX_RUNS = 1000

Axes = dict[str, dict[str, Mapping[str, Any]]]


def expand_grid(name: str, grid: Any) -> dict[str, dict[str, Any]]:
    """The runs of a grid by name, each as `runs:` would hold it; the last axis changes first.

    Raises:
        ConfigError: naming the grid and what is wrong with it.
    """
    try:
        check_mapping("its settings", grid, GRID_KEYS)
        return _expand(name, grid, _read_axes(grid.get("over")))
    except ConfigError as error:
        raise ConfigError(f"grid {name}: {error}") from error


def _expand(grid_name: str, grid: Mapping[str, Any], axes: Axes) -> dict[str, dict[str, Any]]:
    shared, published = grid.get("set") or {}, grid.get("published") or {}
    check_mapping("set", shared)
    check_mapping("published", published)
    template = grid.get("name") or "-".join([str(grid_name), *(f"{{{axis}}}" for axis in axes)])
    runs: dict[str, dict[str, Any]] = {}
    for labels in itertools.product(*axes.values()):
        chosen = dict(zip(axes, labels, strict=True))
        name = _fill(template, chosen)
        if name in runs:
            raise ConfigError(f"it makes two runs {name}: its name must hold every axis, such as {_whole(axes)}")
        settings = shared
        for axis, label in chosen.items():
            settings = merge(settings, axes[axis][label])
        runs[name] = {"set": settings, "description": _fill(grid.get("description") or "", chosen)}
        if grid.get("train_examples") is not None:
            runs[name]["train_examples"] = grid["train_examples"]
    for name, figures in published.items():
        if name not in runs:
            raise ConfigError(f"published names {name}, which it does not make: it makes {', '.join(runs)}")
        runs[name]["published"] = figures
    return runs


def _read_axes(over: Any) -> Axes:
    if not isinstance(over, Mapping) or not over:
        raise ConfigError("over is missing: it must map each axis to its values")
    axes = {str(axis): _read_axis(str(axis), values) for axis, values in over.items()}
    number = math.prod(len(values) for values in axes.values())
    if number > MAX_RUNS:
        raise ConfigError(f"it makes {number} runs: at most {MAX_RUNS} are allowed")
    return axes


def _read_axis(axis: str, values: Any) -> dict[str, Mapping[str, Any]]:
    if not isinstance(values, Mapping | list) or not values:
        raise ConfigError(f"over.{axis} must be settings by label, or a list of values of a key, not {values!r}")
    settings = list(values.values()) if isinstance(values, Mapping) else [_nest(axis, value) for value in values]
    labels = [str(label).lower() for label in values]
    if len(set(labels)) < len(labels):
        raise ConfigError(f"over.{axis} has a value twice: {', '.join(labels)}")
    for label, changes in zip(labels, settings, strict=True):
        check_mapping(f"over.{axis}.{label}", changes)
    return dict(zip(labels, settings, strict=True))


def _nest(key: str, value: Any) -> Any:
    """`{"batch": {"size": 64}}` from `batch.size` and 64."""
    if key not in known_keys():
        near = difflib.get_close_matches(key, known_keys(), n=1)
        hint = f"did you mean {near[0]}?" if near else "a list is for a key, such as batch.size"
        raise ConfigError(f"unknown key {key}: {hint}")
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _fill(template: Any, labels: Mapping[str, str]) -> str:
    """`template` with the label of each axis for its `{axis}`."""
    unknown = [axis for axis in PLACE.findall(str(template)) if axis not in labels]
    if unknown:
        raise ConfigError(f"{{{unknown[0]}}} is no axis: there is {_whole(labels)}")
    return PLACE.sub(lambda place: labels[place[1]], str(template))


def _whole(axes: Mapping[str, Any]) -> str:
    return "-".join(f"{{{axis}}}" for axis in axes)


def read_prices(prices: Any) -> Mapping[str, float]:
    """USD per hour by machine type; empty where the study has none.

    Raises:
        ConfigError: when it is no mapping of texts to numbers of at least 0.
    """
    prices = {} if prices is None else prices
    check_mapping("prices", prices)
    for machine, price in prices.items():
        check_text("a machine type of prices", machine)
        check_number(f"prices.{machine}", price, 0)
    return prices


def with_price(run: StudyRun, prices: Mapping[str, float]) -> StudyRun:
    """`run` with the price per hour of its machines, unless it has a price of its own or names no machine.

    Raises:
        ConfigError: when the price of its machine is not known.
    """
    cluster = run.config.cluster
    if cluster.price_per_hour is not None or cluster.machine is None:
        return run
    if cluster.machine not in prices:
        known = f"one of the study's prices: {', '.join(prices)}" if prices else "null, as the study has no prices"
        raise ConfigError(f"run {run.name}: cluster.machine={cluster.machine!r} is not allowed: it must be {known}")
    priced = dataclasses.replace(cluster, price_per_hour=prices[cluster.machine] * cluster.machines)
    return dataclasses.replace(run, config=dataclasses.replace(run.config, cluster=priced))


TEXTS = ("description", "teaches", "hardware", "expected_hours", "published_source")
STUDY_KEYS = ("name", *TEXTS, "reference", "prices", "recommend", "train_examples", "base", "runs", "grid")
RUN_KEYS = ("description", "set", "published", "train_examples")
RECOMMEND_KEYS = ("deadline_hours", "accuracy_tolerance")
# With another value of these, there are other training images than the study says.
SIZE_OF_DATA = ("data.source", "data.limit", "data.validation_fraction")


def read_study(content: Any, *, default_name: str, only: Sequence[str], overrides: Mapping[str, str]) -> Study:
    """The study that `content` describes; arguments as in `load_study`.

    Raises:
        ConfigError: naming the run and the key.
    """
    check_mapping("the study", content, STUDY_KEYS)
    check_no_credentials("", content)
    check_no_credentials("", overrides)
    prices = read_prices(content.get("prices"))
    runs, listed = [], _list_runs(content)
    _check_runs_of(overrides, listed)
    for name, settings in listed.items():
        changes = _of_run(overrides, name) if not only or name in only else {}
        run = _read_run(name, {"train_examples": content.get("train_examples")} | settings, content, changes)
        runs.append(with_price(run, prices))
    recommend = _read_recommend(content.get("recommend") or {})
    study = Study(
        name=str(content.get("name") or default_name),
        reference=str(content.get("reference") or runs[0].name),
        runs=tuple(runs),
        prices=prices,
        **{key: read_text(key, content) for key in TEXTS},
        deadline_hours=recommend.get("deadline_hours"),
        accuracy_tolerance=recommend.get("accuracy_tolerance", Study.accuracy_tolerance),
    )
    study.run(study.reference)
    return _keep_only(_check_order(study), only)


def _check_runs_of(overrides: Mapping[str, str], runs: Mapping[str, Any]) -> None:
    for key in overrides:
        run, separator, _ = key.rpartition(":")
        if separator and run not in runs:
            raise ConfigError(f"--set {key} is not allowed: there is no run {run!r}: name one of {', '.join(runs)}")


def _of_run(overrides: Mapping[str, str], run: str) -> dict[str, str]:
    """The overrides for every run, and over them those for this one (`RUN:KEY`)."""
    own = {key.rpartition(":")[2]: value for key, value in overrides.items() if key.rpartition(":")[0] == run}
    return {key: value for key, value in overrides.items() if ":" not in key} | own


def _list_runs(content: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name: those of `runs`, then those that each grid makes."""
    runs, grids = content.get("runs"), content.get("grid") or {}
    check_mapping("grid", grids)
    if not (isinstance(runs, Mapping) or (runs is None and grids)) or not (runs or grids):
        raise ConfigError("runs is missing: it must map the name of each run to its settings")
    listed: dict[str, Any] = {}
    for name, settings in (runs or {}).items():
        listed[name] = {} if settings is None else settings
        _check_run_settings(name, listed[name])
    for grid, settings in grids.items():
        for name, made in expand_grid(grid, settings).items():
            if name in listed:
                raise ConfigError(
                    f"grid {grid}: there is another run {name}: give the grid a name that tells them apart"
                )
            listed[name] = made
    return listed


def _check_run_settings(name: str, settings: Any) -> None:
    try:
        check_mapping("its settings", settings, RUN_KEYS)
    except ConfigError as error:
        raise ConfigError(f"run {name}: {error}") from error


def _read_run(name: str, settings: Any, content: Mapping[str, Any], overrides: Mapping[str, str]) -> StudyRun:
    try:
        base, changes = content.get("base") or {}, settings.get("set") or {}
        check_mapping("base", base)
        check_mapping("set", changes)
        own = merge(base, changes)
        config = from_dict(apply_overrides(own, overrides))
        _check_import(config.model.name, own)
        examples = settings.get("train_examples")
        if examples is not None:
            check_integer("train_examples", examples, 1)
        published = _read_published(settings.get("published") or {})
        description = read_text("description", settings)
    except ConfigError as error:
        raise ConfigError(f"run {name}: {error}") from error
    if any(key in overrides for key in SIZE_OF_DATA):
        examples = None
    return StudyRun(name=name, config=config, description=description, published=published, train_examples=examples)


def _read_published(published: Any) -> Mapping[str, float]:
    check_mapping("published", published)
    for metric, value in published.items():
        check_name("published metric", metric)
        check_number(f"published.{metric}", value, 0)
    return published


def _read_recommend(recommend: Any) -> dict[str, float]:
    check_mapping("recommend", recommend, RECOMMEND_KEYS)
    given = {key: value for key, value in recommend.items() if value is not None}
    if "deadline_hours" in given:
        check_number("recommend.deadline_hours", given["deadline_hours"], 0, open_at="minimum")
    if "accuracy_tolerance" in given:
        check_number("recommend.accuracy_tolerance", given["accuracy_tolerance"], 0, 1)
    return given


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
    kept = {study.run(name).name for name in only} or {run.name for run in study.runs}
    for run in study.runs:
        if run.name in kept and run.starts_from and run.starts_from not in kept:
            raise ConfigError(f"run {run.name} starts from {run.starts_from}: add --only {run.starts_from}")
    return dataclasses.replace(study, runs=tuple(run for run in study.runs if run.name in kept))


BUILT_IN = Path(__file__).parents[1] / "studies"
LONGEST_MESSAGE = 1000


def built_in_studies() -> list[str]:
    """Names of the studies that come with Rampline."""
    return sorted(path.stem for path in BUILT_IN.glob("*.yaml"))


def load_study(name_or_path: str, *, only: Sequence[str] = (), overrides: Mapping[str, str] | None = None) -> Study:
    """Read a built-in study by name or any study by path, and check every run of it.

    Args:
        name_or_path: `digits`, or `path/to/study.yaml`.
        only: names of the runs to keep; all if empty. A run that one of them starts from must be kept too.
        overrides: dotted keys laid over every run that is kept, such as `{"epochs": "2"}`, or over one run, such as
            `{"baseline:epochs": "2"}`.

    Raises:
        ConfigError: when there is no such study, or anything in it is not allowed.
    """
    try:
        path = _find(name_or_path)
        return _read_file(path, only, overrides or {})
    except ConfigError as error:
        raise ConfigError(_readable(str(error))) from error


def _read_file(path: Path, only: Sequence[str], overrides: Mapping[str, str]) -> Study:
    content = read_yaml(path)
    try:
        return read_study(content, default_name=path.stem, only=only, overrides=overrides)
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"a value of --set is too long or too deep: {error}") from error


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
