"""What becomes of times, memory and files as images, classes, replicas, workers and runs grow."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.curve import Curve
from benchmarks.measurement import Contender

IMAGES, RUNS = "benchmarks.contenders.growth_images", "benchmarks.contenders.mlflow_runs"
CLASSES, TRAINING = "benchmarks.contenders.growth_classes", "benchmarks.contenders.growth_training"


def _points(values: Iterable[int], module: str, *arguments: str) -> tuple[tuple[float | str, Contender], ...]:
    """A point for each value, which takes the place of `{}` in the arguments."""
    return tuple(
        (x, Contender(name=str(x), arguments=(module, *(argument.format(x) for argument in arguments)))) for x in values
    )


READ = {"open_seconds": "open, s", "images_per_second": "images/s", "grown_mib": "memory, MiB"}

CURVES = (
    Curve(
        key="growth-mlflow-runs",
        title="`rampline compare` with many runs in MLflow",
        x="runs in MLflow",
        points=_points((50, 500, 5000), RUNS, "compare", "--runs={}"),
        figures={"seconds": "whole command, s", "database_mib": "mlflow.db, MiB"},
        target=3.0,
        target_figure="seconds",
        about="Executions of six runs (a parent and five) in one sqlite store, 150 points of metrics each; the latest "
        "is compared. Most of the time is MLflow's import.",
    ),
    Curve(
        key="growth-plan",
        title="`rampline plan` with many executions in the home",
        x="runs in the study",
        points=_points((5, 50, 200), RUNS, "plan", "--per-execution={}", "--executions=20"),
        figures={"seconds": "whole command, s"},
        about="Twenty earlier executions whose settings were other ones, so that all of them are looked through.",
    ),
    Curve(
        key="growth-study-runs",
        title="Comparison and report of a study with many runs",
        x="runs in the study",
        points=_points((5, 50, 200), RUNS, "report", "--runs=0", "--per-execution={}"),
        figures={
            "read_seconds": "read, s",
            "print_seconds": "terminal, s",
            "report_seconds": "report, s",
            "report_mib": "report.html, MiB",
        },
        about="Charts show at most 32 runs, as many as can be told apart; tables have all.",
    ),
    Curve(
        key="growth-images-prepare",
        title="Preparing a folder in encoded storage",
        x="images",
        points=_points((1000, 10_000, 30_000), IMAGES, "prepare", "--images={}"),
        figures={"images_per_second": "images/s", "peak_mib": "peak, MiB"},
        about="PNG files of 8 x 8 pixels, so what counts is the work per file; a million were not prepared.",
    ),
    Curve(
        key="growth-images-check",
        title="Check of a prepared dataset in encoded storage before a run",
        x="images",
        points=_points((1000, 10_000, 100_000, 1_000_000), IMAGES, "check", "--images={}"),
        figures={"seconds": "first, s", "seconds_again": "again, s", "grown_mib": "memory, MiB"},
        about="Example files are hard links to 64 different ones: their entries are real, their blocks are not.",
    ),
    Curve(
        key="growth-images-read-encoded",
        title="A role's reading from encoded storage",
        x="images",
        points=_points((1000, 100_000, 1_000_000), IMAGES, "read", "--images={}"),
        figures=READ,
        about="50 batches of 64 images from all over the split; memory beyond that of TensorFlow's import.",
    ),
    Curve(
        key="growth-images-read-tensor",
        title="A role's reading from storage `tensor`, which is in memory",
        x="images",
        points=_points((1000, 100_000, 1_000_000), IMAGES, "read", "--images={}", "--storage=tensor"),
        figures=READ,
        about="8 x 8 grey pixels: 61 MiB for a million images.",
    ),
    Curve(
        key="growth-classes",
        title="Evaluation of many classes",
        x="classes",
        points=_points((2, 10, 100, 1000), CLASSES, "--classes={}"),
        figures={
            "report_seconds": "figures, s",
            "draw_seconds": "pictures, s",
            "json_seconds": "evaluation.json, s",
            "json_kib": "evaluation.json, KiB",
            "peak_mib": "peak, MiB",
        },
    ),
    Curve(
        key="growth-image-size",
        title="Size of the images: convnet, one device",
        x="pixels",
        points=_points((28, 112, 224), TRAINING, "baseline", "--set=data.image_size={}"),
        figures={"images_per_second": "images/s", "seconds": "whole `rampline run`, s"},
    ),
    Curve(
        key="growth-replicas",
        title="Replicas on virtual devices that share the same cores: convnet 28 x 28",
        x="replicas",
        points=_points(
            (2, 4, 8), TRAINING, "mirrored-ramp", "--set=cluster.replicas={0}", "--set=cluster.virtual_devices={0}"
        ),
        figures={"images_per_second": "images/s", "seconds": "whole `rampline run`, s"},
    ),
    Curve(
        key="growth-workers",
        title="Workers of multi_worker on the same cores: convnet 28 x 28",
        x="workers",
        points=_points((1, 2, 4), TRAINING, "multi-worker", "--set=cluster.workers={}"),
        figures={"images_per_second": "images/s", "seconds": "whole `rampline run`, s"},
    ),
)
