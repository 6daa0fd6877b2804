"""The pixel store against PIL run by hand: content, sharing between processes, damage, and undecodable images."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.decoding import bit_depth, dicom, dicom_codecs, dicom_heads
from rayfed_ssl.data.decoding.decode import decode as decode_to
from rayfed_ssl.data.decoding.decoded import Decoded
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.decoding.threads import decoded_blocks
from rayfed_ssl.data.images import BadImage, Listing
from rayfed_ssl.data.pixels.store import BadStore, cached, default_cache, read
from rayfed_ssl.data.readers import walking
from rayfed_ssl.data.source_notes import HeldOut
from tests.data.files import file_of, png

PLENTY = 10**7


def decode(payload, size: int, max_pixels: int) -> np.ndarray:
    return decode_to(payload, ImageForm(size, max_pixels)).pixels


def photo(width: int, height: int, seed: int = 0) -> np.ndarray:
    """A smooth picture, as photographs are: JPEG and resizing keep it close to itself."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def listing(payloads, labels=None, clients=None) -> Listing:
    labels = np.arange(len(payloads)) % 3 if labels is None else labels
    return Listing(
        np.asarray(labels, np.int64),
        ("a", "b", "c"),
        lambda: ((f"image {row}", payload) for row, payload in enumerate(payloads)),
        clients,
        () if clients is None else ("x", "y"),
    )


def store(path: Path, split: Listing, size: int = 16, skip_bad: bool = False):
    return cached(path, lambda: split, ImageForm(size), skip_bad)


def test_pixels_labels_and_clients_come_back(tmp_path):
    pixels = [photo(16, 16, seed) for seed in range(700)]  # several blocks
    clients = np.arange(700) % 2
    stored = store(tmp_path / "s.arrow", listing([png(p) for p in pixels], clients=clients))
    assert np.array_equal(stored.images.pixels, np.stack(pixels))
    assert np.array_equal(stored.images.labels, np.arange(700) % 3)
    assert np.array_equal(stored.images.clients, clients)
    assert (stored.images.class_names, stored.images.client_names) == (("a", "b", "c"), ("x", "y"))
    assert stored.images.labels.dtype == stored.images.clients.dtype == np.int64
    assert stored.skipped == ()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["s.arrow"]  # nothing half-written stays, and no lock


def test_a_digest_is_the_one_that_runs_have_recorded(tmp_path):
    """Of pixels, labels, clients, names and groups, named as before FORMAT 13: a resumed run is held to it."""
    images, clients, groups = (
        [photo(16, 16, seed) for seed in range(4)],
        np.array([0, 1, 1, -1]),
        np.array([0, 0, 2, 1]),
    )
    split = replace(listing([png(p) for p in images], clients=clients), groups=groups)
    names = json.dumps({"class_names": ["a", "b", "c"], "group_names": ["x", "y"]}).encode()
    whole = b"".join(
        [*(p.tobytes() for p in images), split.labels.tobytes(), clients.tobytes(), names, groups.tobytes()]
    )
    stored = store(tmp_path / "s.arrow", split)
    assert stored.digest == hashlib.blake2b(whole, digest_size=16).hexdigest()
    assert np.array_equal(stored.images.groups, groups)


def test_a_cache_that_cannot_be_locked_is_refused_and_holds_nothing(tmp_path, monkeypatch):
    def unsupported(*args):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(
        UserError, match=r"cache .*: cannot be written or locked \(.*Operation not supported\); set RAYFED"
    ):
        store(tmp_path / "s.arrow", listing([png(photo(16, 16))]))
    assert list(tmp_path.iterdir()) == []


def test_what_several_want_at_once_is_decoded_once_and_no_lock_stays(tmp_path):
    """Threads open the lock's file each for themselves, as processes do."""
    listed, guard = [], threading.Lock()

    def split():
        with guard:
            listed.append(1)
        time.sleep(0.2)
        return listing([png(photo(16, 16, seed)) for seed in range(30)])

    with ThreadPoolExecutor(6) as pool:
        made = [pool.submit(cached, tmp_path / "s.arrow", split, ImageForm(16), False) for _ in range(6)]
        assert len({stored.result().digest for stored in made}) == 1
    assert listed == [1]
    assert [file.name for file in tmp_path.iterdir()] == ["s.arrow"]


