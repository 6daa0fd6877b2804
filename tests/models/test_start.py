"""``model.start``: every kind of file gives the same encoder, and what does not fit is refused in one line."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import Tensor, nn

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.models import ModelConfig, StartConfig, StartReport, build_encoder, pinned, start_values
from tests.models.exports import export

THIN = ModelConfig(width=0.25)
Values = dict[str, Tensor]


def encoder_of(seed: int, name: str = "small_cnn_bn") -> nn.Module:
    torch.manual_seed(seed)
    return build_encoder(name, THIN, 16)


@pytest.fixture
def values() -> Values:
    """An encoder's values, of another seed than the one they are loaded into."""
    found = {k: v for k, v in encoder_of(1).state_dict().items() if v.is_floating_point()}
    return found | {key: torch.rand_like(value) + 0.1 for key, value in found.items() if "running" in key}


def start(path: Path, name: str = "small_cnn_bn", client: int | None = None) -> tuple[nn.Module, StartReport]:
    encoder = encoder_of(0, name)
    return encoder, start_values(StartConfig(path=path), name, encoder, client)


def refused(path: Path, name: str = "small_cnn_bn", client: int | None = None) -> str:
    """The line, after which the encoder is as it was."""
    encoder = encoder_of(0, name)
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    with pytest.raises(UserError) as error:
        start_values(StartConfig(path=path), name, encoder, client)
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("model.start: ")
    return str(error.value)


def save(values: Any, path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file(values, path)
    else:
        torch.save(values, path)
    return path


WRAPPED: list[tuple[str, Callable[[Values], Any]]] = [
    ("plain.safetensors", lambda values: values),
    ("plain.pth", lambda values: values),
    (
        "lightning.ckpt",
        lambda values: {"epoch": 3, "state_dict": {f"model.backbone.{k}": v for k, v in values.items()}},
    ),
    ("parallel.pt", lambda values: {"model": {f"module.encoder.{k}": v for k, v in values.items()}, "optimizer": {}}),
    ("moco.pth.tar", lambda values: {"state_dict": {f"module.encoder_q.{k}": v for k, v in values.items()}}),
    ("compiled.bin", lambda values: {f"_orig_mod.{k}": v for k, v in values.items()}),
    ("half.safetensors", lambda values: {k: v.half().double() for k, v in values.items()}),
]


@pytest.mark.parametrize(("name", "wrap"), WRAPPED, ids=[name for name, _ in WRAPPED])
def test_every_kind_of_file(name: str, wrap: Callable[[Values], Any], values: Values, tmp_path: Path) -> None:
    encoder, report = start(save(wrap(values), tmp_path / name))
    for key, value in encoder.state_dict().items():
        if value.is_floating_point():
            expected = values[key].half().float() if name.startswith("half") else values[key]
            assert torch.equal(value, expected), key
    assert sorted(report.loaded) == sorted(values)
    assert report.left_out == ()
    assert report.line == f"model.start: small_cnn_bn begins with 24 tensors of {tmp_path / name}; none is left out"


def test_heads_are_left_out_and_named(values: Values, tmp_path: Path) -> None:
    heads = {f"module.{name}": torch.ones(2) for name in ("fc.weight", "fc.bias", "projector.0.bias", "queue")}
    wrapped = {f"module.{key}": value for key, value in values.items()}
    encoder, report = start(save({"state_dict": wrapped | heads}, tmp_path / "a.pth"))
    assert torch.equal(encoder.state_dict()["features.0.weight"], values["features.0.weight"])
    assert set(report.left_out) == {"fc.weight", "fc.bias", "projector.0.bias", "queue"}
    assert report.line.endswith("; 4 left out: fc.weight, fc.bias, projector.0.bias, ..")


def changed(**changes: Tensor | None) -> Callable[[Values], Values]:
    def change(values: Values) -> Values:
        new = dict(values)
        for key, value in changes.items():
            new.pop(key.replace("__", "."), None)
            if value is not None:
                new[key.replace("__", ".")] = value
        return new

    return change


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (changed(features__0__bias=None), "found no features.0.bias, which encoder 'small_cnn_bn' has"),
        (
            changed(features__0__bias=torch.ones(5)),
            "found features.0.bias (5,); encoder 'small_cnn_bn' expects (4,)",
        ),
        (
            changed(features__99__weight=torch.ones(5)),
            "found features.99.weight, which encoder 'small_cnn_bn' does not have",
        ),
        (changed(features__0__bias=torch.full((4,), torch.nan)), "found NaN or infinity in features.0.bias"),
        (lambda values: {"fc.weight": torch.ones(2)}, "found fc.weight, nothing that encoder 'small_cnn_bn' has"),
        (
            lambda values: {f"{p}.{k}": v.clone() for p in ("encoder", "backbone") for k, v in values.items()},
            "found two encoders, 'backbone.' and 'encoder.' before their names",
        ),
    ],
)
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_what_does_not_fit(
    change: Callable[[Values], Values], line: str, suffix: str, values: Values, tmp_path: Path
) -> None:
    path = save(change(values), tmp_path / f"a{suffix}")
    assert refused(path) == f"model.start: {path}: {line}"


