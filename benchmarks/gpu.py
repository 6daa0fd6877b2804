"""Everything about speed on a GPU, in one call: ceilings, steps, augmentation, evaluation, a round, actors sharing it.

    python benchmarks/gpu.py [--only step round] [--losses fedsc] [--batches 128]     # on a GPU; minutes
    python benchmarks/gpu.py --device cpu --small        # all of it on the CPU, small: seconds

JSON lines go to standard output and, with ``--out``, to a file. ``ceiling`` is a copy (GB/s, read and written) and a
bfloat16 matrix product (TFLOP/s). ``step`` is the training of one client: pairs of views per second, augmentation
included, and its part of the product's ceiling; ``syncs_per_step`` is how often the host waits for the GPU in it; with
``graph`` the step is a CUDA graph, and ``same_bits`` says whether it gave the weights of the eager one.
``augmentation`` has its part of a SimCLR step. ``round`` compares ten clients' round with the sum of their operations;
``actors`` compares 1, 2, 4, 8 actors on one GPU with one process, round by round in turn, and the bits, also under
NVIDIA's MPS (``mps``) where its daemon can be started; ``cap`` asks an actor for more than its share. Rounds are
medians of five. ``--only`` names parts, ``--losses`` and ``--batches`` which steps, for a machine that is at hand for
minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

ENVIRONMENT = {  # an actor's: read when the process starts
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
if __name__ == "__main__" and any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})
HERE = Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE), str(HERE.parent)]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from gpu_runs import FULL, SMALL, Federated, Size, settings, several  # noqa: E402
from machine import described  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from rayfed_ssl.base.seeding import generator  # noqa: E402
from rayfed_ssl.config import RunConfig  # noqa: E402
from rayfed_ssl.data.augment import augment  # noqa: E402
from rayfed_ssl.federated.federation import Federation, load_federation  # noqa: E402
from rayfed_ssl.federated.initial_weights import InitialWeights  # noqa: E402
from rayfed_ssl.federated.messages import TRAINS  # noqa: E402
from rayfed_ssl.federated.process_context import device_name, resolve_device  # noqa: E402
from rayfed_ssl.federated.results import EvaluatedEncoder  # noqa: E402
from rayfed_ssl.simulation.local import LocalCohort  # noqa: E402

Line = dict[str, Any]
FEW = 5  # steps in which waits are counted
MPS_S = 60  # for its daemon to start, or to end
PARTS = ("ceiling", "step", "augmentation", "round", "actors", "mps")
METHOD_OF = {"simclr": "fedsimclr", "byol": "fedbyol", "fedfoa": "fedfoa", "fedsc": "fedsc"}


def seconds(work: Callable[[], object], device: torch.device, times: int) -> float:
    """The median seconds of ``work``, including the wait for the device."""
    taken = []
    for _ in range(times + 1):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - began)
    return sorted(taken[1:])[times // 2]


def ceilings(size: Size, device: torch.device) -> tuple[float, float]:
    """(GB/s of a copy, FLOP/s of a bfloat16 matrix product)."""
    source = torch.ones(size.copied // 4, device=device)
    into = torch.empty_like(source)
    copied = 2 * size.copied / seconds(lambda: into.copy_(source), device, 10) / 1e9
    a = torch.ones(size.side, size.side, dtype=torch.bfloat16, device=device)
    return copied, 2 * size.side**3 / seconds(lambda: a @ a, device, 10)


def pair_flops(config: RunConfig, federation: Federation) -> float:
    """Floating-point operations of training on one pair of views: the encoder's forward pass, and twice as many
    backward.
    """
    network = InitialWeights(config, federation).network(config.clients.encoder(0))
    pixels, count = config.data.image_size or 32, 2
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.encoder(torch.zeros(count, federation.dataset.train.pixels.shape[3], pixels, pixels))
    return 3.0 * counter.get_total_flops()


def timed_training(config: RunConfig) -> tuple[float, np.ndarray]:
    """Pairs per second of a client's second training, and its weights after it."""
    one = Federated(config, LocalCohort)
    assert isinstance(one.cohort, LocalCohort)
    seen: list[tuple[float, float]] = []
    execute = one.cohort.worker.execute

    def watched(operation: str, *arguments: Any) -> Any:
        result, state = execute(operation, *arguments)
        if operation == TRAINS:
            seen.append((result.metrics["images"], result.metrics["seconds"]))
        return result, state

    one.cohort.worker.execute = watched  # type: ignore[method-assign]
    for _ in range(2):
        one.round()
    images, taken = seen[-1]
    return images / taken, one.weights()


