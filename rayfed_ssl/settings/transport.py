"""The block ``transport:``, which says in how many bytes weights are sent in each direction."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rayfed_ssl.base.quantizing import quantized_bytes
from rayfed_ssl.base.schema import Block
from rayfed_ssl.base.weights import float32_bytes

Direction = Literal["down", "up"]
DIRECTIONS: tuple[Direction, ...] = ("down", "up")


class Float32(Block):
    """Weights cross as they are, 4 bytes a value."""

    name: Literal["float32"] = "float32"

    def size(self, count: int) -> int:
        """Bytes of ``count`` parameters."""
        return float32_bytes(count)

    @property
    def title(self) -> str:
        """The code in words."""
        return self.name


class Float16(Block):
    """Parameters are rounded to half precision, 2 bytes a value; up to 65504."""

    name: Literal["float16"] = "float16"

    def size(self, count: int) -> int:
        """Bytes of ``count`` parameters."""
        return 2 * count

    @property
    def title(self) -> str:
        """The code in words."""
        return self.name


class Quantized(Block):
    """QSGD (Alistarh et al. 2017): parameters are rounded at random to evenly spaced levels, right on average."""

    name: Literal["quantized"] = "quantized"
    bits: Annotated[int, Field(ge=2, le=8)] = 8
    """Bits of a value, its sign included: 2^(bits-1) - 1 levels beside 0."""
    bucket: Annotated[int, Field(ge=1)] = 512
    """Consecutive values that share a scale, a float32: their largest magnitude."""

    def size(self, count: int) -> int:
        """Bytes of ``count`` parameters."""
        return quantized_bytes(count, self.bits, self.bucket)

    @property
    def title(self) -> str:
        """The code in words."""
        return f"{self.bits}-bit QSGD in buckets of {self.bucket}"


Code = Float32 | Float16 | Quantized
FULL = Float32()


class TransportConfig(Block):
    """In how many bytes weights cross; running statistics cross as float32. Other values have keys of their method."""

    up: Annotated[Code, Field(discriminator="name")] = FULL
    """What clients reply with: as the difference to weights that they were sent by the same name, if they were (FedPAQ,
    Reisizadeh et al. 2020).
    """
    down: Annotated[Code, Field(discriminator="name")] = FULL
    """What the server sends and clients begin with; the server goes on with its own values in float32, unrounded."""

    def code(self, way: Direction) -> Code:
        """The code of a direction."""
        return self.up if way == "up" else self.down
