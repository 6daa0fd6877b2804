"""Fixup-ResNet-20, eight times as wide: a residual network without normalisation (Zhang, Dauphin and Ma 2019).

The backbone of FedSC (Jing et al. 2024), whose correlation sharing needs encoders that process each sample separately.
Differs: the scalar bias before the final linear layer is left to the heads.

Shapes: B batch, C channels, S image side.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfed_ssl.models.base import Encoder
from rayfed_ssl.models.heads import ModelConfig


def _scalar(value: float) -> nn.Parameter:
    """A parameter (1,) with this value."""
    return nn.Parameter(torch.full((1,), value))


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def shortcut(x: Tensor, channels: int, stride: int) -> Tensor:
    """Every ``stride``-th pixel of ``x`` (a strided 1x1 average pool), padded with zeros to ``channels`` channels."""
    pooled = F.avg_pool2d(x, kernel_size=1, stride=stride)
    return F.pad(pooled, (0, 0, 0, 0, 0, channels - x.shape[1]))


class FixupBlock(nn.Module):
    """Two convolutions, a scalar bias before each convolution and each ReLU, and one multiplier (section 3)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.outputs, self.stride = outputs, stride
        self.bias1a, self.bias1b = _scalar(0.0), _scalar(0.0)
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.bias2a, self.bias2b = _scalar(0.0), _scalar(0.0)
        self.conv2 = _conv3x3(outputs, outputs)
        self.scale = _scalar(1.0)

    def forward(self, x: Tensor) -> Tensor:
        shifted = x + self.bias1a
        branch = torch.relu(self.conv1(shifted) + self.bias1b)
        branch = self.conv2(branch + self.bias2a) * self.scale + self.bias2b
        skip = x if self.stride == 1 else shortcut(shifted, self.outputs, self.stride)
        return torch.relu(branch + skip)


class FixupResNet(Encoder):
    """(B, C, S, S) -> (B, dim): three stages of ``depth`` blocks with a total stride of 4. Depth 3 is the 20-layer
    network.
    """

    def __init__(self, widths: tuple[int, int, int], depth: int, channels: int = 3) -> None:
        super().__init__()
        self.conv1 = _conv3x3(channels, widths[0])
        self.bias1 = _scalar(0.0)
        blocks: list[FixupBlock] = []
        inputs = widths[0]
        for stage, outputs in enumerate(widths):
            for i in range(depth):
                blocks.append(FixupBlock(inputs, outputs, stride=2 if stage > 0 and i == 0 else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.dim = inputs
        fixup_init(self)

    def forward(self, images: Tensor) -> Tensor:
        x: Tensor = self.blocks(torch.relu(self.conv1(images) + self.bias1))
        return x.mean((2, 3))


@torch.no_grad()
def fixup_init(network: FixupResNet) -> None:
    """Rules 1 and 2 of Fixup: the last layer of each residual branch is zero, and the other layers of the branches have
    He's initialisation times L^(-1/(2m-2)). L is the number of branches, and m = 2 the layers in each.
    """
    scale = len(network.blocks) ** -0.5
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    for module in network.modules():
        if isinstance(module, FixupBlock):
            module.conv1.weight.mul_(scale)
            module.conv2.weight.zero_()


def fixup_resnet20(config: ModelConfig, image_size: int, channels: int = 3) -> FixupResNet:
    """Fixup-ResNet-20 with 16, 32 and 64 channels times 8 times ``model.width``: 512-d features at width 1."""
    first, second, third = (config.scaled(8 * c) for c in (16, 32, 64))
    return FixupResNet((first, second, third), depth=3, channels=channels)
