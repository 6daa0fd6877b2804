"""An exported encoder: what says how to build it, and how to load it.

Three lines do it, without the run's data::

from rayfed_ssl.models import load_exported
encoder = load_exported("runs/demo")     # or load_exported("runs/demo", "client-00003")
features = encoder(images)               # (B, C, S, S), normalised as encoder/global.json says -> (B, dim)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.models.base import Encoder
from rayfed_ssl.models.encoders import OPTIONS, build_encoder
from rayfed_ssl.models.heads import ModelConfig
from rayfed_ssl.models.library import LibraryEncoder
from rayfed_ssl.models.network import Network
from rayfed_ssl.models.values import load_values, read_safetensors


def describe(network: Network) -> dict[str, Any]:
    """What ``rebuild`` needs to make this network's encoder again, ready for JSON.

    Of a library's encoder it also says the library's version, the arguments it was asked for with, and the stem.
    """
    encoder = network.encoder
    description = {
        "encoder": network.encoder_name,
        "image_size": network.image_size,
        "channels": network.channels,
        "dim": network.dim,
        "model": network.config.model_dump(include={"width", *OPTIONS}),
    }
    return {**description, **encoder.made} if isinstance(encoder, LibraryEncoder) else description


def rebuild(description: Mapping[str, Any]) -> Encoder:
    """The encoder of a description, with fresh weights and in eval mode.

    Keys other than ``describe``'s are left to whoever wrote them; without ``channels`` there are 3.

    Raises:
        UserError: a key is missing or has no such value, or the encoder is not known here.
    """
    for key in ("encoder", "image_size", "model"):
        if key not in description:
            raise UserError(f"encoder description: key {key!r} is missing; found: {', '.join(sorted(description))}")
    try:
        config = ModelConfig.model_validate(description["model"])
        name, sizes = str(description["encoder"]), (int(description["image_size"]), int(description.get("channels", 3)))
    except (ValidationError, ValueError, TypeError) as error:
        raise UserError(f"encoder description: {' '.join(str(error).split())}") from None
    return build_encoder(name, config, *sizes).eval()


def load_exported(folder: Path | str, name: str = "global") -> Encoder:
    """The exported encoder ``name`` of a run folder, or of its ``encoder/`` folder, on the CPU and in eval mode.

    Args:
        name: ``global``, or a client's: ``client-00003``, whatever name follows that in its file's.

    Raises:
        UserError: there is no such encoder, it is damaged, or its values are not, by names and shapes, exactly those of
            the encoder that its json describes. ``num_batches_tracked`` and other integers are not exported.
    """
    found = {path.stem: path for path in descriptions(Path(folder))}
    stem = stem_of(name, found)
    if stem is None:
        raise UserError(f"{folder}: found no exported encoder {name!r}; there are {', '.join(found) or 'none'}")
    path, description = read_description(found[stem])
    encoder = rebuild(description)
    load_values(encoder, read_safetensors(path), f"encoder {description['encoder']!r}", str(path))
    return encoder


def stem_of(name: str, stems: Iterable[str]) -> str | None:
    """The one of ``stems`` that ``name`` means: itself, or its client's (``client-00003-ward-7``); None: none does."""
    known = list(stems)
    return name if name in known else next((stem for stem in known if stem.startswith(f"{name}-")), None)


def client_of(stem: str) -> int | None:
    """The client whose encoder a file of this name holds; None of the global one."""
    match = re.match(r"client-(\d+)", stem)
    return int(match[1]) if match else None


def read_description(path: Path) -> tuple[Path, dict[str, Any]]:
    """(file of values, description) of the encoder that a json describes. Raises UserError where it is damaged."""
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        str(description["encoder"])
        values = path.with_name(Path(description["values"]).name)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: found no description of an encoder ({error!r}); it is damaged") from None
    return values, description


def descriptions(folder: Path) -> list[Path]:
    """The json files of the encoders that a run folder, or an ``encoder/`` folder, holds."""
    inside = folder / "encoder"
    return sorted((inside if inside.is_dir() else folder).glob("*.json"))
