"""A partition written outside the library: client sizes fall off by a power law, images are drawn at random.

    rayfed-ssl run configs/demo.yaml 'imports=[examples/power_law.py]' 'data.partition={name: power_law, exponent: 1.5}'

With exponent 1 sizes follow Zipf's law. Every image is held.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from rayfed_ssl.data.partition_base import Deal, Indices, Partition
from rayfed_ssl.data.partition_rules import largest_remainder


class PowerLaw(Partition):
    """Client j of N gets the share (j + 1)^-exponent of the images, drawn at random."""

    name: Literal["power_law"] = "power_law"
    exponent: Annotated[float, Field(ge=0)] = 1.0
    """How fast sizes fall from client to client; 0: an equal split."""

    def shards(self, deal: Deal) -> list[Indices]:
        sizes = np.arange(1, deal.clients + 1) ** -self.exponent
        counts = largest_remainder(len(deal.chosen), sizes / sizes.sum())
        return np.split(deal.draw.permutation(deal.chosen), np.cumsum(counts)[:-1])


PARTITIONS = {"power_law": PowerLaw}
