"""The data of a run as an MLflow dataset, which its tables show in a column and can be filtered by."""

from __future__ import annotations

import json

from mlflow.entities import Dataset, DatasetInput, InputTag
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

from rampline.credentials import mask
from rampline.data.dataset import PreparedDataset

CONTEXT = "training"
# Enough to tell data sets apart, and few enough for the column of a table.
FINGERPRINT_DIGITS, PREPARATION_DIGITS = 12, 8


def log_dataset(client: MlflowClient, run_id: str, dataset: PreparedDataset) -> None:
    """Log a prepared dataset as an input of a run, in any state; doing it again changes nothing.

    MLflow knows a dataset by name and digest, and keeps what it was told of it first
    (mlflow/store/tracking/sqlalchemy_store.py `_log_inputs_impl`, 3.17).
    """
    given = DatasetInput(dataset=make_dataset(dataset), tags=[InputTag(MLFLOW_DATASET_CONTEXT, CONTEXT)])
    client.log_inputs(run_id, [given])


def make_dataset(dataset: PreparedDataset) -> Dataset:
    """Name: the source. Digest: `FINGERPRINT-PREPARATION`, 21 characters; MLflow takes 36.

    The fingerprint is that of the source's content; the same content limited or resized in another way has another
    PREPARATION, from the name of the prepared folder.
    """
    preparation = dataset.directory.name.rpartition("-")[2][:PREPARATION_DIGITS]
    columns = [
        {"name": "image", "type": f"uint8 {dataset.image_shape}", "required": True},
        {"name": "label", "type": f"integer, one of {len(dataset.class_names)} classes", "required": True},
    ]
    profile = {
        **{f"{split}_images": images for split, images in dataset.splits.items()},
        "classes": len(dataset.class_names),
        "image_shape": " x ".join(map(str, dataset.image_shape)),
        "undecodable": dataset.undecodable,
        "fingerprint": dataset.fingerprint,
    }
    return Dataset(
        name=mask(dataset.source),
        digest=f"{dataset.fingerprint[:FINGERPRINT_DIGITS]}-{preparation}",
        source_type="local",
        source=json.dumps({"uri": str(dataset.directory)}),
        schema=json.dumps({"mlflow_colspec": columns}),
        profile=json.dumps(profile),
    )
