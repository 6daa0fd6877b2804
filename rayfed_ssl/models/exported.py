"""Exported encoders: their descriptions, the names of their files, and how to find and load them.

Loading one needs three lines, and not the run's data::

    from rayfed_ssl.models import load_exported
    encoder = load_exported("runs/demo")     # or load_exported("runs/demo", "client-00003")
    features = encoder(images)               # (B, C, S, S), normalised as encoder/global.json says -> (B, dim)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_file_name, in_one_line, nearest, printable
from rayfed_ssl.models.base import Encoder
from rayfed_ssl.models.encoders import OPTIONS, build_encoder
from rayfed_ssl.models.heads import ModelConfig
from rayfed_ssl.models.library import LibraryEncoder
from rayfed_ssl.models.network import Network
from rayfed_ssl.models.values import load_values, read_safetensors

GLOBAL = "global"  # the name, without suffix, of the global encoder's files
_ONE = "nothing: the run has one encoder, the global one"


class NoEncoder(UserError):
    """A run folder contains no encoder."""


def describe(network: Network) -> dict[str, Any]:
    """What ``rebuild`` needs to build this network's encoder again, as plain values for JSON.

    For a library's encoder it also has the library's version, the arguments that built the network, and its stem.
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
    """The encoder that a description names, with new initial values and in eval mode.

    Keys that ``describe`` does not write are ignored. Without the key ``channels`` there are 3 channels.

    Raises:
        UserError: a key is missing or has a value that is not allowed, or the encoder is unknown.
    """
    for key in ("encoder", "image_size", "model"):
        if key not in description:
            raise UserError(f"encoder description: key {key!r} is missing; found: {', '.join(sorted(description))}")
    try:
        config = ModelConfig.model_validate(description["model"])
        name, sizes = str(description["encoder"]), (int(description["image_size"]), int(description.get("channels", 3)))
    except (ValidationError, ValueError, TypeError) as error:
        raise UserError(f"encoder description: {in_one_line(error)}") from None
    return build_encoder(name, config, *sizes).eval()


@dataclass(frozen=True)
class ExportedFile:
    """An exported encoder on the disk. ``path`` is its JSON file, which is read when it is first needed.

    ``description`` and ``values`` raise UserError if the JSON file is damaged.
    """

    path: Path

    @property
    def stem(self) -> str:
        """The name of its files without suffix: ``global``, ``client-00003``, ``client-00003-ward-7``."""
        return self.path.stem

    @property
    def client(self) -> int | None:
        """The client whose encoder it is; None: it is the global one."""
        return _client_of(self.stem)

    def before_training(self, own: bool) -> str:
        """How an evaluation names this encoder's state before training: by its architecture, because all clients with
        the same architecture began alike; if clients began with ``own`` values (``model.initial``), by its own name.
        """
        return self.stem if own and self.client is not None else self.architecture

    @property
    def description(self) -> dict[str, Any]:
        """The content of the JSON file."""
        return self._read[0]

    @property
    def values(self) -> Path:
        """The file of its values, beside the JSON file."""
        return self._read[1]

    @property
    def architecture(self) -> str:
        """The encoder's name, as in ``clients.encoders``."""
        return str(self.description["encoder"])

    def load(self) -> Encoder:
        """The encoder on the CPU, in eval mode. Raises UserError if its files are damaged, or do not fit each other."""
        encoder = rebuild(self.description)
        values, who = read_safetensors(self.values), f"encoder {self.description['encoder']!r}"
        load_values(encoder, values, who, str(self.values))
        return encoder

    @cached_property
    def _read(self) -> tuple[dict[str, Any], Path]:
        """(description, file of values). Raises UserError."""
        try:
            description = json.loads(self.path.read_text(encoding="utf-8"))
            str(description["encoder"])
            values = self.path.with_name(Path(description["values"]).name)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{self.path}: found no description of an encoder ({error!r}); it is damaged") from None
        return description, values


