"""Every config: it validates in each of its profiles, and a tiny round of it runs in this process."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig, load
from rayfed_ssl.methods import METHODS
from rayfed_ssl.models import ENCODERS
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.local import LocalCohort
from tests.places import ROOT

FOLDER = ROOT / "configs"
CONFIGS = sorted(FOLDER.glob("*.yaml"))
CASES = [
    (path, profile) for path in CONFIGS for profile in configfile.read(path).get("profiles") or {None: {}}
]  # (file, profile), None where a file has no profiles
COUNTS = re.compile(r"(^|_)(epochs|steps)$")
TINY_HEAD = {"hidden": [8], "dim": 8}


def with_profile(profile: str | None) -> list[str]:
    return [f"profile={profile}"] if profile else []


def tiny(config: RunConfig) -> RunConfig:
    """The same run on a few digits, with thin networks, small batches and one round."""
    document: dict[str, Any] = config.model_dump(mode="json")
    count = min(document["clients"]["count"], 4)
    encoders = config.clients.encoders
    data, model, train = document["data"], document["model"], document["train"]
    size = max(8, *(ENCODERS[name].minimum for name in ([encoders] if isinstance(encoders, str) else encoders)))
    data |= {"name": "digits", "path": None, "layout": "classes", "image_size": size, "limit": 120, "test_limit": 20}
    if data["partition"]["name"] == "folders" or data["tasks"] is not None:
        data["partition"] = {"name": "iid"}
    if data["partition"]["name"] == "class_blocks":
        data["partition"]["classes"] = 10 // count
    if data["public"]["source"] == "source":
        data["public"] = {"source": "share", "share": 0.2, "sample": None}
    if data["tasks"] is not None:
        count, data["task_images"] = len(data["tasks"]), None
        data["tasks"] = [[3 * j, 3 * j + 1] for j in range(count)]
    document["clients"]["count"] = count
    if not isinstance(encoders, str):
        document["clients"]["encoders"] = list(encoders[:count])
    model |= {"width": 0.01, "projector": {**model["projector"], **TINY_HEAD}}
    model["calibration"] = model["calibration"] and 8
    model["predictor"] = model["predictor"] and {**model["predictor"], **TINY_HEAD}
    train |= {"rounds": 1, "local_epochs": 1, "batch_size": 16, "optimizer": {**train["optimizer"], "warmup": 0}}
    document["evaluation"] |= {"protocols": ["knn"], "every": 0, "fewshot": {"draws": 1}}
    document["resources"] |= {"device": "cpu", "threads": 1}
    return RunConfig.model_validate(shrunk(document))


def shrunk(tree: Any, of_method: bool = False) -> Any:
    """The same tree with counts of epochs and steps set to 1, and other whole numbers of a method's own at most 8."""
    if isinstance(tree, dict):
        return {
            k: 1 if COUNTS.search(k) and type(v) is int else shrunk(v, of_method or k == "method")
            for k, v in tree.items()
        }
    if isinstance(tree, list):
        if of_method and tree and all(type(item) is int for item in tree):
            return [1]  # rounds
        return [shrunk(item, of_method) for item in tree]
    return min(tree, 8) if of_method and type(tree) is int else tree


def test_there_are_configs() -> None:
    assert "demo" in {path.stem for path in CONFIGS}


@pytest.mark.parametrize(("path", "profile"), CASES, ids=[f"{path.stem}-{profile}" for path, profile in CASES])
def test_a_config_is_valid_in_every_profile(path: Path, profile: str | None) -> None:
    config = load(path, with_profile(profile))
    assert config.profile == profile
    assert config.method.name


def test_every_method_has_a_config_that_docs_name() -> None:
    """The table in docs/methods.md: method, config, keys; each row is a run that can be configured."""
    page = (FOLDER.parent / "docs" / "methods.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| \[(\w+)\]\(\.\./configs/\2\.yaml\) \| (?:`([^`]*)`)? ?\|$", page, re.MULTILINE)
    assert sorted(name for name, _, _ in rows) == sorted(METHODS)
    for name, stem, keys in rows:
        config = load(FOLDER / f"{stem}.yaml", [f"method.name={name}", *keys.split()])
        assert config.method.name == name
        if stem == "rivals_cifar10":
            assert load(FOLDER / f"{stem}.yaml", [f"method.name={name}", "profile=paper"]).method.name == name


@pytest.mark.parametrize("path", CONFIGS, ids=[path.stem for path in CONFIGS])
def test_a_config_names_its_command(path: Path) -> None:
    header = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert any(f"rayfed-ssl run configs/{path.name}" in line for line in header)


@pytest.mark.long
@pytest.mark.parametrize(("path", "profile"), CASES, ids=[f"{path.stem}-{profile}" for path, profile in CASES])
def test_a_tiny_round_of_a_config_runs(path: Path, profile: str | None, tmp_path: Path) -> None:
    figures = (path, profile) == next(case for case in CASES if case[0] == path)  # those of one profile are enough
    config = tiny(load(path, with_profile(profile))).model_copy(update={"figures": figures})
    summary = loop.run(config, tmp_path / "run", LocalCohort)
    assert summary["status"] == "complete"
    assert summary["rounds"] == 1
    assert summary["accuracy"]
    assert summary["communication"]["up_bytes"] >= 0
    assert list((tmp_path / "run" / "encoder").glob("*.safetensors"))


@pytest.mark.parametrize("value", [".inf", ".nan", "1e400"])
@pytest.mark.parametrize("key", ["train.optimizer.lr", "objective.temperature", "model.width"])
def test_numbers_are_finite(key: str, value: str) -> None:
    with pytest.raises(UserError, match=rf"{key}: found (inf|nan); must be a finite number"):
        load(FOLDER / "demo.yaml", [f"{key}={value}"])


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a b", "x" * 101])
def test_a_name_is_a_file_name(name: str) -> None:
    with pytest.raises(UserError, match=r"name: found .*must be letters, digits"):
        load(FOLDER / "demo.yaml", [f"name={json.dumps(name)}"])


def test_a_profile_that_is_not_chosen_is_checked_too(tmp_path: Path) -> None:
    document = "method: {name: fedsimclr}\nprofiles: {cpu: {seed: 1}, paper: {sed: 3, train: {rounds: none}}}\n"
    (tmp_path / "x.yaml").write_text(document)
    with pytest.raises(UserError) as caught:
        load(tmp_path / "x.yaml")
    first, second = str(caught.value).splitlines()
    assert first.startswith("profiles.paper: ")
    assert "sed: " in first + second
    assert "did you mean seed?" in first + second
    assert "train.rounds: found 'none'; must be a whole number" in first + second
