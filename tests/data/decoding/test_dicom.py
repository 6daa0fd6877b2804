"""DICOM: what becomes of its pixels, by pydicom's functions and by the formulas of PS3.3, and of damaged files."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pydicom = pytest.importorskip("pydicom", reason="pydicom is not installed (extra dicom)")
pytest.importorskip("imagecodecs", reason="imagecodecs is not installed (extra dicom)")
import imagecodecs  # noqa: E402
from pydicom.data import get_testdata_file  # noqa: E402
from pydicom.encaps import encapsulate  # noqa: E402
from pydicom.pixels import apply_modality_lut, apply_voi_lut, apply_windowing  # noqa: E402

from rayfed_ssl.data.decoding import dicom  # noqa: E402
from rayfed_ssl.data.decoding.decode import decode  # noqa: E402
from rayfed_ssl.data.decoding.form import ImageForm  # noqa: E402
from rayfed_ssl.data.images import BadImage  # noqa: E402
from tests.data.scans import encoded, lut, scan  # noqa: E402

SIDE = 16
DRAW = np.random.default_rng(0)
TWELVE = DRAW.integers(0, 4096, (SIDE, SIDE), dtype=np.uint16)
SIGNED = DRAW.integers(-1000, 2000, (SIDE, SIDE), dtype=np.int16)


def grey(header, **form) -> np.ndarray:
    """(SIDE, SIDE) of the decoded square."""
    payload = header if isinstance(header, bytes | Path) else encoded(header)
    return decode(payload, ImageForm(SIDE, channels=1, **form)).pixels[..., 0]


def own(name: str) -> Path:
    """A file of pydicom's own tests, of those that its wheel holds."""
    found = get_testdata_file(name, download=False)
    if found is None:
        pytest.skip(f"this pydicom has no {name}")
    return Path(found)


