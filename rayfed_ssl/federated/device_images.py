"""Images that stay on a GPU: copied there once per process, not once per client and operation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

MEMORY_SHARE = 0.2  # of what this process may have of its GPU, for all images that stay there
BLOCK_BYTES = 64 << 20  # copied at a time, so that the host never holds a set of images twice


class DeviceImages:
    """Copies of pixels on the device, looked up by the array they were copied from; as many as fit.

    Args:
        device: on a CPU nothing is kept, because the array itself can be read there.
        room: bytes that may stay; by default ``MEMORY_SHARE`` of the memory that this process is capped at. Set to 0,
            nothing more is kept.
    """

    def __init__(self, device: torch.device, room: float | None = None) -> None:
        self.device = device
        self.room = MEMORY_SHARE * cap(device) if room is None else room
        self.kept: dict[int, tuple[np.ndarray, Tensor]] = {}  # by identity; the array, so that its id stays its own

    def get(self, pixels: np.ndarray) -> Tensor | None:
        """All of ``pixels`` on the device, in their order; None if they would not fit, or did not."""
        if (known := self.kept.get(id(pixels))) is not None:
            return known[1]
        if pixels.nbytes > self.room:
            return None
        try:
            there = self._copy(pixels)
        except torch.OutOfMemoryError:  # others have more of the GPU than their part
            self.room = 0
            return None
        self.room -= pixels.nbytes
        self.kept[id(pixels)] = (pixels, there)
        return there

    def _copy(self, pixels: np.ndarray) -> Tensor:
        there = torch.empty(pixels.shape, dtype=torch.uint8, device=self.device)
        step = max(1, BLOCK_BYTES * len(pixels) // max(1, pixels.nbytes))
        for start in range(0, len(pixels), step):
            there[start : start + step] = torch.tensor(np.asarray(pixels[start : start + step]))
        return there


def cap(device: torch.device) -> float:
    """Bytes of the device's memory that this process may use, 0 for a CPU."""
    if device.type != "cuda":
        return 0.0
    return float(torch.cuda.get_per_process_memory_fraction(device)) * device_memory(device)


def device_memory(device: torch.device) -> int:
    """Bytes of a GPU's memory, 0 for a CPU."""
    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else 0
