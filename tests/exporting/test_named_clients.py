"""Encoders of clients that have names: every command and the API find them by the client's number."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

import rayfed_ssl
from rayfed_ssl.models import StartConfig, build_network, load_exported
from rayfed_ssl.models.exported import ExportedFile, file_name, find, held_by
from rayfed_ssl.models.start import start_values
from rayfed_ssl.report.representations import look
from tests.command_line import Call, caller
from tests.tiny import run_locally, tiny

NAMES = ("Zürich", "ward 8", "北京")  # as they are sorted; nothing of the last one can stand in a file's name
STEMS = ("client-00000-Zurich", "client-00001-ward-8", "client-00002")
FIRST = "features.0.weight"  # differs between the clients' encoders


@pytest.fixture(scope="module")
def named_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A client's folder each, and an encoder each."""
    root, rng = tmp_path_factory.mktemp("named"), np.random.default_rng(0)
    for split, count in (("train", 8), ("test", 2)):
        for name in NAMES:
            for label in (0, 1):
                folder = root / "images" / split / name / "ab"[label]
                folder.mkdir(parents=True)
                for k in range(count):
                    pixels = rng.integers(60 * label, 200, (8, 8, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(folder / f"{k}.png")
    images = {"name": "imagefolder", "path": str(root / "images"), "layout": "clients", "image_size": 8}
    changes = {f"data__{key}": value for key, value in images.items()}
    config = tiny(
        "local", **changes, data__limit=None, data__test_limit=None, data__partition={"name": "folders"},
        clients__count=3, clients__encoders="small_cnn_bn", train__rounds=1, train__batch_size=8,
        evaluation__knn={"k": 5},
    )  # fmt: skip
    run_locally(config, root / "run")
    assert sorted(path.stem for path in (root / "run/encoder").glob("*.json")) == sorted(STEMS)
    return root / "run"


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(tmp_path, monkeypatch, capsys)


def written(run: Path, client: int) -> dict[str, Tensor]:
    """The values in the client's file, by the file's own name."""
    return load_file(run / "encoder" / f"{STEMS[client]}.safetensors")


@pytest.mark.parametrize("client", range(3))
def test_a_client_is_found_by_its_name(named_run: Path, client: int) -> None:
    assert find(named_run, NAMES[client]).stem == find(named_run, str(client)).stem == STEMS[client]
    found = rayfed_ssl.load(named_run).encoder(client=NAMES[client]).encoder
    assert torch.equal(found.state_dict()[FIRST], written(named_run, client)[FIRST])


def test_a_number_means_a_number_also_where_another_client_is_called_so(named_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(named_run, tmp_path / "run")
    file = run / "encoder" / f"{STEMS[0]}.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"client_name": "1"}))
    assert find(run, "1").stem == STEMS[1]


@pytest.mark.parametrize("client", range(3))
def test_a_client_is_found_by_its_number(named_run: Path, client: int) -> None:
    file = find(named_run, client)
    assert (file.stem, file.client, file.values.name) == (STEMS[client], client, f"{STEMS[client]}.safetensors")
    for found in (
        rayfed_ssl.load(named_run).encoder(client=client).encoder,
        load_exported(named_run, f"client-{client:05d}"),
        load_exported(named_run / "encoder", STEMS[client]),
    ):
        assert torch.equal(found.state_dict()[FIRST], written(named_run, client)[FIRST])
    network = build_network("small_cnn_bn", rayfed_ssl.load(named_run).config.model, 8, heads=())
    report = start_values(StartConfig(path=named_run), "small_cnn_bn", network.encoder, client)
    assert report.file == file.values


@pytest.mark.long
def test_the_commands_take_it(named_run: Path, call: Call, tmp_path: Path) -> None:
    out, run = tmp_path / "x.parquet", str(named_run)
    assert call("embed", run, "digits", "--out", str(out), "--client", "1")[::2] == (0, "")
    assert json.loads(pq.read_schema(out).metadata[b"rayfed_ssl"])["encoder"] == STEMS[1]

    assert call("evaluate", run)[::2] == (0, "")
    accuracy = json.loads((named_run / "evaluation.json").read_text())["accuracy"]
    assert set(accuracy) == set(STEMS)

    assert call("embed", run, "digits", "--out", str(tmp_path / "y.parquet"), "--client", "ward 8")[::2] == (0, "")
    assert pq.read_table(tmp_path / "y.parquet") == pq.read_table(out)

    status, shown, err = call("export", run, "--to", "torchscript", "--client", "ward 8")
    assert (status, err) == (0, "")
    assert STEMS[1] in shown
    folder = named_run / "exported" / f"torchscript-{STEMS[1]}"
    told = json.loads((folder / "config.json").read_text())
    assert (told["client_name"], told["run"]["encoder"]) == ("ward 8", STEMS[1])
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "the encoder of client 1" in card
    assert f"{accuracy[STEMS[1]]['knn']:.3f}" in card


def test_who_has_no_encoder_is_named_alike(named_run: Path, call: Call) -> None:
    run = str(named_run)
    for options, line in (
        ((), f"not given, and {run} has an encoder per client and no global one; allowed: 0, 1, 2"),
        (("--client", "3"), f"found 3, of which {run} has no encoder; allowed: 0, 1, 2"),
    ):
        for command in (("embed", run, "digits", "--out", "x.parquet"), ("export", run, "--to", "torchscript")):
            assert call(*command, *options) == (2, "", f"--client: {line}\n")
        with pytest.raises(rayfed_ssl.UserError) as refused:
            rayfed_ssl.load(named_run).encoder(*map(int, options[1:]))
        assert str(refused.value) == f"client: {line}"
    near, far = "; did you mean ward 8?", ""
    for name, guess in (("Ward 9", near), ("zurich", "; did you mean Zürich?"), ("nobody at all", far)):
        line = f"found '{name}', of which {run} has no encoder; allowed: Zürich, ward 8, 北京{guess}"
        for command in (("embed", run, "digits", "--out", "x.parquet"), ("export", run, "--to", "torchscript")):
            assert call(*command, "--client", name) == (2, "", f"--client: {line}\n")


def test_a_name_in_a_run_without_names_is_refused(named_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(named_run, tmp_path / "run")
    for stem in STEMS:
        file = run / "encoder" / f"{stem}.json"
        told = json.loads(file.read_text())
        del told["client_name"]
        file.write_text(json.dumps(told))
    with pytest.raises(rayfed_ssl.UserError, match=r"has no encoder \(its clients have no names\); allowed: 0, 1, 2$"):
        find(run, "ward 8")


def test_the_report_looks_at_the_first_clients(named_run: Path) -> None:
    assert look(named_run).encoder == STEMS[0]


def test_a_name_of_a_file_says_whose_it_is() -> None:
    for client, names in ((None, NAMES), (0, NAMES), (1, NAMES), (2, NAMES), (100_003, None)):
        stem = file_name(client, names)
        assert ExportedFile(Path(f"{stem}.json")).client == client
    assert [file_name(client, NAMES) for client in range(3)] == list(STEMS)
    assert file_name(7, None) == "client-00007"
    assert ExportedFile(Path("clients-00003.json")).client is None
    others = [ExportedFile(Path(f"{stem}.json")) for stem in ("best", "global", "client-00001")]
    assert held_by(None, others) == others[1]
    assert held_by(2, others) is None
