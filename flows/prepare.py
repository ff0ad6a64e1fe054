"""Flow `prepare`: every dataset of a study, decoded, resized and stored once."""

import dataclasses
from pathlib import Path

from prefect import flow, get_run_logger

from rampline.config import DataConfig
from rampline.data.dataset import PreparedDataset
from rampline.data.preparation import locate_prepared
from rampline.data.stored_dataset import put_dataset
from rampline.progress import progress_to
from rampline.study.execution_file import Execution
from rampline.tasks.form import find_execution
from rampline.tasks.steps import prepare_data, publish_data_report


@flow(name="prepare", flow_run_name="prepare data of {study}")
def prepare(
    study: str = "digits",
    only: list[str] = [],  # noqa: B006
    overrides: dict[str, str] = {},  # noqa: B006
) -> list[str]:
    """Prepare the data of a study: decode, resize and store it once, and publish the data report.

    Data that is there already is left as it is.

    Args:
        study: Name of a study that comes with Rampline, such as digits, or the path of a study file (.yaml).
        only: Names of the runs whose data is prepared; none for all runs of the study.
        overrides: Settings laid over every run, by dotted key, such as {"data.image_size": "64"}.
    """
    opened = find_execution(study, only, overrides)
    datasets = {config: _prepare(config, opened, study) for config in opened.study.data}
    opened.study = dataclasses.replace(opened.study, datasets=datasets)
    return [str(dataset.directory) for dataset in datasets.values()]


def _prepare(config: DataConfig, execution: Execution, study: str) -> PreparedDataset:
    known, home = execution.study.datasets, execution.home
    present = known[config] if config in known else locate_prepared(config, home)
    state = prepare_data(config, study, present and str(present.directory), return_state=True)
    directory = state.result()
    line = progress_to(get_run_logger().info).line
    if state.name == "Cached":
        line(f"prepared already: {directory}")
    if present:  # before there was a store, perhaps; what is prepared now is put there
        put_dataset(present, line)
    publish_data_report(config.source, directory)
    return present or PreparedDataset.open(Path(directory))