def steps(size: Size, device: torch.device, flops: float, losses: Collection[str] = tuple(METHOD_OF)) -> Iterator[Line]:
    """The step of each method in ``losses`` at each batch size, eager and, on a GPU, as a graph."""
    for name, method in METHOD_OF.items():
        for batch in size.batches if name in losses else ():
            config = settings(size, device.type, method, batch, 1)
            rate, weights = timed_training(config)
            share = rate * pair_flops(config, load_federation(config)) / flops
            line: Line = {"benchmark": "step", "objective": name, "batch": batch, "pairs_per_s": round(rate, 1)}
            line["share_of_ceiling"] = round(share, 4)
            if device.type == "cuda":
                line["syncs_per_step"] = round(waits_per_step(size, method, batch), 2)
                graphed, other = timed_training(
                    settings(size, "cuda", method, batch, 1, **{"resources.cuda_graphs": "auto"})
                )
                line |= {"graph_pairs_per_s": round(graphed, 1), "graph_speedup": round(graphed / rate, 2)}
                line["same_bits"] = bool(np.array_equal(weights, other))
            yield line


def waits(work: Callable[[], object]) -> int:
    """How often the host waited for the GPU during ``work``, as PyTorch reports it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            if torch.cuda.is_available():
                torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in caught)


def waits_per_step(size: Size, method: str, batch: int) -> float:
    """Waits per step of a client's training. Two runs, one with twice as many steps, are compared, so that what happens
    once per run does not count.
    """

    def of(steps: int) -> int:
        made = Federated(settings(replace(size, steps=steps), "cuda", method, batch, 1), LocalCohort)
        made.round()
        return waits(made.round)

    return (of(2 * FEW) - of(FEW)) / FEW


def augmentation(size: Size, device: torch.device, steps: dict[int, float]) -> Iterator[Line]:
    """Two views of a batch; as a share of a SimCLR step if ``steps`` has the pairs per second of its batch size."""
    config = settings(size, device.type, "fedsimclr", size.batches[0], 1)
    pixels, recipe = (
        torch.tensor(load_federation(config).dataset.train.pixels).permute(0, 3, 1, 2).to(device),
        config.augment.recipe(),
    )
    for batch in size.batches:
        rows, draws = torch.arange(batch, device=device) % len(pixels), generator(0, "gpu", device=device)
        taken = seconds(lambda rows=rows, draws=draws: augment(pixels[rows], recipe, draws, views=2), device, 10)
        line: Line = {"benchmark": "augmentation", "batch": batch, "pairs_per_s": round(batch / taken, 1)}
        if batch in steps:
            line["share_of_step"] = round(taken * steps[batch] / batch, 4)
        yield line


def whole_round(size: Size, device: torch.device) -> Iterator[Line]:
    """A round of several clients relative to the sum of their operations, and an evaluation of the result."""
    config = several(size, device.type)
    made = Federated(config, LocalCohort)
    made.round()
    taken, work = zip(*[(made.round(), made.trained()[1]) for _ in range(size.rounds)], strict=True)
    yield {
        "benchmark": "round", "clients": size.clients, "round_s": round(median(taken), 4),
        "clients_s": round(median(work), 4),
        "ratio": round(median(whole / part for whole, part in zip(taken, work, strict=True)), 4),
    }  # fmt: skip
    assert isinstance(made.cohort, LocalCohort)
    worker, weights = made.cohort.worker, made.server.evaluated_encoders()[0].weights
    encoder = EvaluatedEncoder(None, size.encoder, weights)
    evaluated = seconds(lambda: worker.assess(1, encoder, None), device, 3)
    yield {
        "benchmark": "evaluation",
        "images": size.images,
        "protocols": ["knn", "linear"],
        "seconds": round(evaluated, 4),
    }


@contextmanager
def mps(folder: str) -> Iterator[str | None]:
    """NVIDIA's MPS for the processes that are started within; yields None, or why it could not be started."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield "no nvidia-cuda-mps-control on the path"
        return
    places = {f"CUDA_MPS_{name}_DIRECTORY": f"{folder}/{name.lower()}" for name in ("PIPE", "LOG")}
    for place in places.values():
        Path(place).mkdir()
    os.environ.update(places)
    try:
        try:
            began = subprocess.run([control, "-d"], capture_output=True, text=True, timeout=MPS_S, check=False)
        except subprocess.TimeoutExpired:
            yield f"{control} did not start within {MPS_S} s"
            return
        if began.returncode:
            yield f"{control} ended with {began.returncode}: {began.stderr.strip()}"
            return
        try:
            yield None
        finally:
            subprocess.run([control], input="quit\n", capture_output=True, text=True, timeout=MPS_S, check=False)
    finally:
        for name in places:
            del os.environ[name]


