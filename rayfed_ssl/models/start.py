"""Loads an encoder's initial values from a file or a finished run (``model.start``).

Only the encoder is loaded; heads are initialised as usual. Either all values of the encoder are found, or nothing is
loaded. A ``.pth`` file is read with ``weights_only=True``, which builds tensors and plain values and runs no code.

Every process reads the file from its path, as it reads the images. The run's configuration contains the file's SHA-256,
and a process that finds another digest stops, so all processes have the same values.
"""

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line
from rayfed_ssl.models.base import Encoder
from rayfed_ssl.models.exported import ExportedFile, exported_files, held_by
from rayfed_ssl.models.heads import StartConfig
from rayfed_ssl.models.library import LibraryEncoder
from rayfed_ssl.models.values import floating, load_values, misfit, read_safetensors

PICKLED = (".pth", ".pt", ".tar", ".bin", ".ckpt")  # suffixes of files of torch.save
NESTED = ("state_dict", "model_state_dict", "model", "encoder", "backbone")  # keys below which checkpoints have values
WRAPPERS = r"((module|_orig_mod|model|encoder|encoder_q|backbone|net|body)\.)*"  # prefixes of names in checkpoints


@dataclass(frozen=True)
class StartReport:
    """Which values of a file an encoder loaded, and which were ``left_out``, usually those of heads."""

    encoder: str
    file: Path
    loaded: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def line(self) -> str:
        """The report in one line, which a run prints at its start."""
        line = f"model.start: {self.encoder} begins with {len(self.loaded)} tensors of {self.file}"
        if not self.left_out:
            return f"{line}; none is left out"
        more = ", .." if len(self.left_out) > 3 else ""
        return f"{line}; {len(self.left_out)} left out: {', '.join(self.left_out[:3])}{more}"


def start_values(start: StartConfig, name: str, encoder: Encoder, client: int | None = None) -> StartReport:
    """Load the values that ``start`` names into ``encoder``, in place.

    Args:
        name: the encoder's name, as in ``clients.encoders``.
        client: the client that begins with values of its own; the values of the client with this number are taken out
            of a run folder, if it has them. None: the values are for all clients.

    Raises:
        UserError: there is no such file, it has another digest than ``start.sha256``, or a name or a shape does not
            fit. The encoder is then unchanged.
    """
    digest = pinned(start).sha256
    file = _chosen(start.path, name, client)
    tensors = _tensors(file, digest)
    expected = {key.removeprefix(_inside(encoder)): value for key, value in floating(encoder).items()}
    prefix = _prefix(tensors, expected, file)
    named = {key.removeprefix(prefix): value for key, value in tensors.items()}
    parts = {key.split(".")[0] for key in expected}
    left_out = tuple(key for key in named if key not in expected and key.split(".")[0] not in parts)
    values = {key: value for key, value in named.items() if key not in left_out}
    origin, who = f"model.start: {file}", f"encoder {name!r}"
    if values and (wrong := misfit(values, expected, who)):
        raise UserError(f"{origin}: {wrong}")
    if not values:
        raise UserError(f"{origin}: found {', '.join(list(tensors)[:3]) or 'no tensors'}, nothing that {who} has")
    if broken := [key for key, value in values.items() if not value.isfinite().all()]:
        raise UserError(f"{origin}: found NaN or infinity in {broken[0]}")
    load_values(encoder, {f"{_inside(encoder)}{key}": value for key, value in values.items()}, who, origin)
    return StartReport(name, file, tuple(values), left_out)


def pinned(start: StartConfig) -> StartConfig:
    """``start`` with an absolute path and with the SHA-256 of the file, or of the run's exported encoders, at the path.

    Raises:
        UserError: there is neither, or ``start`` has another digest already.
    """
    digest = _digest(start.path) if start.sha256 is None else _digest_of(start.path, start.sha256)
    if start.sha256 not in (None, digest):
        raise UserError(
            f"model.start: found {start.path} with SHA-256 {digest[:12]}..; this run is configured for "
            f"{str(start.sha256)[:12]}..: the file has changed, or this machine has another one"
        )
    return StartConfig(path=start.path.absolute(), sha256=digest)


# -- files -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def _digest_of(path: Path, expected: str) -> str:
    """:func:`_digest`, computed once per process and digest that the configuration names."""
    return _digest(path)


def _digest(path: Path) -> str:
    """The SHA-256 of a file, or of the names and digests of a run folder's encoders. Raises UserError."""
    if not path.is_dir():
        return _hash(_checked(path))
    whole = hashlib.sha256()
    for file in _encoders(path):
        whole.update(f"{file.values.name} {_hash(file.values)}\n".encode())
    return whole.hexdigest()


