"""Decodes an image into a uint8 square of the run's size and channels.

Images of at most 8 bits keep their values. Grey images of more (12-bit and 16-bit PNG and TIFF, float TIFF) are scaled
to 0..255 by ``data.range`` or, without one, by their own smallest and largest value; of DICOM the values are those of
its modality LUT, and its own window comes before its own range (see ``dicom``). Images that carry an orientation (EXIF)
are turned upright. Of several frames (TIFF, GIF) the first is read; of TIFFs with more bands, those of the
colours and of transparency.
Transparent pixels are laid on black, or on what ``data.background`` says, whatever colour lies hidden in them.
Where ``data.channels`` is neither 1 nor 3, images have so many bands; ``data.bands`` chooses some (see ``bands``).

Shape legend: S image size, C channels.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from rayfed_ssl.base.text import printable
from rayfed_ssl.data.decoding import dicom
from rayfed_ssl.data.decoding.bands import (
    Bands,
    Nodata,
    Raster,
    array_of,
    bands_of_array,
    bands_of_tiff,
    bands_to_eight_bits,
    chosen,
    holds_nodata,
    refuse_without_bands,
    with_missing,
)
from rayfed_ssl.data.decoding.bit_depth import (
    EightBitImage,
    Range,
    Ranges,
    bits_per_channel,
    colours_to_eight_bits,
    deep_colours_unranged,
    grey_values,
    has_high_bit_depth_colours,
    is_high_bit_depth,
    is_one,
    refuse_signed_bytes,
    to_bytes,
    to_eight_bits,
)
from rayfed_ssl.data.decoding.deep_colours import DeepColours, deep_colours, is_deep, read_deep, unopened_colours
from rayfed_ssl.data.decoding.dicom_heads import HEAD, is_dicom
from rayfed_ssl.data.decoding.formats import (
    DICOM,
    FORMATS,
    UNKNOWN,
    has_frames,
    has_more_bands,
    heic_format,
    is_tiff,
    jpeg2000_depth,
    may_be_dicom,
    tiff_found,
    undecodable,
)
from rayfed_ssl.data.decoding.squares import (
    Background,
    Fit,
    band_square,
    is_cropped,
    is_enlarged,
    is_grey,
    laid_on,
    square,
)
from rayfed_ssl.data.decoding.upright import upright
from rayfed_ssl.data.images import BadImage, Payload, are_bands

MOST_PIXELS = 178_956_970  # twice as many, and Pillow refuses an image
logging.getLogger("PIL").addHandler(logging.NullHandler())  # else some bad images are a line on stderr, unnamed
_NO_MARK = "it is named as DICOM and has no letters DICM at byte 128, as such files have (PS3.10); dcmconv writes them"


@dataclass(frozen=True)
class ImageForm:
    """What every image is brought to: (size, size, channels), from images of at most ``max_pixels`` pixels.

    ``range`` is the (lowest, highest) value of images of more than 8 bits, of bands perhaps one of each; None: each
    image's own. ``fit`` says how images that are no squares become some, ``background`` what transparent pixels are
    laid on. ``bands`` are those of each image that are read, as many as ``channels``; None: all are.
    ``nodata`` says which of their values are missing.
    """

    size: int
    max_pixels: int = 50_000_000
    channels: int = 3
    range: Range | Ranges | None = None
    fit: Fit = "crop"
    background: Background = "black"
    bands: Bands | None = None
    nodata: Nodata | None = None

    @property
    def are_bands(self) -> bool:
        """Whether the channels are bands, not grey or colours."""
        return are_bands(self.channels)

    @property
    def as_rasters(self) -> bool:
        """Whether images are read band by band."""
        return self.bands is not None or self.are_bands

    @property
    def one_range(self) -> Range | None:
        """``range`` of images that have no bands. Raises BadImage for one of each band."""
        if self.range is None or is_one(self.range):
            return self.range
        raise BadImage(f"{self.channels} channels, which have one range; found one of each of {len(self.range)} bands")

    def refuse_large(self, width: int, height: int) -> None:
        """Raise BadImage for an image of more than ``max_pixels``."""
        if width * height > self.max_pixels:
            raise BadImage.unless_set(
                "max_pixels",
                f"{width}x{height} pixels, more than max_pixels={self.max_pixels}, which may be up to {MOST_PIXELS}",
            )

    @property
    def mode(self) -> str:
        """Pillow's name of these channels."""
        return "L" if self.channels == 1 else "RGB"