def test_warnings_of_pillow_are_off_and_those_of_others_are_not(monkeypatch):
    """Between two blocks, while further images are decoded, and afterwards."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200)
    image = png(photo(16, 16))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        decode(image, 16, PLENTY)
        assert [warning.category for warning in seen] == [Image.DecompressionBombWarning]
        for _, results in decoded_blocks(iter([(row, image) for row in range(20)]), ImageForm(16), size=5):
            assert all(isinstance(result, Decoded) for result in results)
            warnings.warn("a consumer's", stacklevel=1)
        warnings.warn("later", stacklevel=1)
    assert [str(warning.message) for warning in seen[1:]] == ["a consumer's"] * 4 + ["later"]


@pytest.mark.parametrize("module", [bit_depth, dicom, dicom_codecs, dicom_heads], ids=lambda module: module.__name__)
def test_warnings_of_what_we_decode_ourselves_are_off_and_those_of_our_other_modules_are_not(module):
    """As Python records them: by the name of the module whose line computed an odd value."""
    image = png(photo(16, 16))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in decoded_blocks(iter([(0, image)]), ImageForm(16)):
            warnings.warn_explicit("odd", RuntimeWarning, module.__file__, 1, module=module.__name__)
            warnings.warn_explicit("a reader's", RuntimeWarning, walking.__file__, 1, module=walking.__name__)
    assert [str(warning.message) for warning in seen] == ["a reader's"]


def test_warnings_of_pillow_are_on_again_when_nobody_decodes(monkeypatch):
    """Also where two decode at a time, and where one is left in the middle; filters set meanwhile stay."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200)
    image = png(photo(16, 16))

    def decoding():
        return decoded_blocks(iter([(row, image) for row in range(20)]), ImageForm(16), size=5)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        first, second = decoding(), decoding()
        next(first)
        next(second)
        first.close()
        decode(image, 16, PLENTY)
        assert not seen
        warnings.filterwarnings("ignore", "mine")
        mine = warnings.filters[0]
        for _ in second:
            pass
        assert warnings.filters == [mine, *before]
        decode(image, 16, PLENTY)
        assert [warning.category for warning in seen] == [Image.DecompressionBombWarning]


def test_a_store_is_on_the_disk_before_it_gets_its_name(tmp_path, named):
    store(tmp_path / "s.arrow", listing([png(photo(16, 16))]))
    assert named == ["s.arrow"]


def test_reading_maps_the_file_and_copies_nothing(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (300, 64, 64, 3), dtype=np.uint8)
    store(tmp_path / "s.arrow", listing(list(pixels)), size=64)
    before = pa.total_allocated_bytes()
    images = read(tmp_path / "s.arrow").images
    assert pa.total_allocated_bytes() - before < 10_000  # of 3.7 MB
    assert not images.pixels.flags.owndata
    assert not images.pixels.flags.writeable
    assert images.pixels.flags.c_contiguous
    address = images.pixels.ctypes.data
    spans = [
        line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if "s.arrow" in line
    ]
    assert any(int(low, 16) <= address < int(high, 16) for low, high in spans)
    assert np.array_equal(images.pixels, pixels)


def test_the_second_call_decodes_nothing_and_equal_content_has_equal_digests(tmp_path):
    first = store(tmp_path / "s.arrow", listing([photo(16, 16)] * 3))

    def never():
        raise AssertionError("listed again")

    again = cached(tmp_path / "s.arrow", never, ImageForm(16), False)
    elsewhere = store(tmp_path / "deeper" / "t.arrow", listing([png(photo(16, 16))] * 3))
    relabelled = store(tmp_path / "u.arrow", listing([photo(16, 16)] * 3, labels=[0, 0, 0]))
    assert first.digest == again.digest == elsewhere.digest
    assert relabelled.digest != first.digest


