"""ResNets (He et al. 2016) of any width from torchvision's blocks, with the CIFAR stem or the ImageNet stem.

Parameter names and, at width 1, shapes are torchvision's, so weights travel both ways between the two.
Shapes: B batch, C channels, S image side.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck, conv1x1

from rayfed_ssl.models.base import Encoder
from rayfed_ssl.models.heads import ModelConfig

Stem = Literal["cifar", "imagenet"]
_BLOCKS: dict[str, Any] = {"basic": BasicBlock, "bottleneck": Bottleneck}


class ResNet(Encoder):
    """(B, C, S, S) -> (B, dim). Total stride 8 with the CIFAR stem (3x3, stride 1, no max-pool), 32 with the other."""

    def __init__(self, block: str, depths: tuple[int, ...], widths: tuple[int, ...], stem: Stem, channels: int) -> None:
        super().__init__()
        kernel, stride = (3, 1) if stem == "cifar" else (7, 2)
        self.conv1 = nn.Conv2d(channels, widths[0], kernel, stride, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if stem == "cifar" else nn.MaxPool2d(3, 2, 1)
        inputs = widths[0]
        for stage, (depth, planes) in enumerate(zip(depths, widths, strict=True), start=1):
            layer, inputs = _stage(_BLOCKS[block], inputs, planes, depth, stride=1 if stage == 1 else 2)
            self.add_module(f"layer{stage}", layer)
        self.stages = [f"layer{stage}" for stage in range(1, len(depths) + 1)]
        self.dim = inputs
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x: Tensor = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for name in self.stages:
            x = self.get_submodule(name)(x)
        return torch.mean(x, dim=(2, 3))


def _stage(block: Any, inputs: int, planes: int, depth: int, stride: int) -> tuple[nn.Sequential, int]:
    """``depth`` blocks, the first with ``stride``; and the channels that come out."""
    outputs = planes * block.expansion
    shortcut = None
    if stride != 1 or inputs != outputs:
        shortcut = nn.Sequential(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))
    first = block(inputs, planes, stride, shortcut)
    return nn.Sequential(first, *(block(outputs, planes) for _ in range(depth - 1))), outputs


def resnet(
    config: ModelConfig, image_size: int, channels: int = 3, *, block: str, depths: tuple[int, ...], stem: Stem
) -> ResNet:
    """A four-stage ResNet with 64 to 512 channels times ``model.width``."""
    return ResNet(block, depths, tuple(config.scaled(c) for c in (64, 128, 256, 512)), stem, channels)
