"""Flow `predict`: the images of a folder, labelled by a study's champion."""

from typing import Annotated

from prefect import flow
from pydantic import Field

from rampline.tasks.form import own_output
from rampline.tasks.steps import label_images, publish_counts


@flow(name="predict", flow_run_name="predict {study}")
def predict(
    study: str = "digits",
    images: str = "",
    output: str = "",
    batch_size: Annotated[int, Field(ge=1)] = 256,
    probabilities: bool = False,
) -> str:
    """Label the images of a folder with a study's champion in MLflow; returns the path of the table.

    The table has a row per image: path, label, probability, model_version, error. An image that cannot be read has an
    empty label, and error says why.

    Args:
        study: Name of the study; its champion is the model that `rampline promote` made one.
        images: Folder of image files to label (.jpg, .png, .gif, .bmp, .webp), with its sub-folders. It must be given.
        output: Table in RAMPLINE_HOME/predictions, .csv or .parquet; an earlier one is replaced. Empty for a new .csv.
        batch_size: Images per step of the model, at least 1.
        probabilities: Add the probability of each class, in columns p_CLASS.
    """
    prediction = label_images(study, images, own_output(output), batch_size, probabilities)
    publish_counts(study, prediction)
    return prediction["output"]
