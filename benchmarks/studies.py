"""The studies on real images, and `docs/results.md` from what they measured: `python -m benchmarks.studies DATA`.

DATA holds `fashion_mnist/` and `mnist/` (the original .gz files), `cats_dogs/` (a folder per split and class),
`cifar10/cifar10_jpeg.tar.gz`, and `mobilenet_v2/*_1.0_*.h5`. About three hours on two cores that nothing else uses.

    --only STUDY    run this study alone; several times
    --write         run nothing, write the page from the latest executions in RAMPLINE_HOME

A study of which RAMPLINE_HOME has no execution keeps its section of the page. The machine is the one that writes.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measurement import describe_host
from benchmarks.page import markdown_table, wrap
from rampline.comparison.explanation_section import make_explanation_section
from rampline.comparison.recommendation import recommend
from rampline.comparison.run_table import make_columns
from rampline.comparison.runs import Comparison, read_comparison
from rampline.comparison.sentences import list_remarks, summarise_accuracy, summarise_scaling, summarise_speed
from rampline.errors import InputError
from rampline.record.home import Home
from rampline.tracking.store import open_tracking

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
COLUMNS = (
    *("run", "strategy", "replicas", "global_batch_size", "test_accuracy", "best_val_accuracy", "last_val_accuracy"),
    *("train_seconds", "elapsed_seconds", "images_per_second", "speedup", "scaling_efficiency"),
)
INTRODUCTION = """# Results

`python -m benchmarks.studies DATA` measured these figures on a small machine without a GPU, with real images. Every
table stands under the command that runs its study again. Where the study had other settings when the table was
measured, the text above the command names them. Published figures are other people's, on other hardware.

Two cores are not two GPUs. All replicas here, virtual devices and worker processes alike, share the same two cores,
which one replica leaves idle for moments only: a speed-up says what the strategy costs or wins here, not what it brings
on devices of its own. [explain.md](explain.md) tells how the parts of a step are measured. Accuracies do not depend on
that: a synchronous run of N replicas trains the same as one.

The machine is shared. Figures with an interval are medians of three trainings; where a run was trained once,
differences of less than about 20 % between two speeds may be noise.
"""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One study with the settings it is run with; `{data}` stands for the folder of the data."""

    study: str
    title: str
    about: str
    settings: tuple[str, ...]
    only: tuple[str, ...] = ()

    def command(self, data: str) -> list[str]:
        """The command line after `rampline`."""
        chosen = [part for run in self.only for part in ("--only", run)]
        settings = [part for setting in self.settings for part in ("--set", setting.format(data=data))]
        return ["run", self.study, *chosen, *settings]


