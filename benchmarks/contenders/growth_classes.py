"""What a run leaves of its evaluation for a number of classes: `… growth_classes --classes=1000`.

Predictions of which nine in ten are right go through what follows a model's scoring in the product: the figures, the
files drawn from them, and `evaluation.json` written and read.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

EXAMPLES_PER_CLASS = 20
KIBIBYTE = 1024


def main() -> None:
    """Measure one point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--classes", type=int, default=10)
    classes = parser.parse_args().classes
    from rampline.files import read_json, write_json
    from rampline.tracking.artifacts import draw_confusion_matrix, write_classification_report
    from rampline.training.evaluation import classification_report, confusion_matrix

    names = [f"class {label}" for label in range(classes)]
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), EXAMPLES_PER_CLASS)
    wrong = random.random(len(labels)) < 0.1
    predictions = np.where(wrong, random.integers(classes, size=len(labels)), labels)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        times = [time.perf_counter()]
        counts = confusion_matrix(labels, predictions, classes)
        report, matrix = classification_report(counts, names), counts.tolist()
        times.append(time.perf_counter())
        write_json(folder / "evaluation.json", {"confusion_matrix": matrix, "classification_report": report})
        read_json(folder / "evaluation.json")
        times.append(time.perf_counter())
        draw_confusion_matrix(folder / "confusion_matrix.png", matrix, names)
        write_classification_report(folder / "classification_report.csv", report)
        times.append(time.perf_counter())
        figures = {
            "report_seconds": times[1] - times[0],
            "json_seconds": times[2] - times[1],
            "draw_seconds": times[3] - times[2],
            "json_kib": (folder / "evaluation.json").stat().st_size / KIBIBYTE,
            "png_kib": (folder / "confusion_matrix.png").stat().st_size / KIBIBYTE,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIBIBYTE,
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
