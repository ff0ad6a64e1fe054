"""TF_CONFIG: who a process is, and one clear line for everything that is wrong with it."""

import json

import pytest

from rampline.config import ClusterConfig, RunConfig
from rampline.errors import ClusterConfigError
from rampline.jobs.tf_config import Task, parse_tf_config

A, B, C, D = (f"127.0.0.1:{port}" for port in (5001, 5002, 5003, 5004))
SINGLE = RunConfig()
TWO_WORKERS = RunConfig(strategy="multi_worker", cluster=ClusterConfig(workers=2))
SERVERS = RunConfig(strategy="parameter_server", cluster=ClusterConfig(workers=2, parameter_servers=1))


def text(cluster: object, role: object = "worker", index: object = 0) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})


VALID = [
    (TWO_WORKERS, {"worker": [A, B]}, "worker", 0, ("worker-0", True, 0)),
    (TWO_WORKERS, {"worker": [A, B]}, "worker", 1, ("worker-1", False, 1)),
    (TWO_WORKERS, {"chief": [A], "worker": [B]}, "chief", 0, ("chief-0", True, 0)),
    (TWO_WORKERS, {"chief": [A], "worker": [B]}, "worker", 0, ("worker-0", False, 1)),
    (SERVERS, {"chief": [A], "worker": [B, C], "ps": [D]}, "chief", 0, ("chief-0", True, 0)),
    (SERVERS, {"chief": [A], "worker": [B, C], "ps": [D]}, "worker", 1, ("worker-1", False, 2)),
    (SERVERS, {"chief": [A], "worker": [B, C], "ps": [D]}, "ps", 0, ("ps-0", False, 0)),
    (SINGLE, {"chief": [A]}, "chief", 0, ("chief-0", True, 0)),
    (SINGLE, {"worker": [A]}, "worker", 0, ("worker-0", True, 0)),
]


@pytest.mark.parametrize("config, cluster, role, index, expected", VALID)
def test_a_process_learns_who_it_is(config, cluster, role, index, expected):
    task = parse_tf_config(text(cluster, role, index), config)
    assert (task.name, task.is_chief, task.worker_number) == expected
    assert (task.role, task.index) == (role, index)
    assert {name: list(hosts) for name, hosts in task.cluster.items()} == cluster
    assert parse_tf_config(task.to_json(), config) == task


def test_exactly_one_role_is_the_chief():
    cluster = {"chief": (A,), "worker": (B, C), "ps": (D,)}
    tasks = [Task(cluster=cluster, role=role, index=i) for role, hosts in cluster.items() for i in range(len(hosts))]
    assert [task.name for task in tasks if task.is_chief] == ["chief-0"]


@pytest.mark.parametrize(
    "host, loopback",
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("localhost", True),
        ("10.1.2.3", False),
        ("127.example.com", False),
        ("127.0.0.1.example.com", False),
        ("0.0.0.0", False),
        ("[::1]", False),  # servers are led to 127.0.0.1, which is not where this one would be looked for
    ],
)
def test_loopback_is_told_from_other_addresses(host, loopback):
    task = Task(cluster={"worker": (A, f"{host}:5002")}, role="worker", index=0)
    assert task.is_on_loopback == loopback
    warning = task.network_warning
    assert (warning is None) == loopback
    assert loopback or f"has no authentication and listens on every interface (port of {A})" in str(warning)