def with_mps(size: Size, device: torch.device) -> Iterator[Line]:
    """:func:`on_actors` under MPS, or why it did not run."""
    with tempfile.TemporaryDirectory(prefix="mps") as folder, mps(folder) as why:
        if why is not None:
            yield {"benchmark": "mps", "started": False, "why": why}
            return
        try:
            yield from on_actors(size, device, True)
        except Exception as error:  # the failure of MPS's clients is the result
            yield {"benchmark": "mps", "started": True, "why": " ".join(str(error).split())[:300]}


def on_actors(size: Size, device: torch.device, mps: bool) -> Iterator[Line]:
    """Rounds on several actors of one GPU relative to one process, and whether all gave the same bits."""
    import ray

    config = several(size, device.type)
    gpus = 1.0 if device.type == "cuda" else 0.0
    with tempfile.TemporaryDirectory(prefix="gpu") as folder:
        ray.init(
            address="local", num_cpus=max(size.actors), num_gpus=int(gpus), include_dashboard=False, _temp_dir=folder,
            _node_ip_address="127.0.0.1", object_store_memory=1 << 29, log_to_driver=False, logging_level="error",
        )  # fmt: skip
        try:
            for count in size.actors:
                yield {"benchmark": "actors", "actors": count, "mps": mps, **against_one(config, size, count, gpus)}
            if device.type == "cuda" and not mps:
                yield {"benchmark": "cap", **ray.get(ray.remote(over_cap).options(num_gpus=0.25).remote(0.25))}
        finally:
            ray.shutdown()


def against_one(config: RunConfig, size: Size, count: int, gpus: float) -> Line:
    """Rounds on ``count`` actors and in this process, alternating."""
    from actors.cohort import RayCohort
    from actors.plan import reserve
    from actors.pool import Pool
    from actors.shares import Plan

    layout = Plan(count, cpus=0.5, gpus=gpus / count, threads=1, strategy="PACK")
    alone = Federated(config, LocalCohort)
    made = Federated(config, lambda c, f, book: RayCohort(c, f, book, Pool(layout, reserve(layout, 60))))
    try:
        for each in (alone, made):
            each.round()
        taken, other = zip(*[(made.round(), alone.round()) for _ in range(size.rounds)], strict=True)
        return {
            "round_s": round(median(taken), 4),
            "times_one_process": round(median(one / many for one, many in zip(other, taken, strict=True)), 3),
            "same_bits": bool(np.array_equal(alone.weights(), made.weights())),
        }
    finally:
        made.cohort.close()


def over_cap(share: float) -> Line:
    """Whether a request for 1.2 times the share of a GPU is refused under the share's cap."""
    from actors.client import memory_fraction

    total = torch.cuda.get_device_properties(0).total_memory
    fraction = memory_fraction(share, total)
    assert fraction is not None
    torch.cuda.set_per_process_memory_fraction(fraction)
    try:
        torch.empty(int(1.2 * share * total), dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        return {"share": share, "held": True}
    return {"share": share, "held": False}


def lines(
    size: Size, device: torch.device, only: Collection[str] = PARTS, losses: Collection[str] = tuple(METHOD_OF)
) -> Iterator[Line]:
    """The parts in ``only``, in the order of ``PARTS``, with the steps of ``losses``."""
    copied, flops = ceilings(size, device)
    if "ceiling" in only:
        yield {"benchmark": "ceiling", "copy_gb_s": round(copied, 2), "bf16_tflop_s": round(flops / 1e12, 4)}
    rates: dict[int, float] = {}
    if "step" in only:
        for line in steps(size, device, flops, losses):
            if line["objective"] == "simclr":
                rates[line["batch"]] = line["pairs_per_s"]
            yield line
    if "augmentation" in only:
        yield from augmentation(size, device, rates)
    if "round" in only:
        yield from whole_round(size, device)
    if "actors" in only:
        yield from on_actors(size, device, False)
    if "mps" in only and device.type == "cuda":
        yield from with_mps(size, device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--actors", nargs="+", type=int, help="how many share the GPU; by default 1 2 4 8")
    parser.add_argument("--losses", nargs="+", choices=tuple(METHOD_OF), default=tuple(METHOD_OF), help="of steps")
    parser.add_argument("--batches", nargs="+", type=int, help="of steps and augmentation; by default 16 128 512")
    parser.add_argument("--rounds", type=int, help="of which medians are taken; by default five")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device, size = resolve_device(options.device), SMALL if options.small else FULL
    if options.actors:
        size = replace(size, actors=tuple(options.actors))
    if options.batches:
        size = replace(size, batches=tuple(options.batches))
    if options.rounds:
        size = replace(size, rounds=options.rounds)
    torch.set_num_threads(1)
    for line in lines(size, device, options.only, options.losses):
        text = json.dumps(
            {**line, "size": "small" if options.small else "full", "device": device_name(device), **described()}
        )
        print(text, flush=True)
        if options.out is not None:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(text + "\n")


if __name__ == "__main__":
    main()