@dataclass(frozen=True)
class Decoded:
    """``pixels`` (S, S, C) uint8; ``high_bit_depth`` if the image had more than 8 bits and was scaled; ``windowed`` if
    it was, at any depth, by a window or a VOI LUT of its own (DICOM); ``frames`` if the file has
    more than one, of which the first was read; ``transparent`` if any pixel was, and was laid on ``background``;
    ``cropped`` if only the central square is taken, and is less than half of the image; ``enlarged`` if it was made
    larger by ``ENLARGED`` or more, to ``LEAST_ENLARGED`` or more pixels a side; ``clipped``, ``narrow`` and ``spiked``
    as of ``EightBitImage``;
    ``bands`` if the file has more than those of the colours and of transparency, which alone were read;
    ``grey`` if all pixels are, though there are three channels; ``filled`` if some were missing, ``unfilled`` if some
    have the value that their file (TIFF) has for those and were read like any other."""

    pixels: NDArray[np.uint8]
    high_bit_depth: bool
    frames: bool = False
    transparent: bool = False
    cropped: bool = False
    enlarged: bool = False
    clipped: Range | None = None
    narrow: Range | None = None
    spiked: Range | None = None
    bands: bool = False
    windowed: bool = False
    grey: bool = False
    filled: bool = False
    unfilled: bool = False


def decode(payload: Payload, form: ImageForm) -> Decoded:
    """Decode an image to a square, resized with PIL's antialiased bilinear filter.

    With ``fit: crop`` that is "short side to ``size``, then centre crop" in one step. Large JPEGs are decoded at a
    half, quarter or eighth where that still leaves at least twice ``size``. An EXIF orientation is applied; one that
    cannot be read is none.

    Raises:
        BadImage: what cannot be decoded, images of more than ``max_pixels`` pixels (before their pixels are read),
            images whose range cannot be told, formats other than ``FORMATS``.
    """
    if payload is None:
        raise BadImage("no image bytes")
    if form.as_rasters:
        of = bands_to_eight_bits(raster := _raster(payload, form), form.range)
        made = replace(_raster_as_square(of.pixels, form), filled=raster.missing is not None, unfilled=raster.unfilled)
        return made if raster.values.dtype == np.uint8 else _told(made, of)
    if isinstance(payload, np.ndarray) and payload.dtype != np.uint8 and payload.ndim == 3 and payload.shape[2] > 1:
        return _told(decode((of := colours_to_eight_bits(payload, form.one_range)).pixels, form), of)
    with _reasons(payload):
        if not isinstance(payload, np.ndarray) and may_be_dicom(payload) and is_dicom(_head(payload)):
            return _decoded_dicom(payload, form)
        try:
            opened = _opened(payload)
        except UnidentifiedImageError:
            if form.range is None or (deep := unopened_colours(payload, form.refuse_large)) is None:
                raise
            return _of_deep(deep, form)
        with opened as image:
            frames, bands, by_pillow = has_frames(image), has_more_bands(image), not is_deep(image)
            decoded = _decoded(image, form, lambda image: image.draft(form.mode, (2 * form.size, 2 * form.size)))
            unfilled = decoded.unfilled or (by_pillow and holds_nodata(image))
            return replace(decoded, frames=frames, bands=bands, unfilled=unfilled)


def high_bit_depth_values(payload: Payload, form: ImageForm) -> NDArray[np.float64] | int:
    """The values of any shape that a range scales, without the padding of DICOM files and what is transparent; of bands
    (H, W, C), NaN where data are missing. Of an image of 8 bits, and of colours of a format of which no range but that
    of their bits scales them, such as JPEG 2000: the bits of each channel.

    Raises:
        BadImage: as ``decode``, but for values that are not finite.
    """
    if payload is None:
        raise BadImage("no image bytes")
    if form.as_rasters:
        payload = _raster(payload, form).marked
    if isinstance(payload, np.ndarray):
        return 8 if payload.dtype == np.uint8 else payload.astype(np.float64)
    with _reasons(payload):
        if may_be_dicom(payload) and is_dicom(_head(payload)):
            with dicom.opened(payload) as scan:
                form.refuse_large(*scan.size)
                frame = scan.frame((0.0, 1.0))  # with any range the file's window is not looked for
            if frame.coloured:
                return 8 if frame.palette or frame.bits <= 8 else frame.values.astype(np.float64)
            if not frame.high_bit_depth:
                return 8
            return frame.values if frame.seen is None or not frame.seen.any() else frame.values[frame.seen]
        try:
            opened = _opened(payload)
        except UnidentifiedImageError:
            if (deep := unopened_colours(payload, form.refuse_large)) is None:
                raise
            return deep.seen
        with opened as image:
            form.refuse_large(*image.size)
            refuse_signed_bytes(image)
            if is_deep(image):
                return read_deep(image).seen
            depth = jpeg2000_depth(image)
            return grey_values(image, depth) if is_high_bit_depth(image) else bits_per_channel(image, depth)


