"""The networks of the comparison in plain PyTorch, layer by layer those of `networks.py`."""

from __future__ import annotations

import torch
from torch import nn

# Sandler et al. 2018, table 2: expansion, channels, blocks, stride of the first.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def make_convnet(classes: int = 10) -> nn.Module:
    """The network of fashion_mnist for 28 x 28 x 1."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 5 * 5, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def make_mobilenet(classes: int = 2) -> nn.Module:
    """MobileNetV2 (width 1) with the head of cats_vs_dogs."""
    layers = [*_convolution(3, 32, kernel=3, stride=2)]
    channels = 32
    for expansion, out, blocks, stride in STAGES:
        for index in range(blocks):
            layers.append(InvertedResidual(channels, out, stride if index == 0 else 1, expansion))
            channels = out
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 512), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*layers, *_convolution(channels, 1280, kernel=1), *head, nn.Linear(512, classes))


class InvertedResidual(nn.Module):
    """Expand, depthwise convolution, project; added to its input where the shapes agree."""

    def __init__(self, channels: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = channels * expansion
        expand = _convolution(channels, wide, kernel=1) if expansion > 1 else []
        depthwise = _convolution(wide, wide, kernel=3, stride=stride, groups=wide)
        project = [nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out, eps=1e-3)]
        self.body = nn.Sequential(*expand, *depthwise, *project)
        self.has_shortcut = stride == 1 and channels == out

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(N, C, H, W) to (N, out, H / stride, W / stride)."""
        return images + self.body(images) if self.has_shortcut else self.body(images)


def _convolution(channels: int, out: int, *, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    padding = (kernel - 1) // 2
    convolution = nn.Conv2d(channels, out, kernel, stride, padding, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(out, eps=1e-3), nn.ReLU6()]