def test_decode_is_short_side_to_size_then_centre_crop_with_antialiasing():
    wide, tall = photo(90, 60), photo(60, 90)
    shrunk = np.asarray(Image.fromarray(wide).resize((30, 20), Image.Resampling.BILINEAR))
    assert np.array_equal(decode(png(wide), 20, PLENTY), shrunk[:, 5:25])
    shrunk = np.asarray(Image.fromarray(tall).resize((20, 30), Image.Resampling.BILINEAR))
    assert np.array_equal(decode(png(tall), 20, PLENTY), shrunk[5:25])
    checker = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
    assert np.abs(decode(png(checker), 8, PLENTY).astype(int) - 127).max() < 12  # averaged, not sampled


def test_decode_of_large_jpegs_stays_close_to_full_decoding():
    large = file_of(photo(640, 480), "JPEG")
    full = (
        Image.open(io.BytesIO(large)).convert("RGB").crop((80, 0, 560, 480)).resize((32, 32), Image.Resampling.BILINEAR)
    )
    assert np.abs(decode(large, 32, PLENTY).astype(int) - np.asarray(full)).max() <= 4


def test_decode_brings_every_mode_to_rgb(tmp_path):
    grey = photo(12, 12)[..., 0]
    expected = np.repeat(grey[..., None], 3, axis=2)
    assert np.array_equal(decode(grey, 12, PLENTY), expected)
    assert np.array_equal(decode(png(grey), 12, PLENTY), expected)
    with_alpha = np.dstack([photo(12, 12), grey])
    on_black = photo(12, 12) * (grey[..., None] / 255)
    assert np.abs(decode(png(with_alpha), 12, PLENTY) - on_black).max() <= 1
    path = tmp_path / "palette.gif"
    Image.fromarray(expected).quantize(256).save(path)
    assert np.abs(decode(path, 12, PLENTY).astype(int) - expected).max() <= 8


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (file_of(photo(64, 64), "JPEG")[:-200], "truncated"),
        (png(photo(64, 64))[:-200], "truncated|unrecognized"),
        (b"not an image", "no image of a format that is read"),
        (None, "no image bytes"),
        (Path("/no/such/file.jpg"), "No such file"),
        (png(np.zeros((400, 300), np.uint8)), "300x400 pixels, more than max_pixels=100000"),
    ],
    ids=["jpeg", "png", "text", "null", "absent", "gigantic"],
)
def test_bad_images_fail_by_name_or_are_skipped_and_counted(tmp_path, payload, reason):
    with pytest.raises(BadImage, match=reason):
        decode(payload, 16, 100_000)
    good = [photo(16, 16, seed) for seed in range(3)]
    split = listing([good[0], payload, good[1], good[2]], clients=np.array([0, 1, 0, 1]))
    with pytest.raises(UserError, match=r"data\.on_bad_image: image 1 cannot be decoded") as error:
        cached(tmp_path / "s.arrow", lambda: split, ImageForm(16, 100_000), False)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "s.arrow").exists()
    stored = cached(tmp_path / "s.arrow", lambda: split, ImageForm(16, 100_000), True)
    assert stored.skipped == ("image 1",)
    assert np.array_equal(stored.images.pixels, np.stack(good))
    assert stored.images.labels.tolist() == [0, 2, 0]
    assert stored.images.clients.tolist() == [0, 0, 1]
    assert read(tmp_path / "s.arrow").skipped == ("image 1",)


def test_a_decompression_bomb_is_refused_before_its_pixels_are_read():
    header = bytearray(png(np.zeros((8, 8), np.uint8)))
    header[16:24] = (60_000).to_bytes(4, "big") * 2  # width and height in IHDR; the checksum is then wrong too
    import zlib

    header[29:33] = zlib.crc32(header[12:29]).to_bytes(4, "big")
    with pytest.raises(BadImage, match=r"60000x60000|more than 178956970 pixels"):
        decode(bytes(header), 16, PLENTY)


