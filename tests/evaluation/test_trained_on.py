"""``evaluate --data``, and a run that begins with the encoder, know which test images a run trained on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.data.pixels.digests import kept_digests, pixel_digests
from rayfed_ssl.exporting.card import card
from rayfed_ssl.exporting.encoders import run_encoder
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.records.trained_image_digests import read_trained, write_trained
from rayfed_ssl.simulation.checks import image_notes
from rayfed_ssl.simulation.reevaluation import reevaluate
from rayfed_ssl.testing.tiny import run_locally
from tests.tiny import tiny

Call = Callable[..., tuple[int, str, str]]


def config() -> RunConfig:
    return tiny("fedsimclr", train__rounds=1, evaluation__select={"share": 0.2})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    run_locally(config(), folder)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def other_images(root: Path, seen: int) -> Path:
    """Twelve test images: ``seen`` that clients held, two that were held out, and new ones."""
    federation = load_federation(config())
    assert federation.held_out is not None
    held = np.concatenate([shard["train"] for shard in federation.shards])
    pixels = federation.dataset.train.pixels
    fresh = np.random.default_rng(0).integers(0, 256, (24, *pixels.shape[1:]), dtype=np.uint8)
    tests = [*pixels[held[:seen]], *pixels[federation.held_out[:2]], *fresh[: 10 - seen]]
    for split, images in {"test": tests, "train": [*fresh[12:]]}.items():
        for number, image in enumerate(images):
            path = root / split / "ab"[number >= len(images) // 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.squeeze()).save(path)
    return root


@pytest.mark.long
def test_test_images_that_the_run_trained_on_are_noted(run: Path, tmp_path: Path, call: Call) -> None:
    other = other_images(tmp_path / "other", seen=4)
    status, shown, _ = call("evaluate", str(run), "--data", str(other), "--protocol", "knn")
    said = "the run trained on 4 of 12 test images (the same pixels)"
    line = f"{said}: what is measured on them is memory; --exclude-trained leaves them out"
    assert status == 0
    assert line in shown.splitlines()
    (found,) = json.loads((run / "evaluation.json").read_text())["other data"].values()
    assert line in found["images"]["notes"]
    assert found["images"]["test"] == 12
    written = card(run_encoder(run), "use")
    beside = written.partition("On other images than the run's")[2].partition("##")[0]
    assert f"- {said}: what is measured on them is memory.\n" in beside
    assert call("report", str(run), "--no-images")[0] == 0
    evaluated = (run / "report.html").read_text().partition('id="evaluated"')[2].partition("</section>")[0]
    assert f"<li>On {other}: {line}.</li>" in evaluated
    call("evaluate", str(run), "--data", str(other), "--protocol", "knn", "--exclude-trained")
    whole, rest = json.loads((run / "evaluation.json").read_text())["other data"].items()
    assert whole == (f"imagefolder:{other}", found)
    assert rest[0] == f"imagefolder:{other} without images that the run trained on"
    assert f"{said}: they are left out" in rest[1]["images"]["notes"]
    assert rest[1]["images"]["test"] == 8


def test_where_none_was_trained_on_nothing_is_said(run: Path, tmp_path: Path) -> None:
    other = str(other_images(tmp_path / "other", seen=0))
    ((_, found),) = reevaluate(run, ["knn"], data=other)["other data"].items()
    assert not [note for note in found["images"]["notes"] if "trained on" in note]
    ((_, again),) = reevaluate(run, ["rank"], data=other, exclude_trained=True)["other data"].items()
    assert set(again["evaluation"]) == {"knn", "rank"}  # the same images: nothing goes
    assert again["images"] == found["images"]


def test_a_run_that_kept_no_digests_says_so(run: Path, tmp_path: Path) -> None:
    other = str(other_images(tmp_path / "other", seen=2))
    (run / "trained.parquet").unlink()
    ((_, found),) = reevaluate(run, ["knn"], data=other)["other data"].items()
    assert found["images"]["notes"][0].startswith("the run has no trained.parquet: ")
    with pytest.raises(UserError, match=r"^--exclude-trained: found no trained\.parquet in "):
        reevaluate(run, ["knn"], data=other, exclude_trained=True)
    with pytest.raises(UserError, match=r"^--exclude-trained: found no --data; "):
        reevaluate(run, ["knn"], exclude_trained=True)
    (run / "trained.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"trained\.parquet: cannot be read "):
        reevaluate(run, ["knn"], data=other)


def test_what_is_kept_is_of_the_clients_images_alone(run: Path) -> None:
    federation = load_federation(config())
    held = np.concatenate([shard["train"] for shard in federation.shards])
    expected = {int(one) for one in pixel_digests(federation.dataset.train.pixels[held])}
    found = read_trained(run)
    assert found is not None
    assert found.tolist() == sorted(expected)


def test_a_key_that_other_images_need_is_said_in_their_block(run: Path, tmp_path: Path) -> None:
    """``data.layout=clients`` among the command's arguments would be refused: the run was what it was."""
    other = tmp_path / "other"
    for number, folder in enumerate(f"{site}/{kind}" for site in ("north", "south") for kind in ("ill", "well")):
        for image in other_images(tmp_path / f"made{number}", seen=0).glob("test/*/*.png"):
            (other / folder).mkdir(parents=True, exist_ok=True)
            shutil.copy(image, other / folder / image.name)
    with pytest.raises(UserError) as refused:
        reevaluate(run, ["knn"], data=str(other))
    assert "allowed: data.layout=clients if" in str(refused.value)
    block = f"{{name: imagefolder, path: {other}, layout: VALUE}}"
    assert str(refused.value).endswith(f"; here data.layout stands in a block: --data '{block}'")
    found = reevaluate(run, ["knn"], data=block.replace("VALUE", "clients"))
    assert found["other data"][f"imagefolder:{other}"]["images"]["test"] > 0


