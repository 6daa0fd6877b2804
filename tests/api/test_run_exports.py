"""What a script takes out of a run is what the commands write: tables of features, exports, audits, the page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import rayfed_ssl
from rayfed_ssl.leak.run import added
from tests.command_line import command
from tests.leak.runs import HELD_OUT
from tests.tiny import run_locally, tiny

NO_IMAGES = "data: found 3; must be a folder, a file, hub:OWNER/NAME, or a mapping of keys"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> rayfed_ssl.Run:
    folder = tmp_path_factory.mktemp("taking") / "run"
    run_locally(tiny("fedsimclr", **{key.replace(".", "__"): value for key, value in HELD_OUT.items()}), folder)
    return rayfed_ssl.load(folder)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> rayfed_ssl.Run:
    """Two clients with encoders of their own."""
    folder = tmp_path_factory.mktemp("taking") / "mixed"
    run_locally(tiny("local", clients__count=2, data__limit=80, train__rounds=1), folder)
    return rayfed_ssl.load(folder)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes of images of 16 bits, of which the encoder sees 8, and a file that is no image."""
    draw = np.random.default_rng(0)
    for k in range(5):
        (tmp_path / f"images/{k % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 4000, (9, 9), np.uint16)).save(tmp_path / f"images/{k % 2}/{k}.png")
    (tmp_path / "images/0/broken.png").write_bytes(b"no image")
    return tmp_path / "images"


@pytest.fixture(autouse=True)
def callers_process(capsys: pytest.CaptureFixture[str]) -> Any:
    """Nothing is printed, and torch's threads stay the caller's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)  # not the run's
    try:
        yield
        assert torch.get_num_threads() == threads + 1
        assert capsys.readouterr().out == ""
    finally:
        torch.set_num_threads(threads)


def succeed(capsys: pytest.CaptureFixture[str], *arguments: object) -> None:
    """Run a command to its end, and forget what it printed and changed of this process."""
    threads = torch.get_num_threads()
    status, _, err = command(capsys, *arguments)
    torch.set_num_threads(threads)
    assert status == 0, err


@pytest.mark.long
def test_a_table_is_the_commands(
    run: rayfed_ssl.Run, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    succeed(capsys, "embed", run.folder, images, "--out", tmp_path / "c.parquet", "--skip-bad")
    notes: list[str] = []
    table = run.embed(images, skip_bad=True, on_note=notes.append)
    assert table.equals(pq.read_table(tmp_path / "c.parquet"), check_metadata=True)
    assert table.num_rows == 5
    assert notes[-1] == "left out, cannot be decoded: 0/broken.png"
    assert "5 images of more than 8 bits were scaled" in notes[0]
    written = run.embed({"name": "imagefolder", "path": images}, str(tmp_path / "p.parquet"), skip_bad=True)
    assert written == tmp_path / "p.parquet"
    assert written.read_bytes() == (tmp_path / "c.parquet").read_bytes()
    assert run.embed(images, written, skip_bad=True, overwrite=True) == written


def test_a_column_of_ids_and_a_client_are_asked_for_as_on_the_command_line(
    mixed: rayfed_ssl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("L", (8, 8), 90).save(tmp_path / "x.png")
    rows = {"image": [{"bytes": (tmp_path / "x.png").read_bytes(), "path": "x.png"}], "key": ["a"], "other": ["b"]}
    pq.write_table(pa.table(rows), tmp_path / "x.parquet")
    given = (mixed.folder, tmp_path / "x.parquet", "--out", tmp_path / "c.parquet")
    succeed(capsys, "embed", *given, "--client", 1, "--id", "other")
    found = mixed.embed(tmp_path / "x.parquet", client=1, id_column="other")
    assert found.equals(pq.read_table(tmp_path / "c.parquet"), check_metadata=True)
    assert found["id"].to_pylist() == ["b"]
    assert not found.equals(mixed.embed(tmp_path / "x.parquet", client=0, id_column="other"))
    with pytest.raises(rayfed_ssl.UserError, match=r"^client: not given, and .* has an encoder per client"):
        mixed.embed("digits")


@pytest.mark.parametrize("form", ["torchscript", "hub-folder"])
def test_an_export_is_the_commands(
    form: str, run: rayfed_ssl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    succeed(capsys, "export", run.folder, "--to", form, "--out", tmp_path / "c", "--license", "mit")
    found = run.export(form, tmp_path / "p", license="mit")
    assert found == tmp_path / "p"
    names = sorted(path.name for path in (tmp_path / "c").iterdir())
    assert sorted(path.name for path in found.iterdir()) == names
    for name in names:
        if not name.startswith("model.p"):  # torch's own archives are not the same twice
            assert (found / name).read_bytes() == (tmp_path / "c" / name).read_bytes(), name


def test_an_export_lies_in_the_run_folder_by_default(run: rayfed_ssl.Run) -> None:
    assert run.export("torchscript") == run.folder / "exported/torchscript"
    assert (run.folder / "exported/torchscript/README.md").is_file()


@pytest.mark.long
def test_an_audit_is_the_commands_and_holds_what_was_asked_for(
    run: rayfed_ssl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run.folder, tmp_path / "c")
    succeed(capsys, "leak", tmp_path / "c", "--round", 1, "--client", 2, "--client", 0, "--images", 25)
    both = run.leak(1, client=[2, 0], images=25)
    known = json.loads((tmp_path / "c/leak.json").read_text())
    assert added({}, both) == known == json.loads((run.folder / "leak.json").read_text())
    assert {row["members"] for row in both["findings"]} == {25}
    last = run.leak(images=25)
    assert {(row["round"], row["client"]) for row in last["findings"]} == {(3, 0)}
    assert run.leak(client=np.int64(1), images=25)["findings"][0]["client"] == 1
    rows = json.loads((run.folder / "leak.json").read_text())["findings"]
    assert {(row["round"], row["client"]) for row in rows} == {(1, 0), (1, 2), (3, 0), (3, 1)}


@pytest.mark.long
def test_the_page_is_the_commands(run: rayfed_ssl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run.folder, tmp_path / "run", ignore=shutil.ignore_patterns("leak.json"))
    succeed(capsys, "report", tmp_path / "run", "--no-images")
    page = (tmp_path / "run/report.html").read_bytes()
    assert rayfed_ssl.load(tmp_path / "run").report(images=False).read_bytes() == page


@pytest.mark.parametrize(
    ("ask", "line"),
    [
        (lambda run, out: run.embed(3), NO_IMAGES),
        (lambda run, out: run.embed("digits", out=""), "out: found ''; must be a Parquet file to write, or None"),
        (lambda run, out: run.embed("digits", out / "x.csv"), "out: found {out}/x.csv, but the table is Parquet; .*"),
        (lambda run, out: run.embed("digits", out / "there.pq"), "out: .*; name another file, or give overwrite=True"),
        (lambda run, out: run.embed("digits", overwrite=True), "overwrite=True: found no out, .*"),
        (lambda run, out: run.embed("digits", skip_bad=1), "skip_bad: found 1; must be True or False"),
        (lambda run, out: run.embed("digits", on_note="x"), "on_note: found 'x'; must be a function, or None"),
        (
            lambda run, out: run.embed("digits", id_column=0),
            "id_column: found 0; must be the name of a column, or None",
        ),
        (lambda run, out: run.embed("digits", id_column="x"), "id_column: found 'x'; digits has no columns, .*"),
        (lambda run, out: run.embed("digits", client=0.0), "client: found 0.0; must be a whole number"),
        (lambda run, out: run.embed("digits", client=7), "client: found 7, of which .* has no encoder; .*"),
        (lambda run, out: run.embed(out / "broken"), "data: broken.png cannot be decoded .* out with skip_bad=True"),
        (lambda run, out: run.embed("nowhere"), "data: found 'nowhere', which does not exist.*"),
        (lambda run, out: run.export("tf"), "to: found 'tf'; must be one of torch, onnx, torchscript, hub-folder"),
        (lambda run, out: run.export(None), "to: found None; must be one of torch, onnx, torchscript, hub-folder"),
        (lambda run, out: run.export("torch", out), "out: {out} exists; name another folder, or remove it"),
        (lambda run, out: run.export("torch", license=""), "license: found ''; must be an identifier such as .*"),
        (lambda run, out: run.export("torch", license=None), "license: found None; must be an identifier such as .*"),
        (lambda run, out: run.export("torch", client=True), "client: found True; must be a whole number"),
        (lambda run, out: run.leak(9), "round: found 9; allowed: 1 to 3, .*"),
        (lambda run, out: run.leak("1"), "round: found '1'; must be a whole number"),
        (lambda run, out: run.leak(client=9), "client: found 9; this run has clients 0 to 3"),
        (lambda run, out: run.leak(client=[0, "west"]), "client: found 'west'; this run has .*"),
        (lambda run, out: run.leak(images=19), "images: found 19; must be 20 or more"),
        (lambda run, out: run.leak(seed=3), "seed: found a change of what the run was.*"),
    ],
)
def test_a_mistake_is_one_line_in_pythons_words(
    ask: Callable[[Any, Path], object], line: str, run: rayfed_ssl.Run, tmp_path: Path
) -> None:
    (tmp_path / "there.pq").touch()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/broken.png").write_bytes(b"no image")
    with pytest.raises(rayfed_ssl.UserError) as refused:
        ask(run, tmp_path)
    with pytest.raises(rayfed_ssl.UserError, match=rf"^{line.format(out=tmp_path)}$"):
        raise refused.value
    assert "--" not in str(refused.value)


@pytest.mark.long
def test_of_a_run_at_a_uri_tables_and_cards_name_it_as_its_place(run: rayfed_ssl.Run, tmp_path: Path) -> None:
    there = rayfed_ssl.load(run.folder.as_uri())
    assert there.embed("digits").equals(run.embed("digits"), check_metadata=True)
    there.export("torchscript", tmp_path / "there")
    run.export("torchscript", tmp_path / "here")
    assert (tmp_path / "there/README.md").read_bytes() == (tmp_path / "here/README.md").read_bytes()
    with pytest.raises(rayfed_ssl.UserError, match=r"^out: not given, and the run is at a URI; name a folder"):
        there.export("torchscript")
    with pytest.raises(rayfed_ssl.UserError, match=r"an audit repeats a round from a checkpoint; copy the run"):
        there.leak()
