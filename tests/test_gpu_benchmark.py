"""The benchmark for GPUs, all of it on the CPU at small size: what it says is there, and true where one can tell."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.places import ROOT

SCRIPT = ROOT / "benchmarks" / "gpu.py"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_steps_augmentation_a_round_and_evaluation(gpu: ModuleType) -> None:
    size = replace(gpu.SMALL, batches=(8,), steps=3, clients=2, client_steps=3, images=120)
    found = [*gpu.steps(size, CPU, 1e12), *gpu.augmentation(size, CPU, {8: 1e6}), *gpu.whole_round(size, CPU)]
    kinds = [(line["benchmark"], line.get("objective")) for line in found]
    assert kinds == [
        *(("step", name) for name in ("simclr", "byol", "fedfoa", "fedsc")),
        ("augmentation", None), ("round", None), ("evaluation", None),
    ]  # fmt: skip
    assert all(line["pairs_per_s"] > 0 for line in found if "pairs_per_s" in line)
    aside = found[4]
    assert aside["share_of_step"] == pytest.approx(1e6 / aside["pairs_per_s"], rel=0.01)  # time over time
    assert found[-2]["round_s"] >= found[-2]["clients_s"] > 0  # a round holds its clients' work


def test_steps_of_losses_that_are_named(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "timed_training", lambda config: (1.0, None))
    monkeypatch.setattr(gpu, "pair_flops", lambda config, federation: 1.0)
    size = replace(gpu.SMALL, batches=(8, 4))
    found = list(gpu.lines(size, CPU, ["step"], ["fedsc", "byol"]))
    assert [(line["objective"], line["batch"]) for line in found] == [
        ("byol", 8), ("byol", 4), ("fedsc", 8), ("fedsc", 4),
    ]  # fmt: skip


def test_steps_are_compared_with_eager_ones(gpu: ModuleType) -> None:
    config = gpu.settings(gpu.SMALL, "cpu", "fedsimclr", 8, 1)
    assert config.resources.cuda_graphs == gpu.several(gpu.SMALL, "cpu").resources.cuda_graphs == "off"


def test_ceilings_count_what_is_moved_and_multiplied(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "seconds", lambda work, device, times: 0.5)
    copied, product = gpu.ceilings(gpu.SMALL, CPU)
    assert copied == pytest.approx(2 * (1 << 20) / 0.5 / 1e9)  # read and written
    assert product == pytest.approx(2 * 64**3 / 0.5)


def test_flops_of_a_pair(gpu: ModuleType) -> None:
    """small_cnn at 8 px, counted by hand: convolutions of 9 * in * out per output pixel, two FLOPs each."""
    config = gpu.settings(replace(gpu.SMALL, encoder="small_cnn", width=1.0, pixels=8), "cpu", "fedsimclr", 8, 1)
    federation = gpu.load_federation(config)
    network = gpu.InitialWeights(config, federation).network("small_cnn")
    total, sizes = 0, []
    for module in network.encoder.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(lambda m, _, out: sizes.append((m, out.shape)))
    with torch.no_grad():
        network.encoder(torch.zeros(1, federation.dataset.train.pixels.shape[3], 8, 8))
    for module, shape in sizes:
        total += 2 * module.weight.numel() * shape[2] * shape[3]
    linear = [m for m in network.encoder.modules() if isinstance(m, torch.nn.Linear)]
    total += sum(2 * m.weight.numel() for m in linear)
    assert gpu.pair_flops(config, federation) == pytest.approx(2 * 3 * total)  # two views; backward is twice forward


def test_waits_are_what_pytorch_reports(gpu: ModuleType) -> None:
    def work() -> None:
        for _ in range(3):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)

    assert gpu.waits(work) == 3


def test_waits_of_a_step_leave_out_what_is_done_once(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted:
        def __init__(self, config: Any, connect: Any) -> None:
            self.steps = config.train.local_steps

        def round(self) -> int:
            return 5 + 3 * int(self.steps)

    monkeypatch.setattr(gpu, "Federated", Counted)
    monkeypatch.setattr(
        gpu, "settings", lambda size, *rest: SimpleNamespace(train=SimpleNamespace(local_steps=size.steps))
    )
    monkeypatch.setattr(gpu, "waits", lambda work: work())
    assert gpu.waits_per_step(gpu.SMALL, "fedsimclr", 8) == 3


def test_what_fails_under_mps_is_a_line(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_actors(size: Any, device: Any, mps: bool) -> Iterator[dict[str, Any]]:
        yield {"mps": mps}
        if mps:
            raise RuntimeError("a client\ndied")

    @contextmanager
    def started(folder: str) -> Iterator[None]:
        yield None

    monkeypatch.setattr(gpu, "on_actors", on_actors)
    monkeypatch.setattr(gpu, "mps", started)
    assert [*gpu.with_mps(gpu.SMALL, torch.device("cuda"))] == [
        {"mps": True}, {"benchmark": "mps", "started": True, "why": "a client died"},
    ]  # fmt: skip


CONTROL = """#!/bin/sh
if [ "$STATUS" = never ]; then exec sleep 30; fi
if [ "$1" = -d ]; then echo "started $CUDA_MPS_PIPE_DIRECTORY" >> "$LOG"; exit "$STATUS"; fi
echo "told $(cat)" >> "$LOG"
"""


def test_mps_is_started_stopped_and_told_why_not(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with gpu.mps(str(tmp_path)) as why:
        assert why == "no nvidia-cuda-mps-control on the path"
    (tmp_path / "nvidia-cuda-mps-control").write_text(CONTROL)
    (tmp_path / "nvidia-cuda-mps-control").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    for status in ("0", "3"):
        (folder := tmp_path / status).mkdir()
        monkeypatch.setenv("STATUS", status)
        with gpu.mps(str(folder)) as why:
            assert (why is None) == (status == "0")
            assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == f"{folder}/pipe"
        assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    monkeypatch.setenv("STATUS", "never")
    monkeypatch.setattr(gpu, "MPS_S", 0.2)
    (tmp_path / "slow").mkdir()
    with gpu.mps(str(tmp_path / "slow")) as why:
        assert "did not start within 0.2 s" in why
    log = (tmp_path / "log").read_text().splitlines()
    assert log == [f"started {tmp_path}/0/pipe", "told quit", f"started {tmp_path}/3/pipe"]


@pytest.mark.long
@pytest.mark.cluster
def test_all_of_it_in_one_call(tmp_path: Path) -> None:
    out = tmp_path / "gpu.jsonl"
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "--device", "cpu", "--small", "--out", str(out)]
    subprocess.run(command, check=True, timeout=500, capture_output=True)
    lines: list[dict[str, Any]] = [json.loads(line) for line in out.read_text().splitlines()]
    kinds = {line["benchmark"] for line in lines}
    assert kinds == {"ceiling", "step", "augmentation", "round", "evaluation", "actors"}
    shared = [line for line in lines if line["benchmark"] == "actors"]
    assert [line["actors"] for line in shared] == [1, 2]
    assert all(line["same_bits"] for line in shared)
    assert all(line["device"] == "cpu" and line["size"] == "small" and line["machine"] for line in lines)
