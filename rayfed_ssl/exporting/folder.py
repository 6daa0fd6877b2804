"""An encoder as a folder that can be handed on: a program or values, a config.json, a model card.

=============  =======================================================================================================
torch          ``model.pt2`` (torch.export) and ``encoder.py``, which loads it with PyTorch alone; ``model.safetensors``
onnx           ``model.onnx``: uint8 images in, features out
torchscript    ``model.pt``: uint8 images in, features out
hub-folder     a Hugging Face model repository: ``torch``'s files, ``preprocessor_config.json``, ``.gitattributes``
=============  =======================================================================================================
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rayfed_ssl.base.files import write_json
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.images import are_bands
from rayfed_ssl.exporting import standalone
from rayfed_ssl.exporting.card import UNKNOWN, card
from rayfed_ssl.exporting.encoders import RunEncoder
from rayfed_ssl.exporting.programs import FEATURES, IMAGES, check_installed, write_export, write_onnx, write_torchscript
from rayfed_ssl.exporting.use import use_of
from rayfed_ssl.models.transform import Transform, as_input

VALUES = "model.safetensors"
LARGE = "*.safetensors filter=lfs diff=lfs merge=lfs -text\n*.pt2 filter=lfs diff=lfs merge=lfs -text\n"
LEFT_S = 24 * 3600.0  # drafts that did not change for so long are of exports that were killed: one takes minutes
RESIZED = {
    "crop": "the central square",
    "pad": "all of the image, in the middle of a black square",
    "stretch": "all of the image, stretched to a square",
}


@dataclass(frozen=True)
class ExportFormat:
    """A way to export: the program's file, the function that writes it and returns the largest difference of its
    features from the encoder's, and what else lies beside it.
    """

    program: str
    write: Callable[[RunEncoder, Path], float]
    values: bool = False  # with the encoder's values and a loader that needs PyTorch alone
    hub: bool = False  # with what the Hugging Face Hub reads


FORMS = {
    "torch": ExportFormat("model.pt2", write_export, values=True),
    "onnx": ExportFormat("model.onnx", write_onnx),
    "torchscript": ExportFormat("model.pt", write_torchscript),
    "hub-folder": ExportFormat("model.pt2", write_export, values=True, hub=True),
}


@dataclass(frozen=True)
class Exported:
    """What was written, and the largest difference of the program's features from the run's."""

    folder: Path
    files: tuple[str, ...]
    difference: float


def default_folder(encoder: RunEncoder, form: str) -> Path:
    """``RUN/exported/FORM``, or ``RUN/exported/FORM-client-00003``, with the client's name after that if it has one."""
    return encoder.run / "exported" / (form if encoder.client is None else f"{form}-{encoder.file.stem}")


def check_form(form: str) -> None:
    """Raise UserError if there is no such form, or if it needs packages that are not installed."""
    if form not in FORMS:
        raise UserError(f"--to: found {printable(form)!r}; must be one of {', '.join(FORMS)}")
    check_installed(form)


def export(encoder: RunEncoder, form: str, out: Path | None = None, licence: str = UNKNOWN) -> Exported:
    """Write the encoder as a folder, whole or not at all.

    Args:
        out: the folder; by default ``default_folder``.
        licence: the licence of the weights, for the model card: an identifier such as ``apache-2.0``.
    Raises:
        UserError: there is no such form, packages are not installed, the network cannot be exported, the folder exists,
            cannot be written or has a program's name, or records of the run are damaged.
    """
    check_form(form)
    if not licence.strip() or not licence.isprintable():
        raise UserError(f"--license: found {printable(licence)!r}; must be an identifier such as apache-2.0")
    folder, chosen = out or default_folder(encoder, form), FORMS[form]
    _check_is_no_file(folder, chosen)
    try:
        with _new_folder(folder) as place:
            difference = chosen.write(encoder, place / chosen.program)
            write_json(place / "config.json", _config(encoder, chosen), within=place)
            if chosen.values:
                shutil.copyfile(encoder.file.values, place / VALUES)
                shutil.copyfile(standalone.__file__, place / "encoder.py")
            if chosen.hub:
                if _has_words(encoder.transform):
                    write_json(place / "preprocessor_config.json", _preprocessor(encoder), within=place)
                (place / ".gitattributes").write_text(LARGE, encoding="utf-8")
            text = card(encoder, use_of(encoder, form), licence, difference)
            (place / "README.md").write_text(text, encoding="utf-8")
            files = tuple(sorted(path.name for path in place.iterdir()))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else printable(error)
        raise UserError(f"--out: {printable(folder)} cannot be written ({reason})") from error
    return Exported(folder, files, difference)


