"""The protocols by name."""

from __future__ import annotations

from typing import Any

from rayfed_ssl.base.schema import Block
from rayfed_ssl.base.table import Table
from rayfed_ssl.evaluation.angles import ANGLES
from rayfed_ssl.evaluation.cluster import CLUSTER
from rayfed_ssl.evaluation.fewshot import FEWSHOT
from rayfed_ssl.evaluation.knn import KNN
from rayfed_ssl.evaluation.linear import LINEAR
from rayfed_ssl.evaluation.protocol import EncoderComparison, Protocol
from rayfed_ssl.evaluation.rank import RANK
from rayfed_ssl.evaluation.semi import SEMI
from rayfed_ssl.evaluation.transfer import TRANSFER


def _wrong(name: str, row: object) -> str:
    """What is wrong with a third-party protocol; empty if nothing is."""
    if not isinstance(row, Protocol | EncoderComparison):
        return "which is no rayfed_ssl.evaluation.Protocol or EncoderComparison"
    if not (isinstance(row.config, type) and issubclass(row.config, Block)):
        return "whose config is no subclass of rayfed_ssl.base.schema.Block"
    return ""


PROTOCOLS: Table[Protocol[Any] | EncoderComparison[Any]] = Table(
    "protocol",
    "rayfed_ssl.protocols",
    {
        "knn": KNN,
        "linear": LINEAR,
        "fewshot": FEWSHOT,
        "semi": SEMI,
        "transfer": TRANSFER,
        "cluster": CLUSTER,
        "rank": RANK,
        "angles": ANGLES,
    },
    _wrong,
)
