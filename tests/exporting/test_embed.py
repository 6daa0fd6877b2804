"""Tables of embeddings against scikit-learn, against the exported encoder, and against interruptions of every kind."""

from __future__ import annotations

import json
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.catalogue import Catalogue
from rayfed_ssl.data.pixels.store import THREADS
from rayfed_ssl.exporting import embed as embedding
from rayfed_ssl.exporting.embed import BLOCK, embed
from rayfed_ssl.exporting.encoders import RunEncoder, run_encoder
from rayfed_ssl.models import load_exported
from tests.command_line import command
from tests.data.files import pictures, put, write_parquet

Table = dict[str, list[object]]


def read(path: Path) -> Table:
    found: Table = pq.read_table(path).to_pydict()
    return found


def vectors(table: Table) -> np.ndarray:
    return np.array(table["embedding"], np.float32)


@pytest.fixture(scope="session")
def table(run: Path, digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embeddings of all digits."""
    out = tmp_path_factory.mktemp("tables") / "digits.parquet"
    assert embed(run_encoder(run), str(digits), out).images == 1797
    return out


@pytest.mark.long
def test_logistic_regression_on_the_table_reaches_the_runs_linear_probe(run: Path, table: Path) -> None:
    found = read(table)
    train = np.array(found["split"]) == "train"
    features, labels = vectors(found), np.array(found["label"])
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    accuracy = classifier.fit(features[train], labels[train]).score(features[~train], labels[~train])
    probe = json.loads((run / "summary.json").read_text())["accuracy"]["linear"]
    assert accuracy == pytest.approx(probe, abs=0.02)
    assert accuracy > json.loads((run / "summary.json").read_text())["untrained"]["linear"]


def test_a_row_is_an_image_its_name_its_class_and_the_encoders_features(run: Path, digits: Path, table: Path) -> None:
    found = read(table)
    files = sorted(digits.glob("train/*/*.png")) + sorted(digits.glob("test/*/*.png"))
    assert found["id"] == [file.relative_to(digits).as_posix() for file in files]
    assert found["class"] == [file.parent.name for file in files]
    assert [f"digit_{label}" for label in found["label"]] == found["class"]
    assert found["split"] == [file.relative_to(digits).parts[0] for file in files]
    rows = [0, 700, 1796]
    images = [Image.open(files[row]).convert("RGB").resize((16, 16), Image.Resampling.BILINEAR) for row in rows]
    scaled = (np.stack([np.asarray(image) for image in images]) / 255 - 0.5) / 0.5
    with torch.no_grad():
        expected = load_exported(run)(torch.tensor(scaled, dtype=torch.float32).permute(0, 3, 1, 2))
    np.testing.assert_allclose(vectors(found)[rows], expected, atol=1e-5)
    schema = pq.read_schema(table)
    assert schema.field("embedding").type == pa.list_(pa.float32(), 32)
    assert json.loads(schema.metadata[b"class_names"]) == [f"digit_{number}" for number in range(10)]
    assert json.loads(schema.metadata[b"rayfed_ssl"])["encoder"] == "global"


def test_an_embedding_has_the_same_bits_in_every_table(
    encoder: RunEncoder, digits: Path, table: Path, tmp_path: Path
) -> None:
    whole = dict(zip(read(table)["id"], vectors(read(table)), strict=True))
    for names in (sorted(whole)[:1], sorted(whole)[-3:]):  # one image by itself takes another convolution on a CPU
        few = tmp_path / str(len(names))
        for name in names:
            (few / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(digits / name, few / name)
        embed(encoder, str(few), tmp_path / "few.parquet", overwrite=True)
        found = read(tmp_path / "few.parquet")
        assert sorted(found["id"]) == names
        for name, vector in zip(found["id"], vectors(found), strict=True):
            assert vector.tobytes() == whole[name].tobytes()


def test_torch_has_the_threads_that_it_had(encoder: RunEncoder, tmp_path: Path) -> None:
    """Meanwhile it has the run's, and afterwards as many as before, also where the table is not written."""
    put(tmp_path / "images", {"0.png": pictures(1)[0]})
    seen: list[int] = []

    def progress(done: int, total: int) -> None:
        seen.append(torch.get_num_threads())

    torch.set_num_threads(encoder.config.resources.threads + 1)
    embed(encoder, str(tmp_path / "images"), tmp_path / "x.parquet", progress=progress)
    assert torch.get_num_threads() == encoder.config.resources.threads + 1
    (tmp_path / "images/1.png").write_bytes(b"no image")
    with pytest.raises(UserError, match="cannot be decoded"):
        embed(encoder, str(tmp_path / "images"), tmp_path / "y.parquet")
    assert torch.get_num_threads() == encoder.config.resources.threads + 1
    assert seen == [encoder.config.resources.threads]


@pytest.mark.parametrize("name", ["x.csv", "x.npy", "x.parquet.gz", "x"])
def test_a_name_of_another_format_is_refused_before_images_are_read(
    name: str, encoder: RunEncoder, tmp_path: Path
) -> None:
    said = (
        rf"^--out: found .*{re.escape(name)}, but the table is Parquet; allowed: a name that ends in \.parquet or "
        r"\.pq, such as x\..*parquet; pandas\.read_parquet reads it, and writes other formats$"
    )
    with pytest.raises(UserError, match=said):
        embed(encoder, "nowhere", tmp_path / name)
    put(tmp_path / "images", {"0.png": pictures(1)[0]})
    embed(encoder, str(tmp_path / "images"), tmp_path / "x.PQ")
    assert read(tmp_path / "x.PQ")["id"] == ["0.png"]


def test_tables_are_written_in_row_groups_while_images_are_read(
    encoder: RunEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "GROUP_BYTES", 4 * 32 * 100)  # of 100 rows
    square = np.zeros((8, 8), np.uint8)
    count, taken, seen = 20 * BLOCK + 3, 0, []

    def images() -> Iterator[tuple[str, np.ndarray]]:
        nonlocal taken
        for row in range(count):
            taken += 1
            yield f"image {row}", square

    def progress(done: int, total: int) -> None:
        assert total == count
        seen.append(taken - done)

    catalogue = Catalogue(np.full(count, -1), None, (), images)
    monkeypatch.setattr(embedding, "_images", lambda *asked: embedding._Images(catalogue, None, {}))
    embed(encoder, "any", tmp_path / "x.parquet", progress=progress)
    assert max(seen) <= (2 * THREADS + 2) * BLOCK  # images that were read and not yet embedded
    written = pq.ParquetFile(tmp_path / "x.parquet").metadata
    assert written.num_rows == count
    assert [written.row_group(i).num_rows for i in range(2)] == [2 * BLOCK] * 2
    assert read(tmp_path / "x.parquet")["id"][-1] == f"image {count - 1}"


def test_what_a_run_notes_of_images_is_noted_of_a_tables(encoder: RunEncoder, tmp_path: Path) -> None:
    ramp = np.arange(256, dtype=np.uint16).reshape(16, 16) * 16
    clear = np.dstack([*pictures(1), np.zeros((16, 16), np.uint8)])
    shared = {f"site{site}/{kind}/{n}.png": pictures(1, seed=n)[0] for site in (0, 1) for kind in "xy" for n in (1, 2)}
    put(tmp_path / "d", {"site0/x/deep.png": ramp, "site1/x/clear.png": clear, "site1/y/wide.png": clear[:3]} | shared)
    assert embed(encoder, str(tmp_path / "d"), tmp_path / "x.parquet").notes == (
        "site0, site1 are taken for classes, and each of them holds x, y: if they are clients, data.layout=clients",
        "1 image of more than 8 bits was scaled to 0..255, by its own smallest and largest value",
        "2 images have transparent pixels, which are laid on black",
        "1 image loses more than half of its area: the central square is taken",
        "2 images are of one single colour throughout",
    )
    for part in ("train", "test"):
        shutil.copytree(tmp_path / "d", tmp_path / "split" / part)
    ranged = f"{{name: imagefolder, path: {tmp_path / 'split'}, range: [0, 1000]}}"
    notes = embed(encoder, ranged, tmp_path / "y.parquet").notes
    assert notes[0].startswith("site0, site1 are taken for classes")
    assert notes[1:3] == (
        "2 images of more than 8 bits were scaled to 0..255, each by data.range=[0.0, 1000.0]",
        "2 of them have over 1% of their pixels outside data.range=[0.0, 1000.0], and these are clipped: their values "
        "go from 0 to 4080",
    )


def test_images_of_one_colour_are_noted_as_a_run_notes_them(encoder: RunEncoder, tmp_path: Path) -> None:
    ink = np.zeros((16, 16, 4), np.uint8)
    ink[4:8, :, 3] = 255  # black on a transparent ground
    images = {f"{n}.png": pictures(1, seed=n)[0] for n in range(70)} | {"ink.png": ink, "z.png": ink[..., :3] + 7}
    put(tmp_path / "d", images)
    assert embed(encoder, str(tmp_path / "d"), tmp_path / "x.parquet").notes == (
        "1 image has transparent pixels, which are laid on black",
        "2 images are of one single colour throughout",
    )


def test_every_split_has_rows_and_what_has_none_is_said(
    run: Path, encoder: RunEncoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, count in {"train/a": 10, "val/a": 8, "test/a": 6, "extra": 7}.items():
        put(tmp_path / "images", {f"{place}/{row}.png": pixels for row, pixels in enumerate(pictures(count))})
    note = "extra/ (7 images) is not used: the images are those of train/ and test/ and val/"
    assert embed(encoder, str(tmp_path / "images"), tmp_path / "x.parquet").notes == (note,)
    found = read(tmp_path / "x.parquet")
    assert found["split"] == ["train"] * 10 + ["test"] * 6 + ["val"] * 8
    status, shown, _ = command(capsys, "embed", run, tmp_path / "images", "--out", tmp_path / "y.parquet")
    said = " ".join(shown.split())
    assert status == 0
    assert f"note {note} embeddings" in said
    assert ": 24 images, " in said


def test_a_bad_image_leaves_the_table_that_was_there_or_is_left_out(encoder: RunEncoder, tmp_path: Path) -> None:
    put(tmp_path / "images", {f"{row}.png": pixels for row, pixels in enumerate(pictures(3))})
    (tmp_path / "images/1.png").write_bytes(b"no image")
    out = tmp_path / "out" / "x.parquet"
    with pytest.raises(UserError, match=r"^data: 1\.png cannot be decoded .*; mend or .* with --skip-bad$"):
        embed(encoder, str(tmp_path / "images"), out)
    assert list(out.parent.iterdir()) == []
    found = embed(encoder, str(tmp_path / "images"), out, skip_bad=True)
    assert (found.images, found.dim, found.skipped) == (2, 32, ("1.png",))
    assert read(out)["id"] == ["0.png", "2.png"]
    assert list(read(out)) == ["id", "embedding"]
    before = out.read_bytes()
    with pytest.raises(UserError, match="cannot be decoded"):
        embed(encoder, str(tmp_path / "images"), out, overwrite=True)
    with pytest.raises(UserError, match=r"^--out: .*x\.parquet exists; name another file, or give --overwrite$"):
        embed(encoder, str(tmp_path / "images"), out, skip_bad=True)
    assert out.read_bytes() == before
    assert [path.name for path in out.parent.iterdir()] == ["x.parquet"]
    block = f"{{name: imagefolder, path: '{tmp_path / 'images'}', on_bad_image: skip}}"
    assert embed(encoder, block, out, overwrite=True).images == 2


@pytest.mark.long
def test_a_place_that_takes_no_more_is_one_line(encoder: RunEncoder, digits: Path, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # Python ignores SIGXFSZ: writing raises EFBIG
    try:
        with pytest.raises(UserError, match=r"^--out: .*x\.parquet cannot be written \(File too large\)$"):
            embed(encoder, str(digits), tmp_path / "x.parquet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match=r"^--out: /dev/full/x\.parquet cannot be written \("):
        embed(encoder, str(digits / "test" / "digit_0"), Path("/dev/full/x.parquet"))


def test_embeddings_that_are_not_finite_are_not_written(run: Path, digits: Path, tmp_path: Path) -> None:
    broken = tmp_path / "run"
    shutil.copytree(run, broken)
    values = load_file(broken / "encoder/global.safetensors")
    values["features.0.bias"][:] = float("nan")
    save_file(values, broken / "encoder/global.safetensors")
    with pytest.raises(UserError, match=r"the embedding of train/digit_0/0036\.png is not finite; training diverged"):
        embed(run_encoder(broken), str(digits), tmp_path / "x.parquet")
    assert not (tmp_path / "x.parquet").exists()


def test_parquet_files_patterns_and_ids(encoder: RunEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in range(2):
        write_parquet(tmp_path / f"shards/part-{part}.parquet", pictures(3, seed=part), [part, None, 0])
    out = tmp_path / "x.parquet"
    embed(encoder, str(tmp_path / "shards/part-*.parquet"), out)
    found = read(out)
    assert found["id"] == [f"part-{part}.parquet:{row}" for part in range(2) for row in range(3)]
    assert found["label"] == [0, None, 0, 1, None, 0]
    assert "class" not in found
    embed(encoder, str(tmp_path / "shards"), tmp_path / "y.parquet")
    assert vectors(read(tmp_path / "y.parquet")).tobytes() == vectors(found).tobytes()
    embed(encoder, str(tmp_path / "shards/part-1.parquet"), out, id_column="label", overwrite=True)
    assert read(out)["id"] == ["1", "part-1.parquet:1", "0"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^data: found '\*\.csv', to which no file fits \(seen from "):
        embed(encoder, "*.csv", out)
    with pytest.raises(UserError, match=r"^data: found 'nowhere', which does not exist"):
        embed(encoder, "nowhere", out)


def test_client_folders_are_no_classes_for_a_run_on_client_folders(encoder: RunEncoder, tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    for k, place in enumerate(("train/ward-1/cat", "train/ward-2/cat", "train/ward-2/dog", "test/dog", "test/cat")):
        put(tmp_path / "own" / place, {f"{k}.png": draws.integers(0, 255, (9, 9, 3)).astype(np.uint8)})
    shutil.copytree(tmp_path / "own/train", tmp_path / "others")
    shutil.copytree(tmp_path / "own/train/ward-2", tmp_path / "classes")
    data = encoder.config.data.model_copy(update={"layout": "clients", "path": str(tmp_path / "own")})
    of_clients = replace(encoder, config=encoder.config.model_copy(update={"data": data}))
    for name, classes in (("own", "cat cat dog dog cat"), ("others", "cat cat dog"), ("classes", "cat dog")):
        embed(of_clients, str(tmp_path / name), tmp_path / "out.parquet", overwrite=True)
        rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
        assert sorted(row["class"] for row in rows) == sorted(classes.split()), name
    embed(encoder, str(tmp_path / "others"), tmp_path / "out.parquet", overwrite=True)  # of a run on class folders
    assert {row["class"] for row in pq.read_table(tmp_path / "out.parquet").to_pylist()} == {"ward-1", "ward-2"}
    block = f"{{name: imagefolder, path: {tmp_path / 'own'}, layout: clients}}"
    embed(encoder, block, tmp_path / "out.parquet", overwrite=True)
    assert {row["class"] for row in pq.read_table(tmp_path / "out.parquet").to_pylist()} == {"cat", "dog"}


def test_what_is_read_is_not_written_over(encoder: RunEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = tmp_path / "shards/a.parquet"
    write_parquet(shard, pictures(3), [0, 1, 2])
    before = shard.read_bytes()
    monkeypatch.chdir(tmp_path)
    for data in ("shards/a.parquet", "shards", "shards/*.parquet"):
        with pytest.raises(UserError, match=r"^--out: .* is, or lies within, what the images are read from"):
            embed(encoder, data, Path("shards/../shards/a.parquet"))
    with pytest.raises(UserError, match=r"^--out: shards is a folder; allowed: a file, such as shards/x\.parquet$"):
        embed(encoder, "shards", Path("shards"))
    assert shard.read_bytes() == before


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_takes_one_clients_encoder(
    mixed_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "images", {"0.png": pictures(1)[0]})
    images, out = tmp_path / "images", tmp_path / "x.parquet"
    status, shown, _ = command(capsys, "embed", mixed_run, images, "--out", out, "--client", "1")
    assert (status, shown.split()[:3]) == (0, ["embeddings", f"{out}:", "1"])
    told = json.loads(pq.read_schema(out).metadata[b"rayfed_ssl"])
    assert (told["encoder"], told["architecture"]) == ("client-00001", "small_cnn_bn")
    with torch.no_grad():
        encoder = run_encoder(mixed_run, 1)
        expected = load_exported(mixed_run, "client-00001")(encoder.transform([images / "0.png"]))
    np.testing.assert_allclose(vectors(read(out)), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ((), "--client: not given, and {run} has an encoder per client and no global one; allowed: 0, 1"),
        (("--client", "2"), "--client: found 2, of which {run} has no encoder; allowed: 0, 1"),
    ],
)
def test_a_client_has_to_be_named(
    options: tuple[str, ...], line: str, mixed_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = command(capsys, "embed", mixed_run, "digits", "--out", tmp_path / "x.parquet", *options)
    assert found == (2, "", line.format(run=mixed_run) + "\n")
    assert list(tmp_path.iterdir()) == []


def unfinished(folder: Path, run: Path) -> None:
    shutil.copy(run / "config.yaml", folder)


def damaged(folder: Path, run: Path) -> None:
    shutil.copytree(run, folder, dirs_exist_ok=True)
    (folder / "encoder/global.safetensors").write_bytes(b"x")


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (lambda folder, run: None, r"found no config\.yaml; must be a run folder"),
        (unfinished, "the run has not finished"),
        (damaged, r"global\.safetensors: cannot be read .* it is damaged"),
    ],
)
def test_what_is_no_finished_run_is_refused(
    made: Callable[[Path, Path], None], line: str, run: Path, tmp_path: Path
) -> None:
    made(tmp_path, run)
    with pytest.raises(UserError, match=line):
        run_encoder(tmp_path)
