"""`rampline run fashion_mnist` to its end, from a small set that TFDS itself has written: no network."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorflow_datasets as tfds

from rampline.data.address import tfds_directory
from rampline.record.home import Home

pytestmark = pytest.mark.slow
CLASSES = 10
# 40 training images of each class: 6 become the validation split, data.limit keeps 30 of the others.
TRAIN, TEST = 400, 60
KEPT = 300
PUBLISHED = {"single-loop": float("nan"), "mirrored-loop": 39.035}
# They have tests of their own, and take longer than two epochs of 300 images.
NO_PROBES = ("--set", "explain.steps=0")


def examples(number: int) -> list[tuple[int, dict[str, object]]]:
    """Grey pictures with a bright stripe whose height is the class, and noise."""
    random, made = np.random.default_rng(number), []
    for index in range(number):
        label = index % CLASSES
        image = random.integers(0, 60, (28, 28, 1), dtype=np.uint8)
        image[4 + 2 * label : 7 + 2 * label] += 150
        made.append((index, {"image": image, "label": label}))
    return made


@pytest.fixture
def fashion_mnist(home: Path) -> Path:
    """The folder of the set below RAMPLINE_HOME, as after a download: TFDS finds it prepared."""
    directory = tfds_directory(Home(root=home))
    published = tfds.builder("fashion_mnist", data_dir=directory)
    assert published.info.features is not None
    tfds.dataset_builders.store_as_tfds_dataset(
        name=published.name,
        version=str(published.version),
        features=published.info.features,
        split_datasets={"train": examples(TRAIN), "test": examples(TEST)},
        data_dir=directory,
        disable_shuffling=True,
    )
    return directory / published.name / str(published.version)


@pytest.mark.long
@pytest.mark.usefixtures("forks")
def test_a_small_fashion_mnist_runs_offline(rampline, prefect_server, home, fashion_mnist):
    assert {path.name.partition(".")[2] for path in fashion_mnist.iterdir()} >= {"json"}
    runs = ("--only", "single-loop", "--only", "mirrored-loop")
    short = ("--set", "data.limit=30", "--set", "epochs=2", "--set", "parity.steps=1", *NO_PROBES)
    result = rampline("run", "fashion_mnist", *runs, *short, prefect=prefect_server.prefect)
    assert (result.returncode, result.stderr) == (0, "")
    for run in ("single-loop", "mirrored-loop"):
        assert f"{run}: epoch 2/2" in result.stdout
    assert result.stdout.count("test: 60 images, accuracy") == 2
    (file,) = home.glob("reports/fashion_mnist/*/comparison.csv")
    comparison = pd.read_csv(file, index_col="run")
    # Guessing is right in one of ten; both train the same, so that they differ by rounding only.
    assert (comparison.test_accuracy > 0.4).all()
    assert comparison.test_accuracy.max() - comparison.test_accuracy.min() < 0.1
    assert comparison.published_elapsed_seconds.to_dict() == pytest.approx(PUBLISHED, nan_ok=True)
    # Per image: their times are of epochs with 60,000 images and with 51,000.
    per_image = (60_000 / 39.035) / (51_000 / 13.603)
    assert comparison.published_speedup["mirrored-loop"] == pytest.approx(per_image, abs=5e-3)
    # The plan now knows how many images there are.
    plan = rampline("plan", "fashion_mnist", *runs, "--set", "data.limit=30")
    steps = KEPT // 320 + 1
    assert re.search(rf"single-loop +single +1 chief +CPU +320 +320 +10 +{steps} +0.001", plan.stdout)
