"""Levels of what roles print: the lines are those that TensorFlow 2.21 and Python's logging write."""

import logging

from rampline.jobs.role_output import RoleOutput, last_lines

NATIVE = "0000 00:00:1795279633.784848   31821 port.cc:153] "
LINES = [
    ("WARNING: All log messages before absl::InitializeLog() is called are written to STDERR", logging.DEBUG),
    (f"I{NATIVE}oneDNN custom operations are on.", logging.DEBUG),
    (f"W{NATIVE}Allocation exceeds 10% of free system memory.", logging.WARNING),
    (f"E{NATIVE}no supported devices found", logging.ERROR),
    ("WARNING:tensorflow:5 out of the last 5 calls triggered retracing.", logging.WARNING),
    ("a line of somebody's own print", logging.INFO),
    ("ERROR:root:no such file", logging.ERROR),
    ("Traceback (most recent call last):", logging.ERROR),
    ('  File "worker.py", line 3, in <module>', logging.ERROR),
    ("ValueError: wrong", logging.ERROR),
    ("rampline: error: ValueError: wrong", logging.ERROR),
    ("another print", logging.INFO),
]


def test_lines_keep_their_levels(tmp_path):
    log = tmp_path / "chief-0.log"
    log.write_text("".join(f"{text}\n" for text, _ in LINES))
    assert RoleOutput(log).read() == [(level, text) for text, level in LINES]


def test_a_line_that_is_still_being_written_waits(tmp_path):
    log = tmp_path / "chief-0.log"
    output = RoleOutput(log)
    assert output.read() == []
    log.write_text("one\ntw")
    assert output.read() == [(logging.INFO, "one")]
    with open(log, "a") as file:
        file.write("o\n")
    assert output.read() == [(logging.INFO, "two")]
    assert output.read() == []


def test_the_lines_of_earlier_attempts_are_left_out(tmp_path):
    log = tmp_path / "chief-0.log"
    log.write_text("old\n")
    output = RoleOutput(log, from_end=True)
    with open(log, "a") as file:
        file.write("new\n")
    assert output.read() == [(logging.INFO, "new")]


def test_last_lines(tmp_path):
    log = tmp_path / "worker-1.log"
    log.write_text("".join(f"line {number}\n" for number in range(80)))
    assert last_lines(log, 50)[0] == (logging.INFO, "line 30")
    assert len(last_lines(log, 50)) == 50
