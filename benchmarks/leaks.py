"""What messages give away: every variant is audited on several seeds, with the last messages of each client.

    python benchmarks/leaks.py --data ../shared/data [--sets cifar10] [--variants FedSC] [--seeds 3] [--out runs/leaks]
        [--jobs 2]

``leaks.yaml`` has the variants. Runs what ``results/leaks.jsonl`` lacks, each an ordinary run folder below ``--out``,
audits it with ``rayfed-ssl leak`` and appends a line. If it is stopped, the same command continues. ``python
docs/generate.py`` writes the table of docs/leak.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import json_lines
import yaml
from boards.markdown import NAMES, head
from claims import CONFIGS, Attempt, Line
from machine import described
from processes import THREADS, append_each, carry_out, with_parent

from rayfed_ssl.config import build
from rayfed_ssl.records.comparison import Difference, difference
from rayfed_ssl.settings import files as configfile

HERE = Path(__file__).resolve().parent
LEAKS = HERE / "leaks.yaml"
RESULTS = HERE / "results" / "leaks.jsonl"
NAME = "leaks"  # stands in lines where those of claims have the claim's name
CHANCE = 0.5
COVERED = "correlation"  # the field that an epsilon covers


def load() -> dict[str, Any]:
    """``leaks.yaml``; the base of each set of images is replaced by the content of its file."""
    document: dict[str, Any] = yaml.safe_load(LEAKS.read_text(encoding="utf-8"))
    document["sets"] = {data: configfile.read(CONFIGS / base) for data, base in document["sets"].items()}
    return document


def attempts(
    document: Mapping[str, Any], seeds: int | None = None, variants: str = "", sets: Sequence[str] = ()
) -> Iterator[Attempt]:
    """All runs that are needed, set by set and seed by seed. The set's name stands for a claim's.

    Args:
        variants: a regular expression for their names.
        sets: only these; none given: all.
    """
    for data, base in document["sets"].items():
        for seed in range(seeds or document["seeds"]):
            for name, keys in document["variants"].items():
                if re.search(variants, name) and (not sets or data in sets):
                    yield Attempt(data, name, seed, {**document["keys"], **keys}, base)


def run_one(attempt: Attempt, data: Path, out: Path) -> Line:
    """Run and audit an attempt, as far as that is not done yet, and return its line."""
    folder = out / f"{attempt.settings}-{attempt.seed}"
    path = str((data / attempt.claim).resolve())
    carry_out(attempt.base, {**attempt.keys, "seed": attempt.seed, "data.path": path}, folder)
    clients = [each for client in range(attempt.base["clients"]["count"]) for each in ("--client", str(client))]
    if not (folder / "run" / "leak.json").exists():
        command = with_parent("leak", str(folder / "run"), *clients)
        done = subprocess.run(command, env={**os.environ, **THREADS}, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return line_of(attempt, folder / "run")


def line_of(attempt: Attempt, run: Path) -> Line:
    """The results of an audited run."""
    found = json.loads((run / "leak.json").read_text(encoding="utf-8"))
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    keep = ("client", "field", "score", "members", "auc", "low", "high")
    return {
        "claim": NAME, "data": attempt.claim, "variant": attempt.variant, "seed": attempt.seed,
        "keys": dict(attempt.keys), "settings": attempt.settings,
        "findings": [{name: one[name] for name in keep} for one in found["findings"]],
        "unaudited": found["unaudited"], "epsilon": (found["privacy"] or {}).get("epsilon"),
        "knn": summary["accuracy"]["knn"], "untrained": summary["untrained"]["knn"],
        "bytes": sum(summary["communication"].values()), "minutes": round(summary["wall_s"] / 60, 2), **described(),
    }  # fmt: skip


# -- the table ---------------------------------------------------------------------------------------------------------


def tables(lines: Sequence[Line], document: Mapping[str, Any]) -> str:
    """A table for each set of images."""
    return "\n\n".join(table(lines, document, data) for data in document["sets"])


def table(lines: Sequence[Line], document: Mapping[str, Any], data: str) -> str:
    """A row per variant and attack: the area over seeds, each the mean over clients, and for how many clients it is
    above 0.5.
    """
    wanted = {one.address[1:] for one in attempts(document, sets=[data])}
    known = [line for line in lines if (line["variant"], line["seed"], line["settings"]) in wanted]
    commits = ", ".join(sorted({line["commit"] for line in known}))
    heads = ("variant", "field", "score", "seeds", "AUC", "clients above 0.5", "epsilon", "kNN", "MB in all")
    rows = head(heads)
    for variant in document["variants"]:
        own = [line for line in known if line["variant"] == variant]
        if not own:
            rows.append(f"| {variant} | not run yet |{' |' * (len(heads) - 2)}")
            continue
        for at, what in enumerate(attacks(own)):
            told = [one for line in own for one in line["findings"] if attack(one) == what]
            above = f"{sum(one['low'] > CHANCE for one in told)} of {len(told)}"
            cells = [variant if at == 0 else "", *what, str(len(own)), shown(area(own, what)), above]
            cells += [
                _epsilon(own, document, data) if what[0] == COVERED else "",
                *(_costs(own) if at == 0 else ["", ""]),
            ]
            rows.append(f"| {' | '.join(cells)} |")
    title = f"**{NAMES[data]}.** {document['setting'].strip()}."
    if known:
        members = sorted({one["members"] for line in known for one in line["findings"]})
        minutes = sorted(line["minutes"] for line in known)
        title = f"{title[:-1]}; {' or '.join(map(str, members))} members and as many others each."
        title += f" Made at {commits}, {minutes[0]:.1f} to {minutes[-1]:.1f} minutes a run beside other work."
    return "\n".join([title, "", *rows])


Attack = tuple[str, str]  # field, score


def attack(finding: Mapping[str, Any]) -> Attack:
    """The attack of a finding."""
    return finding["field"], finding["score"]


def attacks(lines: Sequence[Line]) -> list[Attack]:
    """All attacks of these lines, in the order in which they were made."""
    return list(dict.fromkeys(attack(one) for line in lines for one in line["findings"]))


def area(lines: Sequence[Line], what: Attack) -> Difference | None:
    """The area under the ROC curve minus one half, over seeds; each seed counts with the mean over its clients."""
    by_seed = [[one["auc"] for one in line["findings"] if attack(one) == what] for line in lines]
    return difference([fmean(each) - CHANCE for each in by_seed if each])


def shown(found: Difference | None) -> str:
    """An area with its interval; in bold if the interval excludes 0.5."""
    if found is None:
        return "-"
    text = f"{CHANCE + found.mean:.3f}"
    if found.low is None or found.high is None:
        return text
    text += f" [{CHANCE + found.low:.3f}, {CHANCE + found.high:.3f}]"
    return f"**{text}**" if found.low > 0 or found.high < 0 else text


def _epsilon(lines: Sequence[Line], document: Mapping[str, Any], data: str) -> str:
    """The largest epsilon of a variant's lines, with the delta of its configuration."""
    epsilons, variant = [line["epsilon"] for line in lines], lines[0]["variant"]
    if None in epsilons:
        return "none"
    keys = {**document["keys"], **document["variants"][variant], "data.path": "images"}
    method = build(document["sets"][data], keys, origin=variant).method.model_dump()
    return f"{max(epsilons):.2f} at delta {method['privacy']['delta']:g}"


