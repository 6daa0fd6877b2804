"""An encoder's transform: turns PIL images, arrays and files into the float tensor that the encoder takes.

Images, also DICOM files, are decoded as for training: a square is cut out as ``data.fit`` says, resized with an
antialiased bilinear filter, and converted to grey, RGB or bands. Then pixels are scaled to [0, 1] and normalised with
the run's mean and deviation. A file gives the same bits as in the run's own evaluation.

Shapes: B images, H and W an image's sides, C channels (3; 1 for grey; else bands), S the run's image side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.augment import clean
from rayfed_ssl.data.decoding.bands import FILE, Bands, Nodata, bands_axis, fits
from rayfed_ssl.data.decoding.bit_depth import (
    HIGH_BIT_DEPTH_TYPES,
    PERCENTILES,
    Range,
    Ranges,
    as_decoded,
    as_lists,
    is_one,
)
from rayfed_ssl.data.decoding.decode import decode, decode_opened
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.decoding.squares import Background, Fit
from rayfed_ssl.data.images import BadImage, are_bands
from rayfed_ssl.data.recipes import Recipe, per_channel
from rayfed_ssl.data.sources import SourceConfig

OneImage = Image.Image | NDArray[np.generic] | bytes | Path | str
"""A Pillow image, an array as ``ALLOWED`` or ``ALLOWED_BANDS`` describes it, or an encoded file's bytes or path."""

ALLOWED = (
    "a Pillow image, a file's bytes or path, or an array: uint8 or bool (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), or "
    f"{', '.join(HIGH_BIT_DEPTH_TYPES)} (H, W) or (H, W, 1), and (H, W, 3) where the encoder's run has data.range"
)
ALLOWED_BANDS = "an array (H, W, {channels}), as the encoder has {channels} bands, or such a file's bytes or path"
ALLOWED_CHOSEN = "an array (H, W, C) of all bands of an image, {most} or more, or such a file's bytes or path"
# keys of the JSON file beside an encoder: the range of images of more than 8 bits, and whether the run had such images
RANGE, HIGH_BIT_DEPTH = "range_of_deep_images", "deep_images"
WORDS = {"fit": get_args(Fit), "background": get_args(Background)}  # keys of the same file, with their allowed values
EIGHT_BITS = ("uint8", "bool")


def _check_array(pixels: NDArray[Any], ranged: bool, position: int) -> None:
    """Raise UserError for an array that is no image, with a hint on what may be meant. ``ranged`` says whether there is
    a range, which colours of more than 8 bits need.
    """
    shape, dtype = pixels.shape, pixels.dtype.name
    channels = shape[2] if pixels.ndim == 3 else 1
    sides = pixels.ndim in (2, 3) and channels in (1, 3, 4)
    scaled = dtype in HIGH_BIT_DEPTH_TYPES and (channels == 1 or (channels == 3 and ranged))
    depth = dtype in EIGHT_BITS or scaled
    if sides and depth and min(shape):
        return
    hint = ""
    if pixels.ndim == 3 and not sides and shape[0] in (1, 3):
        hint = "; channels come last: image.transpose(1, 2, 0)"
    elif pixels.ndim == 3 and not sides:
        hint = "; several grey images: a list of them, or (B, H, W, 1)"
    elif sides and not depth and pixels.dtype.kind == "f":
        hint = "; of values in [0, 1]: (255 * image).round().astype('uint8')"
    elif sides and not depth:
        hint = "; of values in 0 .. 255: image.astype('uint8')"
    raise UserError(f"image {position}: found an array of {dtype} {shape}; must be {ALLOWED}{hint}")


def _check_bands(pixels: NDArray[Any], channels: int, bands: Bands | None, position: int) -> None:
    """Raise UserError for an array that is no image of ``channels`` bands, or does not have the chosen ``bands``."""
    shape, dtype = pixels.shape, pixels.dtype
    depth = dtype.name in ("uint8", *HIGH_BIT_DEPTH_TYPES)
    count = shape[2] if pixels.ndim == 3 else int(pixels.ndim == 2 and bands is not None)  # (H, W) has one band
    first = pixels.ndim == 3 and bands is not None and bands_axis(shape) == 0
    if count and fits(count, channels, bands) and depth and min(shape) and not first:
        return
    turned = depth and pixels.ndim == 3 and (first or bands is None) and fits(shape[0], channels, bands)
    hint = "; channels come last: image.transpose(1, 2, 0)" if turned else ""
    allowed = ALLOWED_BANDS.format(channels=channels) if bands is None else ALLOWED_CHOSEN.format(most=max(bands))
    raise UserError(f"image {position}: found an array of {dtype.name} {shape}; must be {allowed}{hint}")


