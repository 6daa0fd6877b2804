"""The papers' claims at a size that two cores allow: every variant on several seeds, beside the untrained encoder.

    python benchmarks/claims.py --data ../shared/data [--only fedsc fedca ..] [--variants 'lr 0.03']
        [--seeds 3] [--out runs/claims] [--jobs 2]

``claims.yaml`` has the claims, their variants and which are compared. Runs what ``results/claims.jsonl`` lacks, seed by
seed, each an ordinary run folder below ``--out`` in a process of one thread, and appends a line for each. If it is
stopped, the same command continues. ``python docs/generate.py`` writes the tables of docs/results.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import json_lines
import yaml
from machine import described
from processes import append_each, carry_out

from rayfed_ssl.records.tables import read_metrics
from rayfed_ssl.settings import files as configfile

HERE = Path(__file__).resolve().parent
CLAIMS = HERE / "claims.yaml"
CONFIGS = HERE.parent / "configs"
RESULTS = HERE / "results" / "claims.jsonl"
WORST = ", worst client"  # at the end of a variant's name: the value of its worst client
Line = dict[str, Any]


@dataclass(frozen=True)
class Attempt:
    """A run that a claim needs. ``keys``: dotted keys that change the claim's base."""

    claim: str
    variant: str
    seed: int
    keys: Mapping[str, Any]
    base: Mapping[str, Any]

    @property
    def settings(self) -> str:
        """A digest of the base and the keys."""
        text = json.dumps([self.base, dict(self.keys)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def address(self) -> tuple[str, str, int, str]:
        return self.claim, self.variant, self.seed, self.settings


def load() -> dict[str, Any]:
    """``claims.yaml``; a base that is a file's name is replaced by that file's content."""
    document: dict[str, Any] = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))
    for claim in document["claims"].values():
        if isinstance(claim["base"], str):
            claim["base"] = configfile.read(CONFIGS / claim["base"])
    return document


def attempts(
    document: Mapping[str, Any], only: Sequence[str] = (), seeds: int | None = None, variants: str = ""
) -> Iterator[Attempt]:
    """All runs of the claims ``only`` (none given: of all), seed by seed.

    ``seeds``: a number of seeds for every variant; None: the document's numbers, which are larger for decisive
    variants, or a claim's own. ``variants``: a regular expression for their names.
    """
    for name, claim in document["claims"].items():
        if only and name not in only:
            continue
        deciding, few = decisive(claim), claim.get("seeds", document["seeds"])
        for seed in range(seeds or document["deciding_seeds"]):
            for variant, keys in claim["variants"].items():
                if seeds is None and seed >= few and variant not in deciding:
                    continue
                if re.search(variants, variant) is None:
                    continue
                yield Attempt(name, variant, seed, keys, claim["base"])


def decisive(claim: Mapping[str, Any]) -> set[str]:
    """The variants that decide a claim, with all candidates where one of several is chosen."""
    sides = [side for deciding in claim.get("decides", ()) for side in deciding["pair"]]
    names = {name for side in sides for name in ([side] if isinstance(side, str) else side)}
    return {name.removesuffix(WORST) for name in names}


def missing(wanted: Iterator[Attempt], lines: Sequence[Line]) -> list[Attempt]:
    """The attempts without a line that has their settings."""
    have = {address(line) for line in lines}
    return [attempt for attempt in wanted if attempt.address not in have]


def address(line: Line) -> tuple[str, str, int, str]:
    return line["claim"], line["variant"], line["seed"], line["settings"]


def line_of(attempt: Attempt, folder: Path, cpu_s: float | None, also: Sequence[str]) -> Line:
    """The results of a run; by client if clients have encoders of their own."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    made = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    last = [row for row in read_metrics(folder).to_pylist() if row["round"] == summary["rounds"]]
    selected = summary.get("select") or {}
    return {
        "claim": attempt.claim, "variant": attempt.variant, "seed": attempt.seed, "keys": dict(attempt.keys),
        "settings": attempt.settings, "status": summary["status"],
        "measured": summary["accuracy"] | {f"select/{name}": value for name, value in selected.items()},
        "untrained": summary["untrained"],
        "also": {row["tag"]: row["value"] for row in last if row["tag"].startswith(tuple(also))} if also else {},
        "bytes": sum(summary["communication"].values()),
        "minutes": round(summary["wall_s"] / 60, 2), "cpu_minutes": None if cpu_s is None else round(cpu_s / 60, 2),
        **described(), "commit": str(made["git_revision"] or "unknown")[:8], "changed": bool(made["git_changed"]),
    }  # fmt: skip


def run_one(attempt: Attempt, claim: Mapping[str, Any], data: Path, out: Path) -> Line:
    """Run an attempt, unless its folder is complete, and return its line."""
    folder = out / attempt.claim / f"{attempt.settings}-{attempt.seed}"
    keys = {**attempt.keys, "seed": attempt.seed, "checkpoint.every": 0}
    if claim["data"] != "digits":
        keys["data.path"] = str((data / claim["data"]).resolve())
    cpu_s = carry_out(attempt.base, keys, folder)
    return line_of(attempt, folder / "run", cpu_s, claim.get("also", ()))


def main() -> None:
    document = load()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with a folder per data set")
    parser.add_argument("--only", nargs="+", choices=list(document["claims"]), default=[])
    parser.add_argument("--variants", default="", help="a regular expression for the names of variants")
    parser.add_argument("--seeds", type=int, help="so many of every variant; by default those of claims.yaml")
    parser.add_argument("--out", type=Path, default=Path("runs/claims"))
    parser.add_argument("--jobs", type=int, default=1)
    a = parser.parse_args()
    failed = append_each(
        missing(attempts(document, a.only, a.seeds, a.variants), json_lines.read(RESULTS)),
        lambda one: run_one(one, document["claims"][one.claim], a.data, a.out.resolve()),
        RESULTS, a.jobs,
        lambda one: f"{one.claim}, {one.variant}, seed {one.seed}",
        lambda line: f"{line['minutes']} min",
    )  # fmt: skip
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
