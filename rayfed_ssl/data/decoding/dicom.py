"""DICOM files (extra ``dicom``: pydicom, imagecodecs): the first frame's pixels and how to scale them.

Grey values are handled as the standard says (PS3.3, C.11): the modality LUT, or rescale slope and intercept, gives
values such as Hounsfield units; these are scaled by the range that is asked for, or else by the file's own first
window, or else by its VOI LUT. Palettes and luminance with colour differences (YBR) become RGB. Only the elements of
the header that pixels need are read: no name and no number of a patient, unless ``attributes_of`` is asked for one.

Shape legend: H rows, W columns, C colours (3, or 4 with transparency).
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
_PIXELS = 0x7FE00008  # the tag of the first element of pixels: PS3.6
_META = 2  # the group of the File Meta Information
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
    """The first frame of a file, and how to scale it.

    Grey ``values`` are (H, W) float64: the rescaled ones, or what a VOI LUT or a sigmoid made of them. Colours are
    (H, W, C) whole numbers of ``bits`` bits. ``range`` is the (lowest, highest) value to scale by; None: the image's
    own. ``seen`` (H, W) says where there is no padding; None: everywhere. ``high_bit_depth``: whether there are more
    than 8 bits, or other values than the stored ones. ``windowed``: whether the range, or the LUT, is the file's own.
    ``white_is_zero``: whether the lowest value is white. ``palette``: whether the colours are those of a palette, which
    uses all of their bits.
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
    """Which packages of the extra ``dicom`` are installed."""
    return tuple(name for name in PACKAGES if importlib.util.find_spec(name) is not None)


@contextmanager
def opened(payload: bytes | Path) -> Iterator[Scan]:
    """A DICOM file, open, of which the header is read and no pixels yet.

    Raises:
        NoImage: the extra is not installed, there are no pixels, or they are coded in a way that is not read.
        Exception: whatever pydicom raises for a damaged file.
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
        """The size (W, H), in the order of Pillow's."""
        return int(self.header.Columns), int(self.header.Rows)

    @property
    def frames(self) -> bool:
        """Whether there are several frames, of which only the first is read."""
        return int(self.header.get("NumberOfFrames") or 1) > 1

    def frame(self, range: tuple[float, float] | None) -> Frame:
        """The first frame. If it is grey and of high bit depth, it is to be scaled by ``range``, in rescaled units.

        Raises NoImage if its pixels are not read, and whatever decoders raise for damaged pixels.
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
        """The frame of grey pixels ``stored`` (H, W): PS3.3, C.11.1 and C.11.2."""
        values, rescaled = self._rescaled(stored)
        high_bit_depth = rescaled or bits > 8 or stored.dtype.kind == "f"
        windowed = False
        if not high_bit_depth or range is None:
            of_interest = self._of_interest(values)
            windowed = of_interest is not None
            full = None if high_bit_depth else _full(bits, bool(self.header.get("PixelRepresentation")))
            values, range = of_interest or (values, full)
        white = self.header.PhotometricInterpretation == "MONOCHROME1"
        return Frame(values, bits, range, self._seen(stored), high_bit_depth, windowed, white)

    def _rescaled(self, stored: NDArray[Any]) -> tuple[NDArray[np.float64], bool]:
        """The values (H, W) that the modality LUT or rescaling gives, and whether they differ from the stored ones."""
        values = stored.astype(np.float64)
        for place in self._places():
            if place.get("ModalityLUTSequence"):
                return _looked_up(values, place.ModalityLUTSequence[0], self._order)[0], True
            slope, intercept = place.get("RescaleSlope"), place.get("RescaleIntercept")
            if slope is not None and intercept is not None:
                return values * float(slope) + float(intercept), (float(slope), float(intercept)) != (1, 0)
        return values, False

    def _of_interest(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], tuple[float, float]] | None:
        """The values to scale, and the range to scale them by, as the file's first window or else its VOI LUT says;
        None if it has neither.
        """
        for place in self._places():
            if (window := _window(place)) is not None:
                return window(values)
        for place in self._places():
            if place.get("VOILUTSequence"):
                presented, highest = _looked_up(values, place.VOILUTSequence[0], self._order)
                return presented, (0, highest)
        return None

    def _seen(self, stored: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Where pixels are no padding (PS3.3, C.7.5.1.1.2); None if the file has no value for padding."""
        padding = self.header.get("PixelPaddingValue")
        if padding is None or stored.dtype.kind == "f":
            return None
        ends = [int(padding), int(self.header.get("PixelPaddingRangeLimit", padding))]
        if stored.dtype.kind == "i":  # an unsigned number may mean a negative one
            half = 1 << (8 * stored.itemsize - 1)
            ends = [(end + half) % (2 * half) - half for end in ends]
        return np.asarray((stored < min(ends)) | (stored > max(ends)))

    def _places(self) -> Iterator[Any]:
        """The data sets that may hold rescaling and windows: the header and, in enhanced files, the functional groups
        of the first frame and then those of all frames.
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
    """The function of the first window: from values to new values and the range of these that becomes 0..255. None if
    there is no valid window.

    PS3.3, C.11.2.1.2 (LINEAR, with a width of 1 or more) and C.11.2.1.3 (LINEAR_EXACT and SIGMOID, of more than 0).
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
    with np.errstate(over="ignore"):  # where e^x overflows, 1 / (1 + e^x) is 0, which is right
        return np.asarray(1 / (1 + np.exp(-values)))