def to_bytes(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.rint((values.clip(low, high) - low) * (255 / (high - low))).astype(np.uint8)


# -- from stored values to 0..255 --------------------------------------------------------------------------------------


def test_without_window_and_range_an_image_has_its_own() -> None:
    decoded = decode(encoded(scan(TWELVE, 12)), ImageForm(SIDE, channels=1))
    assert np.array_equal(decoded.pixels[..., 0], to_bytes(TWELVE.astype(float), TWELVE.min(), TWELVE.max()))
    assert decoded.high_bit_depth
    assert not decoded.windowed
    assert decoded.clipped is None


@pytest.mark.parametrize("slope", [1, 2, 0.37])
def test_a_range_is_in_rescaled_units_and_comes_before_the_window(slope: float) -> None:
    header = scan(TWELVE, 12, RescaleSlope=slope, RescaleIntercept=-1024, WindowCenter=40, WindowWidth=400)
    decoded = decode(encoded(header), ImageForm(SIDE, channels=1, range=(-1000, 400)))
    hounsfield = apply_modality_lut(TWELVE, header)
    assert np.array_equal(decoded.pixels[..., 0], to_bytes(hounsfield, -1000, 400))
    assert not decoded.windowed
    assert decoded.clipped == (hounsfield.min(), hounsfield.max())


WINDOWS = {
    "LINEAR": [(40, 400), (40.5, 1), (-600, 1500.5), (0, 2)],
    "LINEAR_EXACT": [(40, 400), (40, 0.5), (-600, 1500.5)],
    "SIGMOID": [(40, 400), (40, 0.5), (-600, 1500.5)],
}


@pytest.mark.parametrize(("function", "center", "width"), [(f, *w) for f, all_of in WINDOWS.items() for w in all_of])
def test_windows_are_those_of_the_standard(function: str, center: float, width: float) -> None:
    """By pydicom, and by PS3.3, C.11.2.1.2.1, C.11.2.1.3.1 and C.11.2.1.3.2, written out a pixel at a time."""
    header = scan(SIGNED, WindowCenter=[center, 7], WindowWidth=[width, 9], VOILUTFunction=function)
    shown = grey(header)
    lowest, highest = -(2**15), 2**15 - 1
    by_pydicom = (apply_windowing(SIGNED, header) - lowest) / (highest - lowest) * 255
    assert np.abs(shown - by_pydicom).max() <= 0.5 + 1e-9

    def formula(x: float) -> float:
        if function == "SIGMOID":
            return 255 / (1 + np.exp(np.float64(-4 * (x - center) / width).clip(-700, 700)))
        c, w = (center - 0.5, width - 1) if function == "LINEAR" else (center, width)
        return 0 if x <= c - w / 2 else 255 if x > c + w / 2 else ((x - c) / w + 0.5) * 255

    assert np.abs(shown - np.vectorize(formula, otypes=[float])(SIGNED)).max() <= 0.5 + 1e-9


def test_a_window_is_one_of_rescaled_values_and_its_clipping_is_told() -> None:
    header = scan(TWELVE, 12, RescaleSlope=2, RescaleIntercept=-1000, WindowCenter=500, WindowWidth=101)
    decoded = decode(encoded(header), ImageForm(SIDE, channels=1))
    assert np.array_equal(decoded.pixels[..., 0], to_bytes(2.0 * TWELVE - 1000, 449.5, 549.5))
    assert (decoded.high_bit_depth, decoded.windowed) == (True, True)
    assert decoded.clipped == (2 * int(TWELVE.min()) - 1000, 2 * int(TWELVE.max()) - 1000)


@pytest.mark.parametrize(
    "said",
    [
        {"WindowCenter": 40, "WindowWidth": 0},
        {"WindowCenter": 40, "WindowWidth": 0.5},  # LINEAR: 1 or more
        {"WindowCenter": 40, "WindowWidth": -3, "VOILUTFunction": "SIGMOID"},
        {"WindowCenter": 40, "WindowWidth": 10, "VOILUTFunction": "OTHER"},
        {"WindowCenter": 40},
        {"WindowCenter": None, "WindowWidth": None},
    ],
)
def test_a_window_that_is_none_is_none(said: dict[str, object]) -> None:
    assert np.array_equal(grey(scan(TWELVE, 12, **said)), grey(scan(TWELVE, 12)))


@pytest.mark.parametrize(("first", "bits"), [(0, 16), (100, 12), (-500, 8), (-500, 10)])
def test_a_voi_lut_is_looked_up(first: int, bits: int) -> None:
    table = np.sort(DRAW.integers(0, 2**bits, 700))
    header = scan(SIGNED, VOILUTSequence=lut(first, table, bits))
    shown = np.array([table[min(max(int(x) - first, 0), 699)] for x in SIGNED.flat]).reshape(SIDE, SIDE)
    assert np.array_equal(grey(header), to_bytes(shown.astype(float), 0, 2**bits - 1))
    if bits > 8:  # of 8, pydicom counts places in 8 bits
        assert np.array_equal(grey(header), to_bytes(apply_voi_lut(SIGNED, header).astype(float), 0, 2**bits - 1))
    header.WindowCenter, header.WindowWidth = 100, 1000
    assert np.array_equal(grey(header), to_bytes(SIGNED.astype(float), 100 - 500, 99 + 500))  # a window comes first


@pytest.mark.parametrize("syntax", ["1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2"])
def test_a_modality_lut_is_looked_up_in_any_order_of_bytes(syntax: str) -> None:
    table = np.sort(DRAW.integers(0, 2**16, 3000))
    values = TWELVE.astype(">u2" if syntax.endswith("2.2") else "<u2")
    header = scan(values, 12, syntax, ModalityLUTSequence=lut(200, table, 16))
    expected = apply_modality_lut(TWELVE, header).astype(float)
    assert np.array_equal(grey(header), to_bytes(expected, expected.min(), expected.max()))
    assert np.array_equal(grey(header, range=(0, 40000)), to_bytes(expected, 0, 40000))


def test_in_monochrome1_white_is_zero() -> None:
    for said in ({}, {"WindowCenter": 2000, "WindowWidth": 500}):
        dark = scan(TWELVE, 12, **said)
        bright = scan(TWELVE, 12, PhotometricInterpretation="MONOCHROME1", **said)
        assert np.array_equal(grey(bright), 255 - grey(dark))
        assert np.array_equal(grey(bright, range=(0, 4095)), 255 - grey(dark, range=(0, 4095)))


@pytest.mark.parametrize(
    "padding",
    [
        {"PixelPaddingValue": -2000},
        {"PixelPaddingValue": -2000, "PixelPaddingRangeLimit": -1995},
        {"PixelPaddingValue": -1995, "PixelPaddingRangeLimit": -2000},
    ],
)
def test_padding_is_of_no_range_and_of_no_clipping(padding: dict[str, int]) -> None:
    padded = SIGNED.copy()
    padded[:4] = -2000
    seen = padded[4:]
    decoded = decode(encoded(scan(padded, **padding)), ImageForm(SIDE, channels=1))
    assert np.array_equal(decoded.pixels[..., 0], to_bytes(padded.astype(float), seen.min(), seen.max()))
    assert decoded.clipped is None
    within = decode(encoded(scan(padded, **padding)), ImageForm(SIDE, channels=1, range=(-1000, 2000)))
    assert within.clipped is None
    assert decode(encoded(scan(padded)), ImageForm(SIDE, channels=1, range=(-1000, 2000))).clipped is not None
    unsigned = scan(padded)
    unsigned.add_new("PixelPaddingValue", "US", 65536 - 2000)  # as some write it
    assert np.array_equal(grey(unsigned), decoded.pixels[..., 0])


def test_images_of_8_bits_keep_their_values_but_for_a_window_of_their_own() -> None:
    eight = DRAW.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)
    plain = decode(encoded(scan(eight)), ImageForm(SIDE, channels=1, range=(-1000, 400)))
    assert np.array_equal(plain.pixels[..., 0], eight)
    assert not plain.high_bit_depth
    windowed = decode(encoded(scan(eight, WindowCenter=100, WindowWidth=51)), ImageForm(SIDE, channels=1))
    assert np.array_equal(windowed.pixels[..., 0], to_bytes(eight.astype(float), 74.5, 124.5))
    assert (windowed.high_bit_depth, windowed.windowed, windowed.clipped) == (False, True, None)
    six = scan((eight >> 2).astype(np.uint8), 6)
    assert np.array_equal(grey(six), to_bytes((eight >> 2).astype(float), 0, 63))


