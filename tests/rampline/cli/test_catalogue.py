"""`rampline models`: every network by name, and how large it is."""

import importlib
import pwd
import re

import pytest

from rampline.cli import catalogue
from rampline.cli.catalogue import cached_weights
from rampline.config.choices import MODELS
from rampline.config.keras_names import APPLICATIONS, keras_names


def test_the_list_has_every_network_and_says_whose_weights_are_here(rampline, home, tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "resnet50v2_weights_tf_dim_ordering_tf_kernels_notop.h5").touch()
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    listed = rampline("models")
    rows = {line.split()[0]: line for line in listed.stdout.splitlines() if line.strip()}
    assert {*MODELS, *keras_names("applications", APPLICATIONS)} <= set(rows)
    assert [name for name, line in rows.items() if line.rstrip().endswith(" here")] == ["ResNet50V2"]
    assert rows["ResNet50V2"].split()[1:6] == ["23,564,800", "224", "px", "119.7", "MiB"]
    assert all(" px " in rows[name] for name in (*MODELS, *keras_names("applications", APPLICATIONS)))
    refused = rampline("models", "--image-size", "64")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert not home.exists()


def test_a_user_without_a_home_has_the_commands(monkeypatch):
    """A container may run as a number without a name."""

    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    importlib.reload(catalogue)


def test_a_file_of_weights_is_of_the_network_with_the_longest_name(tmp_path):
    files = {
        "MobileNet": "mobilenet_1_0_224_tf_no_top.h5",
        "MobileNetV2": "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_128_no_top.h5",
        "MobileNetV3Small": "weights_mobilenet_v3_small_224_1.0_float_no_top_v2.h5",
        "NASNetMobile": "NASNet-mobile-no-top.h5",
        "EfficientNetV2B0": "efficientnetv2-b0_notop.h5",
    }
    for name in (*files.values(), "vgg16_weights_tf_dim_ordering_tf_kernels.h5", "mine.h5"):
        (tmp_path / name).touch()
    assert cached_weights(tmp_path, list(keras_names("applications", APPLICATIONS))) == files


@pytest.mark.usefixtures("forks")
def test_a_named_network_is_built_in_a_process_of_its_own(rampline, home):
    told = rampline("models", "MobileNetV2", "convnet", "--image-size", "64")
    assert (told.returncode, told.stderr) == (0, "")
    cells = {line.split()[0]: re.split(r"\s{2,}", line.strip()) for line in told.stdout.splitlines() if line.strip()}
    assert cells["MobileNetV2"][1:4] == ["2,257,984", "64 px", "6.8 MiB"]
    # 3*3*3*32+32, 3*3*32*64+64, 14*14*64*64+64, 64*10+10; a float32 for each of 3*64*64 in and out, and what follows.
    assert cells["convnet"][1:3] == ["822,922", "64 px"]
    own_size = rampline("models", "MobileNetV2").stdout.splitlines()
    (row,) = (line.split() for line in own_size if "MobileNetV2" in line)
    assert row in [line.split() for line in rampline("models").stdout.splitlines()]
    refused = rampline("models", "MobileNetV9")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "model.name='MobileNetV9' is not allowed: it must be one of those that `rampline models`" in refused.stderr
