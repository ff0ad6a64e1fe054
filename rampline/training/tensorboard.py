"""What TensorBoard shows of a run: scalars and histograms of every epoch, and a profile of a few steps."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import numpy as np
import tensorflow as tf

from rampline.record.metric import Source
from rampline.record.metrics import from_source

# TensorBoard draws them over each other: tags are named as Keras' callback does.
RUNS = ("train", "validation")
EVENT_FILES = "events.out.tfevents.*"
HOST_TRACE, DEVICE_TRACE = 2, 1  # operations and batches of the input pipeline; kernels of GPUs
WRITE_ERRORS = (OSError, tf.errors.OpError)

MarkStep = Callable[[int], AbstractContextManager]


class ScalarWriter:
    """Writes `FOLDER/train` and `FOLDER/validation`, each epoch once.

    A run that was killed may train an epoch again that is in the files already. TensorBoard's loaders differ in what
    they do with a step that comes twice, some draw a line back and forth. So a process that goes on takes the epochs
    that it will train out of the files that are there; points that stay keep their wall time.

    Args:
        folder: made with the first epoch.
        warn: is told when the files cannot be written, once: no more is written then, and training goes on.
    """

    def __init__(self, folder: Path, *, warn: Callable[[str], None]) -> None:
        self._folder, self._warn = folder, warn
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        self._failed = False

    def drop_from(self, epoch: int) -> None:
        """Take that epoch (from 1) and later ones out of the files; of a long run it takes a while."""
        with self._told_once(epoch):
            for run in RUNS:
                for file in sorted((self._folder / run).glob(EVENT_FILES)):
                    _keep_before(file, epoch)

    def write_epoch(
        self, epoch: int, metrics: Mapping[str, float | None], weights: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Write the metrics of an epoch (from 1) that have a place in TensorBoard, without those that are None.

        Args:
            epoch: from 1.
            metrics: by their names in events.
            weights: by name, for histograms in the folder `train`.
        """
        if self._failed:
            return
        with self._told_once(epoch):
            if not self._writers:
                self._writers = {run: tf.summary.create_file_writer(str(self._folder / run)) for run in RUNS}
            for run, writer in self._writers.items():
                with writer.as_default(step=epoch):
                    for metric in from_source(Source.EPOCH, metrics):
                        folder, _, tag = metric.tensorboard.partition("/")
                        value = metrics.get(metric.told_as)
                        if folder == run and value is not None:
                            tf.summary.scalar(tag, value)
                    for name, weight in (weights or {}).items() if run == "train" else ():
                        # As Keras' callback calls them.
                        tf.summary.histogram(f"{name}/histogram", weight)
                writer.flush()

    @contextmanager
    def _told_once(self, epoch: int) -> Iterator[None]:
        """Tell of an error in the block; nothing is written from then on."""
        try:
            yield
        except WRITE_ERRORS as error:
            self._failed = True
            for writer in self._writers.values():
                # It tries to write the rest once more.
                with suppress(*WRITE_ERRORS):
                    writer.close()
            self._warn(f"TensorBoard scalars are not written from epoch {epoch} on: {_reason(error)}")


@contextmanager
def profile(folder: Path, *, warn: Callable[[str], None]) -> Iterator[MarkStep]:
    """Profile what the block runs, into `FOLDER/plugins/profile/TIME/HOST.xplane.pb`.

    Yields what marks a step, `with mark_step(number): …` round the calls of it: without, the profiler shows operations
    but no step times. A block that fails leaves no profile.

    Args:
        folder: TensorBoard's log folder, or one below it.
        warn: is told when there is no profile: another one is running, or it cannot be written.
    """
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=HOST_TRACE, python_tracer_level=0, device_tracer_level=DEVICE_TRACE
    )
    try:
        tf.profiler.experimental.start(str(folder), options=options)
    except WRITE_ERRORS as error:
        warn(f"no profile was taken: {_reason(error)}")
        yield _mark_step
        return
    try:
        yield _mark_step
    except BaseException:
        tf.profiler.experimental.stop(save=False)
        raise
    try:
        tf.profiler.experimental.stop()
    except WRITE_ERRORS as error:
        warn(f"the profile was not written: {_reason(error)}")


def _mark_step(number: int) -> AbstractContextManager:
    return tf.profiler.experimental.Trace("train", step_num=number, _r=1)


def _keep_before(file: Path, epoch: int) -> None:
    """Take epochs from `epoch` on out of an event file, and what a kill or a full disk has cut short."""
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".") as aside:
        # No name of an event file: TensorBoard would read what a kill leaves here.
        kept = Path(aside) / "kept"
        with tf.io.TFRecordWriter(str(kept)) as writer:
            for record in _whole_records(file):
                if tf.compat.v1.Event.FromString(record).step < epoch:
                    writer.write(record)
        os.replace(kept, file)


def _whole_records(file: Path) -> Iterator[bytes]:
    try:
        for record in tf.data.TFRecordDataset(str(file)):
            yield record.numpy()
    except tf.errors.DataLossError:
        return


def _reason(error: Exception) -> str:
    """The line that names the file and what is wrong; TensorFlow puts the operation before it."""
    return str(getattr(error, "message", error)).rpartition("}} ")[2].partition("\n")[0]