def file_name(client: int | None, names: Sequence[str] | None) -> str:
    """The name, without suffix, of the files of a client's encoder, or of the global one.

    Args:
        client: the client's number; None: the global encoder.
        names: the clients' names, if they have any.
    """
    if client is None:
        return GLOBAL
    called = "" if names is None else in_file_name(names[client])
    return f"client-{client:05d}" + (f"-{called}" if called else "")


def exported_files(folder: Path) -> list[ExportedFile]:
    """The encoders in a run folder or an ``encoder/`` folder, sorted by name."""
    inside = folder / "encoder"
    return [ExportedFile(path) for path in sorted((inside if inside.is_dir() else folder).glob("*.json"))]


def exported_by(run: Path) -> list[ExportedFile]:
    """The encoders that the run in a folder exported at its end. Raises NoEncoder if there are none."""
    if found := exported_files(run / "encoder"):
        return found
    raise NoEncoder(f"{run}: found no encoder in {run / 'encoder'}; the run has not finished, or it diverged")


def held_by(client: int | None, files: Iterable[ExportedFile]) -> ExportedFile | None:
    """The one of ``files`` that has a client's encoder, or, without ``client``, the global one; None if none has it."""
    return next((file for file in files if (file.stem == GLOBAL if client is None else file.client == client)), None)


def find(run: Path, client: int | str | None = None) -> ExportedFile:
    """The global encoder of the run in a folder, or the encoder of ``client``.

    Args:
        client: the client's number or name. Digits are a number, even if they are the name of a client. None: the
            global encoder; if the run has none, the encoder of its only client.
    Raises:
        UserError: the run has no encoders, no such client, or several encoders and ``client`` is not given.
    """
    files = exported_by(run)
    own = {file.client: file for file in files if file.client is not None}
    if isinstance(client, str):
        client = int(client) if client.isdecimal() else _number_of(client, own, run)
    found = held_by(client, files)
    if found is None and client is None and len(own) == 1:
        (found,) = own.values()
    if found is not None:
        return found
    shown = _some(map(str, sorted(own)))
    if client is None:
        raise UserError(f"--client: not given, and {run} has an encoder per client and no global one; allowed: {shown}")
    raise UserError(f"--client: found {client}, of which {run} has no encoder; allowed: {shown or _ONE}")


def _number_of(name: str, own: Mapping[int, ExportedFile], run: Path) -> int:
    """The number of the client that is called ``name``, among the clients in ``own``. Raises UserError if there is
    none.
    """
    names = {str(file.description["client_name"]): n for n, file in own.items() if "client_name" in file.description}
    if name in names:
        return names[name]
    allowed = _some(map(printable, names)) or _some(map(str, sorted(own)))
    unnamed = " (its clients have no names)" if own and not names else ""
    raise UserError(
        f"--client: found {printable(name)!r}, of which {run} has no encoder{unnamed}; allowed: {allowed or _ONE}"
        f"{nearest(name, names)}"
    )


def _some(words: Iterable[str]) -> str:
    """The first 20 words, with ".." if there are more."""
    known = list(words)
    return ", ".join(known[:20]) + (", .." if len(known) > 20 else "")


def load_exported(folder: Path | str, name: str = GLOBAL) -> Encoder:
    """The exported encoder ``name`` of a run folder, or of its ``encoder/`` folder, on the CPU and in eval mode.

    Args:
        name: ``global``, or that of a client's encoder, such as ``client-00003``; the client's own name, which follows
            it in the names of files, may be left out.

    Raises:
        UserError: there is no such encoder, its files are damaged, or the names and shapes of its values are not
            exactly those of the encoder that its JSON file describes. ``num_batches_tracked`` and other integers are
            not exported.
    """
    files = exported_files(Path(folder))
    found = next((file for file in files if file.stem == name), None)
    client = _client_of(name)
    if found is None and client is not None and name == file_name(client, None):
        found = held_by(client, files)
    if found is None:
        there = ", ".join(file.stem for file in files) or "none"
        raise UserError(f"{folder}: found no exported encoder {name!r}; there are {there}")
    return found.load()


def _client_of(stem: str) -> int | None:
    """The client whose encoder is in the files of this name; None if it is the global one."""
    match = re.fullmatch(r"client-(\d+)(-.*)?", stem)
    return int(match[1]) if match else None
