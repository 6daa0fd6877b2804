"""What is noticed of images as they are decoded: how many have each trait, and which do not fit their range."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rayfed_ssl.data.decoding.decoded import Decoded
from rayfed_ssl.data.images import Listing

NOTICED = (
    "deep",
    "frames",
    "bands",
    "transparent",
    "cropped",
    "enlarged",
    "windowed",
    "grey",
    "filled",
    "unfilled",
)  # the fields of ``Decoded`` that are counted
FIELDS = {"deep": "high_bit_depth"}  # word in store files -> field of ``Decoded``, where they differ
MISFITS = ("clipped", "narrow", "spiked")  # the fields of ``Decoded`` whose values are kept


@dataclass(frozen=True)
class Misfits:
    """Images that the range they were scaled by does not fit (``Decoded.clipped``, ``narrow`` or ``spiked``): how many
    there are, their smallest and largest value, and how many belong to each client.
    """

    images: int
    low: float
    high: float
    clients: dict[str, int]


@dataclass(frozen=True)
class Traits:
    """What is noticed of images as they are decoded. ``counts`` says how many have each trait of ``NOTICED``. ``rows``
    maps a kind of ``MISFITS`` and an image's row to its (smallest, largest) value, for ``spiked`` without the outermost
    pixels.
    """

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NOTICED, 0))
    rows: dict[str, dict[int, tuple[float, float]]] = field(default_factory=lambda: {kind: {} for kind in MISFITS})

    def add(self, row: int, image: Decoded) -> None:
        """Count the traits of one decoded image."""
        for trait in NOTICED:
            if getattr(image, FIELDS.get(trait, trait)):
                self.counts[trait] += 1
        for kind, rows in self.rows.items():
            if (values := getattr(image, kind)) is not None:
                rows[row] = values

    def misfits(self, listing: Listing | None = None) -> dict[str, Misfits]:
        """The misfits of each kind that there is; a ``listing`` with clients says whose images they are."""
        return {kind: _misfits(rows, listing) for kind, rows in self.rows.items() if rows}


def _misfits(rows: dict[int, tuple[float, float]], listing: Listing | None) -> Misfits:
    """The misfits in ``rows``, which maps an image's row to its smallest and largest value."""
    low, high = min(low for low, _ in rows.values()), max(high for _, high in rows.values())
    names = Counter[str]()
    if listing is not None and listing.clients is not None:
        names.update(listing.client_names[client] for client in listing.clients[[*rows]].tolist() if client >= 0)
    return Misfits(len(rows), low, high, dict(names))
