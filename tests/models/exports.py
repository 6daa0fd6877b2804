"""Encoders as a run exports them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from rayfed_ssl.models import ModelConfig, Network, build_network, describe

IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
THIN = ModelConfig(width=0.25)


def write(folder: Path, name: str, values: dict[str, torch.Tensor], description: dict[str, object]) -> None:
    (folder / "encoder").mkdir(exist_ok=True, parents=True)
    save_file(values, folder / "encoder" / f"{name}.safetensors")
    document = {**description, "values": f"{name}.safetensors"}
    (folder / "encoder" / f"{name}.json").write_text(json.dumps(document))


def export(folder: Path, name: str = "global", encoder: str = "small_cnn_bn", seed: int = 0) -> Network:
    """What a run leaves below ``encoder/``, and the network it came from, in eval mode."""
    torch.manual_seed(seed)
    network = build_network(encoder, THIN, 16, heads=())
    network.train().represent(IMAGES)
    values = {key: value for key, value in network.encoder.state_dict().items() if value.is_floating_point()}
    write(folder, name, values, describe(network))
    return network.eval()
