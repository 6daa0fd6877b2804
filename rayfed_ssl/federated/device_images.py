"""Images that stay on a GPU: copied there once per process, not once per client and operation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

MEMORY_SHARE = 0.2  # of what a process has of its GPU, for all images that stay there


class DeviceImages:
    """Pixels on the device, by the array they are copies of, as many as fit.

    Args:
        device: a CPU keeps none: there the array itself is in reach.
        share: this process's part of the GPU.
        room: bytes that may stay; by default ``MEMORY_SHARE`` of that part.
    """

    def __init__(self, device: torch.device, share: float = 1.0, room: float | None = None) -> None:
        self.device = device
        if room is None:
            on_gpu = device.type == "cuda"
            room = (
                MEMORY_SHARE * min(share, 1.0) * torch.cuda.get_device_properties(device).total_memory if on_gpu else 0
            )
        self.room = room
        self._kept: dict[int, tuple[np.ndarray, Tensor]] = {}  # by identity; the array, so that its id stays its own

    def get(self, pixels: np.ndarray) -> Tensor | None:
        """The whole of ``pixels`` on the device, in its order; None where it would not fit."""
        if (known := self._kept.get(id(pixels))) is not None:
            return known[1]
        if pixels.nbytes > self.room:
            return None
        self.room -= pixels.nbytes
        there = torch.tensor(np.asarray(pixels)).to(self.device)
        self._kept[id(pixels)] = (pixels, there)
        return there