MALFORMED = {
    "empty": ("", "TF_CONFIG is not JSON: "),
    "cut off": (text({"worker": [A, B]})[:-1], "TF_CONFIG is not JSON: "),
    "too deep": ("[" * 200_000, "TF_CONFIG is not JSON: "),
    "a list": ("[]", "TF_CONFIG must be an object with cluster and task"),
    "cluster is a list": (text([A, B]), "TF_CONFIG has no cluster: "),
    "empty cluster": (text({}), "TF_CONFIG has no cluster: "),
    "no task": (json.dumps({"cluster": {"worker": [A, B]}}), "TF_CONFIG has no task: "),
    "task is a text": (json.dumps({"cluster": {"worker": [A, B]}, "task": "worker"}), "TF_CONFIG has no task: "),
    "unknown role": (text({"master": [A]}), "TF_CONFIG: role 'master' is not known: it must be one of chief, "),
    "hosts are a text": (text({"worker": A}), "TF_CONFIG: cluster.worker must be a list of host:port"),
    "no hosts": (text({"worker": []}), "TF_CONFIG: cluster.worker must be a list of host:port"),
    "no port": (text({"worker": [A, "localhost"]}), "TF_CONFIG: cluster.worker has 'localhost': it must be host:port"),
    "no host": (text({"worker": [A, ":5002"]}), "TF_CONFIG: cluster.worker has ':5002': it must be host:port"),
    "port 0": (text({"worker": [A, "h:0"]}), "TF_CONFIG: cluster.worker has 'h:0': it must be host:port"),
    "port 65536": (text({"worker": [A, "h:65536"]}), "TF_CONFIG: cluster.worker has 'h:65536': it must be host:port"),
    "port of 5000 digits": (text({"worker": [A, "h:" + "1" * 5000]}), "TF_CONFIG: cluster.worker has 'h:1111"),
    "Arabic digits": (
        text({"worker": [A, "h:\u0665\u0660"]}),
        "TF_CONFIG: cluster.worker has 'h:\u0665\u0660': it must be host:port",
    ),
    "blank in a host": (text({"worker": [A, "h a:1"]}), "TF_CONFIG: cluster.worker has 'h a:1': it must be host:port"),
    "line in a host": (text({"worker": [A, "h\nx:1"]}), "TF_CONFIG: cluster.worker has 'h\\nx:1': it must be"),
    "scheme": (text({"worker": [A, "grpc://h:1"]}), "TF_CONFIG: cluster.worker has 'grpc://h:1': it must be host:port"),
    "IPv6 without brackets": (text({"worker": [A, "::1:5000"]}), "TF_CONFIG: cluster.worker has '::1:5000': it must"),
    "address is null": (text({"worker": [A, None]}), "TF_CONFIG: cluster.worker has None: it must be host:port"),
    "index 0.0": (text({"worker": [A, B]}, index=0.0), "TF_CONFIG: task.index=0.0 must be 0 to 1 for worker"),
    "index of 5000 digits": (
        text({"worker": [A, B]}).replace('"index": 0', '"index": ' + "1" * 5000),
        "TF_CONFIG is not JSON: Exceeds the limit",
    ),
    "a role of a megabyte": (text({"w" * 10**6: [A]}), "TF_CONFIG: role 'wwww"),
    "two megabytes": (text({"worker": [A, B]}) + " " * 2 * 10**6, "TF_CONFIG has 2000"),
    "cluster given twice": (
        '{"cluster": {"worker": ["10.0.0.1:1"]}, ' + text({"worker": [A, B]})[1:],
        "TF_CONFIG is not JSON: key 'cluster' is given twice",
    ),
    "same address in capitals": (
        text({"worker": ["localhost:1", "LOCALHOST:1"]}),
        "TF_CONFIG: two roles have the same",
    ),
    "task of no role": (text({"worker": [A, B]}, "chief"), "TF_CONFIG: task.type='chief' must be one of the cluster's"),
    "task of a list": (text({"worker": [A, B]}, ["worker"]), "TF_CONFIG: task.type=['worker'] must be one of "),
    "index too high": (text({"worker": [A, B]}, index=2), "TF_CONFIG: task.index=2 must be 0 to 1 for worker"),
    "negative index": (text({"worker": [A, B]}, index=-1), "TF_CONFIG: task.index=-1 must be 0 to 1 for worker"),
    "index is true": (text({"worker": [A, B]}, index=True), "TF_CONFIG: task.index=True must be 0 to 1 for worker"),
    "same address": (text({"worker": [A, A]}), "TF_CONFIG: two roles have the same address: "),
    "two chiefs": (text({"chief": [A, B]}, "chief"), "TF_CONFIG: cluster.chief has 2 addresses: it must have 1"),
    "a worker too few": (text({"worker": [A]}), "TF_CONFIG has 1 chief and workers, the run has cluster.workers=2"),
    "a ps": (text({"worker": [A, B], "ps": [C]}), "TF_CONFIG: cluster.ps is for strategy parameter_server, "),
    "another machine": (
        text({"worker": ["192.0.2.77:5001", B]}),
        "TF_CONFIG: worker 0 is 192.0.2.77:5001, which is no address of this machine; its addresses are ",
    ),
    "no such host": (text({"worker": ["a..b:1", B]}), "TF_CONFIG: a..b:1 cannot be resolved: "),
}


def refusal(content: str, config: RunConfig) -> str:
    with pytest.raises(ClusterConfigError) as failure:
        parse_tf_config(content, config)
    assert "\n" not in str(failure.value)
    assert len(str(failure.value)) < 500
    assert failure.value.exit_status == 2
    return str(failure.value)


@pytest.mark.parametrize("content, message", MALFORMED.values(), ids=MALFORMED)
def test_what_is_wrong_is_one_clear_line(content, message):
    assert refusal(content, TWO_WORKERS).startswith(message)


@pytest.mark.parametrize(
    "cluster, message",
    [
        ({"worker": [B, C], "ps": [D]}, "cluster.chief is missing: strategy parameter_server needs one"),
        ({"chief": [A], "worker": [B], "ps": [D]}, "cluster.worker has 1 addresses, the run wants 2"),
        ({"chief": [A], "worker": [B, C]}, "cluster.ps has 0 addresses, the run wants 1"),
    ],
)
def test_a_parameter_server_run_needs_all_its_roles(cluster, message):
    assert refusal(text(cluster), SERVERS) == f"TF_CONFIG: {message}"


def test_an_elastic_run_takes_fewer_workers_but_not_too_few():
    elastic = RunConfig(strategy="multi_worker", cluster=ClusterConfig(workers=4, min_workers=2))
    assert [parse_tf_config(text({"worker": hosts}), elastic).workers for hosts in ([A, B], [A, B, C, D])] == [2, 4]
    assert refusal(text({"worker": [A]}), elastic) == (
        "TF_CONFIG has 1 chief and workers, the run has cluster.workers=4 and cluster.min_workers=2"
    )