def _first(value: Any) -> float | None:
    """The first number of ``value``, which is one number or several; None if there is none, or if it is not finite."""
    if value is None or value == "":
        return None
    many = isinstance(value, Sequence) and not isinstance(value, str)
    number = float(value[0] if many else value) if not many or len(value) else math.nan
    return number if math.isfinite(number) else None


def _looked_up(values: NDArray[np.float64], item: Any, order: str) -> tuple[NDArray[np.float64], float]:
    """What a LUT makes of ``values``, and the highest value that its entries may have. Values beyond its ends become
    what its ends are. PS3.3, C.11.1.1 and C.11.2.1.1.
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
    """The (lowest, highest) value that so many bits can hold."""
    lowest = -(2 ** (bits - 1)) if signed else 0
    return lowest, lowest + 2**bits - 1


def _header(file: IO[bytes], stop: Callable[..., bool], read: Sequence[Any]) -> Any:
    """A pydicom ``Dataset`` with the elements ``read`` that precede the one that ``stop`` finds, where ``file`` is
    left.

    Raises NoImage for an unknown transfer syntax, and for a deflated file, as few bytes may inflate to very many.
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
    """The first frame's samples (H, W), or (H, W, 3) in RGB. Raises NoImage if they are coded in a way that is not
    read, and what pydicom raises.
    """
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
    """The values of a DICOM file's attributes, joined by ``/``; None if one is missing, or the file is no DICOM."""
    try:
        with file.open("rb") as opened_file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they may quote values
            last = max(dictionary.tag_for_keyword(keyword) for keyword in keywords)
            header = _header(opened_file, lambda tag, *_: int(tag) > last, keywords)
            values = [composed(str(header.get(keyword) or "")).strip() for keyword in keywords]
    except Exception:  # pydicom raises anything for a damaged file, which is reported when it is decoded
        return None
    return "/".join(values) if all(values) else None


def unknown_attribute(keywords: Sequence[str]) -> str | None:
    """The first of ``keywords`` that is not the keyword (PS3.6, chapter 6) of an attribute of text or numbers; None if
    all are.
    """
    for keyword in keywords:
        tag = dictionary.tag_for_keyword(keyword)
        if tag is None or tag >= _PIXELS or not set(dictionary.dictionary_VR(tag).split(" or ")) & set(_TEXT):
            return keyword
    return None


def like(keyword: str) -> str | None:
    """The keyword in DICOM's dictionary that is most like this one; None if none is much like it."""
    return next(iter(difflib.get_close_matches(keyword, dictionary.keyword_dict, n=1)), None)
