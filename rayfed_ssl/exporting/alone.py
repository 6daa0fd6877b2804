"""Load the encoder that lies beside this file: PyTorch is all it needs.

import encoder                                    # this file, where it is a folder's encoder.py
model = encoder.load()
squares = encoder.square(image)[None]             # a Pillow image -> uint8 (1, S, S, C)
features = model(encoder.normalised(squares))     # (1, dim)

Shapes: B images, S the encoder's image side, C its channels (3; 1 for grey).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent


def load(folder: Path | str = HERE) -> torch.nn.Module:
    """The encoder, in eval mode: (B, C, S, S) float32 as ``normalised`` leaves them -> (B, dim)."""
    return torch.export.load(str(Path(folder) / "model.pt2")).module()


def described(folder: Path | str = HERE) -> dict[str, Any]:
    """What ``config.json`` says: ``image_size``, ``channels``, ``dim``, ``input`` and the encoder's architecture."""
    found: dict[str, Any] = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    return found


def square(image: Any, folder: Path | str = HERE) -> Tensor:
    """The central square of a Pillow image, resized to (S, S, C) uint8, grey or RGB, as the encoder was trained."""
    config = described(folder)
    side, channels = config["image_size"], config["channels"]
    short = min(image.size)
    left, top = ((length - short) / 2 for length in image.size)
    box, bilinear = (left, top, left + short, top + short), 2
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (side, side):
        image = image.resize((side, side), bilinear, box=box)
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(side, side, channels)


def normalised(pixels: Tensor, folder: Path | str = HERE) -> Tensor:
    """uint8 (B, S, S, C) -> float32 (B, C, S, S), scaled to [0, 1], minus the mean, over the deviation."""
    config = described(folder)
    mean, std = (torch.tensor(config["input"][key], dtype=torch.float64) for key in ("mean", "std"))
    if config["channels"] == 1:
        mean, std = mean.mean(), std.mean()
    mean, std = (value.to(torch.float32).view(1, -1, 1, 1).to(pixels.device) for value in (mean, std))
    return (pixels.permute(0, 3, 1, 2).to(torch.float32) / 255 - mean) / std
