"""Data that is prepared in the process of the tests: one of its own takes a second of a processor to import."""

from collections.abc import Callable

from rampline.config import DataConfig
from rampline.data.dataset import PreparedDataset
from rampline.jobs.job import ignore
from rampline.record.home import Home


def store_here(
    config: DataConfig,
    home: Home,
    *,
    scored_classes: tuple[str, ...] | None = None,
    log: Callable[[str], None] = ignore,
) -> PreparedDataset:
    """As `prepare_dataset`, without its process."""
    from rampline.data.ingest import Reporter, store_dataset  # TensorFlow: every test session loads this file

    reporter = Reporter(progress=ignore, log=log)
    return PreparedDataset.open(store_dataset(config, home, reporter, scored_classes))