def _check_is_no_file(folder: Path, form: ExportFormat) -> None:
    """Raise UserError if the folder's name has the suffix of a file that an export holds."""
    suffixes = {Path(name).suffix for name in (VALUES, *(known.program for known in FORMS.values()))}
    if folder.suffix.lower() in suffixes:
        raise UserError(
            f"--out: found {printable(folder)}, but an export is a folder, and {form.program} lies in it; allowed: the "
            f"name of a folder, such as {printable(folder.with_suffix('').name) or 'x'}"
        )


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside ``folder`` that is renamed to it when all is written. If anything fails, it is removed, with
    the folders above it that were created for it. If several exports write the same folder, the first that is done is
    kept.
    """
    _check_is_free(folder)
    _remove_left_over(folder)
    place = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.tmp")
    created = [path for path in place.parents if not path.exists()]
    place.mkdir(parents=True)
    try:
        yield place
        _check_is_free(folder)
        os.replace(place, folder)
    except BaseException as error:
        gone = not place.exists()
        shutil.rmtree(place, ignore_errors=True)
        for path in created:
            with contextlib.suppress(OSError):  # not empty, or removed already
                path.rmdir()
        if gone and isinstance(error, Exception):
            raise UserError(
                f"--out: {printable(folder.parent)} was removed or moved meanwhile, and nothing was exported"
            ) from error
        raise


def _check_is_free(folder: Path) -> None:
    if folder.exists() or folder.is_symlink():
        raise UserError(f"--out: {printable(folder)} exists; name another folder, or remove it")


def _remove_left_over(folder: Path) -> None:
    """Remove the drafts of exports that were killed: those that have not changed for ``LEFT_S``."""
    draft = re.compile(rf"\.{re.escape(folder.name)}\.[0-9a-f]{{8}}\.tmp")
    with contextlib.suppress(OSError):  # there is no such folder, or it cannot be listed
        for path in folder.parent.iterdir():
            if draft.fullmatch(path.name) and time.time() - path.stat().st_mtime > LEFT_S:
                shutil.rmtree(path, ignore_errors=True)


def _config(encoder: RunEncoder, form: ExportFormat) -> dict[str, object]:
    """How to build the encoder, and what its input is; ``load_exported(folder, "config")`` reads it."""
    described = {key: value for key, value in encoder.file.description.items() if key not in ("values", "input")}
    as_run: dict[str, Any] = {
        **encoder.file.description["input"],
        "resize": f"{RESIZED[encoder.transform.fit]}, antialiased bilinear",
        **as_input(encoder.config.data, encoder.transform.range),
    }
    config: dict[str, object] = {**described, "input": as_run}
    if form.values:
        config["values"] = VALUES
    else:
        config["program"] = {
            "file": form.program,
            "input": {"name": IMAGES, "type": "uint8", "shape": ["batch", *_pixels(encoder)]},
            "output": {"name": FEATURES, "type": "float32", "shape": ["batch", encoder.module.dim]},
        }
    run = {"name": encoder.title, "method": encoder.config.method.name, "encoder": encoder.file.stem}
    return {**config, "run": run, "rayfed_ssl_version": metadata.version("rayfed-ssl")}


def _pixels(encoder: RunEncoder) -> tuple[int, int, int]:
    """The shape (S, S, C) of an image."""
    side = encoder.transform.image_size
    return side, side, encoder.transform.channels


def _has_words(transform: Transform) -> bool:
    """Whether transformers' image processors can describe the transform: they neither pad as it does nor know bands."""
    return transform.fit != "pad" and not are_bands(transform.channels) and transform.bands is None


def _preprocessor(encoder: RunEncoder) -> dict[str, object]:
    """The transform in the words of transformers' image processors; ``resample`` 2 is Pillow's bilinear filter."""
    side, cropped = encoder.transform.image_size, encoder.transform.fit == "crop"
    mean, std = encoder.transform.normalisation
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": encoder.transform.channels == 3,
        "do_resize": True,
        "size": {"shortest_edge": side} if cropped else {"height": side, "width": side},
        "resample": 2,
        "do_center_crop": cropped,
        "crop_size": {"height": side, "width": side},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean),
        "image_std": list(std),
    }