def as_input(config: SourceConfig, range: Range | Ranges | None) -> dict[str, Any]:
    """The part of ``input``, in the JSON file beside an encoder, that says how the run's images became squares of 8
    bits. ``range`` is the one by which images of more bits were scaled; for percentiles, the values that they had.
    """
    given = None if range is None else as_lists(range)
    keys: dict[str, Any] = {"fit": config.fit, "background": config.background, RANGE: given}
    if config.bands is not None:
        keys["bands"] = list(config.bands)
    return keys if config.nodata is None else {**keys, "nodata": config.nodata}


def _recorded(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a :class:`Transform` among the ``keys`` of ``input``, in the JSON file beside an encoder. Raises
    UserError for a value that is not allowed.
    """
    options: dict[str, Any] = {name: keys[name] for name in WORDS if name in keys}
    for name, value in options.items():
        if value not in WORDS[name]:
            raise UserError(f"encoder description: found input.{name} {value!r}; allowed: {', '.join(WORDS[name])}")
    if RANGE in keys:
        options["range"] = range = _as_range(keys[RANGE])
        if range is not None and not _is_range(range):
            raise UserError(
                f"encoder description: found input.{RANGE} {keys[RANGE]!r}; allowed: null, or [low, high], of bands a "
                "list"
            )
    if "bands" in keys:
        bands = keys["bands"]
        if not isinstance(bands, list) or not bands or not all(type(band) is int and band > 0 for band in bands):
            raise UserError(f"encoder description: found input.bands {bands!r}; allowed: a list of bands from 1")
        options["bands"] = tuple(bands)
    if "nodata" in keys:
        options["nodata"] = nodata = keys["nodata"]
        if nodata != FILE and type(nodata) not in (int, float):
            raise UserError(f"encoder description: found input.nodata {nodata!r}; allowed: {FILE}, or a number")
    return options


def _refuse_other(recorded: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise UserError if one of the ``options`` that were given differs from the run's ``recorded`` one."""
    for name, value in recorded.items():
        if name in options and options[name] != value:
            raise UserError(
                f"encoder: found {name} {in_yaml(options[name])}; its run read its images with {in_yaml(value)}, which "
                f"gives them the run's features; allowed: {in_yaml(value)}"
            )


def _as_range(given: object) -> object:
    """``given`` with tuples in place of lists, also of nested ones."""
    return tuple(_as_range(part) for part in given) if isinstance(given, list) else given


def _is_range(value: object) -> bool:
    """Whether ``value`` is a pair of numbers (low, high), or a tuple of such pairs."""
    if not isinstance(value, tuple) or not value:
        return False
    if not is_one(value):
        return all(isinstance(part, tuple) and is_one(part) and _is_range(part) for part in value)
    return len(value) == 2 and all(type(part) in (int, float) for part in value) and bool(value[0] < value[1])


def in_yaml(value: object) -> str:
    """A value of ``fit``, ``range`` or another option as in a configuration file."""
    return "null" if value is None else str(as_lists(value) if isinstance(value, tuple) else value)


@dataclass(frozen=True)
class Transform:
    """Images -> float32 tensors of the run's size, channels and normalisation.

    ``range`` is the (lowest, highest) value of images of more than 8 bits, or one pair for each band; None: each
    image's own range. ``fit`` says how images become squares, ``background`` what is behind transparent pixels,
    ``bands`` which bands of an image are read, and ``nodata`` which of their values are missing.

    If ``mean`` and ``std`` have another number of values than there are channels, as for grey images, each channel uses
    the mean of the values, as in training.
    """

    image_size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    range: Range | Ranges | None = None
    max_pixels: int = 50_000_000
    fit: Fit = "crop"
    background: Background = "black"
    bands: Bands | None = None
    nodata: Nodata | None = None

    @classmethod
    def described(cls, description: Mapping[str, Any], **options: Any) -> Self:
        """The transform that ``description``, the JSON file beside an exported encoder, describes.

        Args:
            options: ``range``, ``max_pixels``, ``fit``, ``background``, ``bands`` and ``nodata``; by default those of
                the description.
        Raises:
            UserError: the description has no input or a value that is not allowed, or one of the ``options`` differs
                from it.
        """
        try:
            size, channels = int(description["image_size"]), int(description.get("channels", 3))
            mean, std = (tuple(map(float, description["input"][key])) for key in ("mean", "std"))
            if not {len(mean), len(std)} <= {3, channels}:
                raise ValueError(f"{len(mean)} and {len(std)} numbers")
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                "encoder description: found no image_size with input.mean and input.std of 3 numbers, or of one for "
                f"each channel ({error!r})"
            ) from None
        recorded = _recorded(description["input"])
        _refuse_other(recorded, options)
        return cls(size, channels, mean, std, **{**recorded, **options})

    @classmethod
    def of_run(cls, description: Mapping[str, Any], config: SourceConfig) -> Self:
        """The transform of an encoder whose run read its images with ``config``. If the run's range are percentiles,
        only ``description`` has their values. Raises UserError like :meth:`described`, and if these are missing.
        """
        options = config.model_dump(include={"range", "max_pixels", "fit", "background", "bands", "nodata"})
        if config.range == PERCENTILES:
            del options["range"]
        transform = cls.described(description, **options)
        if config.range == PERCENTILES and transform.range is None:
            raise UserError(f"encoder description: found no input.{RANGE}; must be what data.range={PERCENTILES} is")
        return transform

    @property
    def form(self) -> ImageForm:
        """The form to which images are decoded before they are scaled and normalised."""
        channels, background = self.channels, self.background
        rasters = self.bands, self.nodata
        return ImageForm(self.image_size, self.max_pixels, channels, self.range, self.fit, background, *rasters)

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(means, deviations) of the channels, for pixels in [0, 1]."""
        return per_channel(self.mean, self.channels), per_channel(self.std, self.channels)

    def __call__(self, images: OneImage | Sequence[OneImage]) -> Tensor:
        """One image -> (C, S, S) float32; a list of images, or an array (B, H, W, C) -> (B, C, S, S) float32.

        Raises:
            UserError: an image cannot be decoded; the line has its position.
        """
        if isinstance(images, np.ndarray) and images.ndim == 4:
            return self.normalised(self.pixels(list(images)))
        if isinstance(images, Image.Image | np.ndarray | bytes | str | Path):
            return self.normalised(self.pixels([images]))[0]
        if not isinstance(images, Sequence) or isinstance(images, bytes | str):  # the latter for mypy alone
            raise UserError(f"images: found {type(images).__name__}; must be one image or a list of them: {ALLOWED}")
        return self.normalised(self.pixels(images))

    def pixels(self, images: Sequence[OneImage]) -> NDArray[np.uint8]:
        """The images as squares, (B, S, S, C) uint8. Raises UserError."""
        squares = [self._square(image, position) for position, image in enumerate(images)]
        shape = (len(squares), self.image_size, self.image_size, self.channels)
        return np.stack(squares) if squares else np.empty(shape, np.uint8)

    def normalised(self, pixels: NDArray[np.uint8] | Tensor) -> Tensor:
        """(B, S, S, C) uint8 -> (B, C, S, S) float32, in the memory format of the run's evaluation."""
        tensor = torch.from_numpy(np.array(pixels)) if isinstance(pixels, np.ndarray) else pixels
        normalised = clean(tensor.permute(0, 3, 1, 2), Recipe(mean=self.mean, std=self.std))
        return normalised.contiguous(memory_format=torch.channels_last)

    def _square(self, image: OneImage, position: int) -> NDArray[np.uint8]:
        """One image as a square, (S, S, C) uint8. Raises UserError, with its position."""
        by_band = self.bands is not None or are_bands(self.channels)
        if isinstance(image, np.ndarray) and by_band:
            _check_bands(image, self.channels, self.bands, position)
        elif isinstance(image, np.ndarray):
            _check_array(image, self.range is not None, position)
        elif not isinstance(image, Image.Image | bytes | str | Path):
            raise UserError(f"image {position}: found {type(image).__name__}; must be {ALLOWED}")
        try:
            if isinstance(image, Image.Image):
                return decode_opened(image, self.form).pixels
            if isinstance(image, np.ndarray):
                return decode(as_decoded(image, by_band), self.form).pixels
            return decode(Path(image) if isinstance(image, str) else image, self.form).pixels
        except BadImage as error:
            file = f" ({printable(image)})" if isinstance(image, str | Path) else ""
            raise UserError(f"image {position}{file}: cannot be decoded ({error})") from None