def accuracy(line: Line) -> float:
    """kNN accuracy; the mean over clients if they have encoders of their own."""
    found = line["knn"]
    return fmean(found.values()) if isinstance(found, dict) else float(found)


def _costs(lines: Sequence[Line]) -> list[str]:
    """The cells of kNN accuracy and of MB in all."""
    return [f"{fmean(map(accuracy, lines)):.3f}", f"{1e-6 * fmean(line['bytes'] for line in lines):.1f}"]


def said(line: Line) -> str:
    """An attempt's results on one line."""
    areas = [f"{what[0]} ({what[1]}) {shown(area([line], what))}" for what in attacks([line])]
    return f"{', '.join(areas)}; {line['minutes']} min"


def main() -> None:
    document = load()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with a folder per data set")
    parser.add_argument("--sets", nargs="+", choices=list(document["sets"]), default=[])
    parser.add_argument("--variants", default="", help="a regular expression for the names of variants")
    parser.add_argument("--seeds", type=int, default=document["seeds"])
    parser.add_argument("--out", type=Path, default=Path("runs/leaks"))
    parser.add_argument("--jobs", type=int, default=1)
    a = parser.parse_args()
    have = {(line["variant"], line["seed"], line["settings"]) for line in json_lines.read(RESULTS)}
    todo = [one for one in attempts(document, a.seeds, a.variants, a.sets) if one.address[1:] not in have]
    failed = append_each(
        todo, lambda one: run_one(one, a.data, a.out.resolve()), RESULTS, a.jobs,
        lambda one: f"{one.claim}, {one.variant}, seed {one.seed}", said,
    )  # fmt: skip
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