@contextlib.contextmanager
def _reasons(payload: Payload) -> Iterator[None]:
    """Raise BadImage, with the reason, for whatever is raised of an image meanwhile."""
    try:
        yield
    except BadImage:
        raise
    except dicom.NoImage as error:
        raise BadImage(printable(error)) from error
    except Image.DecompressionBombError as error:
        raise BadImage(f"more than {MOST_PIXELS} pixels, the most that max_pixels may be") from error
    except UnidentifiedImageError as error:
        unmarked = isinstance(payload, Path) and payload.suffix.lower() in DICOM
        found = tiff_found(payload) or undecodable(_head(payload))
        raise BadImage(found or (_NO_MARK if unmarked else UNKNOWN)) from error
    except Exception as error:  # decoders of damaged files raise anything: OSError, SyntaxError, struct.error, ...
        if isinstance(error, OSError) and error.errno is not None and isinstance(payload, Path):
            raise BadImage(_unread(payload, error)) from error
        raise _damaged(error) from error


def decode_opened(image: Image.Image, form: ImageForm) -> Decoded:
    """As ``decode``, of an image that is open already. It stays open, at its size. A large JPEG is read in full where
    it was read already or lies in memory; an unread file is opened a second time, to be read as ``decode`` reads it.

    Raises:
        BadImage: as ``decode``. Of 16 bits in each of several channels, and of a JPEG 2000's depth, nothing is known
            once the image is loaded.
    """
    if form.as_rasters:
        raise BadImage(f"a Pillow image; {array_of(form.channels, form.bands)} is read, or a file")
    if getattr(image, "tile", ()) and image.format in ("JPEG", "MPO"):
        path = Path(getattr(image, "filename", ""))
        if path.is_file():
            return decode(path, form)
    try:
        return _decoded(image, form)
    except BadImage:
        raise
    except Exception as error:
        raise _damaged(error) from error


def _unread(file: Path, error: OSError) -> str:
    """What is wrong with a file of which nothing can be read."""
    leads = f"; it is a link to {printable(os.readlink(file))}" if file.is_symlink() else ""
    return f"it cannot be read: {error.strerror}{leads}"


def _damaged(error: Exception) -> BadImage:
    return BadImage(printable(" ".join(f"{type(error).__name__}: {error}".split())))


def _decoded(
    image: Image.Image, form: ImageForm, draft: Callable[[Image.Image], object] = lambda image: None
) -> Decoded:
    """``draft`` may reduce the image before its pixels are read, once it is known not to be too large."""
    width, height = image.size
    form.refuse_large(width, height)
    refuse_signed_bytes(image)
    depth = jpeg2000_depth(image)
    has_more = is_high_bit_depth(image) or bits_per_channel(image, depth) > 8
    range = form.one_range if has_more else None
    if (deep := deep_colours(image, range)) is not None:
        return _of_deep(deep, form)
    high_bit_depth = has_high_bit_depth_colours(image, range, depth)
    draft(image)
    image = upright(image)
    if not is_high_bit_depth(image):
        return replace(_as_square(image, (width, height), form), high_bit_depth=high_bit_depth)
    of = to_eight_bits(image, range, depth)
    return _told(_as_square(Image.fromarray(of.pixels), (width, height), form), of)


def _of_deep(deep: DeepColours, form: ImageForm) -> Decoded:
    """Colours of more than 8 bits, by the form's range, as a square."""
    range = form.one_range
    assert range is not None
    image, of = deep.scaled(range)
    made = _told(_as_square(image, image.size, form), of)
    return replace(made, frames=deep.frames, bands=deep.bands, unfilled=deep.unfilled)


