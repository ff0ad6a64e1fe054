"""A home after `rampline run digits` as text that is the same after every run: what was measured is masked."""

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from golden import mask_numbers
from mlflow import MlflowClient
from mlflow.entities import Experiment, Run

# What is of one execution, of one dataset or of one machine in the names of files.
VOLATILE = (
    (re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}"), "EXECUTION"),
    (re.compile(r"(?<![0-9a-zA-Z.])[0-9a-f]{16,64}\b|(?<=%22)[0-9a-f]{32}"), "HASH"),
    (re.compile(r"step-\d{8}"), "step-#"),
    (re.compile(r"tfevents\..+"), "tfevents"),
    (re.compile(r"^devices/[^/]+"), "devices/HOST"),
)
# Prefect's and MLflow's own; what MLflow has of a run is told by `mlflow_text`.
OTHERS = ("prefect", "mlartifacts")
# Of the day, the machine or what was measured; `recorded_demo` has the words of conclusions.
VOLATILE_TAGS = re.compile(
    r"rampline\.(environment\..+|process|machines|answers|data_fingerprint|bound|verdict|fastest_run)"
    r"|mlflow\.(user|parentRunId)"
)
# Lines of the command whose numbers are settings and counts.
SETTLED = re.compile(r"reading|\S+: [\d,]+ (images:|replica)|MLflow")
# An export of the repository has no commit; which parts of a step are lost in noise, and GPUs, differ.
OPTIONAL = re.compile(r".*(git.commit|git_commit|_noise|/gpu_.+)")


def mask_names(text: str) -> str:
    """Words for what is of one execution only."""
    for pattern, word in VOLATILE:
        text = pattern.sub(word, text)
    return text


def terminal_text(output: str, home: Path) -> str:
    """What the command prints but for the conclusions, which lie between the table and the addresses."""
    before, _, conclusions = output.partition("* reference\n")
    after = conclusions[conclusions.index("\nreport ") :]
    text = mask_names(f"{before}* reference\n{after}".replace(str(home), "HOME"))
    text = re.sub(r"\S+(?=/rampline up)", "BIN", text)
    lines = [line if SETTLED.match(line) else mask_numbers(line) for line in text.splitlines()]
    return re.sub(r"[ ─]{2,}", "  ", "\n".join(lines))


def tree_text(home: Path) -> str:
    """Files of the home with the keys of JSON files, columns of CSV files and names of arrays, and who has them."""
    found: dict[str, set[str]] = defaultdict(set)
    runs = {path.parent.name for path in home.glob("runs/*/*/*/run.json")}
    for path in sorted(home.rglob("*")):
        parts = path.relative_to(home).parts
        if path.is_dir() or parts[0] in OTHERS:
            continue
        run = parts[3] if len(parts) > 4 and parts[3] in runs else ""
        name = "/".join("RUN" if run and number == 3 else part for number, part in enumerate(parts))
        found["\n    ".join([mask_names(name), *_names(path)])].add(run)
    return "\n".join(_of_runs(found))


def _of_runs(found: Mapping[str, set[str]]) -> Iterator[str]:
    everyone = set.union(*found.values()) - {""}
    for text, having in sorted(found.items()):
        first, separator, others = text.partition("\n")
        of = "" if having in ({""}, everyone) else f"  ({', '.join(sorted(having))})"
        yield f"{first}{of}{separator}{others}"


def _names(path: Path) -> list[str]:
    """Keys, columns or arrays of a file, if it has any."""
    if path.suffix == ".json":
        return _by_parent(_keys(json.loads(path.read_text())))
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return _by_parent(f"{line['event']}.{key}" if "event" in line else key for line in lines for key in _keys(line))
    if path.suffix == ".csv":
        return [" ".join(next(csv.reader(path.open()), []))]
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return [" ".join(sorted(arrays))]
    return []


