"""Reads an encoder's values from a file and copies all or none of them into the encoder.

Names and shapes are compared before anything is copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from rayfed_ssl.base.schema import UserError


def read_safetensors(path: Path, key: str = "") -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises UserError, whose text begins with ``key``, if it cannot be read."""
    try:
        with path.open("rb"):  # for any file that it cannot open, safetensors says that there is none
            pass
        return load_file(path)
    except OSError as error:
        raise UserError(f"{key}{path}: cannot be read ({error.strerror or error})") from None
    except SafetensorError as error:
        raise UserError(f"{key}{path}: cannot be read ({error}); it is damaged") from None


def floating(module: nn.Module) -> dict[str, Tensor]:
    """Name -> value of a module's floating parameters and buffers. Integer buffers are left out: they are counters, or
    set by the constructor.
    """
    return {name: value for name, value in module.state_dict().items() if value.is_floating_point()}


def misfit(values: Mapping[str, Tensor], expected: Mapping[str, Tensor], who: str) -> str | None:
    """The first difference between the names and shapes of ``values`` and ``expected``, those of ``who``, in words;
    None if there is none.
    """
    if not values and expected:
        return f"found no values; {who} has {len(expected)}"
    if missing := [name for name in expected if name not in values]:
        return f"found no {_first(missing)}, which {who} has"
    if extra := [name for name in values if name not in expected]:
        return f"found {_first(extra)}, which {who} does not have"
    for name, value in values.items():
        if value.shape != expected[name].shape:
            return f"found {name} {tuple(value.shape)}; {who} expects {tuple(expected[name].shape)}"
    return None


def _first(names: list[str]) -> str:
    """The first name, and how many more there are."""
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"


@torch.no_grad()
def load_values(encoder: nn.Module, values: Mapping[str, Tensor], who: str, origin: str) -> None:
    """Copy ``values`` into the encoder. ``num_batches_tracked`` and other integers are not changed.

    Raises:
        UserError: names or shapes are not those of the encoder, which the line calls ``who``. The line begins with
            ``origin``, and nothing was copied.
    """
    expected = floating(encoder)
    given = {name: value for name, value in values.items() if value.is_floating_point()}
    if wrong := misfit(given, expected, who):
        raise UserError(f"{origin}: {wrong}")
    for name, value in given.items():
        expected[name].copy_(value)
