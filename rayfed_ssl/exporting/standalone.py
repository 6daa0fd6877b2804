"""Load the encoder that lies beside this file: PyTorch is all it needs.

import encoder                                    # this file, which is called encoder.py in an exported folder
model = encoder.load()
squares = encoder.square("photo.jpg")[None]       # a file or Pillow image, or an array of bands -> uint8 (1, S, S, C)
features = model(encoder.normalised(squares))     # (1, dim)

Shapes: B images, S the encoder's image side, C its channels (3 for RGB, 1 for grey, any other number for bands).
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
UPRIGHT = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # EXIF orientation -> Pillow's Image.Transpose


def load(folder: Path | str = HERE) -> torch.nn.Module:
    """The encoder, in eval mode. It turns images (B, C, S, S) float32, as ``normalised`` returns them, into features
    (B, dim).
    """
    return torch.export.load(str(Path(folder) / "model.pt2")).module()


def described(folder: Path | str = HERE) -> dict[str, Any]:
    """What ``config.json`` says: ``image_size``, ``channels``, ``dim``, ``input`` and the encoder's architecture."""
    config: dict[str, Any] = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    return config


def square(image: Any, folder: Path | str = HERE) -> Tensor:
    """An image as a square (S, S, C) uint8, prepared as in training by what ``input`` in ``config.json`` says.

    For a grey or RGB encoder ``image`` is a file or a Pillow image. Its central square is taken, or, if ``fit`` says
    so, all of it is padded or stretched. It is turned as its EXIF orientation says, and transparent pixels are laid on
    ``background``. A JPEG of more than twice the size is read at a half, quarter or eighth of it, as the encoder's run
    read it, if it is given by its path or as an opened file whose pixels have not been read. A Pillow image that is
    read already, or was opened from memory, is resized in full, which is not quite the same. HEIC is read once
    pillow_heif's opener is registered. DICOM is not read; rayfed-ssl's own transform reads it.

    Grey images of more than 8 bits are scaled to 0..255 first: by the range that the encoder's run was given
    (``range_of_deep_images``), or else by their own smallest and largest value; an image with one value alone becomes
    what the smallest value becomes.

    For an encoder of bands ``image`` is a tensor or NumPy array (H, W, C). Values of more than 8 bits are scaled by
    ``range_of_deep_images``, which is one range or one for each band. If ``input`` has ``bands``, numbered from 1, the
    array holds all bands of an image, and these are taken. If it has ``nodata``, NaN, infinity and this number become
    0.

    Raises:
        ValueError: an image to be scaled holds NaN or infinity; a colour image has 16 bits a channel, and the run was
            not given the full range; or ``image`` is no array of the encoder's bands, holds no data, or has more than 8
            bits, and the run was given no range.
    """
    config = described(folder)
    side, channels = config["image_size"], config["channels"]
    if channels not in (1, 3) or config["input"].get("bands"):
        return _square_of_bands(image, config)
    mode = "L" if channels == 1 else "RGB"
    image, box = _reduced(image, mode, 2 * side)
    value_range = config["input"].get("range_of_deep_images")
    _refuse_high_bit_depth_colour(image, value_range)
    white_is_zero = getattr(image, "tag_v2", {}).get(262) == 0  # TIFF 6.0, section 4
    few_bits = {"L;2": 85, "L;4": 17}.get(next((str(tile[3]) for tile in getattr(image, "tile", ())), ""))
    image = _upright(image)
    if few_bits and isinstance(image.info.get("transparency"), int):  # Pillow spreads the pixels, but not this grey
        image = image.copy()
        image.info["transparency"] *= few_bits
    image = _to_eight_bits(image, value_range, white_is_zero=white_is_zero)
    image = _laid_on(image, config["input"].get("background", "black")).convert(mode)
    if image.size != (side, side):
        image = _fitted(image, side, config["input"].get("fit", "crop"), box)
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(side, side, channels)


