"""A run's own images: moved to another place, named from another folder, named to a command that would read others."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.command_line import Call
from tests.places import ROOT
from tests.tiny import encoders

LOCAL = ("--executor", "local")
CHANGES = (
    "data.path=hosp", "data.name=imagefolder", "data.layout=clients", "data.limit=null", "data.test_limit=null",
    "data.partition.name=folders", "clients.count=2", "train.batch_size=8", "evaluation.knn.k=5",
)  # fmt: skip


def hospitals(root: Path, seed: int = 0) -> Path:
    """Two clients' folders of 60 training images each, dark and bright ones, and 10 test images."""
    rng = np.random.default_rng(seed)
    for split, clients, count in (("train", ("a", "b"), 30), ("test", (), 5)):
        for label, level in (("bright", 180), ("dark", 40)):
            for client in clients or ("",):
                folder = root / split / client / label
                folder.mkdir(parents=True)
                for i in range(count):
                    pixels = (level + rng.integers(0, 60, (8, 8, 3))).astype(np.uint8)
                    Image.fromarray(pixels).save(folder / f"{i:02d}.png")
    return root


@pytest.mark.long
def test_a_run_without_labels_is_measured_on_a_labelled_set_as_the_page_says(call: Call, tmp_path: Path) -> None:
    page = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    alone = re.search(r"Are there no labels at all\? \| `([^`]+)`", page)
    elsewhere = re.search(r"labelled set elsewhere\? \| the same run, then `rayfed-ssl ([^`]+)`", page)
    assert alone is not None
    assert elsewhere is not None
    hospitals(tmp_path / "labelled")
    (tmp_path / "plain").mkdir()
    for number, file in enumerate(sorted((tmp_path / "labelled/train").rglob("*.png"))):
        shutil.copy(file, tmp_path / "plain" / f"{number}.png")
    (tmp_path / "labelled/train/b").rename(tmp_path / "b")
    for kind in ("bright", "dark"):
        (tmp_path / "labelled/train/a" / kind).rename(tmp_path / "labelled/train" / kind)
    own = ["data.path=plain", "data.name=imagefolder", "data.limit=null", *shlex.split(alone[1])]
    assert call("run", "tiny.yaml", *own, *LOCAL, "--out", "runs/plain")[0] == 0
    words = {"RUN": "runs/plain", "DATA": "labelled"}
    status, out, _ = call(*(words.get(word, word) for word in shlex.split(elsewhere[1])))
    assert status == 0
    assert "these images have labels" not in out
    found = json.loads((tmp_path / "runs/plain/evaluation.json").read_text())["other data"]
    assert set(found["imagefolder:labelled"]["accuracy"]["global"]) == {"knn", "linear"}


