"""The sampler measures this process and machine, cheaply, and never disturbs it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from command_line import wait_until

from rampline.jobs.system_metrics import SystemSampler

# A process that samples itself more often than a role does, runs the code that it is given, and ends.
SAMPLED = """
import psutil, sys, time
from pathlib import Path
from rampline.jobs import system_metrics as module
module.FIRST_SAMPLE_SECONDS, module.INTERVAL_SECONDS = float(sys.argv[2]), float(sys.argv[3])
module.SystemSampler(Path(sys.argv[1])).start()
exec(sys.argv[4])
"""
BUSY = """
end = time.monotonic() + 1.0
while time.monotonic() < end:
    sum(range(10_000))
print(psutil.Process().memory_info().rss)
"""


def sampled(path: Path, first_seconds: float, interval_seconds: float, code: str) -> Sequence[str]:
    """Its command."""
    return [sys.executable, "-c", SAMPLED, str(path), str(first_seconds), str(interval_seconds), code]


def read(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_samples_tell_the_work_of_all_threads_and_the_memory(tmp_path):
    path = tmp_path / "system" / "chief-0.jsonl"
    finished = subprocess.run(sampled(path, 0.2, 0.2, BUSY), capture_output=True, text=True, check=True)

    samples = read(path)
    assert 3 <= len(samples) <= 7
    assert set(samples[0]) == {"time", "cpu_percent", "memory_mebibytes", "machine_cpu_percent", "gpus"}
    times = [sample["time"] for sample in samples]
    assert times == sorted(times)
    assert abs(times[-1] - time.time()) < 5
    assert max(sample["cpu_percent"] for sample in samples) > 20
    assert 0 < max(sample["machine_cpu_percent"] for sample in samples) <= 100
    resident = int(finished.stdout) / 2**20
    assert 0.5 * resident < samples[-1]["memory_mebibytes"] < 1.5 * resident


def test_a_run_shorter_than_the_interval_has_a_sample_and_a_restarted_role_appends(tmp_path):
    path = tmp_path / "worker-0.jsonl"
    for expected in (1, 2):
        subprocess.run(sampled(path, 0.01, 60.0, "time.sleep(0.5)"), check=True)
        assert len(read(path)) == expected


def test_a_sample_costs_less_than_five_milliseconds(tmp_path):
    sampler = SystemSampler(tmp_path / "chief-0.jsonl")
    before = time.process_time()
    for _ in range(100):
        sampler.sample()
    assert (time.process_time() - before) / 100 < 0.005


def test_a_place_that_cannot_be_written_disturbs_nothing(tmp_path, capfd):
    (tmp_path / "file").write_text("")
    SystemSampler(tmp_path / "file" / "chief-0.jsonl").start()
    wait_until(lambda: "system-metrics" not in [thread.name for thread in threading.enumerate()], 5, every=0.01)
    assert capfd.readouterr() == ("", "")


def test_a_killed_process_leaves_whole_lines(tmp_path):
    path = tmp_path / "chief-0.jsonl"
    process = subprocess.Popen(sampled(path, 0.005, 0.005, "time.sleep(60)"))
    while not path.exists() or path.stat().st_size < 5000:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert path.read_text().endswith("\n")
    assert len(read(path)) > 10