@pytest.mark.parametrize("named", ["run folder", "file"])
def test_a_run_that_begins_with_an_encoder_is_told_what_that_has_seen(named: str, run: Path, tmp_path: Path) -> None:
    federation, held = load_federation(config()), read_trained(run)
    tests = pixel_digests(federation.dataset.test.pixels)
    assert held is not None
    assert not np.isin(tests, held).any()
    path = run if named == "run folder" else run / "encoder" / "global.safetensors"
    of_start = {"train__rounds": 1, "evaluation__select": {"share": 0.2}, "model__start": str(path)}
    again = tiny("fedsimclr", **of_start)
    assert not [line for line in texts(image_notes(again, federation)) if line.startswith("model.start")]
    write_trained(run, np.union1d(held, tests[:3]))
    (line,) = (line for line in texts(image_notes(again, federation)) if line.startswith("model.start"))
    memory = "(the same pixels): accuracy on them is memory"
    assert line == f"model.start: its run trained on 3 of {len(tests)} test images {memory}"
    other = tiny("fedsimclr", seed=7, **of_start)  # holds out images that the first run's clients held
    elsewhere = load_federation(other)
    assert elsewhere.held_out is not None
    chosen = pixel_digests(elsewhere.dataset.train.pixels[elsewhere.held_out])
    seen = np.isin(chosen, held).sum()
    assert seen > 0
    lines = texts(image_notes(other, elsewhere))
    whose = f"{seen} of {len(chosen)} images to choose by (evaluation.select)"
    assert f"model.start: its run trained on {whose} {memory}" in lines
    said: list[str] = []
    run_locally(other, tmp_path / "after", report=lambda progress: said.append(progress.line))
    assert line in said
    kept = read_trained(tmp_path / "after")
    assert kept is not None
    assert np.isin(tests[:3], kept).all()  # for evaluate --data, and for the next run that begins with this one
    assert np.isin(held, kept).all()
    (run / "trained.parquet").unlink()
    (line,) = (line for line in texts(image_notes(again, federation)) if line.startswith("model.start"))
    assert line == (
        f"model.start: whether its run trained on test images of this run is not known: {run} has no trained.parquet"
    )
    shutil.copy(run / "encoder" / "global.safetensors", tmp_path / "taken.safetensors")
    taken = tiny("fedsimclr", **{**of_start, "model__start": str(tmp_path / "taken.safetensors")})
    assert not [line for line in texts(image_notes(taken, federation)) if line.startswith("model.start")]


def test_digests_are_kept_in_the_cache_and_found_anew_where_damaged(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (5, 3, 3, 1), dtype=np.uint8)
    expected, file = pixel_digests(pixels).tolist(), tmp_path / "digests.npz"
    assert kept_digests(pixels, "a", file).tolist() == expected
    assert kept_digests(pixels[::-1], "a", file).tolist() == expected  # read, not found anew
    assert kept_digests(pixels[::-1], "b", file).tolist() == expected[::-1]
    file.write_bytes(b"damaged")
    assert kept_digests(pixels, "b", file).tolist() == expected
    assert [path.name for path in tmp_path.iterdir()] == ["digests.npz"]