@pytest.mark.long
def test_a_run_goes_on_with_its_images_wherever_they_lie_now(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hospitals(tmp_path / "hosp")
    changes = [*CHANGES, "evaluation.select.share=0.4", "data.partition.name=iid"]
    assert call("run", "tiny.yaml", *changes, *LOCAL, "--out", "runs/whole")[0] == 0
    shutil.copytree("runs/whole", "runs/cut")
    (tmp_path / "runs/cut/summary.json").unlink()
    shutil.rmtree("runs/cut/checkpoints/round-00002")
    whole, cut = str(tmp_path / "runs/whole"), str(tmp_path / "runs/cut")
    hospitals(tmp_path / "others", seed=1)
    (tmp_path / "moved").mkdir()
    here = shutil.move(tmp_path / "hosp", tmp_path / "moved/there")
    monkeypatch.chdir(tmp_path / "moved")

    way_out = "; data.path=PLACE in this command says where the run's images lie now\n"
    resume = ("run", f"{cut}/config.yaml", "--resume", *LOCAL)
    before = (Path(cut) / "config.yaml").read_bytes()
    for command in (resume, ("run", f"{cut}/config.yaml", "--resume"), ("evaluate", whole), ("leak", whole)):
        status, _, err = call(*command)
        assert (status, err.count("\n")) == (2, 1), command
        assert err.startswith("data.path: hosp does not exist"), command
        assert err.endswith(way_out), command
    for command in (resume, ("evaluate", whole), ("leak", whole), ("leak", whole, "--round", "1")):
        status, _, err = call(*command, f"data.path={tmp_path / 'others'}")
        assert (status, err.count("\n")) == (2, 1), command
        assert err.startswith("data.path: found images with digest"), command
    assert (Path(cut) / "config.yaml").read_bytes() == before
    assert not (Path(whole) / "leak.json").exists()
    assert not (Path(whole) / "evaluation.json").exists()

    assert call(*resume, "data.path=there")[0] == 0
    assert encoders(Path(cut)) == encoders(Path(whole))
    summary = json.loads((Path(whole) / "summary.json").read_text())
    assert call("evaluate", whole, f"data.path={here}")[0] == 0
    evaluated = json.loads((Path(whole) / "evaluation.json").read_text())
    assert evaluated["accuracy"] == {"global": {"knn": summary["accuracy"]["knn"]}}
    assert call("leak", whole, f"data.path={here}", "--images", "20")[0] == 0
    assert json.loads((Path(whole) / "leak.json").read_text())["findings"]

    status, _, err = call("leak", whole, "train.rounds=3")
    assert (status, err) == (2, "train.rounds: found a change of what the run was; allowed here: data.path\n")
    environment = Path(cut) / "environment.json"  # as a version wrote it that did not record the images
    environment.write_text(json.dumps({**json.loads(environment.read_text()), "images": None}))
    status, _, err = call(*resume, f"data.path={here}", "train.rounds=3")
    assert status == 2
    assert "cannot resume with changed data.path" in err


@pytest.mark.long
def test_public_images_that_moved_are_found_where_the_command_says(call: Call, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("public", "others"):
        (tmp_path / name / "train").mkdir(parents=True)
        for k in range(20):
            pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"train/{k:02d}.png")
    key, images = "data.public.images.path", "{name: imagefolder, path: public, layout: flat, image_size: 8}"
    public = ("method.name=feddf", "method.steps=4", "data.public.source=source", f"data.public.images={images}")
    asked = ("run", "tiny.yaml", *public, "data.limit=240", "evaluation.select.share=0.35", *LOCAL)
    assert call(*asked, "--out", "runs/whole")[0] == 0
    shutil.copytree("runs/whole", "runs/cut")
    (tmp_path / "runs/cut/summary.json").unlink()
    shutil.rmtree("runs/cut/checkpoints/round-00002")
    shutil.move("public", "moved")

    resume = ("run", "runs/cut/config.yaml", "--resume", *LOCAL)
    for command in (resume, ("evaluate", "runs/whole"), ("leak", "runs/whole")):
        status, _, err = call(*command)
        assert (status, err.count("\n")) == (2, 1), command
        assert err.startswith(f"{key}: public does not exist"), command
        assert err.endswith(f"; {key}=PLACE in this command says where the run's images lie now\n"), command
    for command in (resume, ("leak", "runs/whole")):
        status, _, err = call(*command, f"{key}=others")
        assert (status, err.count("\n")) == (2, 1), command
        assert err.startswith("data.public.images: found images with digest"), command
    for command in (resume, ("evaluate", "runs/whole"), ("leak", "runs/whole", "--images=20")):
        assert call(*command, f"{key}=moved")[::2] == (0, ""), command
    assert encoders(Path("runs/cut")) == encoders(Path("runs/whole"))

    environment = Path("runs/cut/environment.json")  # as a version wrote it that did not record public images
    environment.write_text(json.dumps({**json.loads(environment.read_text()), "public_images": None}))
    status, _, err = call(*resume, f"{key}=others", "train.rounds=3")
    assert status == 2
    assert f"cannot resume with changed {key}" in err


@pytest.mark.long
def test_the_place_of_the_runs_own_images_is_read_as_the_run_reads_it(call: Call, tmp_path: Path) -> None:
    hospitals(tmp_path / "hosp")
    assert call("run", "tiny.yaml", *CHANGES, *LOCAL, "--out", "runs/h")[0] == 0
    accuracy = json.loads((tmp_path / "runs/h/summary.json").read_text())["accuracy"]
    digest = json.loads((tmp_path / "runs/h/environment.json").read_text())["images"]
    (tmp_path / "elsewhere").symlink_to("hosp")
    for place in ("hosp", str(tmp_path / "hosp"), "elsewhere"):
        status, _, err = call("evaluate", "runs/h", "--data", place)
        assert (status, err) == (0, "")
    assert call("evaluate", "runs/h")[0] == 0
    _, out, _ = call("evaluate", "runs/h", "--data", "hosp")
    assert out.startswith("on imagefolder:hosp: ")
    assert out.count("\n  encoder ") == out.count("untrained small_cnn") == 1  # what was asked for, and nothing earlier
    ((name, found),) = json.loads((tmp_path / "runs/h/evaluation.json").read_text())["other data"].items()
    assert (name, found["accuracy"]["global"]) == ("imagefolder:hosp", {"knn": accuracy["knn"]})
    assert found["images"]["digest"] == digest


@pytest.mark.long
def test_the_columns_of_the_runs_own_tables_are_known(call: Call, tmp_path: Path) -> None:
    hospitals(tmp_path / "hosp")
    for split in ("train", "test"):
        files = sorted((tmp_path / "hosp" / split).rglob("*.png"))
        pictures = [path.read_bytes() for path in files]
        columns = {
            "kind": [int(path.parent.name == "dark") for path in files],
            "scan": pictures,
            "thumbnail": pictures[::-1],
        }
        (tmp_path / "pq").mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), tmp_path / f"pq/{split}.parquet")
    changes = (
        "data.name=parquet", "data.path=pq", "data.columns.image=scan", "data.columns.label=kind", "data.limit=40",
        "data.test_limit=null", "train.rounds=1", "evaluation.knn.k=5",
    )  # fmt: skip
    status, _, err = call("run", "tiny.yaml", *changes, *LOCAL, "--out", "runs/pq")
    assert (status, err) == (0, "")
    status, _, err = call("embed", "runs/pq", "pq", "--out", "own.parquet")
    assert (status, err) == (0, "")
    block = "{name: parquet, path: pq, columns: {image: scan, label: kind}}"
    assert call("embed", "runs/pq", block, "--out", "named.parquet")[0] == 0
    own, named = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("own", "named"))
    assert own.equals(named)
    assert len(own) == 130  # every image, not the 40 that the run trained on
    shutil.copytree("pq", "other")
    status, _, err = call("embed", "runs/pq", "other", "--out", "other.parquet")
    assert status == 2  # of other tables nothing is assumed
    assert "it has kind, scan, thumbnail: name one, as '{name: parquet, path: other, columns: {image: scan}}'" in err
    assert (
        call("embed", "runs/pq", "{name: parquet, path: other, columns: {image: scan}}", "--out", "o.parquet")[0] == 0
    )
    status, _, err = call("evaluate", "runs/pq", "--data", "other", "--protocol", "knn")
    assert status == 2
    assert "name one, as --data '{name: parquet, path: other, columns: {image: scan}}'" in err
    assert "data.columns" not in err
    status, _, err = call(
        "evaluate", "runs/pq", "--data", "{name: parquet, path: other, columns: {image: scan}}", "--protocol", "rank"
    )
    assert (status, err) == (0, "")
    many = pq.read_table("other/train.parquet")
    many = many.append_column("label", pa.array([[0, 1]] * len(many)))
    pq.write_table(many, "many.parquet")
    status, _, err = call(
        "evaluate", "runs/pq", "--data", "{name: parquet, path: many.parquet, columns: {image: scan}}"
    )
    assert status == 2
    assert "or read none, as --data '{name: parquet, path: many.parquet, columns: {image: scan, label: false}}'" in err
    assert call("evaluate", "runs/pq", "--data", "pq")[0] == 0


