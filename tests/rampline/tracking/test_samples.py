"""The roles' samples under their node id, with the number of the sample as step."""

import json

from rampline.tracking import description
from rampline.tracking.description import RunReader, SampleReader, name_metrics
from rampline.tracking.reconciliation import Record


def sample(number: int, **changes) -> dict:
    values = {"cpu_percent": 150.0 + number, "memory_mebibytes": 1000.0, "machine_cpu_percent": 90.0, "gpus": []}
    return {"time": 1000.0 + 5 * number, **values} | changes


def append(path, *samples: dict, cut: bool = False) -> None:
    path.parent.mkdir(exist_ok=True)
    text = "".join(json.dumps(sample) + "\n" for sample in samples)
    with open(path, "a") as file:
        file.write(text[:-20] if cut else text)


def points(record: Record, metric: str) -> list[tuple[int, float | None]]:
    return [(moment.step, moment.figures[metric]) for moment in record.moments if metric in moment.figures]


def test_each_role_is_a_node(make_run_directory):
    directory = make_run_directory()
    append(directory.path / "system" / "chief-0.jsonl", sample(0), sample(1))
    append(directory.path / "system" / "worker-1.jsonl", sample(0))
    (record,) = RunReader(directory).read_samples()
    assert points(record, "system/chief-0/process_cpu_utilization_percentage") == [(0, 150.0), (1, 151.0)]
    assert points(record, "system/worker-1/cpu_utilization_percentage") == [(0, 90.0)]
    assert points(record, "system/chief-0/process_memory_usage_megabytes") == [(0, 1048.6), (1, 1048.6)]
    assert [moment.time for moment in record.moments] == [1000.0, 1005.0, 1000.0]


def test_a_long_history_is_read_and_delivered_in_parts(client, deliver, history, make_run_directory, monkeypatch):
    monkeypatch.setattr(description, "SAMPLES_AT_ONCE", 2)
    directory, metric = make_run_directory(), "system/chief-0/process_cpu_utilization_percentage"
    append(directory.path / "system" / "chief-0.jsonl", *map(sample, range(5)))
    append(directory.path / "system" / "worker-1.jsonl", sample(0))
    reader = RunReader(directory)
    parts = list(reader.read_samples())
    assert [len(part.moments) for part in parts] == [3, 2, 1]
    found = [[value for _, value in points(part, metric)] for part in parts]
    assert found == [[150.0, 151.0], [152.0, 153.0], [154.0]]
    assert list(reader.read_samples()) == []
    assert history(client, deliver(directory), metric) == [(step, 150.0 + step) for step in range(5)]


def test_a_line_that_was_cut_short_is_left_out(tmp_path):
    file = tmp_path / "system" / "chief-0.jsonl"
    append(file, sample(0))
    append(file, sample(1), cut=True)
    reader, metric = SampleReader(file), "system/chief-0/process_cpu_utilization_percentage"
    assert points(reader.read(), metric) == [(0, 150.0)]
    append(file, sample(2), sample(3))  # the first of them continues the cut line
    assert points(reader.read(), metric) == [(1, 153.0)]


def test_names_are_those_of_mlflows_own_system_metrics_and_ours_for_memory_access():
    gpu = {"utilization_percent": 97, "memory_access_percent": 41, "memory_mebibytes": 1000.0, "power_watts": 312.5}
    gpu |= {"memory_total_mebibytes": 8000.0, "name": "Tesla T4"}
    metrics = name_metrics(sample(0, gpus=[gpu, {"memory_mebibytes": 2000.0}]))
    assert metrics == {
        "cpu_utilization_percentage": 90.0,
        "process_cpu_utilization_percentage": 150.0,
        "process_memory_usage_megabytes": 1048.6,
        "gpu_0_utilization_percentage": 97,
        "gpu_0_memory_access_percentage": 41,
        "gpu_0_memory_usage_megabytes": 1048.6,
        "gpu_0_memory_usage_percentage": 12.5,
        "gpu_0_power_usage_watts": 312.5,
        "gpu_1_memory_usage_megabytes": 2097.2,
    }


def test_the_model_of_a_gpu_is_a_tag_of_its_role(tmp_path):
    first, file = {"utilization_percent": 50, "name": "Tesla T4"}, tmp_path / "system" / "chief-0.jsonl"
    append(file, sample(0, gpus=[first, {"name": "Tesla K80"}]), sample(1, gpus=[{"utilization_percent": 90}, {}]))
    record = SampleReader(file).read()
    assert record.tags == {"rampline.gpu.chief-0.0": "Tesla T4", "rampline.gpu.chief-0.1": "Tesla K80"}
    assert points(record, "system/chief-0/gpu_0_utilization_percentage") == [(0, 50.0), (1, 90.0)]
