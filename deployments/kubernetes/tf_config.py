"""TF_CONFIG of a pod of an indexed Job: `JOB_COMPLETION_INDEX` says which role it is. Standard library only.

The pods of an indexed Job are named JOB-INDEX; a headless Service of the Job gives each a name in DNS. Pods 0 to N - 1
are workers 0 to N - 1; with parameter servers pod 0 is the chief, then come the workers, then the parameter servers.
"""

from collections.abc import Mapping

DEFAULT_PORT = "23450"


class BadEnvironment(ValueError):
    """A variable is missing or wrong; the message names it."""


def make_tf_config(environment: Mapping[str, str]) -> dict:
    """The content of TF_CONFIG for the pod with this environment.

    Args:
        environment: `JOB_COMPLETION_INDEX` (set by Kubernetes), `WORKERS`, `PARAMETER_SERVERS` (default 0), `JOB_NAME`,
            `SERVICE`, `NAMESPACE`, `CLUSTER_DOMAIN` (default cluster.local) and `PORT` (default 23450). `ADDRESSES`,
            the `host:port` of every pod in the order of the indexes, takes the place of the names.

    Raises:
        BadEnvironment: when one is missing or does not fit the others.
    """
    counts = _role_counts(_number(environment, "WORKERS"), _number(environment, "PARAMETER_SERVERS", "0"))
    total = sum(counts.values())
    index = _number(environment, "JOB_COMPLETION_INDEX")
    if index >= total:
        raise BadEnvironment(
            f"JOB_COMPLETION_INDEX={index}: the cluster has {total} roles, so the Job has {total} pods"
        )
    given = [address.strip() for address in environment.get("ADDRESSES", "").split(",") if address.strip()]
    addresses = given or [_address(environment, i) for i in range(total)]
    if len(addresses) != total:
        raise BadEnvironment(f"ADDRESSES has {len(addresses)} entries: the cluster has {total} roles")
    rest = iter(addresses)
    cluster = {role: [next(rest) for _ in range(count)] for role, count in counts.items()}
    tasks = [{"type": role, "index": i} for role, count in counts.items() for i in range(count)]
    return {"cluster": cluster, "task": tasks[index]}


def _role_counts(workers: int, parameter_servers: int) -> dict[str, int]:
    if workers < 1:
        raise BadEnvironment("WORKERS=0: it must be 1 or more")
    if parameter_servers:
        return {"chief": 1, "worker": workers, "ps": parameter_servers}
    return {"worker": workers}


def _address(environment: Mapping[str, str], index: int) -> str:
    # In full: the kubelet writes this form of a pod's own name into its /etc/hosts, so it is known before DNS has it.
    domain = environment.get("CLUSTER_DOMAIN", "cluster.local")
    job, service, namespace = (_text(environment, name) for name in ("JOB_NAME", "SERVICE", "NAMESPACE"))
    return f"{job}-{index}.{service}.{namespace}.svc.{domain}:{environment.get('PORT', DEFAULT_PORT)}"


def _text(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise BadEnvironment(f"{name} is not set")
    return value


def _number(environment: Mapping[str, str], name: str, default: str | None = None) -> int:
    value = environment.get(name, default)
    if value is None:
        raise BadEnvironment(f"{name} is not set")
    if not value.isdecimal():
        raise BadEnvironment(f"{name}={value}: it must be a number, 0 or more")
    return int(value)