@pytest.mark.long
@pytest.mark.usefixtures("only_svg")
def test_what_was_made_of_the_images_is_written_down_and_stands_in_the_report(call: Call, tmp_path: Path) -> None:
    hospitals(tmp_path / "hosp")
    shutil.copytree("hosp/train/a", "photos")
    photos = [change for change in CHANGES if not change.startswith(("data.path", "data.layout", "data.partition"))]
    asked = ("run", "tiny.yaml", *photos, "data.path=photos", *LOCAL, "--out", "runs/p")
    status, out, _ = call(*asked)
    assert status == 0
    folder = tmp_path / "runs/p"
    note, few = json.loads((folder / "environment.json").read_text())["notes"]
    assert "too few for an encoder to learn much" in few
    assert "a fifth of each, 12 of 60 images, is held out as test images" in note
    assert note in out
    assert call("report", "runs/p", "--no-images")[0] == 0
    assert note in (folder / "report.html").read_text()
    environment = json.loads((folder / "environment.json").read_text())
    del environment["notes"]  # as an earlier version wrote it
    (folder / "environment.json").write_text(json.dumps(environment))
    assert call(*asked, "--resume", "train.rounds=4")[0] == 0
    assert not (folder / "environment-2.json").exists()


@pytest.mark.parametrize("name", ["table", "parquet"])
def test_where_no_column_is_called_as_labels_are_the_key_that_names_it_comes_first(
    call: Call, tmp_path: Path, name: str
) -> None:
    """Before the advice for images without labels, in the line itself and in those on how the images were read."""
    hospitals(tmp_path / "hosp")
    files = sorted((tmp_path / "hosp/train/a").rglob("*.png"))
    kinds, patients = [path.parent.name for path in files], [f"p{number % 9}" for number in range(len(files))]
    if name == "table":
        rows = [
            f"{path.relative_to(tmp_path)},{kind},{one}" for path, kind, one in zip(files, kinds, patients, strict=True)
        ]
        (tmp_path / "scans.csv").write_text("\n".join(["file,tissue,patient", *rows]))
    else:
        columns = {"image": [path.read_bytes() for path in files], "tissue": kinds, "patient": patients}
        pq.write_table(pa.table(columns), tmp_path / "scans.parquet")
    file = "scans.csv" if name == "table" else "scans.parquet"
    asked = ("run", "tiny.yaml", f"data.name={name}", f"data.path={file}", "data.limit=null", *LOCAL, "--check")
    status, _, error = call(*asked)
    first, second, *_ = error.splitlines()
    assert status == 2
    assert "images has a label; data.columns.label says which column or array has them; allowed without labels" in first
    assert second == (
        "data: column tissue is not read; data.columns.label, .client, .group say which are; tissue (2 values) may be "
        "the labels: data.columns.label=tissue"
    )
    assert call(*asked, "data.columns.label=tissue")[0] == 0
    status, _, error = call(*asked, "data.columns.label=false")
    assert status == 2
    assert "images has a label; allowed without labels: rank" in error.splitlines()[0]