@pytest.mark.parametrize("damage", ["cut", "footer", "labels", "one pixel", "empty", "text"])
def test_a_damaged_file_is_noticed_and_built_again(tmp_path, damage):
    path = tmp_path / "s.arrow"
    split = listing([photo(16, 16, seed) for seed in range(600)])
    whole = store(path, split)
    good = path.read_bytes()
    bad = bytearray(good)
    if damage == "cut":
        bad = bad[: len(bad) // 2]
    elif damage == "footer":
        bad = bad[:-1]
    elif damage == "labels":
        at = good.index(np.arange(3).astype(np.int64).tobytes())
        bad[at] = 2
    elif damage == "one pixel":
        bad[good.index(photo(16, 16, 507).tobytes()) + 300] ^= 1
    else:
        bad = bytearray(b"" if damage == "empty" else b"hello\n" * 100)
    del whole
    path.write_bytes(bad)
    with pytest.raises(BadStore):
        read(path)
    again = store(path, split)
    assert np.array_equal(again.images.pixels[507], photo(16, 16, 507))
    assert path.read_bytes() == good


def test_notes_come_back_with_what_a_card_has_of_them(tmp_path):
    said = (Note("class Ada is small", "a class is small"), HeldOut("a fifth", 1, 5, "", True), "read by a stranger")
    split = replace(listing([photo(16, 16)]), notes=said)
    for _ in range(2):
        assert store(tmp_path / "s.arrow", split).notes == (*said[:2], Note("read by a stranger"))


def test_a_file_with_notes_of_another_kind_is_built_again(tmp_path, monkeypatch):
    path, split = tmp_path / "s.arrow", listing([photo(16, 16)])
    with monkeypatch.context() as before:
        before.setattr("rayfed_ssl.data.pixels.store.asdict", lambda note: note.text)  # as FORMAT 11 had them
        with pytest.raises(BadStore):
            store(path, replace(split, notes=(Note("said"),)))
    assert path.exists()
    assert store(path, replace(split, notes=(Note("said"),))).notes == (Note("said"),)


def test_an_absent_split_has_no_rows(tmp_path):
    stored = store(tmp_path / "s.arrow", listing([]))
    assert stored.images.pixels.shape == (0, 16, 16, 3)
    assert len(stored.images) == 0


def test_a_listing_of_the_wrong_length_is_refused(tmp_path):
    with pytest.raises(UserError, match="1 images were read where 2 were listed"):
        store(tmp_path / "s.arrow", Listing(np.zeros(2, np.int64), (), lambda: iter([("x", photo(16, 16))])))


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"file: cannot be written or locked.*RAYFED_SSL_CACHE"):
        store(tmp_path / "file" / "s.arrow", listing([photo(16, 16)]))


def test_default_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("RAYFED_SSL_CACHE", str(tmp_path))
    assert default_cache() == tmp_path
    monkeypatch.delenv("RAYFED_SSL_CACHE")
    assert default_cache() == Path.home() / ".cache" / "rayfed-ssl"


BUILDER = """
import sys, time
from pathlib import Path
import numpy as np
from rayfed_ssl.data.images import Listing
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.pixels.store import cached
folder, me = Path(sys.argv[1]), sys.argv[2]
(folder / f"ready-{me}").touch()
while len(list(folder.glob("ready-*"))) < 2: time.sleep(0.001)
def listing():
    (folder / f"built-by-{me}").touch()
    def rows():
        for row in range(600):
            time.sleep(0.0005)                       # long enough that the other one certainly arrives
            yield str(row), np.full((8, 8, 3), row % 251, np.uint8)
    return Listing(np.arange(600), (), rows)
print(cached(folder / "s.arrow", listing, ImageForm(8, 100), False).digest)
"""


@pytest.mark.long
def test_two_processes_that_start_together_build_once(tmp_path):
    runs = [
        subprocess.Popen([sys.executable, "-c", BUILDER, str(tmp_path), me], stdout=subprocess.PIPE, text=True)
        for me in "ab"
    ]
    digests = {run.communicate(timeout=60)[0].strip() for run in runs}
    assert [run.returncode for run in runs] == [0, 0]
    assert len(digests) == 1
    assert len(list(tmp_path.glob("built-by-*"))) == 1
    assert read(tmp_path / "s.arrow").images.pixels[:, 0, 0, 0].tolist() == [row % 251 for row in range(600)]
