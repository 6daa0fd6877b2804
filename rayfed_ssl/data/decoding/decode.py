"""Decodes an image into a uint8 square of the run's size and channels.

Images of at most 8 bits keep their values. Grey images of more (12-bit and 16-bit PNG and TIFF, float TIFF) are scaled
to 0..255 by ``data.range`` or, without one, by their own smallest and largest value. DICOM files have the values of
their modality LUT, and a window of their own is used before their own range (see ``dicom``). Images that carry an
orientation (EXIF) are turned upright. Only the first of several frames (TIFF, GIF) is read, and only the bands of
colours and transparency if a TIFF has more. Transparent pixels are laid on black, or on what ``data.background`` says,
whatever colour is hidden in them. If ``data.channels`` is neither 1 nor 3, images have so many bands; ``data.bands``
chooses some (see ``bands``).

Shape legend: S image size, C channels.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from rayfed_ssl.base.text import printable
from rayfed_ssl.data.decoding import dicom
from rayfed_ssl.data.decoding.bands import (
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
    bits_per_channel,
    colours_to_eight_bits,
    deep_colours_unranged,
    grey_values,
    has_high_bit_depth_colours,
    is_high_bit_depth,
    narrow_in_high_bits,
    refuse_signed_bytes,
    seen_of,
    to_bytes,
    to_eight_bits,
)
from rayfed_ssl.data.decoding.decoded import Decoded
from rayfed_ssl.data.decoding.deep_colours import DeepColours, deep_colours, is_deep, read_deep, unopened_tiff
from rayfed_ssl.data.decoding.dicom_heads import HEAD, is_dicom
from rayfed_ssl.data.decoding.form import MOST_PIXELS, ImageForm
from rayfed_ssl.data.decoding.formats import (
    DICOM,
    FORMATS,
    UNKNOWN,
    has_frames,
    has_more_bands,
    heic_format,
    is_tiff,
    may_be_dicom,
    tiff_found,
    undecodable,
)
from rayfed_ssl.data.decoding.samples import samples_of, transparent_grey
from rayfed_ssl.data.decoding.squares import (
    Box,
    band_square,
    is_cropped,
    is_enlarged,
    is_grey,
    laid_on,
    square,
)
from rayfed_ssl.data.decoding.upright import orientation, turned_box, upright
from rayfed_ssl.data.images import BadImage, Payload

logging.getLogger("PIL").addHandler(logging.NullHandler())  # else some bad images are a line on stderr, unnamed
_NO_MARK = "it is named as DICOM and has no letters DICM at byte 128, as such files have (PS3.10); dcmconv writes them"


def decode(payload: Payload, form: ImageForm) -> Decoded:
    """Decode an image to a square, resized with PIL's antialiased bilinear filter.

    With ``fit: crop`` that is "short side to ``size``, then centre crop" in one step. Large JPEGs are decoded at a
    half, quarter or eighth if that still leaves at least twice ``size``; a last row or column that the image fills in
    part then counts as that part. An EXIF orientation is applied, unless it cannot be read.

    Raises:
        BadImage: the image cannot be decoded, has more than ``max_pixels`` pixels (found before they are read), has a
            range that is not known, or a format that is not in ``FORMATS``.
    """
    if payload is None:
        raise BadImage("no image bytes")
    if form.as_rasters:
        return _decoded_raster(payload, form)
    if isinstance(payload, np.ndarray) and payload.dtype != np.uint8 and payload.ndim == 3 and payload.shape[2] > 1:
        eight_bit = colours_to_eight_bits(payload, form.one_range)
        return decode(eight_bit.pixels, form).scaled_as(eight_bit)
    with _reasons(payload):
        if not isinstance(payload, np.ndarray) and may_be_dicom(payload) and is_dicom(_head(payload)):
            return _decoded_dicom(payload, form)
        try:
            opened = _opened(payload)
        except UnidentifiedImageError:
            if (deep := unopened_tiff(payload, form.refuse_large, form.range is not None)) is None:
                raise
            return _decoded_deep(deep, form)
        with opened as image:
            frames, bands, by_pillow = has_frames(image), has_more_bands(image), not is_deep(image)
            decoded = _decoded(image, form, reduce=True)
            unfilled = decoded.unfilled or (by_pillow and holds_nodata(image))
            return replace(decoded, frames=frames, bands=bands, unfilled=unfilled)


def high_bit_depth_values(payload: Payload, form: ImageForm) -> NDArray[np.float64] | int:
    """The values of an image that a range would scale, in any shape; or an int, the bits of each channel, if no range
    scales it: because it has 8 bits, or because its format allows the range of its bits alone, as 16-bit CMYK in TIFF
    does.

    The padding of DICOM files and transparent pixels are left out. Bands are (H, W, C), NaN where data are missing.

    Raises:
        BadImage: as in ``decode``, but not for values that are NaN or infinite.
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
                frame = scan.frame((0.0, 1.0))  # any range: then the file's window is not used
            if frame.coloured:
                return 8 if frame.palette or frame.bits <= 8 else frame.values.astype(np.float64)
            if not frame.high_bit_depth:
                return 8
            return frame.values if frame.seen is None or not frame.seen.any() else frame.values[frame.seen]
        try:
            opened = _opened(payload)
        except UnidentifiedImageError:
            if (deep := unopened_tiff(payload, form.refuse_large)) is None:
                raise
            return deep.seen
        with opened as image:
            form.refuse_large(*image.size)
            refuse_signed_bytes(image)
            if is_deep(image):
                return read_deep(image).seen
            samples = samples_of(image)
            if not is_high_bit_depth(image):
                return bits_per_channel(image, samples)
            values, seen = grey_values(image, samples), seen_of(image)
            return values if seen is None or not seen.any() else values[seen]