def test_a_deeper_network_of_the_same_family_is_refused(tmp_path: Path) -> None:
    path = save(encoder_of(0, "resnet34").state_dict(), tmp_path / "a.pth")
    assert "layer1.2.conv1.weight (and " in refused(path, "resnet18")
    path = save(encoder_of(0, "resnet18").state_dict(), tmp_path / "b.pth")
    assert "found no layer1.2.conv1.weight (and " in refused(path, "resnet34")


class Evil:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch run-by-a-pickle",)


def test_a_pickle_that_would_run_code_is_refused(
    values: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "could run code" in refused(save({"state_dict": values, "hook": Evil()}, tmp_path / "a.pth"))
    assert not (tmp_path / "run-by-a-pickle").exists()


def test_a_whole_pickled_network_is_refused(tmp_path: Path) -> None:
    assert "save the network's state_dict()" in refused(save(encoder_of(0), tmp_path / "a.pth"))


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda folder: folder / "none.pth", "neither a file nor a finished run's folder"),
        (lambda folder: save(torch.ones(2), folder / "tensor.pth"), "found no tensors"),
        (lambda folder: save({"epoch": 3}, folder / "empty.pth"), "found no tensors"),
        (lambda folder: write_bytes(folder / "a.npz"), "must be one of FILE.safetensors, FILE.pth, "),
        (lambda folder: write_bytes(folder / "a.safetensors"), "cannot be read"),
        (lambda folder: write_bytes(folder / "a.pth"), "a.pth: "),
        (lambda folder: folder, "without encoder/*.json; it is no finished run"),
    ],
)
def test_what_is_no_file_of_values(make: Callable[[Path], Path], line: str, tmp_path: Path) -> None:
    assert line in refused(make(tmp_path))


def test_the_folder_of_an_export_names_its_file(tmp_path: Path) -> None:
    write_bytes(tmp_path / "model.safetensors")
    assert refused(tmp_path).endswith(f"no finished run, but has a file of values: {tmp_path / 'model.safetensors'}")
    write_bytes(tmp_path / "other.safetensors")
    assert refused(tmp_path).endswith("no finished run")


def write_bytes(path: Path) -> Path:
    path.write_bytes(b"no weights at all")
    return path


def test_from_a_run_folder_the_global_or_the_only_encoder_of_the_architecture(tmp_path: Path) -> None:
    (tmp_path / "mixed").mkdir()
    one = export(tmp_path / "mixed", "client-00000", "small_cnn_bn", seed=5)
    other = export(tmp_path / "mixed", "client-00001", "small_cnn", seed=6)
    for name, network in (("small_cnn_bn", one), ("small_cnn", other)):
        encoder, report = start(tmp_path / "mixed", name)
        first = next(iter(report.loaded))
        assert torch.equal(encoder.state_dict()[first], network.encoder.state_dict()[first])
    assert "whose encoders are small_cnn, small_cnn_bn; this run has 'resnet18'" in refused(
        tmp_path / "mixed", "resnet18"
    )

    common = export(tmp_path / "mixed", "global", "small_cnn_bn", seed=7)
    encoder, report = start(tmp_path / "mixed")
    assert report.file == tmp_path / "mixed" / "encoder" / "global.safetensors"
    assert torch.equal(encoder.state_dict()["features.0.weight"], common.encoder.state_dict()["features.0.weight"])


