"""The cost of kNN and the linear probe on 50,000 features of 512 dimensions: CPU time, relative to the bare matrix
products that they need.

    python benchmarks/evaluation_time.py [--reps 5] [--device cuda]

kNN: the cosines of every test image with every train image. Linear probe: one product forward and one back for every
batch of every epoch. One thread, alternating, as medians. One JSON line each, with seconds and the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

if os.environ.get("OMP_NUM_THREADS") != "1":  # read when the process starts
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OMP_NUM_THREADS": "1"})
HERE = Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
from machine import described  # noqa: E402
from torch import Tensor  # noqa: E402

from rayfed_ssl.evaluation.knn import SIMILARITIES, KnnConfig, knn_votes  # noqa: E402
from rayfed_ssl.evaluation.linear import LinearConfig, LinearProbe  # noqa: E402

TRAIN, TEST, DIMENSIONS, CLASSES = 50_000, 10_000, 512, 10


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """The CPU seconds of ``work``; on a GPU, the wall time until it is done."""
    if device.type == "cpu":
        began = time.process_time()
        work()
        return time.process_time() - began
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    work()
    torch.cuda.synchronize(device)
    return time.perf_counter() - began


def similarities(train: Tensor, test: Tensor) -> None:
    """The bare products of kNN, block by block."""
    for block in torch.split(test, max(1, SIMILARITIES // len(train))):
        block @ train.T


@torch.no_grad()
def products(train: Tensor, weight: Tensor, epochs: int, batch: int) -> None:
    """The bare products of the linear probe."""
    for _ in range(epochs):
        for images in torch.split(train, batch):
            (weight @ images.T) @ images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device, draws = torch.device(options.device), torch.Generator().manual_seed(0)
    train, test = (torch.randn(count, DIMENSIONS, generator=draws).to(device) for count in (TRAIN, TEST))
    labels = torch.randint(CLASSES, (TRAIN,), generator=draws).to(device)
    knn, linear = KnnConfig(), LinearConfig()
    weight = torch.zeros(CLASSES, DIMENSIONS, device=device)
    cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "knn": (
            lambda: knn_votes(train, labels, test, classes=CLASSES, **knn.model_dump()),
            lambda: similarities(train, test),
        ),
        "linear": (
            lambda: LinearProbe(train, labels, CLASSES, linear.recipe("ours"), 0),
            lambda: products(train, weight, linear.epochs, linear.batch_size),
        ),
    }
    for case, (ours, bare) in cases.items():
        pairs = [(seconds(ours, device), seconds(bare, device)) for _ in range(options.reps)]
        line = {
            "benchmark": "evaluation_time", "case": case, "device": device.type, "train": TRAIN, "values": DIMENSIONS,
            "seconds": round(statistics.median(a for a, _ in pairs), 2),
            "bare_s": round(statistics.median(b for _, b in pairs), 2),
            "ratio": round(statistics.median(a / b for a, b in pairs), 2),
        }  # fmt: skip
        print(json.dumps({**line, **described()}), flush=True)


if __name__ == "__main__":
    main()