def _square_of_bands(pixels: Any, config: dict[str, Any]) -> Tensor:
    """Bands (H, W, C), of any depth, as a square (S, S, C) uint8. Each becomes one like an image of one channel."""
    from PIL.Image import frombytes

    side, channels, value_range = config["image_size"], config["channels"], config["input"].get("range_of_deep_images")
    given = "a file or a Pillow image" if not hasattr(pixels, "shape") else f"an array {tuple(pixels.shape)}"
    chosen = config["input"].get("bands")
    most = max(chosen) if chosen else channels
    shape = tuple(getattr(pixels, "shape", ()))
    if chosen and len(shape) == 3 and (shape[0] < min(shape[1:]) or shape[1] == shape[2] != shape[0]):
        raise ValueError(f"{given}, of which the first axis is the bands; channels come last, (H, W, C)")
    pixels = pixels[..., None] if chosen and len(shape) == 2 else pixels
    if len(getattr(pixels, "shape", ())) != 3 or pixels.shape[2] < most or (not chosen and pixels.shape[2] > most):
        more = " with all bands, so many or more" if chosen else ""
        raise ValueError(f"{given}; the encoder takes an array (H, W, {most}){more}")
    values = torch.as_tensor(pixels)
    values = values[..., [band - 1 for band in chosen]] if chosen else values
    if values.dtype != torch.uint8 and value_range is None and channels > 1:
        raise ValueError(f"bands of {values.dtype}, and the encoder's run had none of more than 8 bits")
    missing = _missing(values, config["input"].get("nodata"))
    if missing.all():
        raise ValueError(f"{given}, no pixel of which holds data")
    squares = []
    for number in range(channels):
        band, absent = values[..., number].double().clone(), missing[..., number]
        if absent.any():
            band[absent] = band[~absent].min() if not absent.all() else 0.0
        if values.dtype != torch.uint8:
            ranges: Any = [float(band.min()), float(band.max())] if value_range is None else value_range
            low, high = ranges[number] if isinstance(ranges[0], list) else ranges
            band = _scaled(band, low, high, given)
        band = band.to(torch.uint8).masked_fill(absent, 0)
        image = frombytes("L", (values.shape[1], values.shape[0]), bytes(band.flatten().tolist()))
        image = image if image.size == (side, side) else _fitted(image, side, config["input"].get("fit", "crop"))
        squares.append(torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(side, side))
    return torch.stack(squares, dim=-1)


def _missing(values: Tensor, nodata: str | float | None) -> Tensor:
    """Where there is no data: NaN, infinity and a number ``nodata``; nowhere if it is None."""
    numbers = values.double()
    if nodata is None:
        return torch.zeros_like(numbers, dtype=torch.bool)
    missing = ~torch.isfinite(numbers)
    if isinstance(nodata, str):
        return missing
    held = torch.tensor(nodata, dtype=values.dtype if values.is_floating_point() else torch.float64)
    return missing | (numbers == held.double())


def _scaled(values: Tensor, low: float, high: float, called: str) -> Tensor:
    """Scales (low, high) to 0..255 as uint8; values beyond are clipped. Raises ValueError for NaN and infinity."""
    if not torch.isfinite(values).all():
        raise ValueError(f"{called} that holds NaN or infinity")
    step = 255 / (high - low) if low < high else 0.0
    return ((values.clamp(low, high) - low) * step).round().to(torch.uint8)


def _fitted(image: Any, side: int, fit: str, box: tuple[float, ...] | None = None) -> Any:
    """The image, or the part of it in ``box``, as a square: its central square ("crop"), all of it stretched
    ("stretch"), or all of it in the middle of a black square ("pad").
    """
    bilinear, (left, top, right, bottom) = 2, box or (0, 0, *image.size)
    width, height = right - left, bottom - top
    if fit == "crop":
        short = min(width, height)
        left, top = left + (width - short) / 2, top + (height - short) / 2
        return image.resize((side, side), bilinear, box=(left, top, left + short, top + short))
    if fit == "stretch":
        return image.resize((side, side), bilinear, box=box)
    across, down = (side, round(height / width * side)) if width > height else (round(width / height * side), side)
    resized = image.resize((max(across, 1), max(down, 1)), bilinear, box=box)
    square = resized.crop((0, 0, side, side))
    square.paste(0 if image.mode == "L" else (0, 0, 0), (0, 0, side, side))
    square.paste(resized, (round((side - resized.width) / 2), round((side - resized.height) / 2)))
    return square


def _reduced(image: Any, mode: str, side: int) -> tuple[Any, tuple[float, ...] | None]:
    """A file, or an opened JPEG that is not read yet, opened anew so that a JPEG is read at a smaller scale, at least
    ``side``; and where the upright image lies in its pixels, of which the last may lie in it in part. Any other image
    is returned as it is.
    """
    path = image if isinstance(image, (str, Path)) else getattr(image, "filename", "")
    unread = getattr(image, "tile", None) and getattr(image, "format", None) in ("JPEG", "MPO")
    if not path or not (path is image or unread):
        return image, None
    from PIL import Image

    opened = Image.open(path)
    drafted = opened.draft(mode, (side, side))
    if drafted is None:
        return opened, None
    (width, height), (across, down) = opened.size, drafted[1][2:]
    turn = UPRIGHT.get(_orientation(opened))
    if turn in (2, 4, 5, 6):  # a quarter turn or a transposition
        width, height, across, down = height, width, down, across
    left, top = width - across if turn in (0, 3, 4, 6) else 0, height - down if turn in (1, 2, 3, 6) else 0
    return opened, (left, top, left + across, top + down)


