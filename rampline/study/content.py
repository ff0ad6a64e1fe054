"""The content of a study file as a `Study`: every run is checked, also those that are not kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rampline.config import apply_overrides, from_dict, merge
from rampline.config.checks import check_integer, check_number
from rampline.credentials import check_no_credentials
from rampline.errors import ConfigError
from rampline.study.checks import check_mapping, check_name, read_text
from rampline.study.definition import Study, StudyRun
from rampline.study.grid import expand_grid
from rampline.study.prices import read_prices, with_price

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
