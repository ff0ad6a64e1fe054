"""Are models that are functions of the user's, and image layers, what is trained with? Before data is prepared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rampline.config import DataConfig
from rampline.config.choices import AUGMENTATIONS
from rampline.data.dataset import PreparedDataset
from rampline.data.preparation import locate_prepared
from rampline.errors import ConfigError, InputError
from rampline.jobs.local import run_without_gpu
from rampline.record.home import Home
from rampline.study import Study


@contextmanager
def checked_models(study: Study, *, log: Callable[[str], None]) -> Iterator[None]:
    """`check_models` before the block, which prepares the study's data; once more after it, if classes were not known.

    A model that fits these data alone fails before for a reason that says nothing.
    """
    was_known = check_models(study, log=log)
    yield
    if not was_known:
        check_models(study, log=log)


def check_models(study: Study, *, log: Callable[[str], None]) -> bool:
    """Build the models that are functions of the user's in a process of its own, see `models.check_own_model`.

    And the layers of `data.augment`. Where there are none, and all models are ours or of Keras, no process is started.
    Returns whether the data of all these models and layers is prepared.

    Raises:
        ConfigError: on a model that cannot be trained, in one line.
        RunFailed: when the process ended without an answer.
    """
    models, layers = _own_models(study), _layers(study)
    if not models and not layers:
        return True
    what = "the process that builds the study's models"
    try:
        notes = run_without_gpu("models", what, {"models": models, "layers": layers})
    except InputError as error:
        raise ConfigError(str(error)) from error
    for note in notes:
        log(note)
    is_seen = not layers or all(_locate(study, data)[0] for data in study.data)
    return is_seen and all(model["classes"] for model in models)


def _own_models(study: Study) -> list[dict[str, Any]]:
    """The distinct arguments of `check_own_model`."""
    wanted = dict.fromkeys(
        (run.config.data, run.config.model.name) for run in study.runs if ":" in run.config.model.name
    )
    located = [(name, *_locate(study, data)) for data, name in wanted]
    found = dict.fromkeys((name, shape, dataset and len(dataset.class_names)) for name, dataset, shape in located)
    return [{"name": name, "image_shape": list(shape), "classes": classes} for name, shape, classes in found]


def _layers(study: Study) -> list[dict[str, Any]]:
    """The distinct arguments of `augment.check_layer`."""
    pairs = [(data, augmentation) for data in study.data for augmentation in data.augmentations]
    return [
        {"name": name, "options": options, "image_shape": list(_locate(study, data)[1])}
        for data, (name, options) in dict.fromkeys(pairs)
        if name not in AUGMENTATIONS
    ]


def _locate(study: Study, data: DataConfig) -> tuple[PreparedDataset | None, tuple[int, int, int]]:
    """The prepared data, if there is some, and the shape of its images, or that of a guess."""
    # What was not there when the study was checked may be prepared by now.
    dataset = study.datasets.get(data) or locate_prepared(data, Home.from_environment())
    return dataset, dataset.image_shape if dataset else (data.image_size, data.image_size, data.channels or 3)
