"""Flow `prepare`: every dataset of a study, decoded, resized and stored once."""

from prefect import flow, get_run_logger

from rampline.config import DataConfig
from rampline.progress import progress_to
from rampline.stages import datasets_of, own_execution, study_of
from rampline.tasks.steps import prepare_data, publish_data_report

DOWNLOAD_RETRIES = 2
DOWNLOAD_RETRY_SECONDS = 30


@flow(name="prepare", flow_run_name="prepare data of {study}")
def prepare(
    study: str = "digits",
    only: list[str] = [],  # noqa: B006
    overrides: dict[str, str] = {},  # noqa: B006
    execution: str = "",
) -> list[str]:
    """Prepare the data of a study: decode, resize and store it once, and publish the data report.

    Data that is there already is left as it is.

    Args:
        study: Name of a study that comes with Rampline, such as digits, or the path of a study file (.yaml).
        only: Names of the runs whose data is prepared; none for all runs of the study.
        overrides: Settings laid over every run, by dotted key, such as {"data.image_size": "64"}.
        execution: Folder of the execution that this is a stage of. The study flow sets it: leave it empty.
    """
    checked = study_of(study, only, overrides, own_execution(execution))
    return [_prepare(config, study) for config in datasets_of(checked)]


def _prepare(config: DataConfig, study: str) -> str:
    downloads = config.source.startswith("tfds:") and config.manual_dir is None
    retries = DOWNLOAD_RETRIES if downloads else 0
    state = prepare_data.with_options(retries=retries, retry_delay_seconds=DOWNLOAD_RETRY_SECONDS)(
        config, study, return_state=True
    )
    directory = state.result()
    if state.name == "Cached":
        progress_to(get_run_logger().info).line(f"prepared already: {directory}")
    publish_data_report(config.source, directory)
    return directory