def test_enhanced_files_say_it_in_groups_of_frames() -> None:
    frames = np.stack([SIGNED, SIGNED[::-1], SIGNED.T])
    header = scan(frames, NumberOfFrames=3)
    rescale, window, shared, first = (pydicom.Dataset() for _ in range(4))
    rescale.RescaleSlope, rescale.RescaleIntercept = 2, -10
    window.WindowCenter, window.WindowWidth = 50, 1001
    shared.PixelValueTransformationSequence, first.FrameVOILUTSequence = [rescale], [window]
    header.SharedFunctionalGroupsSequence, header.PerFrameFunctionalGroupsSequence = [shared], [first]
    decoded = decode(encoded(header), ImageForm(SIDE, channels=1))
    assert np.array_equal(decoded.pixels[..., 0], to_bytes(2.0 * SIGNED - 10, -450.5, 549.5))
    assert decoded.frames
    assert not decode(encoded(scan(SIGNED)), ImageForm(SIDE)).frames


def test_values_of_float_are_scaled_like_others() -> None:
    values = DRAW.normal(size=(SIDE, SIDE)).astype(np.float32)
    header = scan(values)
    del header.PixelData
    header.FloatPixelData = values.tobytes()
    assert np.array_equal(grey(header), to_bytes(values.astype(float), values.min(), values.max()))
    values[3, 3] = np.nan
    header.FloatPixelData = values.tobytes()
    with pytest.raises(BadImage, match="NaN"):
        grey(header)


# -- colours -----------------------------------------------------------------------------------------------------------


def test_colours_are_those_of_the_file() -> None:
    picture = DRAW.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    assert np.array_equal(decode(encoded(scan(picture)), ImageForm(SIDE)).pixels, picture)
    sixteen = picture.astype(np.uint16) * 257
    with pytest.raises(BadImage, match=r"16 bits per channel .* set data\.range=percentiles, or .*\[0,65535\]"):
        decode(encoded(scan(sixteen)), ImageForm(SIDE))
    decoded = decode(encoded(scan(sixteen)), ImageForm(SIDE, range=(0, 65535)))
    assert np.array_equal(decoded.pixels, picture)
    assert decoded.high_bit_depth


def test_a_palette_becomes_rgb() -> None:
    table = DRAW.integers(0, 256, (256, 3), dtype=np.uint8)
    places = DRAW.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)
    header = scan(places, PhotometricInterpretation="PALETTE COLOR")
    for colour, column in zip(("Red", "Green", "Blue"), table.T, strict=True):
        header.add_new(f"{colour}PaletteColorLookupTableDescriptor", "US", [256, 0, 16])
        data = (column.astype("<u2") * 256).tobytes()
        header.add_new(f"{colour}PaletteColorLookupTableData", "OW", data)
    decoded = decode(encoded(header), ImageForm(SIDE))
    assert np.array_equal(decoded.pixels, table[places])
    assert not decoded.high_bit_depth
    header.add_new("SegmentedRedPaletteColorLookupTableData", "OW", b"\0\0\1\0\5\0")
    with pytest.raises(BadImage, match="in segments, which are not read; convert it first"):
        decode(encoded(header), ImageForm(SIDE))