def _refuse_high_bit_depth_colour(image: Any, value_range: list[float] | None) -> None:
    """Raise ValueError for an unread image with colours of more than 8 bits, unless it is read right by Pillow: that
    takes the high bytes of 16 bits, which is right for the full range only, and not for a TIFF in planes.
    """
    tiles = getattr(image, "tile", ())
    _refuse_moved_samples(image, value_range)
    if _is_high_bit_depth(image) or not tiles:
        return
    arguments = [tile[3] if isinstance(tile[3], tuple) else (tile[3],) for tile in tiles]
    high = any(re.search(";16[BLN]", str(part)) for parts in arguments for part in parts)
    deep = high or max((8, *getattr(image, "tag_v2", {}).get(258, ()))) > 8  # TIFF 6.0, BitsPerSample
    if deep and not (high and value_range == [0, 65535] and "transparency" not in image.info):
        raise ValueError(
            f"16 bits per channel in mode {image.mode}: rayfed-ssl's own transform reads them; or convert to 8 bits"
        )


def _refuse_moved_samples(image: Any, value_range: list[float] | None) -> None:
    """Raise ValueError for an unread PPM or JPEG 2000 of more than 8 bits whose samples Pillow spreads over the range
    of other bits, so that ``value_range`` is not in its units; and for such colours of JPEG 2000, whatever the range.
    """
    tiles, grey = getattr(image, "tile", ()), _is_high_bit_depth(image)
    if not tiles or image.format not in ("PPM", "JPEG2000"):
        return
    bits, signed = 8.0, False
    if image.format == "PPM" and tiles[0][3] != "I;16B":  # that is grey of all 16 bits, which stays as it is
        highest = tiles[0][3][-1]  # of floats, PFM, it is -1
        bits = math.log2(highest + 1) if isinstance(highest, int) and highest > 255 else 8
    elif image.format == "JPEG2000":
        place = image.fp.tell()
        image.fp.seek(0)
        content = image.fp.read()
        image.fp.seek(place)
        depth = content[content.find(b"\xff\x4f\xff\x51") + 42]  # ITU-T T.800, A.5.1: Ssiz
        bits, signed = (depth & 0x7F) + 1, depth & 0x80 > 0
    ranged = value_range is not None and (bits != 16 or signed or not grey)
    if bits > 8 and (ranged or (image.format == "JPEG2000" and not grey)):
        raise ValueError(
            f"{image.format} of more than 8 bits in mode {image.mode}: rayfed-ssl's own transform reads it; or convert "
            "to PNG"
        )


def _is_high_bit_depth(image: Any) -> bool:
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def _upright(image: Any) -> Any:
    """The image turned as its EXIF orientation says. Pillow itself turns a TIFF when it reads the pixels."""
    image.load()
    turn = UPRIGHT.get(_orientation(image))
    return image if turn is None else image.transpose(turn)


def _orientation(image: Any) -> Any:
    """The orientation in an image's EXIF; 1, upright, if it has none."""
    try:
        return image.getexif().get(0x0112, 1)
    except Exception:  # damaged tags raise anything; the pixels are whole
        return 1


def _laid_on(image: Any, background: str) -> Any:
    """The image laid on ``background``; the image itself if every pixel is opaque."""
    if image.mode not in ("LA", "La", "PA", "RGBA", "RGBa") and "transparency" not in image.info:
        return image
    coloured = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    if coloured.getchannel("A").getextrema() == (255, 255):
        return image
    from PIL import Image

    return Image.alpha_composite(Image.new("RGBA", image.size, background), coloured)


def _to_eight_bits(image: Any, value_range: list[float] | None, *, white_is_zero: bool) -> Any:
    """A grey image of more than 8 bits, scaled to 8 bits by ``value_range`` or its own; any other image as it is."""
    if not _is_high_bit_depth(image):
        return image
    from PIL.Image import frombytes

    stored, kind = (image, torch.float32) if image.mode == "F" else (image.convert("I"), torch.int32)
    values = torch.frombuffer(bytearray(stored.tobytes()), dtype=kind).double()
    clear = image.info.get("transparency")  # of a PNG
    seen = values != clear if isinstance(clear, int) else torch.ones_like(values, dtype=torch.bool)
    counted = values[seen] if seen.any() else values
    low, high = (float(counted.min()), float(counted.max())) if value_range is None else value_range
    scaled = _scaled(values, low, high, f"an image of mode {image.mode}")
    grey = frombytes("L", image.size, bytes((255 - scaled if white_is_zero else scaled).tolist()))
    if not seen.all():
        grey.putalpha(frombytes("L", image.size, bytes((seen * 255).tolist())))
    return grey


def normalised(pixels: Tensor, folder: Path | str = HERE) -> Tensor:
    """Images (B, S, S, C) uint8 as float32 (B, C, S, S): scaled to [0, 1], minus the mean, divided by the deviation."""
    config = described(folder)
    mean, std = (torch.tensor(config["input"][key], dtype=torch.float64) for key in ("mean", "std"))
    mean, std = (value if len(value) == config["channels"] else value.mean() for value in (mean, std))
    mean, std = (value.to(torch.float32).view(1, -1, 1, 1).to(pixels.device) for value in (mean, std))
    return (pixels.permute(0, 3, 1, 2).to(torch.float32) / 255 - mean) / std
