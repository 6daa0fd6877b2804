"""The papers' claims at the size two cores allow: every variant on three seeds, beside the untrained encoder.

    python benchmarks/claims.py --data ../shared/data [--only fedsc fedca ..] [--seeds 3] [--out runs/claims] [--jobs 2]

Runs what is not there yet (each variant and seed is an ordinary run folder under ``--out``), then prints one Markdown
table per claim and writes ``<out>/claims.json``. Runs are in process, one thread each, ``--jobs`` at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

PAIRS = ("0_1", "0_2", "1_2")


@dataclass(frozen=True)
class Claim:
    """What a paper says, the setting it is tried in, and the variants that are compared."""

    says: str
    data: str  # folder under --data, or "digits"
    setting: dict[str, Any]
    variants: dict[str, dict[str, Any]]
    metrics: tuple[str, ...] = ("fewshot", "knn", "linear")
    worst: tuple[str, ...] = field(default=())  # variants whose clients' minimum is asked for, beside their mean


EVALUATION = {"protocols": ["fewshot", "knn", "linear"], "every": 0, "train_images": 5000}

SPECTRAL = {
    "data": {"name": "digits", "image_size": 16, "partition": {"name": "class_blocks", "classes": 1}},
    "clients": {"count": 10, "encoders": "small_cnn"},
    "model": {"projector": {"hidden": [128], "dim": 32}},
    "objective": {"name": "spectral"},
    "augment": {"preset": "digits"},
    "train": {"rounds": 120, "local_steps": 5, "batch_size": 64, "optimizer": {"lr": 0.03}},
    "evaluation": EVALUATION,
}

SLOWER = {"train.optimizer.lr": 0.01}
OFTEN = {"train.rounds": 600, "train.local_steps": 1}  # as many steps, no drift between exchanges

DICTIONARY = {
    "data": {
        "name": "parquet", "image_size": 16, "limit": 3000,
        "partition": {"name": "classes_per_client", "classes": 2},
        "public": {"source": "share", "share": 0.1},
    },
    "clients": {"count": 5, "encoders": "small_cnn_bn"},
    "model": {"width": 0.5, "projector": {"hidden": [128], "dim": 64}},
    "objective": {"name": "simclr", "temperature": 0.5, "directional": True},
    "augment": {"preset": "digits"},
    "train": {"rounds": 10, "local_epochs": 5, "batch_size": 64, "optimizer": {"name": "adam", "lr": 0.001}},
    "evaluation": EVALUATION,
}  # fmt: skip

DISTIL = {
    "data": {
        "name": "parquet", "image_size": 16, "limit": 5000,
        "partition": {"name": "dirichlet", "alpha": 0.1},
        "public": {"source": "client 0"},
    },
    "clients": {"count": 6, "encoders": "small_cnn_bn"},
    "model": {"width": 0.5, "projector": {"hidden": [128], "dim": 64}},
    "objective": {"name": "simclr", "temperature": 0.4, "directional": True},
    "augment": {"preset": "digits"},
    "train": {"rounds": 2, "local_epochs": 10, "batch_size": 64, "optimizer": {"name": "adam", "lr": 0.001}},
    "evaluation": EVALUATION,
}  # fmt: skip

CORRELATION = {
    "data": {"name": "digits", "image_size": 16},
    "clients": {"count": 4, "encoders": ["resnet18", "small_cnn_bn", "small_cnn", "fedlinked_cnn"]},
    "model": {
        "width": 0.125,
        "projector": {"hidden": [64], "dim": 32, "batch_norm": "hidden"},
        "calibration": 32,
        "initial": "common",
    },
    "objective": {"name": "byol"},
    "augment": {"preset": "digits"},
    "train": {"rounds": 10, "local_epochs": 5, "batch_size": 64, "optimizer": {"lr": 0.03}},
    "evaluation": EVALUATION,
}

LINKED = {
    "data": {
        "name": "parquet", "image_size": 16, "task_images": 300,
        "tasks": [
            ["cat", "deer", "dog", "horse"], ["cat", "deer", "frog"], ["airplane", "automobile", "ship", "truck"],
        ],
        "public": {"source": "share", "share": 0.25},
    },
    "clients": {"count": 3, "encoders": "fedlinked_cnn"},
    "model": {"channels": 16, "representation": 64, "dropout": 0.2, "head_dropout": 0.5},
    "objective": {"name": "supervised"},
    "augment": {"preset": "none"},
    "train": {"rounds": 4, "local_epochs": 5, "batch_size": 32, "optimizer": {"name": "adam", "lr": 0.001}},
    "evaluation": {"protocols": [], "every": 0},
}  # fmt: skip

CLAIMS = {
    "fedsc": Claim(
        "FedSC is above FedAvg+SC and below centralised SC with one class per client (Jing et al. 2024, Tables 2-4)",
        "digits",
        SPECTRAL,
        {
            "centralised SC": {"method.name": "centralized"},
            "FedSC, alpha = q_j": {"method.name": "fedsc", "method.alpha": "share"},
            "FedSC, alpha from 1 to q_j": {"method.name": "fedsc"},
            "FedAvg+SC": {"method.name": "fedavg_sc"},
            "centralised SC, lr 0.01": {"method.name": "centralized", **SLOWER},
            "FedSC, alpha = q_j, lr 0.01": {"method.name": "fedsc", "method.alpha": "share", **SLOWER},
            "FedAvg+SC, lr 0.01": {"method.name": "fedavg_sc", **SLOWER},
            "FedSC, alpha = q_j, lr 0.01, 600 x 1": {
                "method.name": "fedsc",
                "method.alpha": "share",
                "method.sharing_passes": 2,
                **SLOWER,
                **OFTEN,
            },
            "FedAvg+SC, lr 0.01, 600 x 1": {"method.name": "fedavg_sc", **SLOWER, **OFTEN},
        },
    ),
    "fedca": Claim(
        "FedCA is above FedSimCLR with two classes per client (Zhang et al. 2020, Table 1)",
        "fashion_mnist",
        DICTIONARY,
        {
            "FedSimCLR": {"method.name": "fedsimclr"},
            "FedCA": {"method.name": "fedca"},
            "FedCA, own entries kept": {"method.name": "fedca", "method.exclude_own": False},
            "FedCA, alignment only": {"method.name": "fedca", "method.dictionary_size": 0},
            "FedCA, dictionary only": {"method.name": "fedca", "method.alignment": False},
            "FedSimCLR, temperature 0.1": {"method.name": "fedsimclr", "objective.temperature": 0.1},
            "FedCA, temperature 0.1": {"method.name": "fedca", "objective.temperature": 0.1},
        },
    ),
    "flesd": Claim(
        "FLESD with two rounds is above the worst local model (Table 1)",
        "fashion_mnist",
        DISTIL,
        {"FLESD, T = 2": {"method.name": "flesd"}, "local only": {"method.name": "local", "train.rounds": 2}},
        worst=("local only",),
    ),
    "fedfoa": Claim(
        "FedFoA's mean over clients of four architectures is above BYOL alone (Tables 1-2)",
        "digits",
        CORRELATION,
        {"BYOL alone": {"method.name": "local"}, "FedFoA": {"method.name": "fedfoa"}},
    ),
    "fedlinked": Claim(
        "FedLinked is above training separately, each client on its own test images (Table 5.3)",
        "cifar10",
        LINKED,
        {
            "separate, one common start": {"method.name": "local", "model.initial": "common"},
            "FedLinked, one common start": {"method.name": "fedlinked", "model.initial": "common"},
            "FedLinked without B, one common start": {
                "method.name": "fedlinked",
                "method.transformation": False,
                "model.initial": "common",
            },
            "separate": {"method.name": "local"},
            "FedLinked": {"method.name": "fedlinked"},
            "FedLinked without B": {"method.name": "fedlinked", "method.transformation": False},
            "FedAvg on the trunk": {"method.name": "fedavg_trunk"},
        },
        metrics=("task",),
    ),
}


def mean_of(value: float | dict[str, float]) -> float:
    return value if not isinstance(value, dict) else statistics.fmean(value.values())


def command(claim: Claim, config: Path, variant: dict[str, Any], seed: int, data: Path, out: Path) -> list[str]:
    changes = {**variant, "seed": seed, "checkpoint.every": 0}
    if claim.data != "digits":
        changes["data.path"] = str((data / claim.data).resolve())
    overrides = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    return [
        sys.executable,
        "-m",
        "rayfed_ssl",
        "run",
        str(config),
        *overrides,
        "--out",
        str(out),
        "--executor",
        "local",
    ]


def run_one(arguments: list[str], out: Path) -> dict[str, Any]:
    """The summary of a run, made now unless it is there already."""
    summary = out / "summary.json"
    if not summary.exists():
        began = time.perf_counter()
        done = subprocess.run(arguments, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        print(f"{out.parent.name}/{out.name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    found: dict[str, Any] = json.loads(summary.read_text())
    return found


def spread(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values):.3f}"


def table(claim: Claim, results: dict[str, list[dict[str, Any]]]) -> str:
    """Mean and standard deviation over seeds of each variant, untrained encoder and raw pixels first."""
    metrics = [m for m in claim.metrics if m in next(iter(results.values()))[0]["accuracy"]]
    lines = [
        f"**{claim.says}**",
        "",
        f"| variant | {' | '.join(metrics)} | minutes |",
        "|---|" + "---|" * (len(metrics) + 1),
    ]
    first = next(iter(results.values()))
    cells = [spread([mean_of(s["untrained"][m]) for s in first]) if m in first[0]["untrained"] else "" for m in metrics]
    lines.append(f"| untrained | {' | '.join(cells)} | |")
    for name, summaries in results.items():
        cells = [spread([mean_of(s["accuracy"][m]) for s in summaries]) for m in metrics]
        minutes = statistics.fmean(s["wall_s"] for s in summaries) / 60
        lines.append(f"| {name} | {' | '.join(cells)} | {minutes:.1f} |")
        if name in claim.worst:
            cells = [spread([min(s["accuracy"][m].values()) for s in summaries]) for m in metrics]
            lines.append(f"| {name}, worst client | {' | '.join(cells)} | |")
    return "\n".join(lines)


def pairs(folders: list[Path]) -> str:
    """How useful and how alike FedLinked's clients are to each other in the last round, seed by seed: G02/G01, G12/G01
    and the likenesses, which do not grow with the length of representations.
    """
    lines = ["| seed | G02/G01 | G12/G01 | likeness 01 | 02 | 12 |", "|---|---|---|---|---|---|"]
    for folder in folders:
        rows = pq.read_table(folder / "metrics.parquet").to_pylist()
        last = max(row["round"] for row in rows if row["tag"].startswith("fedlinked/A_"))
        found = {row["tag"]: row["value"] for row in rows if row["round"] == last}
        a = {pair: found[f"fedlinked/A_{pair}"] for pair in ("1_0", "2_0", "0_1", "2_1")}  # of one target: G's ratios
        cells = [a["2_0"] / a["1_0"], a["2_1"] / a["0_1"], *(found[f"fedlinked/likeness_{pair}"] for pair in PAIRS)]
        lines.append(f"| {folder.name.partition('-')[2]} | {' | '.join(f'{cell:.2f}' for cell in cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(CLAIMS), choices=list(CLAIMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/claims"))
    parser.add_argument("--jobs", type=int, default=2)
    a = parser.parse_args()
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    with ThreadPoolExecutor(a.jobs) as pool:
        pending = {}
        for key in a.only:
            claim = CLAIMS[key]
            a.out.mkdir(parents=True, exist_ok=True)
            config = a.out / f"{key}.yaml"
            config.write_text(yaml.safe_dump({"method": {"name": "fedsimclr"}, **claim.setting}))
            for number, (name, variant) in enumerate(claim.variants.items()):
                for seed in range(a.seeds):
                    out = a.out / key / f"{number}-{seed}"
                    arguments = command(claim, config, variant, seed, a.data, out)
                    pending[key, name, seed] = pool.submit(run_one, arguments, out)
        for (key, name, _), future in pending.items():
            found.setdefault(key, {}).setdefault(name, []).append(future.result())
    (a.out / "claims.json").write_text(json.dumps(found, indent=1))
    print("\n\n".join(table(CLAIMS[key], results) for key, results in found.items()))
    if "fedlinked" in found:
        number = list(CLAIMS["fedlinked"].variants).index("FedLinked")
        print("\n" + pairs([a.out / "fedlinked" / f"{number}-{seed}" for seed in range(a.seeds)]))
    made = {json.loads(path.read_text())["git_revision"] for path in a.out.glob("*/*/environment.json")}
    print(f"\nmade at {', '.join(sorted(str(revision)[:7] for revision in made))}")


if __name__ == "__main__":
    main()
