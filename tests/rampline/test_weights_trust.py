"""Weight files and checkpoints from elsewhere: nothing in them is executed, and no other file is read through them."""

import hashlib
import json
import os
import shutil
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from keras.src.legacy.saving import legacy_h5_format

from rampline.config import ModelConfig, RunConfig
from rampline.errors import ConfigError
from rampline.record.run_directory import RunDirectory
from rampline.training import evaluation
from rampline.training.checkpoint import load_model_weights
from rampline.training.models import load_keras_file, make_model

DATASET = {".h5": "conv1/conv1/kernel", ".weights.h5": "layers/batch_normalization/vars/0"}
SHAPE = (32, 32, 3)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Good MobileNet weights in both of Keras' HDF5 formats, by suffix."""
    model = keras.applications.MobileNet(include_top=False, weights=None, input_shape=SHAPE)
    folder = tmp_path_factory.mktemp("weights")
    model.save_weights(folder / "good.weights.h5")
    with h5py.File(folder / "good.h5", "w") as file:
        legacy_h5_format.save_weights_to_hdf5_group(file, model)
    return folder


def load(path):
    return make_model(ModelConfig(name="MobileNet", weights=str(path)), image_shape=SHAPE, classes=2)


def tamper(file, kind, name, secret):
    shape = file[name].shape
    del file[name]
    if kind == "external link":
        file[name] = h5py.ExternalLink(str(secret), name)
    elif kind == "soft link":
        file["elsewhere"] = np.zeros(shape, np.float32)
        file[name] = h5py.SoftLink("/elsewhere")
    elif kind == "virtual dataset":
        layout = h5py.VirtualLayout(shape, np.float32)
        layout[...] = h5py.VirtualSource(str(secret), name, shape=shape)
        file.create_virtual_dataset(name, layout)
    elif kind == "external storage":
        file.create_dataset(name, shape, np.float32, external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
    elif kind == "terabytes of zeros":
        file.create_dataset(name, (10**6, 10**6), np.float32, chunks=(1000, 1000), compression="gzip")
    else:
        file.create_dataset(name, data=np.array(["x"] * 3, dtype=h5py.string_dtype()))


@pytest.mark.parametrize("suffix", [".h5", ".weights.h5"])
def test_good_weights_load(weights, suffix):
    load(weights / f"good{suffix}")


KINDS = ["external link", "soft link", "virtual dataset", "external storage", "terabytes of zeros", "texts"]


@pytest.mark.parametrize(
    "suffix, kind", [*((".h5", kind) for kind in KINDS), *((".weights.h5", kind) for kind in KINDS[0:5:4])]
)
def test_hdf5_that_points_elsewhere_is_refused(weights, tmp_path, suffix, kind):
    path, secret = tmp_path / f"x{suffix}", weights / f"good{suffix}"
    shutil.copy(secret, path)
    with h5py.File(path, "r+") as file:
        tamper(file, kind, DATASET[suffix], secret)
    with pytest.raises(ConfigError, match=r"model.weights=\S+ cannot be loaded into MobileNet: ") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_a_lambda_in_a_model_file_is_never_built(weights, tmp_path):
    """A whole model as HDF5 carries a configuration with code: only arrays are read from it."""
    executed, path = tmp_path / "executed", tmp_path / "model.h5"
    inputs = keras.Input((4,))
    code = f"lambda x: [x, open({str(executed)!r}, 'w')][0]"
    keras.Model(inputs, keras.layers.Lambda(eval(code), output_shape=(4,))(inputs)).save(path)
    executed.unlink(missing_ok=True)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load(path)
    shutil.copy(path, tmp_path / "model.keras")
    plain = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    with pytest.raises(ConfigError, match=r"model\.keras cannot be loaded into \w+: File is not a zip file"):
        load_keras_file(tmp_path / "model.keras", plain)
    dense = keras.layers.Dense(2)
    keras.Model(inputs, dense(keras.layers.Lambda(eval(code), output_shape=(4,))(inputs))).save(tmp_path / "good.keras")
    executed.unlink(missing_ok=True)
    load_keras_file(tmp_path / "good.keras", plain)
    np.testing.assert_array_equal(plain.layers[-1].get_weights()[0], dense.get_weights()[0])
    assert not executed.exists()


class Payload:
    """Executes when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_pickle_in_a_checkpoint_is_never_read(tmp_path):
    executed, checkpoint = tmp_path / "executed", tmp_path / "step-00000001"
    checkpoint.mkdir()
    arrays: dict[str, Any] = {"model/00000": np.array([Payload(executed)], dtype=object)}
    np.savez(checkpoint / "variables.npz", **arrays)
    sha256 = hashlib.sha256((checkpoint / "variables.npz").read_bytes()).hexdigest()
    (checkpoint / "progress.json").write_text(json.dumps({"sha256": sha256, "progress": {}}))
    with pytest.raises((ConfigError, ValueError)):
        load_model_weights(checkpoint, make_model(ModelConfig(), image_shape=(28, 28, 1), classes=2))
    assert not executed.exists()
    np.load(checkpoint / "variables.npz", allow_pickle=True)["model/00000"]
    assert executed.exists()  # the payload works where pickles are read


def test_a_run_directory_from_elsewhere_imports_nothing(tmp_path, digits, monkeypatch):
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path / "home"))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    config = RunConfig(model=ModelConfig(name="evil:net"))
    for place, reason in (("elsewhere/run", "code to import, and is no run of"), ("home/runs/s/e/run", "has no attr")):
        directory = RunDirectory(tmp_path / place)
        os.makedirs(directory.path)
        (directory.path / "config.json").write_text(json.dumps({"model": {"name": config.model.name}}))
        assert not (tmp_path / "executed").exists()
        with pytest.raises(ConfigError, match=reason):
            evaluation.load_model(directory, digits, tmp_path / "checkpoint")
    assert (tmp_path / "executed").exists()
