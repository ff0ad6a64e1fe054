"""The roles' samples reach MLflow once, under their node id, with the sample's number as step."""

import json

from rampline.tracking.run_artifacts import SystemLog, name_metrics
from rampline.tracking.run_log import RunLog


def sample(number: int, **changes) -> dict:
    values = {"cpu_percent": 150.0 + number, "memory_mebibytes": 1000.0, "machine_cpu_percent": 90.0, "gpus": []}
    return {"time": 1000.0 + 5 * number, **values} | changes


def append(path, *samples: dict, cut: bool = False) -> None:
    path.parent.mkdir(exist_ok=True)
    text = "".join(json.dumps(sample) + "\n" for sample in samples)
    with open(path, "a") as file:
        file.write(text[:-20] if cut else text)


def test_each_role_is_a_node_and_no_sample_is_delivered_twice(client, study_log, make_run_directory, history):
    directory = make_run_directory()
    run_id = RunLog.open(client, directory, parent_run_id=study_log.run_id).run_id
    chief, worker = directory.path / "system" / "chief-0.jsonl", directory.path / "system" / "worker-1.jsonl"
    log = SystemLog(client, run_id, directory.path / "system")
    log.deliver()
    append(chief, sample(0), sample(1))
    log.deliver()
    append(chief, sample(2))
    append(worker, sample(0))
    log.deliver()
    append(chief, sample(3))
    again = SystemLog(client, run_id, directory.path / "system")
    again.deliver()
    again.deliver()

    steps = [(0, 150.0), (1, 151.0), (2, 152.0), (3, 153.0)]
    assert history(client, run_id, "system/chief-0/process_cpu_utilization_percentage") == steps
    assert history(client, run_id, "system/worker-1/cpu_utilization_percentage") == [(0, 90.0)]
    memory = client.get_metric_history(run_id, "system/chief-0/process_memory_usage_megabytes")
    assert [(point.step, point.timestamp, point.value) for point in memory[:2]] == [
        (0, 1_000_000, 1048.6),
        (1, 1_005_000, 1048.6),
    ]


def test_a_line_that_was_cut_short_is_left_out(client, study_log, make_run_directory, history):
    directory = make_run_directory()
    run_id = RunLog.open(client, directory, parent_run_id=study_log.run_id).run_id
    chief = directory.path / "system" / "chief-0.jsonl"
    append(chief, sample(0))
    append(chief, sample(1), cut=True)
    log = SystemLog(client, run_id, directory.path / "system")
    log.deliver()
    append(chief, sample(2), sample(3))  # the first of them continues the cut line
    log.deliver()
    figures = history(client, run_id, "system/chief-0/process_cpu_utilization_percentage")
    assert figures == [(0, 150.0), (1, 153.0)]


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


def test_the_model_of_a_gpu_is_a_tag_of_its_role(client, study_log, make_run_directory, history):
    directory = make_run_directory()
    run_id = RunLog.open(client, directory, parent_run_id=study_log.run_id).run_id
    first = {"utilization_percent": 50, "name": "Tesla T4"}
    chief = directory.path / "system" / "chief-0.jsonl"
    append(chief, sample(0, gpus=[first, {"name": "Tesla K80"}]), sample(1, gpus=[{"utilization_percent": 90}, {}]))
    SystemLog(client, run_id, directory.path / "system").deliver()
    tags = client.get_run(run_id).data.tags
    assert {tag: value for tag, value in tags.items() if tag.startswith("rampline.gpu.")} == {
        "rampline.gpu.chief-0.0": "Tesla T4",
        "rampline.gpu.chief-0.1": "Tesla K80",
    }
    assert history(client, run_id, "system/chief-0/gpu_0_utilization_percentage") == [(0, 50.0), (1, 90.0)]
