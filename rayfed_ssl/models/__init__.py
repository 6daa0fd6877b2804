"""Encoders, heads and networks; how encoders are exported, loaded and used to start a run."""

from rayfed_ssl.models.base import Encoder, PatchEncoder
from rayfed_ssl.models.encoders import (
    ENCODERS,
    EncoderName,
    Family,
    build_encoder,
    check_encoder,
    check_encoder_name,
    check_options,
    check_patches,
    encoder_dim,
)
from rayfed_ssl.models.exported import describe, load_exported, rebuild
from rayfed_ssl.models.heads import HEAD_SHAPES, HeadConfig, ModelConfig, StartConfig, mlp
from rayfed_ssl.models.network import HEADS, HeadInputs, Network, build_network
from rayfed_ssl.models.start import StartReport, pinned, start_values

__all__ = [
    "ENCODERS",
    "HEADS",
    "HEAD_SHAPES",
    "Encoder",
    "EncoderName",
    "Family",
    "HeadConfig",
    "HeadInputs",
    "ModelConfig",
    "Network",
    "PatchEncoder",
    "StartConfig",
    "StartReport",
    "build_encoder",
    "build_network",
    "check_encoder",
    "check_encoder_name",
    "check_options",
    "check_patches",
    "describe",
    "encoder_dim",
    "load_exported",
    "mlp",
    "pinned",
    "rebuild",
    "start_values",
]
