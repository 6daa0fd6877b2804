"""What a run refuses before its first round, ``run --check``, a sweep and a comparison refuse too, in the same line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.federated import federation
from rayfed_ssl.settings.files import merge
from tests.command_line import CONFIG, Call, caller
from tune import dealing
from tune.files import load
from tune.sweep import refuse_unfit

LR = "train.optimizer.lr"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a client with too few images": (
        {"clients.count": 59},
        "clients.count: client 1 has 1 image; the simclr objective needs batches of at least 2",
    ),
    "a share of evaluation.select that leaves a client too few images": (
        {"clients.count": 7, "evaluation.select.share": 0.9, "data.partition.name": "iid"},
        "evaluation.select.share: found 0.9, which holds out 50 of 60 training images and leaves too few (client ",
    ),
    "the smallest share of evaluation.select, which leaves a client too few images": (
        {
            "data": {"name": "imagefolder", "path": "pairs", "partition": {"name": "iid"}},
            "clients.count": 7,
            "evaluation.select.share": 0.1,
        },
        "evaluation.select.share: found 0.1, which holds out 10 of 20 training images and leaves too few (client 3 "
        "has 1 image; the simclr objective needs batches of at least 2); allowed: evaluation.select=null (the "
        "smallest share leaves too few, too)",
    ),
    "the smallest share of evaluation.select, which leaves too few images to deal": (
        {"clients.count": 55, "evaluation.select.share": 0.01, "data.partition.name": "iid"},
        "evaluation.select.share: found 0.01, which holds out 10 of 60 training images and leaves too few "
        "(clients.count: 55, but there are only 50 images to share out); allowed: evaluation.select=null (the "
        "smallest share leaves too few, too)",
    ),
    "a share of evaluation.select that leaves too few images to deal": (
        {"clients.count": 12, "evaluation.select.share": 0.9, "data.partition.name": "iid"},
        "evaluation.select.share: found 0.9, which holds out 50 of 60 training images and leaves too few "
        "(clients.count: 12, but there are only 10 images to share out); allowed: a smaller share, or "
        "evaluation.select=null",
    ),
    "too few images to deal beside the public ones": (
        {
            "clients.count": 30,
            "evaluation.select.share": 0.1,
            "data.partition.name": "iid",
            "data.public": {"source": "share", "share": 0.8},
        },
        "clients.count: 30, but there are only 10 images to share out",
    ),
    "no labels": (
        {"data": {"name": "imagefolder", "path": "plain", "layout": "flat"}, "method.name": "fedavg_supervised"},
        "objective.name: found 'supervised', but 32 of 32 training images have no label",
    ),
    "no labels to evaluate by": (
        {"data": {"name": "imagefolder", "path": "plain", "layout": "flat"}},
        "evaluation.protocols: found knn",
    ),
    "one encoder a round to compare": (
        {"evaluation.protocols": ["knn", "angles"], "participation.fraction": 0.3},
        "evaluation.protocols: found angles, which compares the encoders of a round's clients; a round has 1 of 3",
    ),
    "what the method itself checks": (
        {"method.name": "ssd", "model.projector.dim": 24},
        "model.projector.dim: found 24; method.distillation compares projections with features",
    ),
    "more replies than clients": (
        {"system": {"minimum_replies": 4}},
        "system.minimum_replies: found 4, but a round wants 3 of 3 clients",
    ),
    "nobody in time": (
        {"system": {"seconds_per_image": 1.0, "deadline_s": 0.5}},
        "system: found no client that could ever reply",
    ),
    "values that are not there": ({"model.start": "gone.safetensors"}, "model.start: found 'gone.safetensors'"),
    "values that do not fit": ({"model.start": "empty.pth"}, "model.start: "),
}  # fmt: skip


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    (tmp_path / "plain/train").mkdir(parents=True)
    for number in range(32):
        Image.new("L", (8, 8), number).save(tmp_path / f"plain/train/{number}.png")
    for split in ("train", "test"):
        for number in range(20):  # two of a class
            image = tmp_path / f"pairs/{split}/{number // 2}/{number}.png"
            image.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), number).save(image)
    (tmp_path / "empty.pth").write_bytes(b"")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return caller(tmp_path, monkeypatch, capsys)


def written(path: Path, document: dict[str, Any]) -> str:
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path.name


@pytest.mark.parametrize("name", REFUSED)
def test_all_refuse_what_a_run_refuses(name: str, call: Call, tmp_path: Path) -> None:
    changes, line = REFUSED[name]
    run = written(tmp_path / "refused.yaml", merge(yaml.safe_load(CONFIG), changes))
    sweep = written(tmp_path / "sweep.yaml", {"base": "tiny.yaml", "points": [{LR: 0.01}, {LR: 0.02, **changes}]})
    fight = written(tmp_path / "fight.yaml", {"base": "tiny.yaml", "variants": {"good": {}, "bad": changes}})
    before = sorted(tmp_path.rglob("*"))

    status, _, said = call("run", run, "--executor", "local", "--out", "out")
    assert status == 2
    assert said.startswith(line)
    (refused,) = [one for one in said.splitlines() if one.startswith(line)]

    assert call("run", run, "--executor", "local", "--check")[::2] == (2, said)
    status, _, of_sweep = call("tune", sweep, "--out", "out")
    assert (status, len(of_sweep.splitlines())) == (2, len(said.splitlines()))
    assert of_sweep.startswith(f"{refused} (the trial with {LR}=0.02  ")
    assert all(one.endswith("  seed=0)") for one in of_sweep.splitlines())
    status, _, of_comparison = call("compare", fight, "--executor", "local", "--out", "out")
    assert status == 2
    *lines, left = of_comparison.splitlines()
    assert [one.removeprefix("bad: ") for one in lines] == said.splitlines()
    assert left == "compare: 1 of 2 do not fit the base; --skip-unfit runs the others"
    assert sorted(tmp_path.rglob("*")) == before


def test_images_are_dealt_once_for_runs_that_are_dealt_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    dealt = []

    def load_federation(config: RunConfig) -> federation.Federation:
        dealt.append((config.clients.count, config.seed))
        return federation.load_federation(config)

    monkeypatch.setattr(dealing, "load_federation", load_federation)
    configs = [
        build(yaml.safe_load(CONFIG), {"clients.count": count, "seed": seed, LR: lr}, origin="a test")
        for lr in (0.01, 0.02)
        for seed in (0, 1)
        for count in (3, 59)
    ]
    found = dealing.refusals(configs)
    assert sorted(dealt) == [(3, 0), (3, 1), (59, 0), (59, 1)]
    assert sorted(found) == [1, 3, 5, 7]
    assert all(line.startswith("clients.count: client ") for line in found.values())


def test_images_that_are_gone_are_named_for_every_run() -> None:
    gone = {"data": {"name": "imagefolder", "path": "gone"}}
    configs = [
        build(yaml.safe_load(CONFIG), {**changes, LR: lr}, origin="a test")
        for lr in (0.01, 0.02)
        for changes in (gone, {})
    ]
    found = dealing.refusals(configs)
    assert sorted(found) == [0, 2]
    assert found[0] == found[2]
    assert found[0].startswith("data.path: gone does not exist")


def test_a_sweep_looks_at_every_trial_with_its_own_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[int, float]] = []

    def refusals(configs: Sequence[RunConfig]) -> dict[int, str]:
        looked.extend((config.seed, config.train.optimizer.lr) for config in configs)
        return {}

    monkeypatch.setattr("tune.sweep.refusals", refusals)
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    keys = {"base": "tiny.yaml", "space": {LR: {"grid": [0.01, 0.02]}}, "repeat": 2, "overrides": {"seed": 5}}
    sweep = load(tmp_path / written(tmp_path / "sweep.yaml", keys))
    refuse_unfit(sweep, sweep.check())
    assert sorted(looked) == [(5, 0.01), (5, 0.02), (6, 0.01), (6, 0.02)]
