"""Encoders, heads, and the networks made of them."""

from rayfed_ssl.models.base import Encoder
from rayfed_ssl.models.encoders import ENCODERS, build_encoder, check_encoder
from rayfed_ssl.models.heads import HEADS, HeadConfig, ModelConfig, mlp
from rayfed_ssl.models.network import Network, build_network, describe, layout_of, rebuild

__all__ = [
    "ENCODERS",
    "HEADS",
    "Encoder",
    "HeadConfig",
    "ModelConfig",
    "Network",
    "build_encoder",
    "build_network",
    "check_encoder",
    "describe",
    "layout_of",
    "mlp",
    "rebuild",
]
