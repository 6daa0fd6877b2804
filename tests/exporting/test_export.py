"""Exported encoders where there is only PyTorch, or only onnxruntime, and their model cards against the run's files."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from packaging.requirements import Requirement
from PIL import Image

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.exporting import folder as exporting
from rayfed_ssl.exporting import programs
from rayfed_ssl.exporting.encoders import RunEncoder, run_encoder
from rayfed_ssl.exporting.folder import FORMS, export
from rayfed_ssl.models import ModelConfig, build_encoder, load_exported
from rayfed_ssl.models.transform import Transform
from rayfed_ssl.simulation.reevaluation import reevaluate
from tests.command_line import command

pytestmark = pytest.mark.long

PIXELS = np.random.default_rng(1).integers(0, 256, (7, 16, 16, 3), np.uint8)
COMPILED = "__pycache__"  # what Python leaves beside a file that it ran


@pytest.fixture(scope="session")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every form of the run's encoder, in a folder of its form's name."""
    place = tmp_path_factory.mktemp("exported")
    for form in FORMS:
        export(run_encoder(run), form, place / form)
    return place


@pytest.fixture
def expected(encoder: RunEncoder) -> torch.Tensor:
    """(7, 32): what the run's encoder makes of PIXELS."""
    with torch.no_grad():
        return encoder.module(encoder.transform(PIXELS))


# -- programs ----------------------------------------------------------------------------------------------------------


def alone(folder: Path, *distributions: str) -> Path:
    """A folder for ``PYTHONPATH`` that holds these packages and what they require, and nothing else."""
    waiting, seen = list(distributions), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        found = importlib.metadata.distribution(name)
        for text in found.requires or []:
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                waiting.append(wanted.name)
        for top in {Path(str(file)).parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            link = folder / top
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(top))))
    return folder


LOAD = """
import sys
from importlib.util import find_spec

import torch
import encoder

for name in ("rayfed_ssl", "numpy", "torchvision", "safetensors", "PIL", "ray"):
    assert find_spec(name) is None, name
pixels = torch.frombuffer(bytearray(open("pixels", "rb").read()), dtype=torch.uint8).view(-1, 16, 16, 3)
model = encoder.load()
for count in (1, len(pixels)):
    with torch.no_grad():
        features = model(encoder.normalised(pixels[:count]))
open("features", "wb").write(bytes(features.flatten().contiguous().view(torch.uint8).tolist()))
print(encoder.described()["dim"], tuple(features.shape))
"""