SAME = [
    ("SC_rgb_rle_2frame.dcm", 0),
    ("SC_rgb_gdcm_KY.dcm", 0),  # JPEG 2000
    ("SC_rgb_jpeg_gdcm.dcm", 0),  # JPEG lossless
    ("SC_rgb_dcmtk_+eb+cr.dcm", 2),  # JPEG baseline, of RGB
    ("SC_rgb_dcmtk_+eb+cy+n2.dcm", 6),  # of YBR
    ("SC_rgb_jls_lossy_line.dcm", 2),
    ("SC_rgb_jls_lossy_sample.dcm", 2),
    ("SC_ybr_full_422_uncompressed.dcm", 6),
]


@pytest.mark.parametrize(("name", "most"), SAME)
def test_one_picture_is_the_same_in_every_coding_of_colours(name: str, most: int) -> None:
    pictures = [decode(own(one), ImageForm(100)).pixels.astype(int) for one in ("SC_rgb_rle.dcm", name)]
    assert np.abs(pictures[0] - pictures[1]).max() <= most


def test_an_adobe_marker_says_which_colours_a_jpeg_has() -> None:
    names = ("SC_rgb_jpeg_app14_dcmd.dcm", "SC_jpeg_no_color_transform_2.dcm")
    pictures = [decode(own(name), ImageForm(256)).pixels for name in names]
    assert np.array_equal(*pictures)


# -- compressed grey values --------------------------------------------------------------------------------------------


def compressed(values: np.ndarray, syntax: str, bits: int, **said) -> pydicom.Dataset:
    code = {"70": "jpeg", "80": "jpegls", "90": "jpeg2k"}[syntax.rpartition(".")[2]]
    unsigned = values.astype(np.uint16)
    frame = {
        "jpeg": lambda: imagecodecs.jpeg8_encode(unsigned, lossless=True),
        "jpegls": lambda: imagecodecs.jpegls_encode(unsigned),
        "jpeg2k": lambda: imagecodecs.jpeg2k_encode(unsigned, codecformat="j2k", reversible=True),
    }[code]()
    header = scan(values, bits, syntax, **said)
    header.PixelData = encapsulate([bytes(frame)])
    header["PixelData"].is_undefined_length = True
    return header


LOSSLESS = ["1.2.840.10008.1.2.4.70", "1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.90"]


@pytest.mark.parametrize("syntax", LOSSLESS)
def test_lossless_compression_changes_nothing(syntax: str) -> None:
    header = compressed(TWELVE, syntax, 12)
    assert np.array_equal(grey(header), grey(scan(TWELVE, 12)))


@pytest.mark.parametrize(
    "name", ["MR_small_RLE.dcm", "MR_small_jp2klossless.dcm", "MR_small_jpeg_ls_lossless.dcm", "MR_small_bigendian.dcm"]
)
def test_signed_values_come_back_from_every_coding(name: str) -> None:
    assert np.array_equal(*(decode(own(one), ImageForm(64)).pixels for one in ("MR_small.dcm", name)))


def test_twelve_bits_of_lossy_jpeg_are_read() -> None:
    """The values at two places are those of pydicom's own tests."""
    with dicom.opened(own("JPGExtended.dcm")) as opened:
        values = opened.frame(None).values
    assert (values.shape, values[420, 140], values[230, 120]) == ((1024, 256), 244, 95)


@pytest.mark.parametrize("syntax", LOSSLESS)
def test_other_sides_than_the_header_says_are_found_before_anything_is_decoded(syntax: str, monkeypatch) -> None:
    header = compressed(TWELVE, syntax, 12)
    header.Rows = 8
    for name in ("jpeg8_decode", "jpegls_decode", "jpeg2k_decode"):
        monkeypatch.setattr(imagecodecs, name, lambda *_, **__: pytest.fail("decoded"))
    with pytest.raises(BadImage, match=r"^its compressed pixels are 16x16x1, and its header says 8x16x1 "):
        grey(header)


