"""Compressed DICOM pixels: a plug-in of pydicom that decodes JPEG, JPEG-LS and JPEG 2000 by imagecodecs.

imagecodecs holds libjpeg-turbo (JPEG baseline, extended and lossless, of 8, 12 and 16 bits), CharLS (JPEG-LS) and
OpenJPEG (JPEG 2000). Among the plug-ins of pydicom itself, GDCM ends the process on damaged pixels, libjpeg's is under
the GPL, and Pillow's reads neither JPEG lossless nor JPEG of more than 8 bits. RLE is decoded by pydicom.

Shape legend: H rows, W columns, C samples per pixel.
"""

from __future__ import annotations

import math
from typing import Any

from rayfed_ssl.base.lazy import LazyModule

imagecodecs = LazyModule("imagecodecs")
NAME = "imagecodecs"  # the plug-in's name
_JPEG = {  # PS3.5, section 8.2.1: transfer syntaxes
    "1.2.840.10008.1.2.4.50": "JPEG baseline",
    "1.2.840.10008.1.2.4.51": "JPEG extended",
    "1.2.840.10008.1.2.4.57": "JPEG lossless",
    "1.2.840.10008.1.2.4.70": "JPEG lossless, first-order prediction",
}
_JPEG_LS = {"1.2.840.10008.1.2.4.80": "JPEG-LS", "1.2.840.10008.1.2.4.81": "JPEG-LS near-lossless"}  # section 8.2.3
_JPEG_2000 = {"1.2.840.10008.1.2.4.90": "JPEG 2000 lossless", "1.2.840.10008.1.2.4.91": "JPEG 2000"}  # section 8.2.4
SYNTAXES = _JPEG | _JPEG_LS | _JPEG_2000
RLE = "1.2.840.10008.1.2.5"
_FRAMES_OF = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}  # SOFn and SOF55: ITU-T T.81, B.1.1.3; T.87, C.1.1
_ADOBE = b"\xff\xee\0\x0eAdobe"  # the segment APP14, which says how the colours were transformed
_SIZ = b"\xff\x4f\xff\x51"  # SOC and SIZ: ITU-T T.800, A.5.1
_END = b"\xff\xd9"  # EOI and EOC; a byte or two of filling may follow
DECODER_DEPENDENCIES = dict.fromkeys(SYNTAXES, (NAME,))  # pydicom names them if the plug-in is not available


class BadFrame(ValueError):
    """A compressed frame that is not what the file's header says; the text is the reason."""


def is_available(syntax: str) -> bool:
    """Whether a transfer syntax is decoded here; pydicom calls this."""
    return syntax in SYNTAXES


def decode_frame(source: bytes, runner: Any) -> bytes:
    """Decodes a compressed frame to the bytes of its samples (H, W, C). Colours stay as they are coded, unless the
    codec itself transformed them.

    Args:
        runner: pydicom's ``DecodeRunner``, in which the bits and the colours of what is returned are set.
    Raises:
        BadFrame: the rows, columns or samples are not the header's, which is found before anything is decoded, or the
            frame is cut short.
    """
    syntax, in_header = str(runner.transfer_syntax), (runner.rows, runner.columns, runner.samples_per_pixel)
    in_frame = _sides_2000(source) if syntax in _JPEG_2000 else _sides(source)
    if in_frame != in_header:
        sizes = [f"{rows}x{columns}x{samples}" for rows, columns, samples in (in_frame, in_header)]
        raise BadFrame(f"its compressed pixels are {sizes[0]}, and its header says {sizes[1]} (rows, columns, samples)")
    if not source.rstrip(b"\0\xff").endswith(_END):
        raise BadFrame("its compressed pixels are cut short")
    if syntax in _JPEG_2000:
        pixels = imagecodecs.jpeg2k_decode(source, numthreads=1)
        if runner.photometric_interpretation in ("YBR_ICT", "YBR_RCT"):  # undone by the decoder: T.800, annex G
            runner.set_option("photometric_interpretation", "RGB")
    elif syntax in _JPEG_LS:
        pixels = imagecodecs.jpegls_decode(source)
    elif in_header[2] == 3 and _ADOBE in source[:4096]:
        pixels = imagecodecs.jpeg8_decode(source, outcolorspace="RGB")
        runner.set_option("photometric_interpretation", "RGB")
    else:
        colours = "YCBCR" if in_header[2] == 3 else None
        pixels = imagecodecs.jpeg8_decode(source, colorspace=colours, outcolorspace=colours)
    if pixels.size != math.prod(in_header):
        raise BadFrame(f"its compressed pixels become {pixels.size} samples")
    runner.set_option("bits_allocated", 8 * pixels.itemsize)
    runner.set_option("planar_configuration", 0)
    return bytes(pixels.tobytes())


def _sides(source: bytes) -> tuple[int, int, int]:
    """The (rows, columns, samples) in the frame header of a JPEG or JPEG-LS stream: ITU-T T.81, B.2.2."""
    place = 2
    while source[place : place + 1] == b"\xff" and place + 10 <= len(source):
        marker = source[place + 1]
        if marker == 0xFF:  # filling
            place += 1
            continue
        if marker in _FRAMES_OF:
            rows, columns = (int.from_bytes(source[place + at : place + at + 2], "big") for at in (5, 7))
            return rows, columns, source[place + 9]
        place += 2 + int.from_bytes(source[place + 2 : place + 4], "big")
    raise BadFrame("its compressed pixels have no frame header")


def _sides_2000(source: bytes) -> tuple[int, int, int]:
    """The (rows, columns, samples) in the header of a JPEG 2000 stream: ITU-T T.800, A.5.1."""
    place = source.find(_SIZ, 0, 4096)
    if place < 0 or place + 42 > len(source):
        raise BadFrame("its compressed pixels have no header of JPEG 2000")
    across, down, left, top = (int.from_bytes(source[place + at : place + at + 4], "big") for at in (8, 12, 16, 20))
    return down - top, across - left, int.from_bytes(source[place + 40 : place + 42], "big")