def test_the_encoder_loads_where_there_is_only_torch(exported: Path, expected: torch.Tensor, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    alone(site, "torch")
    shutil.copytree(exported / "torch", tmp_path / "model")
    (tmp_path / "model/pixels").write_bytes(PIXELS.tobytes())
    (tmp_path / "model/load.py").write_text(LOAD)
    environment = {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-S", "-W", "ignore", "load.py"],
        cwd=tmp_path / "model", env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "32 (7, 32)\n"
    features = np.frombuffer((tmp_path / "model/features").read_bytes(), np.float32).reshape(7, 32)
    np.testing.assert_allclose(features, expected, atol=1e-5)


def test_onnx_gives_the_same_features_in_onnxruntime(exported: Path, expected: torch.Tensor, digits: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(exported / "onnx/model.onnx", providers=["CPUExecutionProvider"])
    for count in (1, 7):  # the number of images is free
        (features,) = session.run(["features"], {"images": PIXELS[:count]})
        assert features.dtype == np.float32
        np.testing.assert_allclose(features, expected[:count], atol=1e-4)
    assert abs(features - features[0]).max() > 1e-2  # else any constant would do


def test_torchscript_gives_the_same_features(exported: Path, expected: torch.Tensor) -> None:
    program = torch.jit.load(exported / "torchscript/model.pt")
    for count in (1, 7):
        with torch.no_grad():
            torch.testing.assert_close(program(torch.from_numpy(PIXELS[:count])), expected[:count], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "channels", "width"),
    [("timm/test_vit", 1, 1), ("vit_tiny", 1, 0.1), ("fixup_resnet20", 3, 0.1), ("vgg9", 3, 0.1)],
)
def test_other_architectures_and_grey_images_export_too(
    name: str, channels: int, width: float, encoder: RunEncoder, tmp_path: Path
) -> None:
    if name.startswith("timm"):
        pytest.importorskip("timm")
    torch.manual_seed(0)
    module = build_encoder(name, ModelConfig(width=width), 32, channels).eval()
    transform = Transform(32, channels, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    other = replace(encoder, module=module, transform=transform)
    assert programs.write_torchscript(other, tmp_path / "x.pt") < 1e-4
    assert programs.write_export(other, tmp_path / "x.pt2") < 1e-4
    if channels == 1:
        assert programs.write_onnx(other, tmp_path / "x.onnx") < 1e-4


def test_the_loader_reads_pillow_images_and_normalises_as_the_transform_does(
    exported: Path, encoder: RunEncoder, tmp_path: Path
) -> None:
    spec = importlib.util.spec_from_file_location("exported_encoder", exported / "torch/encoder.py")
    assert spec is not None
    assert spec.loader is not None
    loader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loader)
    image = Image.fromarray(np.random.default_rng(2).integers(0, 256, (30, 40), np.uint8))
    square = loader.square(image)
    assert np.array_equal(square, encoder.transform.pixels([image])[0])
    torch.testing.assert_close(loader.normalised(square[None])[0], encoder.transform(image), atol=1e-6, rtol=0)
    config = json.loads((exported / "torch/config.json").read_text())
    grey = {**config, "channels": 1, "input": {**config["input"], "mean": [0.1, 0.2, 0.6], "std": [0.2, 0.4, 0.9]}}
    (tmp_path / "config.json").write_text(json.dumps(grey))
    transform = Transform.described(grey)
    square = loader.square(image, tmp_path)
    assert square.shape == (16, 16, 1)
    torch.testing.assert_close(loader.normalised(square[None], tmp_path)[0], transform(image), atol=1e-6, rtol=0)


def test_exported_values_load_as_a_module(exported: Path, run: Path) -> None:
    for form in ("torch", "hub-folder"):
        values = load_exported(exported / form, "config").state_dict()
        for name, value in load_exported(run).state_dict().items():
            assert torch.equal(value, values[name])


def test_a_hub_folder_has_a_model_repositorys_files(exported: Path, encoder: RunEncoder) -> None:
    hub, plain = ({path.name for path in (exported / kind).iterdir()} for kind in ("hub-folder", "torch"))
    assert hub - {COMPILED} == plain - {COMPILED} | {
        "preprocessor_config.json",
        ".gitattributes",
    }
    found = json.loads((exported / "hub-folder/preprocessor_config.json").read_text())
    assert found["crop_size"] == {"height": 16, "width": 16}
    assert (found["image_mean"], found["image_std"]) == ([0.5] * 3, [0.5] * 3)
    assert found["resample"] == Image.Resampling.BILINEAR
    assert found["rescale_factor"] == 1 / 255
    assert "*.safetensors filter=lfs" in (exported / "hub-folder/.gitattributes").read_text()


def test_no_file_names_a_folder_of_this_machine(exported: Path, run: Path, digits: Path) -> None:
    here = [str(place).encode() for place in (Path(programs.__file__).parents[2], Path(torch.__file__).parents[1], run)]
    files = [file for file in exported.rglob("*") if file.is_file() and file.parent.name != COMPILED]
    assert len(files) > 10
    for file in files:
        content = file.read_bytes()
        for place in (*here, str(digits.parent).encode()):
            assert place not in content, file


def test_a_program_with_other_features_is_refused(
    encoder: RunEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = torch.jit.load
    monkeypatch.setattr(torch.jit, "load", lambda path: lambda pixels: load(path)(pixels) + 1e-2)
    with pytest.raises(UserError, match=r"^--to torchscript: the program's features differ .* by 0\.01; allowed: "):
        export(encoder, "torchscript", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


# -- model cards -------------------------------------------------------------------------------------------------------


def cells(card: str, first: str) -> list[list[str]]:
    """The rows of a card's tables that begin with ``first``."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in card.splitlines() if line[:1] == "|"]
    return [row for row in rows if row[0] == first]


def test_the_cards_numbers_are_the_runs(exported: Path, run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    for form in FORMS:
        card = (exported / form / "README.md").read_text()
        for protocol in ("linear", "knn"):
            shown = [f"{summary[block][protocol]:.3f}" for block in ("pixels", "untrained", "accuracy")]
            assert cells(card, protocol) == [[protocol, "the run's last round", *shown]]
        sent = summary["communication"]
        assert cells(card, "clients sent")[0][1] == f"{sent['up_bytes']:,} bytes up, {sent['down_bytes']:,} bytes down"
        assert cells(card, "rounds")[0][1] == "2 of 2 (complete), seed 0"
        assert cells(card, "clients")[0][1].endswith("1,437 in all")
        assert cells(card, "epsilon")[0][1].startswith("none")
        assert cells(card, "torch")[0][1] == str(torch.__version__)
        head = yaml.safe_load(card.split("---")[1])
        assert head["license"] == "unknown"
        assert "fedsimclr" in head["tags"]


def test_the_cards_code_runs(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for form in FORMS:
        monkeypatch.chdir(exported / form)
        monkeypatch.syspath_prepend(str(exported / form))
        monkeypatch.delitem(sys.modules, "encoder", raising=False)
        blocks = re.findall(r"```python\n(.*?)```", (exported / form / "README.md").read_text(), re.S)
        for block in blocks:
            names: dict[str, object] = {}
            exec(block, names)
            if "features" in names:
                assert tuple(names["features"].shape) == (1, 32)  # type: ignore[attr-defined]
        assert blocks


def test_a_card_of_a_client_shows_that_clients_values(mixed_run: Path, tmp_path: Path) -> None:
    summary = json.loads((mixed_run / "summary.json").read_text())
    export(run_encoder(mixed_run, 1), "torchscript", tmp_path / "x", "apache-2.0")
    card = (tmp_path / "x/README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["license"] == "apache-2.0"
    (row,) = cells(card, "knn")
    assert row[4] == f"{summary['accuracy']['knn']['1']:.3f}"
    assert row[3] == f"{summary['untrained']['knn']['1']:.3f}"
    found = reevaluate(mixed_run, ["linear"])
    try:
        assert found["untrained"].keys() == {
            "client-00000",
            "client-00001",
        }  # `local`: own values
        export(run_encoder(mixed_run, 1), "torchscript", tmp_path / "y", "apache-2.0")
        (row,) = cells((tmp_path / "y/README.md").read_text(), "linear")
    finally:
        (mixed_run / "evaluation.json").unlink()
    assert row[3] == f"{found['untrained']['client-00001']['linear']:.3f}"
    assert cells(card, "client 1")[0][1].endswith("training images")
    assert "# mixed: the encoder of client 1" in card


def test_later_evaluations_and_privacy_are_on_the_card(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    summary = json.loads((copy / "summary.json").read_text())
    privacy = {"delta": 0.01, "covers": "correlation matrices", "not_covered": "weights"}
    summary |= {"epsilon": {"0": 1.5, "1": 2.25}, "privacy": privacy, "start": {"path": "x", "digest": "abc"}}
    (copy / "summary.json").write_text(json.dumps(summary))
    knn = summary["accuracy"]["knn"]
    later = {
        "accuracy": {"global": {"fewshot": 0.5, "knn": knn}},
        "untrained": {"small_cnn_bn": {"fewshot": 0.25, "knn": summary["untrained"]["knn"]}},
        "pixels": {"fewshot": 0.125, "knn": summary["pixels"]["knn"]},
    }
    (copy / "evaluation.json").write_text(json.dumps(later))
    export(run_encoder(copy), "torchscript")
    card = (copy / "exported/torchscript/README.md").read_text()
    assert "Shares of test images, the encoder frozen. Accuracy unless" in card
    assert cells(card, "fewshot") == [["fewshot", "`rayfed-ssl evaluate`", "0.125", "-", "0.500"]]
    assert len(cells(card, "knn")) == 1
    del summary["start"]  # else what is untrained is of first values, not of what training began with
    (copy / "summary.json").write_text(json.dumps(summary))
    other = {"images": {"source": {"name": "imagefolder", "path": "/a/way/labelled"}, "train": 96, "test": 24}}
    other |= {"accuracy": {"global": {"linear": 0.75, "semi_1": 0.5}}, "untrained": {"small_cnn_bn": {"linear": 0.5}}}
    later["other data"] = {"imagefolder:/a/way/labelled": other | {"pixels": {"linear": 0.25}}}
    (copy / "evaluation.json").write_text(json.dumps(later))
    export(run_encoder(copy), "torchscript", out=copy / "untrained first")
    first = (copy / "untrained first/README.md").read_text()
    assert cells(first, "fewshot") == [["fewshot", "`rayfed-ssl evaluate`", "0.125", "0.250", "0.500"]]
    assert "On other images than the run's (`labelled`, 24 test images and 96 to learn from), by `rayfed" in first
    assert ["linear", "0.250", "0.500", "0.750"] in cells(first, "linear")
    assert "the encoder frozen, but for `semi` and `transfer_finetune`, which train it further. Accuracy" in first
    assert "/a/way" not in first
    assert len(cells(card, "knn")) == 1  # the same values again
    covered = "at most 2.25 per client at delta 0.01; it covers correlation matrices, not weights"
    assert cells(card, "epsilon")[0][1] == covered
    assert cells(card, "began with")[0][1] == "an encoder of digest abc"
    assert cells(card, "protocol")[0][3] == "before training"
    (copy / "summary.json").write_text(json.dumps({"method": "fedsimclr"}))
    with pytest.raises(UserError, match="the run's records are damaged \\(KeyError"):
        export(run_encoder(copy), "torchscript", tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("form", ["torchscript", "hub-folder"])
@pytest.mark.parametrize("late", [False, True])
def test_a_run_that_is_removed_while_it_is_exported_does_not_come_back(
    form: str, late: bool, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its program is written, and when it has been."""
    copy, chosen = shutil.copytree(run, tmp_path / "run"), FORMS[form]

    def removing(encoder: RunEncoder, path: Path) -> float:
        if late:
            path.touch()
        shutil.rmtree(copy)
        return 0.0 if late else chosen.write(encoder, path)

    monkeypatch.setitem(FORMS, form, replace(chosen, write=removing))
    said = f"^--out: {copy / 'exported'} was removed or moved meanwhile, and nothing was exported$"
    with pytest.raises(UserError, match=said):
        export(run_encoder(copy), form)
    assert not copy.exists()


def test_a_run_that_is_removed_before_its_export_begins_does_not_come_back(run: Path, tmp_path: Path) -> None:
    encoder = run_encoder(shutil.copytree(run, tmp_path / "run"))
    shutil.rmtree(encoder.run)
    with pytest.raises(UserError, match=r"found no summary\.json"):
        export(encoder, "torchscript")
    assert not encoder.run.exists()


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_wrote_and_writes_nothing_twice(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x"
    status, shown, _ = command(capsys, "export", run, "--to", "torchscript", "--out", out, "--license", "mit")
    assert status == 0
    assert "files         README.md, config.json, model.pt\n" in shown
    assert "features differ from the run's by at most" in shown
    again = command(capsys, "export", run, "--to", "torchscript", "--out", out)
    assert again == (2, "", f"--out: {out} exists; name another folder, or remove it\n")


def test_wrong_options_are_one_line(
    run: Path, mixed_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, options, line in [
        (run, ("--to", "tflite"), "--to: found 'tflite'; must be one of torch, onnx, torchscript, hub-folder"),
        (
            run,
            ("--to", "torch", "--client", "0"),
            f"--client: found 0, of which {run} has no encoder; allowed: nothing: ",
        ),
        (run, ("--to", "torch", "--license", " "), "--license: found ' '; must be an identifier such as apache-2.0"),
        (mixed_run, ("--to", "torch"), f"--client: not given, and {mixed_run} has an encoder per client"),
    ]:
        status, _, err = command(capsys, "export", folder, "--out", tmp_path / "x", *options)
        assert status == 2
        assert err.startswith(line)
        assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["m.onnx", "m.PT", "m.pt2", "m.safetensors"])
def test_a_folder_with_the_name_of_a_file_is_refused(name: str, encoder: RunEncoder, tmp_path: Path) -> None:
    said = rf"^--out: found .*{name}, but an export is a folder, and model\.pt lies in it; allowed: .*, such as m$"
    with pytest.raises(UserError, match=said):
        export(encoder, "torchscript", tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    assert export(encoder, "torchscript", tmp_path / "v1.2").folder.is_dir()


def test_onnx_names_its_extra(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        programs.importlib.util, "find_spec", lambda name: None if name == "onnxscript" else there(name)
    )
    found = command(capsys, "export", run, "--to", "onnx")
    assert found == (2, "", "--to onnx: needs onnxscript, not installed: pip install 'rayfed-ssl[onnx]'\n")


def test_what_fails_half_way_leaves_nothing(
    encoder: RunEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting.shutil, "copyfile", full)
    with pytest.raises(UserError, match=r"^--out: .*x cannot be written \(No space left on device\)$"):
        export(encoder, "torch", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
