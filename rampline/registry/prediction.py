"""Labelling a folder of images with a study's champion from MLflow's model registry: `rampline predict`.

The model is fetched here; a process with TensorFlow does the rest (`rampline.registry.labelling`).
"""

from __future__ import annotations

import base64
import dataclasses
import secrets
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow.artifacts import download_artifacts
from mlflow.tracking import MlflowClient

from rampline.errors import InputError
from rampline.files import make_directory, read_json, sync_directory
from rampline.jobs.job import Job, JobFailed, ignore, run_job
from rampline.jobs.local import LOCAL, NO_GPU
from rampline.record.home import Home
from rampline.record.units import write_number_of
from rampline.registry.candidate import CHAMPION, Log, ModelReference, get_version, registered_name
from rampline.study import load_study, study_name
from rampline.study.execution_file import new_execution
from rampline.tracking.store import open_tracking, tracking_errors
from rampline.training.saved_model import ModelMetadata

SUFFIXES = (".csv", ".parquet")
LINE_SECONDS = 10.0
DEFAULT_BATCH_SIZE = 256
# A grey PNG.
ONE_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A table that was written.

    Attributes:
        output: the file, with a row per image: `path label probability model_version error`.
        model: the registered model, such as `rampline-digits`.
        model_version: its version that was the champion.
        counts: images by label, every class of the model.
        unreadable: how many have no label; their rows say why.
    """

    output: Path
    model: str
    model_version: int
    counts: dict[str, int]
    unreadable: int

    @property
    def images(self) -> int:
        """Rows of the table."""
        return sum(self.counts.values()) + self.unreadable

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**dataclasses.asdict(self), "output": str(self.output)}

    def sentence(self) -> str:
        """What was done, in one line."""
        broken = f", {self.unreadable:,} without a label" if self.unreadable else ""
        done = f"{write_number_of('image', self.images - self.unreadable)} labelled"
        return f"{done} by {self.model} version {self.model_version}{broken}: {self.output}"


def predict_folder(
    study: str,
    images: str | Path,
    *,
    home: Home,
    output: str | Path = "",
    batch_size: int = DEFAULT_BATCH_SIZE,
    with_all: bool = False,
    log: Log = ignore,
) -> Prediction:
    """Label every image of a folder with the study's champion.

    Args:
        study: name of the study, or path of its file.
        images: folder of image files (.jpg, .png, .gif, .bmp, .webp); sub-folders are read too.
        home: whose MLflow store.
        output: the table, `.csv` or `.parquet`; one that exists is replaced when the new one is complete. By default
            `predictions/STUDY/TIME-NUMBER.csv` in `home`.
        batch_size: images per step of the model.
        with_all: add the probability of each class, in columns `p_CLASS`.
        log: gets lines for the user.

    Raises:
        InputError: when the study has no champion, or an argument is wrong; nothing is written then.
        TrackingError: when MLflow cannot be used.
        RunFailed: when the process fails, naming its log.
    """
    if not str(images):
        raise InputError("images is empty: give the folder of the image files to label")
    name = study_name(study)
    own = home.predictions / name / f"{new_execution()}.csv"
    path = Path(output or own).expanduser().absolute()
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    folder = Path(images).expanduser().absolute()
    _check_arguments(folder, path, batch_size)
    client = open_tracking(home)
    version = get_version(client, ModelReference(name=registered_name(name), alias=CHAMPION))
    number = int(version.version)
    wanted = {"images": str(folder), "table": str(aside), "suffix": path.suffix, "batch_size": batch_size}
    wanted |= {"model_version": number, "with_all": with_all}
    try:
        make_directory(path.parent)
    except OSError as error:
        raise InputError(f"output {path} cannot be written: {error.strerror}") from error
    try:
        with tracking_errors(f"{version.name} version {version.version} cannot be fetched from MLflow"):
            place = client.get_model_version_download_uri(version.name, str(version.version))
        answer = _label(client, place, wanted, study, home, own.with_suffix(".log"), log)
        aside.replace(path)
        sync_directory(path.parent)
    finally:
        aside.unlink(missing_ok=True)
    return Prediction(output=path, model=version.name, model_version=number, **answer)


def _check_arguments(images: Path, output: Path, batch_size: int) -> None:
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size} is not allowed: it must be at least 1")
    if output.suffix not in SUFFIXES or output.is_dir():
        raise InputError(f"output {output} is not allowed: it must end in {' or '.join(SUFFIXES)}, and be no folder")
    if not images.is_dir():
        found = "is a file" if images.exists() else "does not exist"
        raise InputError(f"images {images} {found}: give a folder of image files")


def try_model(client: MlflowClient, model_id: str, study: str, log_folder: Path, *, home: Home) -> None:
    """Load a logged model and label an image with it, as `predict_folder` would once it is registered.

    Raises:
        InputError: when it cannot be loaded.
        RunFailed: when the process fails.
        TrackingError: when it cannot be fetched.
    """
    with tempfile.TemporaryDirectory(prefix="rampline-try-") as folder:
        images = Path(folder) / "images"
        images.mkdir()
        (images / "one.png").write_bytes(ONE_PIXEL)
        table = Path(folder) / "labels.csv"
        wanted = {"images": str(images), "table": str(table), "suffix": table.suffix, "batch_size": 1}
        with tracking_errors(f"the model {model_id} cannot be read from MLflow"):
            place = client.get_logged_model(model_id).artifact_location
        _label(client, place, wanted, study, home, log_folder / "promotion.log", ignore)


def _label(
    client: MlflowClient, place: str, wanted: Mapping[str, Any], study: str, home: Home, log_file: Path, log: Log
) -> dict[str, Any]:
    """Fetch the model, and let a process label the folder with it; the table is complete then, under its name aside.

    Args:
        wanted: arguments of `rampline.registry.labelling.label_folder`, but for those that tell of the model.
        log_file: where the log of the process is kept if it fails.

    Returns:
        `counts` and `unreadable`, see `Prediction`.
    """
    with tempfile.TemporaryDirectory(prefix="rampline-predict-") as folder:
        here, uri = {"artifact_uri": place, "dst_path": folder}, client.tracking_uri
        # From MLflow and not from a run directory: the run may be another machine's.
        with tracking_errors(f"the model at {place} cannot be fetched from MLflow"):
            model = Path(download_artifacts(**here, tracking_uri=uri, registry_uri=uri))
        known = ModelMetadata.read(model)
        if known.module and known.module not in _named_modules(study, home):
            raise InputError(
                f"the model needs code of the module {known.module}, which no run of this home names: give the study's "
                "file that names it, instead of the study's name"
            )
        arguments = {
            **wanted,
            "model": str(model),
            "module": known.module,
            "class_names": known.class_names,
            "image_shape": known.image_shape,
        }
        return _run(arguments, Path(folder), log_file, log)


def _named_modules(study: str, home: Home) -> set[str]:
    """Modules of networks that the study's file or a run of this home names: a registry says not what is imported."""
    if study.endswith((".yaml", ".yml")):
        loaded = load_study(study)
        study, names = loaded.name, [run.config.model.name for run in loaded.runs]
    else:
        names = []
    names += [read_json(file)["model"]["name"] for file in (home.runs / study).glob("*/*/config.json")]
    return {name.partition(":")[0] for name in names if ":" in name}


def _run(arguments: Mapping[str, Any], folder: Path, log_file: Path, log: Log) -> dict[str, Any]:
    due = time.monotonic() + LINE_SECONDS

    def hear(event: dict[str, Any]) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + LINE_SECONDS
            log(f"{event['images']:,} images labelled")

    job = Job(
        function="label",
        what="prediction",
        folder=folder / "job",
        arguments=arguments,
        environment=NO_GPU,  # labelling a folder is no training: it never takes one from it, nor waits for one
    )
    try:
        return run_job(job, launcher=LOCAL, on_event=hear)
    except JobFailed as failure:
        raise failure.with_log_at(log_file) from failure
