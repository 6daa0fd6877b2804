"""People's own images: other suffixes, other names of splits, files that are no images; and what is said of them."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageOps, TiffImagePlugin

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.catalogue import catalogued
from rayfed_ssl.data.images import Dataset
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.pixels.store import Undecodable
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.models.transform import Transform
from tests.data.encoded import banded

SIZE = 16


def pictures(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, SIZE, SIZE, 3), dtype=np.uint8)


def put(root: Path, *names: str) -> dict[str, np.ndarray]:
    """A different image under each name; their pixels."""
    made = dict(zip(names, pictures(len(names)), strict=True))
    for name, pixels in made.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return made


def folder(path: Path, **settings: object) -> Dataset:
    settings = {"name": "imagefolder", "path": path, "image_size": SIZE} | settings
    return load(SourceConfig.model_validate(settings), path.parent / "cache")


def refusal(path: Path, **settings: object) -> str:
    with pytest.raises(UserError) as error:
        folder(path, **settings)
    assert str(error.value).isprintable()
    return str(error.value)


def undecodable(path: Path, **settings: object) -> list[str]:
    """The images that are named as broken, all of them."""
    with pytest.raises(Undecodable) as error:
        folder(path, **settings)
    return error.value.names


# -- files that are no images ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["jpe", "jfif", "JFIF"])
def test_other_suffixes_of_jpegs_are_read(tmp_path: Path, suffix: str) -> None:
    root = tmp_path / "d"
    (root / "train").mkdir(parents=True)
    Image.fromarray(pictures(1)[0]).save(root / f"train/a.{suffix}", "JPEG")
    data = folder(root)
    with Image.open(root / f"train/a.{suffix}") as image:
        assert np.array_equal(data.train.pixels, np.asarray(image)[None])
    assert texts(data.notes) == ()


def litter(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"no image")


def test_files_that_are_not_read_are_counted_by_suffix(tmp_path: Path) -> None:
    root = tmp_path / "d"
    put(root, "train/a/1.png", "test/a/1.png")
    scans = [f"train/a/{n}.NII" for n in range(3)] + ["test/a/1.nii"]
    nameless = ["train/b/IM0001", "train/b/1.2.840.113619.2", "train/IM.0003"]
    litter(root, *scans, *nameless, "train/b/brain.nii.gz", "train/b/c.psd", "train/b/d.psd")
    litter(root, "train/.DS_Store", "train/.git/objects", "train/Thumbs.db", "test/labels.csv", "train/a/notes.TXT")
    litter(root, "train/README", "train/a/LICENSE", "train/info.json", "labels.h5")  # the last lies in no split
    note = (
        "10 files are not read: 4 .nii, 3 without suffix, 2 .psd, 1 .nii.gz; NIfTI is to be converted: its slices as "
        "PNG or TIFF of 16 bits, or as DICOM"
    )
    assert texts(folder(root).notes) == (note,)
    assert texts(folder(root).notes) == (note,)  # also from the cache
    put(tmp_path / "flat", *(f"a/{n}.png" for n in range(5)))
    litter(tmp_path / "flat", "a/video.mp4", "b.mp4")
    assert texts(folder(tmp_path / "flat").notes)[-1] == "2 files are not read: 2 .mp4"
    litter(tmp_path / "flat", *(f"x.k{n}" for n in range(9)))
    assert texts(folder(tmp_path / "flat").notes)[-1].endswith(
        ": 2 .mp4, " + ", ".join(f"1 .k{n}" for n in range(7)) + " and 2 others"
    )


@pytest.mark.parametrize("where", ["train/a", "a"])
def test_a_folder_of_scans_alone_says_that_they_are_to_be_converted(tmp_path: Path, where: str) -> None:
    litter(tmp_path / "d", *(f"{where}/{n}.nii" for n in range(3)))
    said = refusal(tmp_path / "d")
    assert "3 files are not read: 3 .nii; NIfTI is to be converted: its slices as PNG or TIFF" in said


ADVICE = {
    "train-0.parquet": "1 .parquet; Parquet files are read with name=parquet",
    "shard-0.tar": "1 .tar; archives are to be unpacked (those of WebDataset are not read)",
    "images.TGZ": "1 .tgz; archives are to be unpacked (those of WebDataset are not read)",
    "a.zip": "1 .zip; archives are to be unpacked (those of WebDataset are not read)",
}


@pytest.mark.parametrize("name", ADVICE)
@pytest.mark.parametrize("where", ["", "train/"])
def test_what_other_files_are_to_become_is_said(tmp_path: Path, name: str, where: str) -> None:
    litter(tmp_path / "d", f"{where}{name}")
    assert f"; 1 file is not read: {ADVICE[name]};" in refusal(tmp_path / "d")
    if not where:
        said = refusal(tmp_path / "d" / name)
        assert said.endswith("; data.name=parquet reads it" if name.endswith("parquet") else "; unpack it")
    put(tmp_path / "d", "train/a.png")
    assert texts(folder(tmp_path / "d").notes) == ((f"1 file is not read: {ADVICE[name]}",) if where else ())


# -- splits by other names ---------------------------------------------------------------------------------------------

NAMES = [("Training", "Testing"), ("Train", "Test"), ("TRAIN", "valid"), ("train", "Validation"), ("training", "Val")]


@pytest.mark.parametrize(("train", "test"), NAMES)
@pytest.mark.parametrize("layout", ["classes", "clients"])
def test_splits_are_known_by_the_names_people_give_them(tmp_path: Path, train: str, test: str, layout: str) -> None:
    """As the same tree under the names train/ and test/."""
    client = "north/" if layout == "clients" else ""
    names = [f"SPLIT/{client}{label}/{n}.png" for label in ("cat", "dog") for n in range(2)]
    put(tmp_path / "own", *(n.replace("SPLIT", s) for s in (train, test) for n in names))
    put(tmp_path / "plain", *(n.replace("SPLIT", s) for s in ("train", "test") for n in names))
    own, plain = (folder(tmp_path / where, layout=layout) for where in ("own", "plain"))
    assert own.train.class_names == ("cat", "dog")
    assert texts(own.notes) == ()
    assert np.array_equal(own.train.pixels, plain.train.pixels)
    assert np.array_equal(own.test.pixels, plain.test.pixels)
    assert own.test.labels.tolist() == [0, 0, 1, 1]
    listed = catalogued(SourceConfig(name="imagefolder", path=tmp_path / "own", layout=layout))
    assert (listed.splits, listed.class_names) == ((("train", 4), ("test", 4)), ("cat", "dog"))


def test_clients_may_hold_splits_by_other_names(tmp_path: Path) -> None:
    root = tmp_path / "d"
    made = put(root, "a/Training/x/1.png", "a/Testing/x/2.png", "a/valid/x/3.png", "a/valid/x/4.png", "b/train/x/5.png")
    data = folder(root, layout="clients")
    assert np.array_equal(data.train.pixels, [made["a/Training/x/1.png"], made["b/train/x/5.png"]])
    assert np.array_equal(data.test.pixels, [made["a/Testing/x/2.png"]])
    assert texts(data.notes) == ("the clients' val/ (2 images) is not used where test/ is there",)
    (root / "a/Testing/x/2.png").unlink()  # a test folder without images is none
    data = folder(root, layout="clients")
    assert np.array_equal(data.test.pixels, [made["a/valid/x/3.png"], made["a/valid/x/4.png"]])
    assert texts(data.notes) == ()


def test_images_of_val_beside_test_are_named_as_not_used(tmp_path: Path) -> None:
    root = tmp_path / "d"
    made = put(root, "train/a/1.png", "test/a/2.png", *(f"valid/a/{n}.png" for n in range(3)))
    data = folder(root)
    assert np.array_equal(data.test.pixels, [made["test/a/2.png"]])
    assert texts(data.notes) == ("valid/ (3 images) is not used: test/ is there",)
    (root / "test/a/2.png").unlink()  # a test folder without images is none
    data = folder(root)
    assert (len(data.test), texts(data.notes)) == (3, ())


def test_valid_and_invalid_may_be_classes(tmp_path: Path) -> None:
    root = tmp_path / "d"
    put(root, *(f"{label}/{n}.png" for label in ("valid", "invalid") for n in range(5)))
    data = folder(root)
    assert data.train.class_names == ("invalid", "valid")
    put(tmp_path / "e", "Testing/1.png", "cats/1.png")
    assert "has no folder train/" in refusal(tmp_path / "e")


def test_two_folders_of_one_split_are_refused_unless_they_are_the_same_folder(tmp_path: Path) -> None:
    root = tmp_path / "d"
    put(root, "train/a/1.png", "test/a/2.png")
    (root / "Train").symlink_to("train")
    assert len(folder(root).train) == 1
    put(root, "Testing/a/3.png")
    assert "has Testing/ and test/, which are names of one split; rename one" in refusal(root)


def test_classes_too_small_for_a_test_image_are_named(tmp_path: Path) -> None:
    root = tmp_path / "d"
    put(
        root,
        *(f"{name}/{n}.png" for name, count in {"a": 10, "ring": 2, "blob": 1, "c": 3}.items() for n in range(count)),
    )
    data = folder(root)
    assert data.train.class_names == ("a", "blob", "c", "ring")
    assert set(data.test.labels.tolist()) == {0, 2}
    assert texts(data.notes)[1:] == (
        "classes blob, ring have no test image: too few images to hold a share of 0.2 out",
    )
    put(root, *(f"k{n:02}/1.png" for n in range(30)))
    assert "blob, k00, k01" in texts(folder(root).notes)[1]
    assert "k18 and 12 more have no test" in texts(folder(root).notes)[1]


# -- images that cannot be decoded -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [2, 5, 23])
def test_all_images_that_cannot_be_decoded_are_named_at_once(tmp_path: Path, bad: int) -> None:
    """In several blocks of the pool that decodes them, up to five by name, and nothing is kept."""
    root = tmp_path / "d"
    put(root, *(f"train/{n:03}.png" for n in range(300)))
    damaged = [f"{n:03}.png" for n in (*range(0, 300, 17), *range(290, 300))[:bad]]
    for name in damaged:
        (root / "train" / name).write_bytes(b"no image")
    damaged = sorted(damaged)
    (root / "train" / damaged[0]).write_bytes(b"")
    said = refusal(root)
    assert said.startswith(f"data.on_bad_image: {bad} images cannot be decoded: {root}/train/{damaged[0]}, ")
    names, end = said.split(": ", 2)[2].split(" (the first: ")
    named = [str(root / "train" / name) for name in damaged[:5]]
    assert names == ", ".join(named) + (" and 18 more" if bad == 23 else "")
    assert end.startswith("it is empty); ")  # the reason of the first
    assert end.endswith("; mend or remove them, or set data.on_bad_image=skip to leave such images out")
    assert not [path.name for path in (tmp_path / "cache").iterdir() if "-train." in path.name]
    assert len(folder(root, on_bad_image="skip").skipped) == bad


def test_broken_images_of_all_splits_are_named_at_once(tmp_path: Path) -> None:
    root = tmp_path / "d"
    put(root, "train/1.png", "train/2.png", "test/1.png")
    for name in ("train/2.png", "test/1.png"):
        (root / name).write_bytes(b"no image")
    with pytest.raises(UserError) as error:
        folder(root, layout="flat")
    assert str(error.value).startswith(
        f"data.on_bad_image: 2 images cannot be decoded: {root}/train/2.png, {root}/test/1.png (the first: "
    )
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)  # it comes from a driver's process


def test_broken_images_are_named_in_the_order_of_the_source_whichever_are_held_out(tmp_path: Path) -> None:
    """By path in a tree, by number of row in Parquet files; the reason is that of the first that is named."""
    root, names = tmp_path / "d", [f"{label}/{n}.png" for label in "ab" for n in range(10)]
    put(root, *names)
    for name in names:
        (root / name).write_bytes(b"no image" if name != "a/0.png" else b"")
    assert undecodable(root) == [f"{root}/{name}" for name in names]  # all of them, of which the line has the first
    told = refusal(root)
    named = ", ".join(f"{root}/{name}" for name in names[:5])
    assert told.split("cannot be decoded: ")[1].startswith(f"{named} and 15 more (the first: it is empty); mend")
    put(root, "a/0.png", "a/9.png", "b/5.png", *(f"c/{n}.png" for n in range(10)))
    left = [f"{root}/{name}" for name in names if name not in ("a/0.png", "a/9.png", "b/5.png")]
    assert folder(root, on_bad_image="skip").skipped == tuple(left)
    (tmp_path / "pq").mkdir()
    for part in range(2):
        images = pa.array([b"no image"] * 12, pa.binary())
        table = pa.table({"image": images, "label": [0] * 12})
        pq.write_table(table, tmp_path / f"pq/train-{part}.parquet")
    told = refusal(tmp_path / "pq", name="parquet")
    rows = [f"{tmp_path}/pq/train-{part}.parquet row {row}" for part in range(2) for row in range(12)]
    assert undecodable(tmp_path / "pq", name="parquet") == rows
    assert told.split("cannot be decoded: ")[1].startswith(", ".join(rows[:5]) + " and 19 more (the first: ")


# -- what is noticed in decoding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tiff", "gif", "png", "webp"])
def test_images_of_several_frames_are_counted_and_their_first_frame_is_read(tmp_path: Path, kind: str) -> None:
    root, frames = tmp_path / "d", [Image.fromarray(pixels) for pixels in pictures(3)]
    (root / "train").mkdir(parents=True)
    for name in "ab":
        frames[0].save(root / f"train/{name}.{kind}", save_all=True, append_images=frames[1:], lossless=True)
    frames[1].save(root / f"train/single.{kind}", lossless=True)
    data = folder(root)
    for name, pixels in zip(("a", "b", "single"), data.train.pixels, strict=True):
        with Image.open(root / f"train/{name}.{kind}") as image:
            assert getattr(image, "n_frames", 1) == (1 if name == "single" else 3)
            image.seek(0)
            assert np.array_equal(pixels, np.asarray(image.convert("RGB")))
    as_bands = "; data.bands or data.channels reads those of TIFF files as bands"
    assert texts(data.notes) == (f"2 images have several frames: the first is read{as_bands}",)
    assert folder(root).notes == data.notes  # from the cache
    (root / "train/single.txt").write_text("")
    assert texts(folder(root, limit=1).notes) == (f"1 image has several frames: the first is read{as_bands}",)


def test_images_with_more_bands_than_are_read_are_counted(tmp_path: Path) -> None:
    root = tmp_path / "d"
    (root / "train").mkdir(parents=True)
    for name, bands in {"a": 4, "b": 5, "c": 3}.items():
        (root / f"train/{name}.tif").write_bytes(banded(bands, 8, 2, 0 if bands > 3 else None))
    note = (
        "2 images have bands (TIFF) beside their colours and transparency, which are not read; data.channels, the "
        "number of all of them, reads them as bands"
    )
    for _ in range(2):  # the second time from the cache
        one_colour = "3 images are of one single colour throughout (train/a.tif, train/b.tif, train/c.tif)"
        assert texts(folder(root, image_size=8).notes) == (note, one_colour)
    (root / "train/d.tif").write_bytes(banded(13, 16, 1, 0))
    assert "(a TIFF of 13 bands of 16 bits, which Pillow does not read; write three" in refusal(root)


def test_frames_are_counted_without_decoding_an_image_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, frames = tmp_path / "d", [Image.fromarray(pixels) for pixels in pictures(3)]
    (root / "train").mkdir(parents=True)
    frames[0].save(root / "train/a.tiff", save_all=True, append_images=frames[1:], compression="tiff_lzw")
    read: list[str] = []
    load_tiff = TiffImagePlugin.TiffImageFile._load_libtiff
    monkeypatch.setattr(
        TiffImagePlugin.TiffImageFile, "_load_libtiff", lambda image: (read.append(image.filename), load_tiff(image))[1]
    )
    assert texts(folder(root).notes)[0].startswith("1 image ")
    assert len(read) == 1


def test_a_stack_that_is_damaged_after_its_first_frame_is_still_read(tmp_path: Path) -> None:
    root, frames = tmp_path / "d", [Image.fromarray(pixels) for pixels in pictures(2)]
    (root / "train").mkdir(parents=True)
    frames[0].save(root / "train/a.tiff", save_all=True, append_images=frames[1:])
    whole = (root / "train/a.tiff").read_bytes()
    (root / "train/a.tiff").write_bytes(whole[: len(whole) // 2 + 50])
    with Image.open(root / "train/a.tiff") as image:
        assert image.is_animated
    assert np.array_equal(folder(root).train.pixels, [np.asarray(frames[0])])


def hidden(mode: str) -> Image.Image:
    """Random colours, a third of them fully and a third half transparent."""
    rgba = np.random.default_rng(1).integers(0, 256, (SIZE, SIZE, 4), dtype=np.uint8)
    rgba[..., 3] = np.resize([0, 128, 255], (SIZE, SIZE))
    return Image.fromarray(rgba).convert(mode) if mode != "P" else palette()


def palette() -> Image.Image:
    image = Image.fromarray(np.resize(np.arange(5, dtype=np.uint8), (SIZE, SIZE)), "P")
    image.putpalette([200, 10, 20, 0, 255, 0, 9, 9, 9, 80, 90, 100, 255, 255, 255])
    image.info["transparency"] = bytes([0, 255, 128, 255, 255])
    return image


GLASS = "1 image has transparent pixels, which are laid on {}; data.background says on what"


@pytest.mark.parametrize(("background", "value"), [("black", 0), ("white", 255), ("grey", 128)])
@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_laid_on_the_background_in_run_and_transform(
    tmp_path: Path, mode: str, background: str, value: int
) -> None:
    (tmp_path / "d/train").mkdir(parents=True)
    file = tmp_path / "d/train/a.png"
    hidden(mode).save(file)
    data = folder(tmp_path / "d", background=background)
    with Image.open(file) as image:
        ground = Image.new("RGBA", image.size, (value, value, value, 255))
        expected = np.asarray(Image.alpha_composite(ground, image.convert("RGBA")).convert("RGB"))
    assert np.array_equal(data.train.pixels, [expected])
    assert texts(data.notes) == (GLASS.format(background),)
    said = {"mean": [0, 0, 0], "std": [1, 1, 1], "background": background}
    transform = Transform.described({"image_size": SIZE, "input": said})
    assert np.array_equal(transform.pixels([file, Image.open(file)]), [expected, expected])
    with pytest.raises(UserError, match="found background"):
        Transform.described({"image_size": SIZE, "input": said}, background="white" if value == 0 else "black")


@pytest.mark.parametrize("kind", ["uint8", "uint16"])
def test_blank_frames_of_any_depth_are_kept_and_named(tmp_path: Path, kind: str) -> None:
    """Five of eight, in both splits; what the others become does not depend on them."""
    (tmp_path / "d/train").mkdir(parents=True)
    (tmp_path / "d/test").mkdir()
    levels = np.random.default_rng(0).permutation(256).reshape(SIZE, SIZE).astype(kind)
    for number in range(8):
        place = tmp_path / "d" / ("test" if number > 5 else "train") / f"{number}.png"
        Image.fromarray(levels if number in (1, 3, 7) else levels * 0).save(place)
    data = folder(tmp_path / "d", channels=1)
    *_, note = texts(data.notes)
    assert note == ("5 images are of one single colour throughout (train/0.png, train/2.png, train/4.png and 2 more)")
    assert data.notes[-1].public == "5 images are of one single colour throughout"
    assert [len(np.unique(pixels)) for pixels in data.train.pixels] == [1, 256, 1, 256, 1, 1]
    assert np.array_equal(data.train.pixels[1, ..., 0], levels)
    assert (len(data.test), data.skipped) == (2, ())


def test_images_of_one_colour_are_counted_and_dark_drawings_told_of_their_background(tmp_path: Path) -> None:
    """Two black drawings on nothing, an opaque red image, one with a single other pixel, and one of noise."""
    (tmp_path / "d/train").mkdir(parents=True)
    drawing = np.zeros((SIZE, SIZE, 4), np.uint8)
    red = np.full((SIZE, SIZE, 3), (255, 0, 0), np.uint8)
    nearly = red.copy()
    nearly[1, 2] = 7
    for row in range(2):
        drawing[row + 2 : row + 5, 4:9, 3] = 255
        Image.fromarray(drawing).save(tmp_path / f"d/train/drawing{row}.png")
    for name, pixels in {"red": red, "nearly": nearly, "noise": pictures(1)[0]}.items():
        Image.fromarray(pixels).save(tmp_path / f"d/train/{name}.png")
    glass, plain = texts(folder(tmp_path / "d").notes)
    assert plain == (
        "3 images are of one single colour throughout (train/drawing0.png, train/drawing1.png, train/red.png), 2 of "
        "them black, as transparent pixels become: "
        "data.background=white or grey may show more"
    )
    assert glass.startswith("2 images have transparent pixels")
    white = folder(tmp_path / "d", background="white")
    assert texts(white.notes)[1:] == ("1 image is of one single colour throughout (train/red.png)",)
    assert len(np.unique(white.train.pixels[:2])) == 2


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_laid_on_black(tmp_path: Path, mode: str, channels: int) -> None:
    root = tmp_path / "d"
    (root / "train").mkdir(parents=True)
    hidden(mode).save(root / "train/a.png")
    data = folder(root, channels=channels)
    with Image.open(root / "train/a.png") as image:
        rgba = np.asarray(image.convert("RGBA")).astype(np.float64)
    assert (rgba[..., 3] == 0).any()
    on_black = rgba[..., :3] * rgba[..., 3:] / 255  # of a black ground nothing is added
    if channels == 1:
        on_black = on_black @ [[0.299], [0.587], [0.114]]
    assert np.abs(data.train.pixels[0] - on_black).max() <= 1
    assert not data.train.pixels[0][rgba[..., 3] == 0].any()
    assert texts(data.notes) == (GLASS.format("black"),)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_an_opaque_image_with_an_alpha_channel_is_what_it_would_be_without(tmp_path: Path, mode: str) -> None:
    root, image = tmp_path / "d", Image.fromarray(pictures(1)[0]).convert(mode)
    (root / "train").mkdir(parents=True)
    image.save(root / "train/a.png")
    data = folder(root)
    assert np.array_equal(data.train.pixels, [np.asarray(image.convert("RGB"))])
    assert texts(data.notes) == ()


def test_images_of_which_more_than_half_is_cut_away_are_counted(tmp_path: Path) -> None:
    root, rng = tmp_path / "d", np.random.default_rng(2)
    (root / "train").mkdir(parents=True)
    shapes = {"strip": (16, 480), "tall": (33, 16), "half": (16, 32), "photo": (16, 24)}  # height, width
    made = {name: rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for name, shape in shapes.items()}
    for name, pixels in made.items():
        Image.fromarray(pixels).save(root / f"train/{name}.png")
    data = folder(root)
    assert np.array_equal(data.train.pixels[0], made["half"][:, 8:24])
    assert np.array_equal(data.train.pixels[2], made["strip"][:, 232:248])
    lost = "2 images lose more than half of their area: of each the central square is taken"
    assert texts(data.notes) == (f"{lost}; data.fit=pad or stretch keeps all of it",)
    assert folder(root).notes == data.notes  # from the cache
    for fit in ("pad", "stretch"):  # each has a cache of its own
        kept = folder(root, fit=fit)
        assert texts(kept.notes) == ()
        assert kept.digest != data.digest
        for row, name in enumerate(sorted(made)):
            image = Image.fromarray(made[name])
            square = (SIZE, SIZE)
            whole = ImageOps.pad(image, square, Image.Resampling.BILINEAR) if fit == "pad" else image.resize(square, 2)
            assert np.array_equal(kept.train.pixels[row], np.asarray(whole))
    assert folder(root, fit="crop").digest == data.digest


def test_a_large_jpeg_is_measured_before_it_is_read_at_a_smaller_scale(tmp_path: Path) -> None:
    root = tmp_path / "d"
    (root / "train").mkdir(parents=True)
    for name, width in {"a": 1201, "b": 1200}.items():
        Image.fromarray(np.zeros((600, width), np.uint8)).save(root / f"train/{name}.jpg")
    assert texts(folder(root).notes)[0].startswith("1 image loses more than half")


def test_images_that_are_made_much_larger_are_counted(tmp_path: Path) -> None:
    """Images of 8 x 8 pixels."""
    put(tmp_path / "d", *(f"train/a/{number}.png" for number in range(5)), "test/a/0.png", "test/a/1.png")
    note = "7 images are enlarged 1.5 times or more: a smaller data.image_size would show as much of such images"
    for _ in range(2):  # the second time from the cache
        assert note in texts(folder(tmp_path / "d", image_size=32).notes)
    assert not [line for line in texts(folder(tmp_path / "d", image_size=31).notes) if "enlarged" in line]


def test_hot_pixels_of_deep_images_are_noted_with_a_range_that_holds_the_others(tmp_path: Path) -> None:
    root = tmp_path / "d"
    put(root, "train/a/1.png", "train/b/1.png", "test/a/1.png", "test/b/1.png")
    for place, low, high in (("train/a", 500, 1500), ("test/b", 700, 3000)):
        values = np.linspace(low, high, 4096).astype(np.uint16)
        values[7] = 65535
        Image.fromarray(values.reshape(64, 64)).save(root / place / "hot.png")
    Image.fromarray(np.arange(4096, dtype=np.uint16).reshape(64, 64)).save(root / "train/a/whole.png")
    first, second, *others = texts(folder(root).notes)
    assert first.startswith("3 images of more than 8 bits were scaled")
    assert second == (
        "2 of them have 99% of the pixels in less than a sixteenth of their own range, and keep at most 17 of 256 grey "
        "levels: a few pixels, such as hot ones, are far darker or brighter; 99% of the pixels of each lie within 505 "
        "to 2989, and data.range=[505,2989], or data.range=percentiles, clips the others"
    )
    assert not others
    assert not any("sixteenth" in line for line in texts(folder(root, range=(505, 2989)).notes))