@pytest.mark.long
def test_of_images_without_labels_none_is_held_out_unseen(call: Call, tmp_path: Path) -> None:
    """What `configs/own_images.yaml` says of a folder of unlabelled images, and what it comes to as one follows it."""
    rng = np.random.default_rng(0)
    (tmp_path / "scans").mkdir()
    for i in range(40):
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(tmp_path / f"scans/{i:02d}.png")
    config = ROOT / "configs" / "own_images.yaml"
    command = ("run", str(config), f"data.path={tmp_path / 'scans'}", "data.image_size=8", *LOCAL, "--check")
    status, _, error = call(*command)
    assert status == 2
    assert "allowed without labels: rank, or [], with evaluation.select=null: nothing can be chosen by" in error
    unlabelled = (*command, "evaluation.protocols=[rank]")
    status, out, _ = call(*unlabelled, "evaluation.select=null")
    assert status == 0
    assert "5 clients x 8 images" in out
    assert "held out" not in out
    assert "evaluation.select" not in out
    for asked, taken in (((), 4), (("evaluation.select.share=0.3",), 12)):
        status, out, _ = call(*unlabelled, *asked)
        assert status == 0
        assert f"{taken} training images held out for `rayfed-ssl leak` alone" in out
        (note,) = (line for line in out.splitlines() if "evaluation.select" in line)
        assert note.removeprefix("note").strip() == (
            f"evaluation.select holds out {taken} of 40 training images for `rayfed-ssl leak` alone: they have no "
            "labels to choose by; evaluation.select=null trains on them, too"
        )


@pytest.mark.parametrize(
    ("protocols", "said"), [("[rank]", "names none that needs labels"), ("[]", "names none"), ("[knn, rank]", "")]
)
def test_labelled_images_that_no_protocol_measures_on_are_said_to_be_held_out_for_nothing_else(
    call: Call, protocols: str, said: str
) -> None:
    shown = call("run", "tiny.yaml", "evaluation.select.share=0.3", f"evaluation.protocols={protocols}", "--check")
    assert shown[0] == 0
    notes = [line for line in shown[1].splitlines() if "for `rayfed-ssl leak` alone: " in line]
    assert len(notes) == bool(said)
    assert all(f"alone: evaluation.protocols {said}" in note for note in notes)
    assert ("held out to choose by" in shown[1]) == (not said)
