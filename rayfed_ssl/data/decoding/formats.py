"""Which formats of images are read, by their names in Pillow and by suffixes: those that every Pillow decodes, those
that some are built without, HEIC (extra ``heic``: pillow-heif), and DICOM, which Pillow does not know.
"""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

from PIL import Image, TiffImagePlugin, features

from rayfed_ssl.base.lazy import LazyModule
from rayfed_ssl.data.decoding.dicom_heads import is_dicom
from rayfed_ssl.data.images import Payload

_ALWAYS = {
    "JPEG": {".jpg", ".jpeg", ".jpe", ".jfif"},
    "PNG": {".png"},
    "BMP": {".bmp"},
    "GIF": {".gif"},
    "WEBP": {".webp"},
    "TIFF": {".tif", ".tiff"},
    "PPM": {".ppm", ".pgm"},
}
_SOMETIMES = {
    "AVIF": ("avif", {".avif"}),
    "JPEG2000": ("jpg_2000", {".jp2", ".j2k", ".j2c", ".jpc", ".jpf", ".jpx"}),
}  # with the name of Pillow's optional feature; AVIF is one from Pillow 11.3 on


def has_feature(feature: str) -> bool:
    """Whether the installed Pillow was built with a feature."""
    return feature in {*features.modules, *features.codecs} and bool(features.check(feature))


_HERE = {name: suffixes for name, (feature, suffixes) in _SOMETIMES.items() if has_feature(feature)}

FORMATS = (*_ALWAYS, *_HERE)
"""The decoders of Pillow that are used. Others would run programs (EPS starts Ghostscript) or open other files."""

DICOM = {".dcm", ".dicom", ".ima"}
"""Suffixes of DICOM files, which often have none: ``dicom_heads`` recognises them by their first bytes."""

HEIC = {".heic", ".heif", ".hif"}
HEIC_HERE = importlib.util.find_spec("pillow_heif") is not None
HEIC_NEEDED = "pip install 'rayfed-ssl[heic]'"

TIFFFILE_HERE = importlib.util.find_spec("tifffile") is not None
IMAGECODECS_HERE = importlib.util.find_spec("imagecodecs") is not None
TIFFFILE_NEEDED = "pip install 'rayfed-ssl[tiff]'"

SUFFIXES = DICOM.union(*_ALWAYS.values(), *_HERE.values(), HEIC if HEIC_HERE else ())
"""Suffixes of files that are read as images."""

ABSENT = {name: suffixes for name, (_, suffixes) in _SOMETIMES.items() if name not in _HERE}
"""Formats that the installed Pillow does not decode, and their suffixes."""

