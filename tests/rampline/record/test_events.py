"""Events: whole lines, finite figures, and no flood of progress."""

import itertools
import json
import math
import time

import numpy as np
import pytest
from small_disk import fill, small_disk

from rampline.errors import RunFailed
from rampline.record import events as events_module
from rampline.record.events import PROGRESS_INTERVAL_SECONDS, EventReader, EventWriter


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "events.jsonl"


def test_events_are_read_in_the_order_they_were_written(path):
    writer, reader = EventWriter(path), EventReader(path)
    before = time.time()
    writer.write("started", replicas=2)
    writer.write("epoch", epoch=1, metrics={"val_loss": 0.5})
    events = list(reader.read())
    assert [event["event"] for event in events] == ["started", "epoch"]
    assert events[1]["metrics"] == {"val_loss": 0.5}
    assert before <= events[0]["time"] <= events[1]["time"] <= time.time()
    assert list(reader.read()) == []
    writer.write("finished")
    assert [event["event"] for event in reader.read()] == ["finished"]


def test_nothing_is_read_before_there_is_a_file(path):
    reader = EventReader(path)
    assert list(reader.read()) == []
    EventWriter(path).write("started")
    assert len(list(reader.read())) == 1


def test_a_line_that_is_being_written_waits_for_the_next_read(path):
    EventWriter(path).write("started")
    reader, half = EventReader(path), '{"event": "epoch", "epo'
    with open(path, "a") as file:
        file.write(half)
    assert [event["event"] for event in reader.read()] == ["started"]
    assert list(reader.read()) == []
    with open(path, "a") as file:
        file.write('ch": 1}\n')
    assert list(reader.read()) == [{"event": "epoch", "epoch": 1}]


def test_a_reader_from_the_end_sees_only_what_is_new(path):
    writer = EventWriter(path)
    writer.write("started", attempt=1)
    reader = EventReader(path, from_end=True)
    writer.write("started", attempt=2)
    assert [event["attempt"] for event in reader.read()] == [2]


def test_a_half_line_of_a_killed_writer_does_not_spoil_the_next_attempt(path):
    EventWriter(path).write("started", attempt=1)
    with open(path, "a") as file:
        file.write('{"event": "epoch", "metrics": {"val')
    from_start, from_end = EventReader(path), EventReader(path, from_end=True)
    EventWriter(path).write("started", attempt=2)
    assert [event["attempt"] for event in from_start.read()] == [1, 2]
    assert [event["attempt"] for event in from_end.read()] == [2]


def test_a_file_that_holds_nothing_but_a_half_line_is_begun_anew(path):
    path.parent.mkdir()
    path.write_text('{"event"')
    EventWriter(path).write("started")
    assert [event["event"] for event in EventReader(path).read()] == ["started"]


def test_figures_that_are_not_finite_become_null(path):
    metrics = {"val_loss": math.nan, "train_loss": np.float64("inf"), "val_accuracy": 0.5}
    EventWriter(path).write("epoch", loss=-math.inf, metrics=metrics, curve=[[0.0, math.nan], (1.0, 2.0)])
    line = path.read_text()
    assert "NaN" not in line
    assert "Infinity" not in line
    event = json.loads(line)
    assert event["loss"] is None
    assert event["metrics"] == {"val_loss": None, "train_loss": None, "val_accuracy": 0.5}
    assert event["curve"] == [[0.0, None], [1.0, 2.0]]


def test_the_first_progress_is_told_at_once(path):
    EventWriter(path).progress(step=1)
    assert [event["step"] for event in EventReader(path).read()] == [1]


def test_progress_is_thinned_out_the_more_so_after_hours_and_other_events_are_not(path, monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    writer = EventWriter(path)
    writer.progress()
    writer.write("checkpoint")
    while now < 30_000:
        writer.progress()
        now += 0.25
    events = list(EventReader(path).read())
    assert [event["event"] for event in events[:3]] == ["progress", "checkpoint", "progress"]
    told = [event["monotonic"] for event in events if event["event"] == "progress"]
    for before, at in itertools.pairwise(told):
        expected = min(max(PROGRESS_INTERVAL_SECONDS, at / 2000), 10)
        assert expected <= at - before <= expected + 0.25
    assert 5_000 < len(told) < 11_000


def test_a_full_disk_ends_nothing_at_a_line_of_progress_and_spoils_no_line(tmp_path, monkeypatch):
    monkeypatch.setattr(events_module, "PROGRESS_INTERVAL_SECONDS", 0.0)
    with small_disk(tmp_path / "disk", megabytes=1) as disk:
        writer = EventWriter(disk / "events.jsonl")
        writer.write("started")
        filler = fill(disk)
        for step in range(200):  # more than the rest of a page, and than what Python holds back
            writer.progress(step=step, text="x" * 100)
        with pytest.raises(RunFailed, match="No space left on device"):
            writer.write("epoch", epoch=1)
        filler.unlink()
        writer.write("epoch", epoch=2)
        events = list(EventReader(disk / "events.jsonl").read())
    assert (events[0]["event"], events[-1]["epoch"]) == ("started", 2)
    steps = [event["step"] for event in events if event["event"] == "progress"]
    assert steps == sorted(set(steps))
    assert 0 < len(steps) < 200