@contextlib.contextmanager
def _reasons(payload: Payload) -> Iterator[None]:
    """Turn whatever is raised within into BadImage, with the reason in words."""
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
        reason = tiff_found(payload) or undecodable(_head(payload))
        raise BadImage(reason or (_NO_MARK if unmarked else UNKNOWN)) from error
    except Exception as error:  # decoders of damaged files raise anything: OSError, SyntaxError, struct.error, ...
        if isinstance(error, OSError) and error.errno is not None and isinstance(payload, Path):
            raise BadImage(_unread(payload, error)) from error
        raise _damaged(error) from error


def decode_opened(image: Image.Image, form: ImageForm) -> Decoded:
    """As ``decode``, for an image that is open already; it stays open, and keeps its size. A large JPEG that was read
    already, or lies in memory, is read in full. An unread JPEG file is opened a second time, to be read as ``decode``
    reads it.

    Raises:
        BadImage: as in ``decode``. Once an image is loaded, it is not known any more whether several channels had 16
            bits each, nor how many bits a JPEG 2000 had.
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
    """The reason why a file cannot be read; it says where a link leads."""
    target = f"; it is a link to {printable(os.readlink(file))}" if file.is_symlink() else ""
    return f"it cannot be read: {error.strerror}{target}"


def _damaged(error: Exception) -> BadImage:
    """The reason for an exception of a decoder, on one line."""
    return BadImage(printable(" ".join(f"{type(error).__name__}: {error}".split())))


def _decoded(image: Image.Image, form: ImageForm, *, reduce: bool = False) -> Decoded:
    """Decode an open image that has no bands. ``reduce``: a large JPEG may be read at a smaller scale."""
    width, height = image.size
    form.refuse_large(width, height)
    refuse_signed_bytes(image)
    samples, clear = samples_of(image), transparent_grey(image)
    bits = bits_per_channel(image, samples)
    has_more = is_high_bit_depth(image) or is_deep(image) or bits > 8
    range = form.one_range if has_more else None
    if (deep := deep_colours(image, range)) is not None:
        return _decoded_deep(deep, form)
    high_bit_depth = has_high_bit_depth_colours(image, range, samples)
    reduced = image.draft(form.mode, (2 * form.size, 2 * form.size)) if reduce else None
    pixels = upright(image)
    if clear is not None and clear != pixels.info["transparency"]:
        pixels = pixels.copy()  # the caller's image keeps what Pillow read
        pixels.info["transparency"] = clear
    if not is_high_bit_depth(pixels):
        box = None if reduced is None else turned_box(reduced[1], image.size, orientation(image))
        decoded = _as_square(pixels, (width, height), form, box)
        narrow = _narrow_colours(pixels, bits) if high_bit_depth else None
        return replace(decoded, high_bit_depth=high_bit_depth, narrow=narrow)
    seen = seen_of(pixels)
    eight_bit = to_eight_bits(pixels, range, samples, seen)
    grey = Image.fromarray(eight_bit.pixels)
    if seen is not None:
        grey.putalpha(Image.fromarray(np.where(seen, 255, 0).astype(np.uint8)))
    return _as_square(grey, (width, height), form).scaled_as(eight_bit)


def _narrow_colours(image: Image.Image, bits: int) -> Range | None:
    """``Decoded.narrow`` of an image of which Pillow took the 8 high of so many ``bits``; pixels that are wholly
    transparent do not count, unless all are.
    """
    channels = np.atleast_3d(np.asarray(image))
    if image.mode.endswith("A"):
        seen = channels[..., -1] > 0
        channels = channels[seen][..., :-1] if seen.any() else channels[..., :-1]
    return narrow_in_high_bits(channels, bits)


def _decoded_deep(deep: DeepColours, form: ImageForm) -> Decoded:
    """Colours of more than 8 bits as a square, scaled by the form's range."""
    image, eight_bit = deep.scaled(form.one_range)
    decoded = _as_square(image, image.size, form).scaled_as(eight_bit)
    return replace(decoded, frames=deep.frames, bands=deep.bands, unfilled=deep.unfilled)


