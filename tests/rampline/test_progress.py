import io

import pytest
from rich.console import Console

from rampline.progress import TERMINAL, BarProgress, LineProgress, progress_to

STARTED = {
    "event": "started",
    "replicas": 2,
    "per_replica_batch_size": 32,
    "global_batch_size": 64,
    "steps_per_epoch": 21,
    "peak_learning_rate": 0.001,
    "epochs": 5,
    "first_epoch": 1,
}
EPOCH = {
    "event": "epoch",
    "epoch": 3,
    "metrics": {
        "train_loss": 0.25,
        "train_accuracy": 0.9,
        "val_loss": 0.3,
        "val_accuracy": None,
        "images_per_second": 5300.4,
        "epoch_seconds": 1.24,
        "learning_rate": 0.01,
    },
}
STEP = {"event": "progress", "epoch": 4, "step": 7, "loss": 0.2, "accuracy": 0.95, "images_per_second": 5000.0}
FINISHED = {"event": "finished", "metrics": {"train_seconds": 6.3}, "best_epoch": 4, "best_val_accuracy": 0.97}


def test_lines_tell_one_line_per_event_that_matters():
    lines: list[str] = []
    progress = LineProgress(lines.append)
    for event in (STARTED, EPOCH, STEP, FINISHED, {"event": "failed", "message": "loss is not finite"}):
        progress.event("baseline", event)
    assert lines == [
        "baseline: 2 replicas, global batch 64 (32 per replica), 21 steps per epoch, peak learning rate 0.001",
        "baseline: epoch 3/5  loss 0.2500  accuracy 0.9000  val. accuracy -  5,300 images/s  1.2 s  learning rate 0.01",
        "baseline: trained in 6.3 s, best validation accuracy 0.9700 (epoch 4)",
        "baseline: failed: loss is not finite",
    ]


def test_bar_stands_where_the_run_is():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with BarProgress(console) as progress:
        for event in (STARTED, EPOCH, STEP):
            progress.event("baseline", event)
        bar = progress._bars.tasks[0]
    assert (bar.completed, bar.total) == (3 * 21 + 7, 5 * 21)
    assert bar.description == "epoch 4/5  loss 0.2000  accuracy 0.9500  5,000 images/s"


def test_a_bar_has_its_name_as_it_is():
    name = "folder:/data[/2]"
    console = Console(file=io.StringIO(), force_terminal=True, width=120, record=True)
    with BarProgress(console) as progress:
        progress.event(name, {"event": "preparing", "done": 1, "total": 2})
    assert name in console.export_text()


def test_a_run_that_may_stop_before_its_last_epoch_says_so_and_why_it_did():
    stops = {"stops": "at a validation accuracy of 0.95 or after 30 minutes"}
    decided = {"event": "decided", "epoch": 3, "stopped": "after epoch 3 of 5: target accuracy 0.95 reached"}
    lines: list[str] = []
    console = Console(file=io.StringIO(), force_terminal=True, width=120, record=True)
    with BarProgress(console) as bars:
        for event in (STARTED | stops, EPOCH, decided, FINISHED):
            LineProgress(lines.append).event("baseline", event)
            bars.event("baseline", event)
        bar = bars._bars.tasks[0]
    assert lines[0].endswith(
        "peak learning rate 0.001, at most 5 epochs: stops at a validation accuracy of 0.95 or after 30 minutes"
    )
    assert lines[2] == "baseline: stopped after epoch 3 of 5: target accuracy 0.95 reached"
    assert lines[2] in console.export_text()
    assert (bar.completed, bar.total) == (63, 63)


@pytest.mark.parametrize("markup", [True, False])
def test_a_path_above_the_bars_is_printed_as_it_is(markup):
    console = Console(file=io.StringIO(), force_terminal=True, width=120, record=True, markup=markup)
    with BarProgress(console) as progress:
        progress.line("prepared /data/[old]/home")
    assert "prepared /data/[old]/home" in console.export_text()


def test_a_terminal_obeys_no_message():
    file = io.StringIO()
    with BarProgress(Console(file=file, force_terminal=True, width=120)) as progress:
        for kind in ("warning", "failed"):
            progress.event("baseline", {"event": kind, "message": f"{kind} of \x1b[2Jyours"})
    assert "\x1b[2J" not in file.getvalue()
    assert file.getvalue().count(r" of \x1b[2Jyours") >= 2


def test_bar_of_a_continued_run_starts_where_it_stopped():
    with BarProgress(Console(file=io.StringIO(), force_terminal=True)) as progress:
        progress.event("baseline", STARTED | {"first_epoch": 3})
        assert progress._bars.tasks[0].completed == 42


def test_terminal_and_log_are_both_told():
    shown: list[str] = []
    logged: list[str] = []
    token = TERMINAL.set(LineProgress(shown.append))
    try:
        progress = progress_to(logged.append)
        progress.line("prepared already")
        progress.event("baseline", {"event": "decided", "stopped": "early"})
    finally:
        TERMINAL.reset(token)
    assert shown == logged == ["prepared already", "baseline: stopped early"]
