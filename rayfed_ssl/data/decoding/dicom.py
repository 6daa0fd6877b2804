"""DICOM files (extra ``dicom``: pydicom, imagecodecs): the first frame's pixels and how to scale them.

Grey values go the way of the standard (PS3.3, C.11): the modality LUT, or rescale slope and intercept, gives values
such as Hounsfield units; then a range that is asked for, or else the file's own first window, or else its VOI LUT.
Palettes and luminance with colour differences (YBR) become RGB. Of the header only what pixels need is read: no name
and no number of a patient, except where ``attributes_of`` is asked for one.

Shape legend: H rows, W columns, C colours (3; 4 with transparency).
"""

from __future__ import annotations

import difflib
import importlib.util
import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.lazy import LazyModule
from rayfed_ssl.base.text import composed
from rayfed_ssl.data.decoding import dicom_codecs

filereader, pixels_of = LazyModule("pydicom.filereader"), LazyModule("pydicom.pixels")
dictionary, dataset, names_of = map(LazyModule, ("pydicom.datadict", "pydicom.dataset", "pydicom.uid"))
PACKAGES = ("pydicom", "imagecodecs")  # of the extra ``dicom``
NEEDED = "pip install 'rayfed-ssl[dicom]'"
CONVERTED = "convert it first, as dcmconv, dcmdjpeg and gdcmconv --raw do"
_PIXELS = 0x7FE00008  # the first element of pixels: PS3.6
_META = 2
_SEGMENTED = "SegmentedRedPaletteColorLookupTableData"
_PALETTE = [
    f"{colour}PaletteColorLookupTable{part}"
    for colour in ("Red", "Green", "Blue", "Alpha")
    for part in ("Descriptor", "Data")
]
_READ = [
    *("SOPClassUID", "Rows", "Columns", "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelPaddingValue", "PixelPaddingRangeLimit"),
    *("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "WindowCenter", "WindowWidth", "VOILUTFunction"),
    *("VOILUTSequence", *_PALETTE, _SEGMENTED),
    *("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence"),
]
_MACROS = ("PixelValueTransformationSequence", "FrameVOILUTSequence")  # PS3.3, C.7.6.16.2.9 and .10
_COLOURS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")  # PS3.3, C.7.6.3.1.2
_TEXT = {"AE", "AS", "CS", "DA", "DS", "DT", "IS", "LO", "LT", "PN", "SH", "SL", "SS", "ST", "TM", "UI", "UL", "US"}


class NoImage(Exception):
    """A DICOM file whose image is not read; the text is the reason."""


@dataclass(frozen=True)
class Frame:
    """``values`` (H, W) float64, rescaled, or what a VOI LUT or a sigmoid made of them; of colours (H, W, C) of so many
    ``bits``.

    ``range`` is the (lowest, highest) value to scale by, None for the image's own. ``seen`` (H, W) is where there is no
    padding; None: everywhere. ``high_bit_depth`` if there are more than 8 bits, or other values than the stored ones;
    ``windowed`` if the range, or the LUT, is the file's own; ``white_is_zero`` if the lowest value is white;
    ``palette`` if colours are a palette's, which uses all of their bits.
    """

    values: NDArray[Any]
    bits: int
    range: tuple[float, float] | None = None
    seen: NDArray[np.bool_] | None = None
    high_bit_depth: bool = False
    windowed: bool = False
    white_is_zero: bool = False
    palette: bool = False

    @property
    def coloured(self) -> bool:
        return self.values.ndim == 3


@cache
def installed() -> tuple[str, ...]:
    """Which packages of the extra are there."""
    return tuple(name for name in PACKAGES if importlib.util.find_spec(name) is not None)


@contextmanager
def opened(payload: bytes | Path) -> Iterator[Scan]:
    """A DICOM file whose header is read, and no pixels yet.

    Raises:
        NoImage: the extra is not installed, there are no pixels, or they are coded in a way that is not read.
        Exception: whatever pydicom raises of a damaged file.
    """
    if missing := [name for name in PACKAGES if name not in installed()]:
        raise NoImage(f"it is DICOM, which needs {' and '.join(missing)}; {NEEDED}")
    with io.BytesIO(payload) if isinstance(payload, bytes) else payload.open("rb") as file:
        header = _header(file, lambda tag, *_: int(tag) >= _PIXELS, _READ)
        if not file.read(4) or not header.get("Rows") or not header.get("Columns"):
            kind = names_of.UID(str(header.get("SOPClassUID", "")))
            raise NoImage(f"it is DICOM without an image ({kind.name or 'of no SOP class'})")
        yield Scan(file, header)


@dataclass(frozen=True)
class Scan:
    """An opened DICOM file. ``header`` is a pydicom ``Dataset`` with the elements of ``_READ``."""

    file: IO[bytes]
    header: Any

    @property
    def size(self) -> tuple[int, int]:
        """(W, H), as Pillow's."""
        return int(self.header.Columns), int(self.header.Rows)

    @property
    def frames(self) -> bool:
        """Whether there are several, of which the first is read."""
        return int(self.header.get("NumberOfFrames") or 1) > 1

    def frame(self, range: tuple[float, float] | None) -> Frame:
        """The first frame, and by what to scale it: by ``range``, in rescaled units, if it is of high bit depth and
        grey.

        Raises NoImage, and whatever decoders of damaged pixels raise.
        """
        kind, bits = str(self.header.PhotometricInterpretation), int(self.header.get("BitsStored", 0))
        if _SEGMENTED in self.header:
            raise NoImage(f"its palette is in segments, which are not read; {CONVERTED}")
        if kind not in (*_COLOURS, "MONOCHROME1", "MONOCHROME2", "PALETTE COLOR"):
            raise NoImage(f"its photometric interpretation is {kind or 'not said'}, which is not read; {CONVERTED}")
        stored = _decoded(self.file, str(self.header.file_meta.TransferSyntaxUID))
        if kind == "PALETTE COLOR":
            coloured = pixels_of.apply_color_lut(stored, self.header)
            return Frame(coloured, 8 * coloured.itemsize, palette=True)
        if kind in _COLOURS:
            return Frame(stored, bits)
        return self._grey(stored, range, bits)

    def _grey(self, stored: NDArray[Any], range: tuple[float, float] | None, bits: int) -> Frame:
        """PS3.3, C.11.1 and C.11.2, of ``stored`` (H, W)."""
        values, rescaled = self._rescaled(stored)
        high_bit_depth = rescaled or bits > 8 or stored.dtype.kind == "f"
        windowed = False
        if not high_bit_depth or range is None:
            found = self._of_interest(values)
            windowed = found is not None
            full = None if high_bit_depth else _full(bits, bool(self.header.get("PixelRepresentation")))
            values, range = found or (values, full)
        white = self.header.PhotometricInterpretation == "MONOCHROME1"
        return Frame(values, bits, range, self._seen(stored), high_bit_depth, windowed, white)

    def _rescaled(self, stored: NDArray[Any]) -> tuple[NDArray[np.float64], bool]:
        """(H, W) the modality LUT's or the rescaled values, and whether they are other than the stored ones."""
        values = stored.astype(np.float64)
        for place in self._places():
            if place.get("ModalityLUTSequence"):
                return _looked_up(values, place.ModalityLUTSequence[0], self._order)[0], True
            slope, intercept = place.get("RescaleSlope"), place.get("RescaleIntercept")
            if slope is not None and intercept is not None:
                return values * float(slope) + float(intercept), (float(slope), float(intercept)) != (1, 0)
        return values, False

    def _of_interest(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], tuple[float, float]] | None:
        """The values with the range of the file's first window, or of what its VOI LUT makes of them; None without."""
        for place in self._places():
            if (window := _window(place)) is not None:
                return window(values)
        for place in self._places():
            if place.get("VOILUTSequence"):
                shown, highest = _looked_up(values, place.VOILUTSequence[0], self._order)
                return shown, (0, highest)
        return None

    def _seen(self, stored: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Where a pixel is no padding (PS3.3, C.7.5.1.1.2); None where the file names none."""
        padding = self.header.get("PixelPaddingValue")
        if padding is None or stored.dtype.kind == "f":
            return None
        ends = [int(padding), int(self.header.get("PixelPaddingRangeLimit", padding))]
        if stored.dtype.kind == "i":  # an unsigned number may mean a negative one
            half = 1 << (8 * stored.itemsize - 1)
            ends = [(end + half) % (2 * half) - half for end in ends]
        return np.asarray((stored < min(ends)) | (stored > max(ends)))

    def _places(self) -> Iterator[Any]:
        """Where rescaling and windows may stand: the header; of enhanced files the groups of the first frame, or those
        of all.
        """
        yield self.header
        for groups in ("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence"):
            for group in (self.header.get(groups) or ())[:1]:
                for macro in _MACROS:
                    yield from (group.get(macro) or ())[:1]

    @property
    def _order(self) -> str:
        return "<" if self.header.file_meta.TransferSyntaxUID.is_little_endian else ">"


Apply = Callable[[NDArray[np.float64]], tuple[NDArray[np.float64], tuple[float, float]]]


def _window(place: Any) -> Apply | None:
    """What the first window does: values to values with the range that becomes 0..255; None without a valid one.

    PS3.3, C.11.2.1.2 (LINEAR, whose width is 1 or more) and C.11.2.1.3 (LINEAR_EXACT and SIGMOID, more than 0).
    """
    center, width = (_first(place.get(name)) for name in ("WindowCenter", "WindowWidth"))
    function = str(place.get("VOILUTFunction") or "LINEAR").upper()
    if center is None or width is None or width < (1 if function == "LINEAR" else np.nextafter(0, 1)):
        return None
    if function == "SIGMOID":
        return lambda values: (_sigmoid(4 * (values - center) / width), (0, 1))
    if function == "LINEAR" and width == 1:
        return lambda values: ((values > center - 0.5).astype(np.float64), (0, 1))
    if function == "LINEAR":
        return lambda values: (values, (center - 0.5 - (width - 1) / 2, center - 0.5 + (width - 1) / 2))
    if function == "LINEAR_EXACT":
        return lambda values: (values, (center - width / 2, center + width / 2))
    return None


def _sigmoid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):  # e^x without end is 0 of 1
        return np.asarray(1 / (1 + np.exp(-values)))


def _first(value: Any) -> float | None:
    """The first of one or many numbers; None where there is none, or none that is finite."""
    if value is None or value == "":
        return None
    many = isinstance(value, Sequence) and not isinstance(value, str)
    number = float(value[0] if many else value) if not many or len(value) else math.nan
    return number if math.isfinite(number) else None


def _looked_up(values: NDArray[np.float64], item: Any, order: str) -> tuple[NDArray[np.float64], float]:
    """What a LUT makes of values, of those beyond it as of its ends, and the highest it may say.

    PS3.3, C.11.1.1 and C.11.2.1.1.
    """
    entries, first, bits = (int(number) for number in item.LUTDescriptor)
    entries = entries or 2**16
    data = item.LUTData
    if isinstance(data, bytes):
        table = np.frombuffer(data, np.uint8 if len(data) < 2 * entries else f"{order}u2")
    else:
        table = np.asarray(data, np.float64)
    places = (np.rint(values) - first).clip(0, entries - 1).astype(np.int64)
    return table[places].astype(np.float64), float(2**bits - 1)


def _full(bits: int, signed: bool) -> tuple[float, float]:
    """The (lowest, highest) value that so many bits may hold."""
    lowest = -(2 ** (bits - 1)) if signed else 0
    return lowest, lowest + 2**bits - 1


def _header(file: IO[bytes], stop: Callable[..., bool], read: Sequence[Any]) -> Any:
    """A pydicom ``Dataset`` of the elements ``read`` before that of ``stop``, where ``file`` then is.

    A deflated one is refused: of a few bytes inflating makes many.
    """
    filereader.read_preamble(file, force=False)
    meta = filereader.read_dataset(file, False, True, stop_when=lambda tag, *_: tag >> 16 != _META)
    syntax = meta.get("TransferSyntaxUID")
    if not syntax or not syntax.is_transfer_syntax:
        raise NoImage(f"its transfer syntax is {syntax or 'not said'}, which is not read; {CONVERTED}")
    if syntax.is_deflated:
        raise NoImage(f"it is deflated, which is not read; {CONVERTED}")
    tags = [dictionary.tag_for_keyword(keyword) for keyword in read]
    header = filereader.read_dataset(
        file, syntax.is_implicit_VR, syntax.is_little_endian, stop_when=stop, specific_tags=tags
    )
    header.file_meta = dataset.FileMetaDataset(meta)
    return header


def _decoded(file: IO[bytes], syntax: str) -> NDArray[Any]:
    """The first frame's samples (H, W), or (H, W, 3) in RGB. Raises NoImage, or what pydicom raises."""
    _add_codecs()
    plugin = ""
    if syntax in dicom_codecs.SYNTAXES:
        plugin = dicom_codecs.NAME
    elif syntax == dicom_codecs.RLE:
        plugin = "pydicom"
    elif names_of.UID(syntax).is_encapsulated:
        name = names_of.UID(syntax).name
        raise NoImage(f"its pixels are coded as {name}, which is not read; {CONVERTED}")
    file.seek(0)
    try:
        return np.asarray(pixels_of.pixel_array(file, index=0, raw=False, decoding_plugin=plugin))
    except RuntimeError as error:  # pydicom's, with the plug-in's reason in it
        raise NoImage(" ".join(str(error).rpartition(f"{plugin}: ")[2].split())) from error


@cache
def _add_codecs() -> None:
    for syntax in dicom_codecs.SYNTAXES:
        decoder = pixels_of.get_decoder(syntax)
        if dicom_codecs.NAME not in decoder.available_plugins:
            decoder.add_plugin(dicom_codecs.NAME, (dicom_codecs.__name__, "decode_frame"))


def attributes_of(file: Path, keywords: Sequence[str]) -> str | None:
    """The values of attributes of a DICOM file, with ``/`` between; None where one is missing, or it is no DICOM."""
    try:
        with file.open("rb") as opened_file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they may quote values
            last = max(dictionary.tag_for_keyword(keyword) for keyword in keywords)
            header = _header(opened_file, lambda tag, *_: int(tag) > last, keywords)
            values = [composed(str(header.get(keyword) or "")).strip() for keyword in keywords]
    except Exception:  # pydicom raises anything of a damaged file: its decoding reports that
        return None
    return "/".join(values) if all(values) else None


def unknown_attribute(keywords: Sequence[str]) -> str | None:
    """The first of these that is no keyword (PS3.6, chapter 6) of an attribute of text or numbers; None: all are."""
    for keyword in keywords:
        tag = dictionary.tag_for_keyword(keyword)
        if tag is None or tag >= _PIXELS or not set(dictionary.dictionary_VR(tag).split(" or ")) & set(_TEXT):
            return keyword
    return None


def like(keyword: str) -> str | None:
    """The keyword of DICOM's dictionary that is most like this one."""
    return next(iter(difflib.get_close_matches(keyword, dictionary.keyword_dict, n=1)), None)