def _told(decoded: Decoded, of: EightBitImage) -> Decoded:
    """An image that had more than 8 bits."""
    return replace(decoded, high_bit_depth=True, clipped=of.clipped, narrow=of.narrow, spiked=of.spiked)


def _decoded_dicom(payload: bytes | Path, form: ImageForm) -> Decoded:
    """As ``_decoded``, of a DICOM file; raises ``dicom.NoImage``, too."""
    with dicom.opened(payload) as scan:
        form.refuse_large(*scan.size)
        frame, frames = scan.frame(form.one_range), scan.frames
    if frame.coloured:
        high_bit_depth = not frame.palette and frame.bits > 8
        if high_bit_depth and form.one_range is None:
            raise deep_colours_unranged(frame.bits, "RGB")
        if high_bit_depth and form.one_range != (0, 2**frame.bits - 1):
            of = colours_to_eight_bits(frame.values, form.one_range)
        else:
            of = EightBitImage((frame.values >> max(frame.bits - 8, 0)).astype(np.uint8))
    else:
        high_bit_depth, of = frame.high_bit_depth, to_bytes(frame.values, frame.range, frame.white_is_zero, frame.seen)
    made = replace(_as_square(Image.fromarray(of.pixels), scan.size, form), frames=frames, windowed=frame.windowed)
    return _told(made, of) if high_bit_depth else made


def _as_square(image: Image.Image, size: tuple[int, int], form: ImageForm) -> Decoded:
    """An image of 8 bits a channel as a square; ``size`` is the (width, height) that it had in its file."""
    opaque = laid_on(image, form.background)
    pixels = square(opaque.convert(form.mode), form.size, form.fit)
    cropped, enlarged = is_cropped(*size, form.fit), is_enlarged(*size, form.size, form.fit)
    return Decoded(pixels, False, False, opaque is not image, cropped, enlarged, grey=is_grey(pixels))


def _raster(payload: bytes | Path | NDArray[np.generic], form: ImageForm) -> Raster:
    """The bands that are read, of any type. Raises BadImage."""
    if isinstance(payload, np.ndarray):
        return with_missing(bands_of_array(payload, form.channels, form.bands), form.nodata)
    with _reasons(payload):
        if is_tiff(head := _head(payload)):
            return bands_of_tiff(payload, form.channels, form.bands, form.refuse_large, form.nodata)
        if is_dicom(head):
            raise BadImage("DICOM, which has no bands")
        with _opened(payload) as image:
            form.refuse_large(*image.size)
            refuse_without_bands(image, form.channels, form.bands)
            pixels = np.atleast_3d(np.asarray(upright(image)))  # (H, W, 1) of grey
            return with_missing(Raster(chosen(pixels, form.bands)), form.nodata)


def _raster_as_square(pixels: NDArray[np.uint8], form: ImageForm) -> Decoded:
    """Bands (H, W, C) of 8 bits as a square."""
    height, width = pixels.shape[:2]
    form.refuse_large(width, height)
    cropped, enlarged = is_cropped(width, height, form.fit), is_enlarged(width, height, form.size, form.fit)
    made = band_square(pixels, form.size, form.fit)
    return Decoded(made, False, cropped=cropped, enlarged=enlarged, grey=is_grey(made))


def _opened(payload: bytes | Path | NDArray[np.generic]) -> Image.Image:
    if isinstance(payload, np.ndarray):
        pixels = payload[..., 0] if payload.ndim == 3 and payload.shape[2] == 1 else payload
        return Image.fromarray(np.ascontiguousarray(pixels))
    try:
        return Image.open(io.BytesIO(payload) if isinstance(payload, bytes) else payload, formats=FORMATS)
    except UnidentifiedImageError:
        if (heic := heic_format(_head(payload))) is None:
            raise
    return Image.open(io.BytesIO(payload) if isinstance(payload, bytes) else payload, formats=(heic,))


def _head(payload: Payload) -> bytes:
    """How an encoded image begins."""
    if isinstance(payload, Path):
        with payload.open("rb") as file:
            return file.read(HEAD)
    return payload[:HEAD] if isinstance(payload, bytes) else b""