_READ = ", ".join(sorted((*FORMATS, "DICOM", *(["HEIC"] if HEIC_HERE else []))))
UNKNOWN = f"its content is no image of a format that is read ({_READ}), or its header is damaged"
_PILLOW_HEIF = LazyModule("pillow_heif")
_BRANDS = dict.fromkeys((b"avif", b"avis"), "AVIF") | dict.fromkeys(
    (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"), "HEIC"
)  # ISO 14496-12, ftyp; ISO 23008-12, annexes B and D
_BEGINNINGS = {b"\0\0\0\x0cjP  ": "JPEG2000", b"\xff\x4f\xff\x51": "JPEG2000"}  # the latter: a codestream alone
_BITS, _BANDS, _KIND = 258, 277, 339  # TIFF 6.0: BitsPerSample, SamplesPerPixel, SampleFormat
PHOTOMETRIC, RGB = 262, 2  # TIFF 6.0, section 6
GDAL_NODATA = 42113  # a tag of GDAL's GeoTIFF driver: a number as text, for all bands
_KINDS = {1: "whole numbers", 2: "whole numbers with a sign", 3: "floats", 5: "complex numbers", 6: "complex numbers"}
WHOLE_OR_FLOATS = (1, 2, 3)  # the SampleFormats of numbers that are read
_BIG_TIFF = 43  # the third byte of a little-endian BigTIFF, whose header has 16 bytes
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # TIFF 6.0, section 2, and BigTIFF


def _brand(head: bytes) -> str:
    """AVIF or HEIC, if a file that begins like this is one of these; else ""."""
    return _BRANDS.get(head[8:12], "") if head[4:8] == b"ftyp" else ""


def heic_format(head: bytes) -> str | None:
    """Pillow's name of HEIC, if an image begins like one and the extra is installed; else None.

    The decoder is registered with Pillow only then, because importing it takes a fifth of a second.
    """
    if not HEIC_HERE or _brand(head) != "HEIC":
        return None
    _PILLOW_HEIF.register_heif_opener()
    return "HEIF"


def undecodable(head: bytes) -> str:
    """Why Pillow does not decode an image that begins like this, in words; "" if its first bytes do not tell."""
    if not head:
        return "it is empty"
    if is_dicom(head):
        return "it is DICOM; its name should end in .dcm, or have no suffix"
    format_name = _brand(head) or next((name for start, name in _BEGINNINGS.items() if head.startswith(start)), "")
    if not format_name or format_name in FORMATS:
        return ""
    if format_name == "HEIC":
        return "" if HEIC_HERE else f"it is HEIC, which takes {HEIC_NEEDED}; or convert it to PNG or JPEG"
    return f"it is {format_name}, which the installed Pillow does not decode; convert it to PNG or JPEG"


def is_tiff(head: bytes) -> bool:
    """Whether an image that begins like this is a TIFF."""
    return head.startswith(_TIFF)


def may_be_dicom(payload: bytes | Path) -> bool:
    """Whether an image may be DICOM: bytes, or a file that does not have the suffix of another format."""
    return isinstance(payload, bytes) or payload.suffix.lower() not in SUFFIXES - DICOM


def has_frames(image: Image.Image) -> bool:
    """Whether an unread file holds several frames. Only its directory is read: no pixels are decoded.

    A photograph with others beside it, such as a preview or a depth map (MPO, HEIC), counts as one frame: in HEIC it is
    the primary image.
    """
    if image.format in ("MPO", "HEIF"):
        return False
    try:
        return bool(getattr(image, "is_animated", False))
    except Exception:  # damage after a GIF's first frame
        return False


def has_more_bands(image: Image.Image) -> bool:
    """Whether a TIFF has more bands than Pillow reads, as its tags say."""
    return int(getattr(image, "tag_v2", {}).get(_BANDS, 0)) > len(image.getbands())


def gdal_nodata(text: object) -> float | None:
    """The number in ``text``, the value of the tag GDAL_NODATA; None if it is no number."""
    try:
        return float(str(text).strip("\0 "))
    except ValueError:
        return None


def tiff_tags(payload: Payload) -> tuple[int, list[int], int, int] | None:
    """What a TIFF's tags say of its first image: (number of bands, the bits that bands have, ascending, a key of
    ``_KINDS``, PhotometricInterpretation). None if the tags do not tell, or if it is no TIFF.
    """
    if not isinstance(payload, bytes | Path):
        return None
    try:
        with io.BytesIO(payload) if isinstance(payload, bytes) else payload.open("rb") as file:
            header = file.read(8)
            tags = TiffImagePlugin.ImageFileDirectory_v2(header + (file.read(8) if header[2] == _BIG_TIFF else b""))
            file.seek(tags.next)
            tags.load(file)
        bands, bits, kinds = int(tags.get(_BANDS, 1)), tags[_BITS], tags.get(_KIND, (1,))
        depths = sorted({int(depth) for depth in (bits if isinstance(bits, tuple) else (bits,))})
        return bands, depths, kinds[0], int(tags[PHOTOMETRIC])
    except Exception:  # damaged tags raise anything
        return None


def tiff_found(payload: Payload) -> str:
    """Why Pillow does not open a TIFF, in words, by its bands and bits; "" if the tags do not tell why."""
    if (tags := tiff_tags(payload)) is None:
        return ""
    bands, bits, kind, photometric = tags
    if (bands, bits) == (3, [8]) or (bands == 1 and max(bits) <= 8):
        return ""
    depth = " and ".join(map(str, bits))
    if bands == 1:
        return (
            f"a TIFF of {depth} bits, {_KINDS.get(kind, 'of no kind that is known')}, which Pillow does not read "
            "so; write it as 8 or 16 bits without a sign where black is 0, or as floats of 32"
            + ("" if TIFFFILE_HERE else f"; or {TIFFFILE_NEEDED} reads whole numbers and floats")
        )
    ranged = ", or data.range=percentiles its colours" if photometric == RGB and bands >= 3 and min(bits) > 8 else ""
    return (
        f"a TIFF of {bands} bands of {depth} bits, which Pillow does not read; write three of its bands as 8 bits each "
        f"into a file of their own, or one band as 8 or 16 bits; or data.channels={bands} reads all of them{ranged}"
    )