def _keys(value: Any, before: str = "") -> Iterator[str]:
    if before.endswith("config"):
        yield f"{before}.(as config.json)"
    elif before == "noise":
        yield "noise.(parts)"
    elif isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _keys(part, f"{before}.{key}" if before else key)
    elif isinstance(value, list) and any(isinstance(part, dict | list) for part in value):
        for part in value:
            yield from _keys(part, f"{before}[]")
    else:
        yield before


def _by_parent(keys: Iterable[str]) -> list[str]:
    children: dict[str, set[str]] = defaultdict(set)
    for key in keys:
        parent, _, child = key.rpartition(".")
        children[parent].add(child)
    lines = (f"{parent}: {' '.join(sorted(names))}".removeprefix(": ") for parent, names in sorted(children.items()))
    return [line for line in lines if line]


def mlflow_text(client: MlflowClient, home: Path) -> str:
    """What MLflow has of the study: params and tags with their values, metrics with their steps, artifacts, models."""
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    found: dict[str, set[str]] = defaultdict(set)
    execution = ""
    for run in client.search_runs([experiment.experiment_id]):
        text = "\n".join(_run_lines(client, run, home))
        if run.data.tags["rampline.kind"] == "study":
            execution = text
            continue
        for line in text.splitlines():
            found[line].add(run.data.tags["rampline.run"])
    of_runs = "\n".join(_of_runs(found))
    return f"EXPERIMENT\n{_experiment_text(experiment)}\n\nEXECUTION\n{execution}\n\nRUNS\n{of_runs}"


def _experiment_text(experiment: Experiment) -> str:
    lines = []
    for name, value in sorted(experiment.tags.items()):
        if name.startswith("mlflow.sharedViewState."):
            view = json.loads(value)
            state = json.loads(view["state"])
            charts = state.pop("compareRunCharts")
            value = "\n    ".join([view["name"], *map(str, sorted(state.items())), *map(str, charts)])
        lines.append(f"tag {name} = {mask_names(value)}")
    return "\n".join(lines)


def _run_lines(client: MlflowClient, run: Run, home: Path) -> Iterator[str]:
    yield f"status {run.info.status}"
    for name, value in sorted(run.data.params.items()):
        yield f"param {name} = {mask_names(value.replace(str(home), 'HOME'))}"
    for name, value in sorted(run.data.tags.items()):
        if not OPTIONAL.fullmatch(name):
            yield f"tag {name} = {_tag_value(run, name, value.replace(str(home), 'HOME'))}"
    for name in sorted(run.data.metrics):
        if not OPTIONAL.fullmatch(name):
            yield f"metric {name} at {_steps(client, run, name)}"
    yield from (f"artifact {path}" for path in sorted(_artifacts(client, run.info.run_id)))
    inputs = run.inputs.dataset_inputs if run.inputs else []
    yield from (f"dataset {i.dataset.name}, {i.dataset.source_type}, {[t.value for t in i.tags]}" for i in inputs)
    for output in run.outputs.model_outputs if run.outputs else []:
        model = client.get_logged_model(output.model_id)
        yield f"model {model.name}, {model.model_type}, with params of the run: {model.params == run.data.params}"
        yield from (f"model tag {name}" for name in sorted(model.tags))


def _tag_value(run: Run, name: str, value: str) -> str:
    if VOLATILE_TAGS.fullmatch(name):
        return "…"
    if name != "mlflow.note.content":
        return mask_names(value)
    if run.data.tags["rampline.kind"] == "study":
        return "…"
    return " ".join(mask_numbers(mask_names(value.replace(run.data.tags["rampline.verdict"], "VERDICT"))).split())


def _steps(client: MlflowClient, run: Run, name: str) -> str:
    steps = [point.step for point in client.get_metric_history(run.info.run_id, name)]
    if name.startswith("system/"):
        return "samples"
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def _artifacts(client: MlflowClient, run_id: str, path: str | None = None) -> Iterator[str]:
    for artifact in client.list_artifacts(run_id, path):
        if artifact.is_dir:
            yield from _artifacts(client, run_id, artifact.path)
        else:
            yield artifact.path
