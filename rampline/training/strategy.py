"""From a `RunConfig` and TF_CONFIG to a `tf.distribute.Strategy`; devices are set up before TensorFlow starts."""

from __future__ import annotations

import os

import keras
import tensorflow as tf

from rampline.config import RunConfig
from rampline.errors import ClusterConfigError


def configure_devices(config: RunConfig) -> None:
    """GPU memory growth, virtual CPU devices and threads: must come before anything else touches TensorFlow."""
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    virtual = int(config.cluster.virtual_devices)
    if virtual:
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * virtual
        tf.config.set_logical_device_configuration(cpu, logical)
    keras.config.set_floatx("float32")
    keras.mixed_precision.set_global_policy(config.precision)


def replica_devices(config: RunConfig) -> list[str]:
    """Logical devices of this process's replicas: GPUs if there are any, else virtual or plain CPU devices.

    Raises:
        ClusterConfigError: when there are fewer than `cluster.replicas`.
    """
    gpus = [] if config.cluster.virtual_devices else tf.config.list_logical_devices("GPU")
    devices = [device.name for device in gpus or tf.config.list_logical_devices("CPU")]
    wanted = config.cluster.replicas
    if len(devices) < wanted:
        raise ClusterConfigError(f"cluster.replicas={wanted} needs {wanted} devices, this process has {len(devices)}")
    return devices[:wanted]


def make_strategy(config: RunConfig) -> tf.distribute.Strategy:
    """The strategy of a training role; a `multi_worker` role meets its peers here."""
    if config.strategy == "single":
        return tf.distribute.OneDeviceStrategy(replica_devices(config)[0])
    if config.strategy == "mirrored":
        devices = replica_devices(config)
        on_gpu = "GPU" in devices[0]
        reduction = tf.distribute.NcclAllReduce() if on_gpu else tf.distribute.ReductionToOneDevice()
        return tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction)
    if config.strategy == "multi_worker":
        return _check_replicas(tf.distribute.MultiWorkerMirroredStrategy(), config)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc")
    return tf.distribute.ParameterServerStrategy(resolver)


def _check_replicas(strategy: tf.distribute.Strategy, config: RunConfig) -> tf.distribute.Strategy:
    """A worker takes every GPU it sees, whatever the run says: then all figures would be of another set-up."""
    spec = strategy.cluster_resolver.cluster_spec()
    workers = sum(len(spec.job_tasks(job)) for job in spec.jobs)
    found, wanted = strategy.num_replicas_in_sync, workers * config.cluster.replicas
    if found != wanted:
        per_worker = config.cluster.replicas
        raise ClusterConfigError(
            f"the workers have {found} devices, the run has {wanted} replicas: let each see {per_worker} "
            "(CUDA_VISIBLE_DEVICES), or change cluster.replicas"
        )
    return strategy


def serve(role: str, index: int) -> tf.distribute.Server:
    """Start the gRPC server of a parameter-server worker or ps; it answers the chief until the process ends."""
    # A worker must accept the chief's functions while it runs one: TensorFlow's tutorial sets this for several workers
    # per host.
    options = tf.compat.v1.ConfigProto()
    threads = int(os.environ.get("TF_NUM_INTEROP_THREADS", "0"))
    options.inter_op_parallelism_threads = max(threads, 4)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc")
    return tf.distribute.Server(
        resolver.cluster_spec(), job_name=role, task_index=index, config=options, protocol="grpc", start=True
    )
