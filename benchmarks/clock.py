"""The cost of the virtual clock: rounds of 100 clients among many, with and without a `system:` block.

    python benchmarks/clock.py [--clients 10000] [--rounds 20]

One JSON line per case, in CPU milliseconds of this process, as medians. `idle_ms` is a round in which clients return at
once, so that only bookkeeping is left; in `training_ms` each client trains on its five images. `overhead` is the time
that the clock adds to an idle round, divided by that of a training round without it.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rayfed_ssl.base.weights import Weights
from rayfed_ssl.config import build
from rayfed_ssl.federated.workload import local_batches
from rayfed_ssl.methods import fedavg
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.local import LocalCohort

ASKED, IMAGES = 100, 5
SPEEDS = {
    "seconds_per_image": {"median": 0.1, "sigma": 0.6},
    "down_mbps": {"median": 5, "sigma": 0.6},
    "latency_s": 0.1,
}
UNRELIABLE = {"availability": {"name": "bernoulli", "probability": 0.8}, "drop_out": 0.1, "deadline_s": 60}
CASES: dict[str, dict[str, Any]] = {
    "no system block": {},
    "speeds": {"system": SPEEDS},
    "availability, drop-outs, deadline": {"system": {**SPEEDS, **UNRELIABLE}},
}


def write_images(folder: Path, count: int) -> None:
    """Write random 8 px images without labels as Parquet; what is in them does not matter here."""
    draws = np.random.default_rng(0)
    for split, images in (("train", count), ("test", 10)):
        encoded = []
        for pixels in draws.integers(0, 256, (images, 8, 8, 3), np.uint8):
            buffer = io.BytesIO()
            Image.fromarray(pixels).save(buffer, "PNG")
            encoded.append(buffer.getvalue())
        pq.write_table(pa.table({"image": encoded}), folder / f"{split}.parquet")


def idle(self: fedavg.Client[Any], weights: Weights, target: Weights | None = None) -> dict[str, Any]:
    """In place of ``train``: return the weights that were received, and book the images that training would have
    read.
    """
    self.context.images_read += local_batches(self.config, len(self.indices)).images
    return {"weights": weights}


def round_ms(clients: int, rounds: int, images: Path, case: dict[str, Any]) -> float:
    """The median CPU milliseconds of a round, without the first two."""
    document = {
        "method": {"name": "fedsimclr"},
        "data": {"name": "parquet", "path": str(images), "image_size": 8, "partition": {"name": "iid"}},
        "clients": {"count": clients, "encoders": "small_cnn"},
        "model": {"projector": {"hidden": [], "dim": 64}},
        "participation": {"fraction": ASKED / clients},
        "train": {"rounds": rounds, "batch_size": IMAGES},
        "evaluation": {"protocols": []},
        "checkpoint": {"every": 0},
        **case,
    }
    taken: list[float] = []
    once = loop.RunLoop.round

    def timed(run: loop.RunLoop, t: int) -> None:
        began = time.process_time()
        once(run, t)
        taken.append(time.process_time() - began)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(loop.RunLoop, "round", timed):
        loop.run(build(document, {}, origin="benchmark"), Path(folder) / "run", LocalCohort)
    return 1e3 * statistics.median(taken[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder)
        write_images(images, IMAGES * options.clients)
        training = round_ms(options.clients, options.rounds, images, {})
        with mock.patch.object(fedavg.Client, "train", idle):
            taken = {name: round_ms(options.clients, options.rounds, images, case) for name, case in CASES.items()}
    for name, milliseconds in taken.items():
        more = milliseconds - taken["no system block"]
        line = {
            "benchmark": "clock", "clients": options.clients, "asked": ASKED, "case": name,
            "idle_ms": round(milliseconds, 2), "training_ms": round(training, 1), "overhead": round(more / training, 4),
        }  # fmt: skip
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
