"""Searches for budgets at which federated SimCLR on IID clients is clearly above the untrained encoder.

    python benchmarks/budgets.py --data ../shared/data [--only cifar10] [--out runs/budgets]

Runs the attempts of ``budgets.yaml`` that ``results/budgets.jsonl`` lacks, one after the other, each in a process of
one thread, and appends a line for each. Budgets are judged by the values on held-out training images
(``evaluation.select``), never by those on test images, which are recorded as well.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import json_lines
import yaml
from boards.markdown import head
from machine import described
from processes import carry_out

from rayfed_ssl.base.text import signed
from rayfed_ssl.records.one_run import OneRun, read_run

HERE = Path(__file__).resolve().parent
ATTEMPTS = HERE / "budgets.yaml"
RESULTS = HERE / "results" / "budgets.jsonl"


def attempts(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], int]]:
    """(data set, name, keys, seed) of every run in the document."""
    for data, block in document.items():
        for name, keys in block["attempts"].items():
            own = {key: value for key, value in keys.items() if key != "seeds"}
            for seed in keys.get("seeds", [0]):
                yield data, name, own, seed


def line_of(run: OneRun, cpu_s: float | None) -> dict[str, Any]:
    """The results of a run: trained and untrained values, on held-out training images and on test images. Its CPU time
    is None if another command made the run.
    """
    measures = [name for name in run.values if not name.startswith("features/")]
    return {
        "minutes": round(run.wall_s / 60, 2),
        "cpu_minutes": None if cpu_s is None else round(cpu_s / 60, 2),
        "trained": {name: round(run.values[name], 4) for name in measures},
        "untrained": {name: round(run.untrained[name], 4) for name in measures if name in run.untrained},
    }


def run_one(base: Mapping[str, Any], keys: Mapping[str, Any], seed: int, data: Path, out: Path) -> dict[str, Any]:
    """The line of one attempt, which is run now unless its folder is complete."""
    cpu_s = carry_out(base, {**keys, "seed": seed, "data.path": str(data.resolve())}, out)
    return line_of(read_run(out / "run"), cpu_s)


def gain(line: Mapping[str, Any], measure: str) -> float:
    """The trained encoder's value minus the untrained encoder's."""
    return float(line["trained"][measure] - line["untrained"][measure])


def table(lines: list[dict[str, Any]]) -> str:
    """All attempts in Markdown: keys, minutes, and accuracies on test images before and after training."""
    heads = (
        "data",
        "attempt",
        "keys",
        "seed",
        "kNN",
        "linear",
        "kNN, held out",
        "gain in it",
        "minutes (CPU)",
        "commit",
    )
    rows = head(heads)
    for line in lines:
        before, after = line["untrained"], line["trained"]
        scores = [f"{before[m]:.3f} -> {after[m]:.3f}" for m in ("knn", "linear", "select/knn")]
        keys = ", ".join(f"`{key}={json.dumps(value)}`" for key, value in line["keys"].items()) or "the base's"
        cpu = "-" if line["cpu_minutes"] is None else format(line["cpu_minutes"], ".1f")
        minutes = f"{line['minutes']:.1f} ({cpu})"
        held = signed(gain(line, "select/knn"))
        cells = [line["data"], line["attempt"], keys, str(line["seed"]), *scores, held, minutes, line["commit"]]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("runs/budgets"))
    a = parser.parse_args()
    document = yaml.safe_load(ATTEMPTS.read_text(encoding="utf-8"))
    for data, name, keys, seed in attempts(document):
        done = [
            line
            for line in json_lines.read(RESULTS)
            if (line["data"], line["attempt"], line["seed"]) == (data, name, seed)
        ]
        if done or (a.only and data not in a.only):
            continue
        folder = a.out / data / f"{len(json_lines.read(RESULTS)):03d}"
        found = run_one(document[data]["base"], keys, seed, a.data / data, folder)
        line = {"data": data, "attempt": name, "keys": keys, "seed": seed, **found, **described()}
        json_lines.append(RESULTS, line)


if __name__ == "__main__":
    main()
