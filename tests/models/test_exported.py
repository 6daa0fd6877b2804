"""Exported encoders are loaded whole or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.models import describe, load_exported
from tests.models.exports import IMAGES, export, write


def test_an_encoder_comes_back_from_a_run_folder_or_its_encoder_folder(tmp_path: Path) -> None:
    network, other = export(tmp_path), export(tmp_path, "client-00003", seed=1)
    for folder in (tmp_path, tmp_path / "encoder", str(tmp_path)):
        encoder = load_exported(folder)
        assert not encoder.training
        assert torch.equal(encoder(IMAGES), network.represent(IMAGES))
    assert torch.equal(load_exported(tmp_path, "client-00003")(IMAGES), other.represent(IMAGES))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda values: values.clear(), r"global\.safetensors: found no values; encoder 'small_cnn_bn' has 24$"),
        (lambda values: values.pop("features.0.bias"), r": found no features\.0\.bias, which encoder '\w+' has$"),
        (
            lambda values: [values.pop(key) for key in list(values) if "running" in key],
            r"found no features\.1\.running_mean \(and 7 more\), which",
        ),
        (
            lambda values: values.update(more=torch.ones(1)),
            r"found more, which encoder 'small_cnn_bn' does not have$",
        ),
        (
            lambda values: values.update({"features.0.bias": torch.ones(5)}),
            r"found features\.0\.bias \(5,\); encoder 'small_cnn_bn' expects \(4,\)$",
        ),
    ],
)  # fmt: skip
def test_values_that_are_not_the_encoders_are_refused(change: object, line: str, tmp_path: Path) -> None:
    network = export(tmp_path)
    values = {k: v.clone() for k, v in network.encoder.state_dict().items() if v.is_floating_point()}
    change(values)
    write(tmp_path, "global", values, describe(network))
    with pytest.raises(UserError, match=line) as error:
        load_exported(tmp_path)
    assert "\n" not in str(error.value)


def test_counters_may_be_there_and_may_be_missing(tmp_path: Path) -> None:
    network = export(tmp_path)
    write(tmp_path, "global", network.encoder.state_dict(), describe(network))
    assert torch.equal(load_exported(tmp_path)(IMAGES), network.represent(IMAGES))


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda f: (f / "global.json").unlink(), r"found no exported encoder 'global'; there are none$"),
        (lambda f: (f / "global.safetensors").unlink(), r"global\.safetensors: cannot be read \(No such file"),
        (lambda f: (f / "global.safetensors").write_bytes(b"x" * 99), r"global\.safetensors: cannot be read"),
        (lambda f: (f / "global.json").write_text("{"), r"global\.json: found no description of an encoder"),
        (lambda f: (f / "global.json").write_text("[]"), r"global\.json: found no description of an encoder"),
        (
            lambda f: (f / "global.json").write_text('{"encoder": "small_cnn", "values": "global.safetensors"}'),
            r"key 'image_size' is missing",
        ),
        (
            lambda f: (f / "global.json").write_text(
                '{"encoder": "small_cnn", "values": "x", "image_size": "big", "model": {}}'
            ),
            r"^encoder description: ",
        ),
        (
            lambda f: (f / "global.json").write_text(
                '{"encoder": "small_cnn", "values": "x", "image_size": 8, "model": {"width": -1}}'
            ),
            r"^encoder description: .*width",
        ),
    ],
)
def test_damage_is_one_line(damage: object, line: str, tmp_path: Path) -> None:
    export(tmp_path)
    damage(tmp_path / "encoder")
    with pytest.raises(UserError, match=line) as error:
        load_exported(tmp_path)
    assert "\n" not in str(error.value)


def test_a_description_names_no_file_elsewhere(tmp_path: Path) -> None:
    """A run folder of a stranger must not choose which file of ours is opened."""
    network = export(tmp_path / "run")
    save_file(dict(network.encoder.state_dict()), tmp_path / "outside.safetensors")
    path = tmp_path / "run" / "encoder" / "global.json"
    path.write_text(json.dumps(describe(network) | {"values": "../../outside.safetensors"}))
    with pytest.raises(UserError, match=r"encoder/outside\.safetensors: cannot be read"):
        load_exported(tmp_path / "run")
