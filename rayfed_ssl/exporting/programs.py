"""An encoder as a program that runs without rayfed-ssl: torch.export, TorchScript, ONNX.

A TorchScript or ONNX program takes uint8 images (B, S, S, C) of the run's size: scaling and normalisation are inside. A
torch.export program takes the transform's output, float32 (B, C, S, S). All return features (B, dim), for any B. Each
is compared with the encoder on images of noise before it is kept. Paths of this machine's source files are left out.

Shapes: B images, S the run's image side, C channels.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line
from rayfed_ssl.exporting.encoders import RunEncoder
from rayfed_ssl.models.base import Encoder
from rayfed_ssl.models.transform import Transform

CLOSE = 1e-4  # largest difference allowed, relative to the largest feature if that is above 1
CHECKED = (1, 2, 5)  # numbers of images with which a program is compared with the encoder
ONNX_NEEDS = ("onnx", "onnxscript", "onnxruntime")
PROTOBUF_LIMIT = 3 * 2**29  # bytes of values; above, ONNX keeps them in a file of their own (protobuf ends at 2 GiB)
IMAGES, FEATURES = "images", "features"  # an ONNX program's input and output


class FromPixels(nn.Module):
    """An encoder with its transform's scaling and normalisation in front: uint8 (B, S, S, C) -> (B, dim)."""

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: Encoder, transform: Transform) -> None:
        super().__init__()
        self.encoder = encoder
        mean, std = transform.normalisation
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        scaled = images.permute(0, 3, 1, 2).to(torch.float32) / 255
        features: Tensor = self.encoder((scaled - self.mean) / self.std)
        return features


def check_installed(form: str) -> None:
    """Raise UserError if a program of this form needs packages that are not installed."""
    missing = [name for name in ONNX_NEEDS if importlib.util.find_spec(name) is None] if form == "onnx" else []
    if missing:
        raise UserError(f"--to onnx: needs {', '.join(missing)}, not installed: pip install 'rayfed-ssl[onnx]'")


def write_export(encoder: RunEncoder, path: Path) -> float:
    """Write a torch.export program, which ``torch.export.load(path).module()`` loads. Returns the largest difference of
    its features from the encoder's.

    Raises:
        UserError: the network cannot be exported, or the program returns other features.
        OSError: the file cannot be written, as on a full disk.
    """
    images = encoder.transform.normalised(encoder.example(2)).contiguous()

    def write() -> None:
        program = torch.export.export(encoder.module, (images,), dynamic_shapes=_batches())
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)
        torch.export.save(program, held := io.BytesIO())
        path.write_bytes(held.getbuffer())  # torch's own writer ends the process on a full disk

    _written("torch", encoder, write)
    module = torch.export.load(path).module()
    return _difference("torch", encoder, lambda pixels: module(encoder.transform.normalised(pixels).contiguous()))


def write_torchscript(encoder: RunEncoder, path: Path) -> float:
    """Write a TorchScript program, which ``torch.jit.load(path)`` loads. Returns and raises as ``write_export``."""
    whole = FromPixels(encoder.module, encoder.transform).eval()

    def write() -> None:
        with torch.no_grad(), path.open("wb") as file:  # given a path, it ends the process on a full disk
            torch.jit.save(torch.jit.trace(whole, encoder.example(2)), file)  # type: ignore[no-untyped-call]
        _without(path, ".debug_pkl")

    _written("torchscript", encoder, write)
    loaded: Callable[[Tensor], Tensor] = torch.jit.load(path)  # type: ignore[no-untyped-call]
    return _difference("torchscript", encoder, loaded)


def write_onnx(encoder: RunEncoder, path: Path) -> float:
    """Write an ONNX program, which is compared in onnxruntime. Returns and raises as ``write_export`` does.

    Values of more than PROTOBUF_LIMIT bytes are written to ``<path>.data`` beside it.
    """
    check_installed("onnx")
    import onnxruntime

    whole = FromPixels(encoder.module, encoder.transform).eval()
    size = sum(value.numel() * value.element_size() for value in whole.state_dict().values())

    def write() -> None:
        program = torch.onnx.export(
            whole, (encoder.example(2),), dynamo=True, verbose=False, input_names=[IMAGES], output_names=[FEATURES],
            dynamic_shapes=_batches(),
        )  # fmt: skip
        assert program is not None
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()
        program.save(path, external_data=size > PROTOBUF_LIMIT)

    _written("onnx", encoder, write)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return _difference(
        "onnx", encoder, lambda pixels: torch.from_numpy(session.run([FEATURES], {IMAGES: pixels.numpy()})[0])
    )


def _batches() -> tuple[dict[int, Any]]:
    """``dynamic_shapes`` of a program whose only input has any number of images."""
    return ({0: torch.export.Dim("batch", min=1)},)


def _without(archive: Path, suffix: str) -> None:
    """Write a zip archive again without the files that have this suffix."""
    with zipfile.ZipFile(archive) as old:
        kept = [(entry, old.read(entry)) for entry in old.infolist() if not entry.filename.endswith(suffix)]
    with zipfile.ZipFile(archive, "w") as new:
        for entry, content in kept:
            new.writestr(entry, content)


def _written(form: str, encoder: RunEncoder, write: Callable[[], None]) -> None:
    """Call ``write``. Raises OSError as it does, and for other errors UserError: the network cannot be exported."""
    try:
        write()
    except OSError:
        raise
    except Exception as error:  # a compiler's errors are of many classes
        reason = in_one_line(error, 200)
        raise UserError(
            f"--to {form}: encoder {encoder.architecture!r} cannot be exported ({reason}); allowed: another form"
        ) from error


@torch.no_grad()
def _difference(form: str, encoder: RunEncoder, program: Callable[[Tensor], Tensor]) -> float:
    """The largest difference of a program's features from the encoder's. Raises UserError if it is not small."""
    largest = scale = 0.0
    for count in CHECKED:
        pixels = encoder.example(count)
        expected = encoder.module(encoder.transform.normalised(pixels))
        features = program(pixels)
        if features.shape != expected.shape:
            raise UserError(
                f"--to {form}: features of {count} images are {tuple(features.shape)}; expected {tuple(expected.shape)}"
            )
        largest = max(largest, float((features - expected).abs().max()))
        scale = max(scale, float(expected.abs().max()))
    if not largest <= CLOSE * max(1.0, scale):
        raise UserError(
            f"--to {form}: the program's features differ from those of encoder {encoder.architecture!r} by "
            f"{largest:.2g}; allowed: {CLOSE * max(1.0, scale):.2g}"
        )
    return largest