EXPERIMENTS = (
    Experiment(
        study="fashion_mnist",
        title="Fashion-MNIST: Model.fit, a custom loop, two replicas, two workers, parameter servers",
        about=(
            "60,000 + 10,000 images of 28 x 28, ten epochs, three trainings each, as the study is shipped. The "
            "published slow-down does not show: there a step takes 8.5 ms on one GPU and 13.8 ms on five, tracing "
            "included; here one replica computes for 40 ms, which hides what five cost each other."
        ),
        settings=("data.manual_dir={data}/fashion_mnist", "repeats=3"),
    ),
    Experiment(
        study="mnist",
        title="MNIST: good practice, one rule at a time",
        about="60,000 + 10,000 images of 28 x 28, five epochs, three trainings each, as the study is shipped.",
        settings=("data.manual_dir={data}/mnist", "repeats=3"),
    ),
    Experiment(
        study="cats_vs_dogs",
        title="Cats and dogs: a ramp for pretrained weights",
        about=(
            "MobileNetV2 with ImageNet weights on 3,000 photographs (2,000 to train, 1,000 to validate; there is no "
            "test split) at 128 pixels, five epochs, three trainings each. The published figures are for 23,262 "
            "photographs at 224 pixels, ten epochs and K80 GPUs. The ramp and the warning show: with it 0.95 and more, "
            "whatever the seed; a larger batch without it between 0.76 and 0.92, and less at its end. Four GPUs in "
            "half the time do not: here they are the same two cores. Other work ran on the machine while one replica "
            "of the larger batch was measured at the end, so its contention is told too large: it was 1,573 ms and "
            "1,462 ms before. 1-gpu-ft has no ramp: its steps of 0.001 throw the pretrained weights about, and the "
            "moving averages of its BatchNormalization, which follow over a thousand steps, are those of other weights "
            "when it is validated. Its accuracy then says little: it swings widely with the slightest change."
        ),
        settings=(
            "data.source=folder:{data}/cats_dogs",
            "data.image_size=128",
            "epochs=5",
            "model.weights={data}/mobilenet_v2/mobilenet_v2_1.0_224_no_top_rebuilt.h5",
            "cluster.machine=null",
            "parity.steps=3",
            "repeats=3",
        ),
    ),
    Experiment(
        study="recipe",
        title="Fine-tuning on few images: what each ingredient is worth",
        about=(
            "MobileNetV2 with ImageNet weights on the same 3,000 photographs, two epochs of 63 steps, three trainings "
            "each. The weights lay where Keras keeps its downloads (`KERAS_HOME`). The rate is worth twenty points, "
            "statistics of BatchNormalization that stay as they are two more; a head that is trained first, and "
            "augmentation, change nothing that three trainings of two epochs can tell."
        ),
        settings=("data.source=folder:{data}/cats_dogs", "explain.steps=0"),
    ),
    Experiment(
        study="inaturalist",
        title="convnet7: replicas and batch, in total and per replica",
        about=(
            "The sweep of the study on CIFAR-10 in its place (500 images of each of ten classes, 32 pixels), ten "
            "epochs, three trainings each, 1, 2 and 4 replicas. The published 1.60x and 2.50x for 64 images in total "
            "do not show: two replicas here are the two cores that one replica has too, and of a step of 17.4 ms on "
            "four, 11.1 ms are spent on keeping them in step. That the larger batch costs accuracy does: after the "
            "same ten epochs 0.50 with 32 images and 0.37 with 512."
        ),
        settings=(
            "data.source=folder:{data}/cifar10/cifar10_jpeg.tar.gz",
            "data.image_size=32",
            "epochs=10",
            "parity.steps=0",
            "repeats=3",
        ),
        only=tuple(
            f"{gpus}-gpu-{batch}" for batch in ("total-32", "total-64", "each-64", "each-128") for gpus in (1, 2, 4)
        ),
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    chosen = [experiment for experiment in EXPERIMENTS if experiment.study in (options.only or experiment.study)]
    for experiment in [] if options.write else chosen:
        program = Path(sys.executable).with_name("rampline")
        subprocess.run([program, *experiment.command(str(options.data.resolve()))], check=True)
    client = open_tracking(Home.from_environment())
    sections = read_sections(PAGE.read_text())
    for experiment in EXPERIMENTS:
        try:
            sections[experiment.title] = describe(experiment, read_comparison(client, experiment.study))
        except InputError as error:
            print(f"{experiment.study} stays as it was: {error}")
    PAGE.write_text("\n".join([INTRODUCTION, *(sections[e.title] for e in EXPERIMENTS if e.title in sections)]))
    return 0


def read_sections(page: str) -> dict[str, str]:
    """The sections of a page by their titles."""
    sections = {}
    for part in page.split("\n## ")[1:]:
        sections[part.partition("\n")[0]] = f"## {part.rstrip()}\n"
    return sections


def describe(experiment: Experiment, comparison: Comparison) -> str:
    """The section of one study."""
    sentences = [summarise_speed(comparison), summarise_accuracy(comparison), summarise_scaling(comparison)]
    answer = recommend(comparison)
    command = " ".join(["rampline", *experiment.command("DATA")]).replace(" --", " \\\n    --")
    seeds = ", ".join(sorted(set(comparison.environment["seed"])))
    versions = ", ".join(f"{name} {comparison.environment[name].iloc[0]}" for name in ("tensorflow", "keras"))
    made = f"Run on {comparison.started:%Y-%m-%d}, seed {seeds}, {versions}, on {describe_host()}."
    parts = [
        f"## {experiment.title}",
        wrap(experiment.about),
        f"```sh\n{command}\n```",
        wrap(made),
        runs_table(comparison),
    ]
    if comparison.published_source:
        parts.append(wrap(f"Published: {comparison.published_source.strip()}"))
    parts.append(wrap(" ".join(sentence for sentence in [*sentences, answer.sentence] if sentence)))
    parts.append(bullets([*list_remarks(comparison), *answer.remarks, *filter(None, [answer.unpriced])]))
    return "\n\n".join(part for part in [*parts, *describe_time(comparison)] if part) + "\n"


def runs_table(comparison: Comparison) -> str:
    """The comparison, with published figures beside our own."""
    columns = [c for c in make_columns(comparison) if c.key in COLUMNS or c.key.startswith("published_")]
    rows = [[column.text(row) for column in columns] for row in comparison.rows]
    return markdown_table(
        [column.title for column in columns], rows, [i for i, column in enumerate(columns) if column.numeric]
    )


def describe_time(comparison: Comparison) -> list[str]:
    """Where the time went."""
    section = make_explanation_section(comparison)
    if section is None:
        return []
    verdicts, *tables = section.tables
    texts = []
    for table in tables:
        texts += [f"{table.title}:", markdown_table(table.head, table.rows, range(1, len(table.head)))]
    return [*texts, bullets([*map(": ".join, verdicts.rows), *section.sentences])]


def bullets(texts: Iterable[str]) -> str:
    """A list in markdown."""
    return "\n".join(wrap(f"- {text}", "  ") for text in texts)


if __name__ == "__main__":
    sys.exit(main())