def _decoded_raster(payload: bytes | Path | NDArray[np.generic], form: ImageForm) -> Decoded:
    """The image's bands as a square, scaled by the form's range."""
    raster = _raster(payload, form)
    eight_bit = bands_to_eight_bits(raster, form.range)
    decoded = replace(
        _raster_as_square(eight_bit.pixels, form), filled=raster.missing is not None, unfilled=raster.unfilled
    )
    return decoded if raster.values.dtype == np.uint8 else decoded.scaled_as(eight_bit)


def _decoded_dicom(payload: bytes | Path, form: ImageForm) -> Decoded:
    """As ``_decoded``, for a DICOM file; raises ``dicom.NoImage``, too."""
    with dicom.opened(payload) as scan:
        form.refuse_large(*scan.size)
        frame, frames = scan.frame(form.one_range), scan.frames
    if frame.coloured:
        high_bit_depth = not frame.palette and frame.bits > 8
        if high_bit_depth and form.one_range is None:
            raise deep_colours_unranged(frame.bits, "RGB")
        if high_bit_depth and form.one_range != (0, 2**frame.bits - 1):
            eight_bit = colours_to_eight_bits(frame.values, form.one_range)
        else:
            pixels = (frame.values >> max(frame.bits - 8, 0)).astype(np.uint8)
            eight_bit = EightBitImage(pixels, narrow=narrow_in_high_bits(pixels, frame.bits))
    else:
        high_bit_depth, eight_bit = (
            frame.high_bit_depth,
            to_bytes(frame.values, frame.range, frame.white_is_zero, frame.seen),
        )
    decoded = replace(
        _as_square(Image.fromarray(eight_bit.pixels), scan.size, form), frames=frames, windowed=frame.windowed
    )
    return decoded.scaled_as(eight_bit) if high_bit_depth else decoded


def _as_square(image: Image.Image, size: tuple[int, int], form: ImageForm, box: Box | None = None) -> Decoded:
    """The image, of 8 bits a channel, or the part of it in ``box``, as a square; ``size`` is the (width, height) that
    it had in its file.
    """
    opaque = laid_on(image, form.background)
    pixels = square(opaque.convert(form.mode), form.size, form.fit, box)
    cropped, enlarged = is_cropped(*size, form.fit), is_enlarged(*size, form.size, form.fit)
    return Decoded(pixels, False, False, opaque is not image, cropped, enlarged, grey=is_grey(pixels))


def _raster(payload: bytes | Path | NDArray[np.generic], form: ImageForm) -> Raster:
    """The bands of an image that are read, with values of any type. Raises BadImage if the image does not have them."""
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
    squared = band_square(pixels, form.size, form.fit)
    return Decoded(squared, False, cropped=cropped, enlarged=enlarged, grey=is_grey(squared))


def _opened(payload: bytes | Path | NDArray[np.generic]) -> Image.Image:
    """The image as Pillow opens it, its pixels unread. Raises UnidentifiedImageError if Pillow does not know it."""
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
    """The first ``HEAD`` bytes of an encoded image; none of an array."""
    if isinstance(payload, Path):
        with payload.open("rb") as file:
            return file.read(HEAD)
    return payload[:HEAD] if isinstance(payload, bytes) else b""