def _hash(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"model.start: {file}: cannot be read ({error.strerror})") from None


def _checked(file: Path) -> Path:
    """``file``. Raises UserError if it is no file, or has a suffix that is not read."""
    if not file.is_file():
        raise UserError(f"model.start: found {str(file)!r}, which is neither a file nor a finished run's folder")
    if file.suffix not in (".safetensors", *PICKLED):
        allowed = ", ".join(f"FILE{suffix}" for suffix in (".safetensors", *PICKLED))
        raise UserError(f"model.start: found {str(file)!r}; must be one of {allowed}, a finished run's folder")
    return file


def _encoders(folder: Path) -> list[ExportedFile]:
    """The encoders in a run folder. Raises UserError if there are none."""
    if found := exported_files(folder / "encoder"):
        return found
    values = sorted(folder.glob("*.safetensors"))
    hint = f", but has a file of values: {values[0]}" if len(values) == 1 else ""
    raise UserError(f"model.start: found folder {str(folder)!r} without encoder/*.json; it is no finished run{hint}")


def _chosen(path: Path, name: str, client: int | None) -> Path:
    """The file to read. In a run folder it is, among encoders of the architecture ``name``, the client's own, else the
    global one, else the only one. Raises UserError if there is none, or if none of these applies.
    """
    if not path.is_dir():
        return _checked(path)
    files = _encoders(path)
    same = [file for file in files if file.architecture == name]
    own = None if client is None else held_by(client, same)
    if (found := own or held_by(None, same)) is not None:
        return found.values
    if len(same) == 1:
        return same[0].values
    if not same:
        there = ", ".join(sorted({file.architecture for file in files}))
        raise UserError(f"model.start: found {path}, whose encoders are {there}; this run has {name!r}")
    raise UserError(
        f"model.start: found {path}, which has {len(same)} encoders {name!r}; name one of its files, e.g. "
        f"{same[0].values} (or, from clients' own to clients' own, model.initial=own)"
    )


@lru_cache(maxsize=2)
def _tensors(file: Path, digest: str) -> dict[str, Tensor]:
    """The floating tensors of a file, as float32. ``digest`` distinguishes the versions of the file in the cache."""
    values = read_safetensors(file, "model.start: ") if file.suffix == ".safetensors" else _unpickled(file)
    return {key: value.float() for key, value in values.items() if value.is_floating_point()}


def _unpickled(file: Path) -> dict[str, Tensor]:
    """The tensors in a file of torch.save. Raises UserError if it cannot be read without running code."""
    try:
        document = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(
            f"model.start: {file}: found pickled objects other than tensors and plain values, or damage; such a file "
            "is not read, because it could run code; save the network's state_dict()"
        ) from None
    except Exception as error:  # a damaged file may raise any error
        reason = in_one_line(error, 120)
        raise UserError(f"model.start: {file}: cannot be read ({type(error).__name__}: {reason})") from None
    return {key: value for key, value in _innermost(document).items() if isinstance(value, Tensor)}


def _innermost(document: Any) -> Mapping[str, Any]:
    """The innermost mapping below the keys ``NESTED`` of a checkpoint; empty if the checkpoint is no mapping."""
    while isinstance(document, Mapping):
        inner = next((document[key] for key in NESTED if isinstance(document.get(key), Mapping)), None)
        if inner is None:
            return {str(key): value for key, value in document.items()}
        document = inner
    return {}


# -- names -------------------------------------------------------------------------------------------------------------


def _inside(encoder: Encoder) -> str:
    """The prefix of a library's own names in its encoder; empty for other encoders."""
    return "body." if isinstance(encoder, LibraryEncoder) else ""


def _prefix(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], file: Path) -> str:
    """The prefix that the file has before the encoder's names, such as ``module.backbone.``. It is the one with which
    most names are found; empty if none is found.

    Raises:
        UserError: two prefixes find equally many, so the file has two encoders.
    """
    prefixes = {key[: -len(name)] for name in expected for key in tensors if key.endswith(name)}
    counts = {
        prefix: sum(f"{prefix}{name}" in tensors for name in expected)
        for prefix in prefixes
        if re.fullmatch(WRAPPERS, prefix)
    }
    if not counts:
        return ""
    most = sorted(prefix for prefix, count in counts.items() if count == max(counts.values()))
    if len(most) > 1:
        raise UserError(f"model.start: {file}: found two encoders, {most[0]!r} and {most[1]!r} before their names")
    return most[0]
