"""ResNets (He et al. 2016) of any width, with the CIFAR stem or the ImageNet stem.

The names of parameters are torchvision's, and at width 1 their shapes, too, so weights can be exchanged with
torchvision's ResNets.

Shapes: B batch, C channels, S image side.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfed_ssl.models.base import Encoder
from rayfed_ssl.models.heads import ModelConfig

Stem = Literal["cifar", "imagenet"]


class ResidualBlock(nn.Module):
    """A residual block: the output of its convolutions is added to its input, or to a projection of the input.

    ``expansion`` is the number of output channels divided by ``planes``.
    """

    expansion = 1
    downsample: nn.Module | None

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def residual(self, x: Tensor) -> Tensor:
        """The output of the convolutions."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        added = self.residual(x)
        added += x if self.downsample is None else self.downsample(x)
        out: Tensor = self.relu(added)
        return out


class BasicBlock(ResidualBlock):
    """Two 3x3 convolutions (He et al. 2016, figure 5, left)."""

    def __init__(self, inputs: int, planes: int, stride: int = 1, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = shortcut  # last, as in torchvision: this decides the order of values and of their draws

    def residual(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return out


class Bottleneck(ResidualBlock):
    """1x1, 3x3 and 1x1 convolutions (He et al. 2016, figure 5, right). The 3x3 has the stride, as in torchvision."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int = 1, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, planes * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * self.expansion)
        self.downsample = shortcut

    def residual(self, x: Tensor) -> Tensor:
        inner = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        out: Tensor = self.bn3(self.conv3(inner))
        return out


_BLOCKS: dict[str, type[BasicBlock | Bottleneck]] = {"basic": BasicBlock, "bottleneck": Bottleneck}


class Projection(nn.Conv2d):
    """The 1x1 convolution of a shortcut, applied to every ``stride``-th pixel.

    For few input channels, the pixels are selected before the convolution, which gives the same result. The backward
    pass of torch's own strided convolution writes beyond its memory in that case, on processors with AVX2 but not
    AVX-512 (seen in 2.14.1, channels_last).
    """

    few = 8

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == (1, 1) or self.in_channels >= self.few:
            return super().forward(x)
        rows, columns = self.stride
        return F.conv2d(x[..., ::rows, ::columns], self.weight)


class ResNet(Encoder):
    """(B, C, S, S) -> (B, dim). The total stride is 8 with the CIFAR stem (3x3, stride 1, no max-pool), and 32 with the
    ImageNet stem.
    """

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


def _stage(
    block: type[BasicBlock | Bottleneck], inputs: int, planes: int, depth: int, stride: int
) -> tuple[nn.Sequential, int]:
    """(``depth`` blocks, the first of which has ``stride``; the number of output channels)."""
    outputs = planes * block.expansion
    shortcut = None
    if stride != 1 or inputs != outputs:
        shortcut = nn.Sequential(Projection(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
    first = block(inputs, planes, stride, shortcut)
    return nn.Sequential(first, *(block(outputs, planes) for _ in range(depth - 1))), outputs


def resnet(
    config: ModelConfig, image_size: int, channels: int = 3, *, block: str, depths: tuple[int, ...], stem: Stem
) -> ResNet:
    """A four-stage ResNet with 64 to 512 channels times ``model.width``."""
    return ResNet(block, depths, tuple(config.scaled(c) for c in (64, 128, 256, 512)), stem, channels)
