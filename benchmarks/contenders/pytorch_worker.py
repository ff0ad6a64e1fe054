"""One of two DistributedDataParallel processes, run by `benchmarks.contenders.pytorch` in an interpreter with PyTorch.

Arguments: network, rank, number of processes, port, batch size, steps of a block, untimed steps before each.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from pytorch_networks import make_convnet, make_mobilenet
from torch import nn
from turns import Turns

EXAMPLES = {"convnet": (60_000, (1, 28, 28), 10), "mobilenet": (2_000, (3, 128, 128), 2)}


def main() -> None:
    network = sys.argv[1]
    rank, processes, port, batch_size, block_steps, lead_in = map(int, sys.argv[2:])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=processes)
    network_module = make_convnet() if network == "convnet" else make_mobilenet()
    # Faster here than PyTorch's default layout, with both networks.
    model = nn.parallel.DistributedDataParallel(network_module.to(memory_format=torch.channels_last))
    optimizer = torch.optim.Adam(model.parameters())
    batches = make_batches(network, batch_size, rank)

    def run(steps: int) -> float:
        started = time.perf_counter()
        for _ in range(steps):
            images, labels = next(batches)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        return steps * batch_size * processes / (time.perf_counter() - started)

    run(block_steps)
    turns = Turns()
    for _ in turns:
        run(lead_in)
        rate = run(block_steps)
        turns.tell({"examples_per_second": rate, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024})
    turns.end()


def make_batches(network: str, batch_size: int, rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Scaled batches for ever, gathered from uint8 images in memory in a new random order in each epoch."""
    count, shape, classes = EXAMPLES[network]
    source = torch.Generator().manual_seed(rank)
    images = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=source)
    labels = torch.randint(0, classes, (count,), generator=source)
    while True:
        for indices in torch.randperm(count, generator=source)[: count // batch_size * batch_size].split(batch_size):
            pixels = images[indices].float().contiguous(memory_format=torch.channels_last)
            yield pixels / 255 if network == "convnet" else pixels / 127.5 - 1, labels[indices]


if __name__ == "__main__":
    main()
