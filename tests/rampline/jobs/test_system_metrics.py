"""The sampler measures this process and machine, cheaply, and never disturbs it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import psutil

from rampline.jobs.system_metrics import SystemSampler


def read(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_samples_tell_the_work_of_all_threads_and_the_memory(tmp_path):
    path = tmp_path / "system" / "chief-0.jsonl"
    sampler = SystemSampler(path, interval_seconds=0.2)
    sampler.start()
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        sum(range(10_000))
    sampler.stop()

    samples = read(path)
    assert 3 <= len(samples) <= 7
    assert set(samples[0]) == {"time", "cpu_percent", "memory_mebibytes", "machine_cpu_percent", "gpus"}
    times = [sample["time"] for sample in samples]
    assert times == sorted(times)
    assert abs(times[-1] - time.time()) < 5
    assert max(sample["cpu_percent"] for sample in samples) > 20
    assert 0 < max(sample["machine_cpu_percent"] for sample in samples) <= 100
    resident = psutil.Process().memory_info().rss / 2**20
    assert 0.5 * resident < samples[-1]["memory_mebibytes"] < 1.5 * resident
    assert "system-metrics" not in [thread.name for thread in threading.enumerate()]


def test_a_run_shorter_than_the_interval_has_samples_and_a_restarted_role_appends(tmp_path):
    path = tmp_path / "worker-0.jsonl"
    for expected in (1, 2):
        sampler = SystemSampler(path, interval_seconds=60.0)
        sampler.start()
        sampler.stop()
        assert len(read(path)) >= expected


def test_a_sample_costs_less_than_five_milliseconds(tmp_path):
    sampler = SystemSampler(tmp_path / "chief-0.jsonl")
    before = time.process_time()
    for _ in range(100):
        sampler.sample()
    assert (time.process_time() - before) / 100 < 0.005


def test_a_place_that_cannot_be_written_disturbs_nothing(tmp_path, capfd):
    (tmp_path / "file").write_text("")
    sampler = SystemSampler(tmp_path / "file" / "chief-0.jsonl", interval_seconds=0.01)
    sampler.start()
    time.sleep(0.1)
    sampler.stop()
    assert capfd.readouterr() == ("", "")


def test_a_killed_process_leaves_whole_lines(tmp_path):
    path = tmp_path / "chief-0.jsonl"
    code = "import sys, time, pathlib; from rampline.jobs.system_metrics import SystemSampler as S; "
    code += "S(pathlib.Path(sys.argv[1]), interval_seconds=0.005).start(); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    while not path.exists() or path.stat().st_size < 5000:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert path.read_text().endswith("\n")
    assert len(read(path)) > 10