def test_from_clients_own_encoders_to_clients_own(tmp_path: Path) -> None:
    networks = [export(tmp_path, f"client-{client:05d}", seed=client + 5) for client in (0, 1)]
    for client, network in enumerate(networks):
        encoder, _ = start(tmp_path, client=client)
        weight = network.encoder.state_dict()["features.0.weight"]
        assert torch.equal(encoder.state_dict()["features.0.weight"], weight)
    line = refused(tmp_path)
    assert "has 2 encoders 'small_cnn_bn'; name one of its files" in line
    assert "model.initial=own" in line


def test_the_digest_is_that_of_the_bytes_and_is_compared(values: Values, tmp_path: Path) -> None:
    path = save(values, tmp_path / "a.safetensors")
    found = pinned(StartConfig(path=path))
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert pinned(found) == found
    encoder = encoder_of(0)
    start_values(found, "small_cnn_bn", encoder)
    wrong = StartConfig(path=path, sha256="0" * 64)
    for attempt in (lambda: pinned(wrong), lambda: start_values(wrong, "small_cnn_bn", encoder)):
        with pytest.raises(UserError, match=r"^model\.start: found .* SHA-256 .*; this run is configured for 0{12}"):
            attempt()


def test_a_run_folders_digest_covers_every_encoder(tmp_path: Path) -> None:
    export(tmp_path, "client-00000")
    export(tmp_path, "client-00001")
    before = pinned(StartConfig(path=tmp_path)).sha256
    assert before == pinned(StartConfig(path=tmp_path)).sha256
    export(tmp_path, "client-00001", seed=9)
    assert pinned(StartConfig(path=tmp_path)).sha256 != before


def test_the_setting_is_a_path_or_a_path_and_a_digest() -> None:
    short, long = (ModelConfig.model_validate({"start": given}) for given in ("a.pth", {"path": "a.pth"}))
    assert short == long
    assert ModelConfig.model_validate(short.model_dump(mode="json")) == short
    with pytest.raises(ValidationError):
        ModelConfig.model_validate({"start": {"path": "a.pth", "sha256": "zz"}})


@pytest.mark.parametrize("name", ["timm/test_resnet", "torchvision/shufflenet_v2_x0_5"])
def test_a_librarys_own_file_fits_its_encoder_here(name: str, tmp_path: Path) -> None:
    """At 96 px the stem is the library's; the classifier of the file is left out."""
    library, model = name.split("/")
    made = timm.create_model(model) if library == "timm" else torchvision.models.get_model(model, weights=None)
    encoder = build_encoder(name, ModelConfig(), 96)
    report = start_values(StartConfig(path=save(made.state_dict(), tmp_path / "a.pth")), name, encoder)
    assert report.left_out == ("fc.weight", "fc.bias")
    theirs = made.eval()
    images = torch.randn(2, 3, 96, 96)
    torch.testing.assert_close(theirs.fc(encoder.eval()(images)), theirs(images))


def test_a_large_images_stem_does_not_fit_the_one_for_small_images(tmp_path: Path) -> None:
    path = save(torchvision.models.resnet18(weights=None).state_dict(), tmp_path / "a.pth")
    encoder = build_encoder("torchvision/resnet18", ModelConfig(), 32)
    with pytest.raises(UserError, match=r"found conv1\.weight \(64, 3, 7, 7\); .* expects \(64, 3, 3, 3\)$"):
        start_values(StartConfig(path=path), "torchvision/resnet18", encoder)