@pytest.mark.parametrize("syntax", LOSSLESS)
def test_compressed_pixels_that_are_cut_short_are_bad(syntax: str) -> None:
    header = compressed(TWELVE, syntax, 12)
    frame = pydicom.encaps.get_frame(header.PixelData, 0, number_of_frames=1)
    header.PixelData = encapsulate([frame[: len(frame) * 2 // 3]])
    with pytest.raises(BadImage, match="cut short"):
        grey(header)


# -- what is not read --------------------------------------------------------------------------------------------------


def test_pixels_are_counted_before_they_are_decoded(monkeypatch) -> None:
    header = scan(TWELVE, 12, Rows=65535, Columns=65535)
    monkeypatch.setattr(dicom, "_decoded", lambda *_: pytest.fail("decoded"))
    with pytest.raises(BadImage, match=r"^65535x65535 pixels, more than max_pixels=50000000"):
        grey(header)


def test_what_is_not_read_says_why(tmp_path: Path) -> None:
    video = scan(TWELVE, 12, "1.2.840.10008.1.2.4.102")
    video.PixelData = encapsulate([b"video"])
    with pytest.raises(BadImage, match=r"^its pixels are coded as MPEG-4 .*, which is not read; convert it first"):
        grey(video)
    jpeg_xl = encoded(video).replace(b"1.2.840.10008.1.2.4.102", b"1.2.840.10008.1.2.4.110")
    with pytest.raises(BadImage, match=r"^its transfer syntax is 1\.2\.840\.10008\.1\.2\.4\.110, which is not read"):
        grey(jpeg_xl)
    with pytest.raises(BadImage, match=r"^it is deflated, which is not read; convert it first"):
        grey(own("image_dfl.dcm"))
    with pytest.raises(BadImage, match=r"^it is DICOM without an image \(Basic Text SR Storage\)$"):
        grey(own("reportsi.dcm"))
    with pytest.raises(BadImage, match="photometric interpretation is HSV"):
        grey(scan(TWELVE, 12, PhotometricInterpretation="HSV"))
    (tmp_path / "a.dcm").write_bytes(own("no_meta.dcm").read_bytes())
    with pytest.raises(BadImage, match="has no letters DICM at byte 128"):
        grey(tmp_path / "a.dcm")
    (tmp_path / "a.png").write_bytes(encoded(scan(TWELVE, 12)))
    with pytest.raises(BadImage, match=r"^it is DICOM; its name should end in \.dcm"):
        grey(tmp_path / "a.png")
    Image.fromarray(np.zeros((SIDE, SIDE), np.uint8)).save(tmp_path / "b.dcm", "PNG")
    assert not grey(tmp_path / "b.dcm").any()  # a PNG by another name


@pytest.mark.parametrize("missing", ["pydicom", "imagecodecs"])
def test_a_missing_extra_is_one_line(missing: str, monkeypatch) -> None:
    monkeypatch.setattr(dicom, "installed", lambda: tuple(name for name in dicom.PACKAGES if name != missing))
    with pytest.raises(BadImage) as error:
        grey(scan(TWELVE, 12))
    assert str(error.value) == f"it is DICOM, which needs {missing}; pip install 'rayfed-ssl[dicom]'"


@pytest.mark.long
def test_pydicom_is_imported_for_dicom_alone(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((SIDE, SIDE), np.uint8)).save(tmp_path / "a.png")
    code = (
        "import sys; from pathlib import Path; from rayfed_ssl.data.decoding.decode import *\n"
        "import rayfed_ssl.data.loading\n"
        "decode(Path(sys.argv[1]), ImageForm(8)); print('pydicom' in sys.modules, 'imagecodecs' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.png")], capture_output=True, check=True)
    assert ran.stdout == b"False False\n"


def damaged(content: bytes, draw: random.Random, count: int) -> list[bytes]:
    """``count`` files cut at some place, and ``count`` with a few other bytes, most of them in the header."""
    cut = [content[: draw.randrange(len(content))] for _ in range(count)]
    flipped = []
    for number in range(count):
        changed = bytearray(content)
        end = len(content) if number % 3 == 0 else min(1200, len(content))
        for _ in range(draw.choice([1, 2, 8])):
            changed[draw.randrange(132, end)] = draw.randrange(256)
        flipped.append(bytes(changed))
    return cut + flipped


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("syntax", ["1.2.840.10008.1.2", "1.2.840.10008.1.2.1", *LOSSLESS])
def test_damaged_files_end_as_bad_images(syntax: str) -> None:
    said = {"WindowCenter": 40, "WindowWidth": 400, "RescaleSlope": 1, "RescaleIntercept": -1024}
    header = compressed(TWELVE, syntax, 12, **said) if syntax in LOSSLESS else scan(TWELVE, 12, syntax, **said)
    said_of_bad = []
    for content in damaged(encoded(header), random.Random(0), 60):
        try:
            decode(content, ImageForm(SIDE, max_pixels=10_000))
        except BadImage as error:
            said_of_bad.append(str(error))
    assert all(text.isprintable() and 0 < len(text) <= 300 for text in said_of_bad)
    assert len(said_of_bad) >= 50  # all that were cut, but for a few bytes of filling at the end
