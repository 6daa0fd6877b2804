"""The tables of speed on a GPU, from the JSON lines of ``gpu.py --out results/gpu.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results" / "gpu.jsonl"
NOT_MEASURED = "Nothing was measured on a GPU yet."
BATCH = 128  # of field.yaml, and of what README says
Line = Mapping[str, Any]


def newest(lines: Sequence[Line], benchmark: str, *keys: str) -> list[Line]:
    """The lines of a benchmark in the order of ``keys``' values as they first came, the last of each value."""
    found: dict[tuple[Any, ...], Line] = {}
    for line in lines:
        if line["benchmark"] == benchmark and line["size"] == "full" and line["device"] != "cpu":
            found[tuple(line[key] for key in keys)] = line
    return list(found.values())


def section(lines: Sequence[Line]) -> str:
    """Steps, augmentation and actors, as Markdown."""
    steps = newest(lines, "step", "objective", "batch")
    if not steps:
        return NOT_MEASURED
    tables = [_made(lines), _steps(steps), _augmentation(newest(lines, "augmentation", "batch"), steps)]
    shared = [*newest(lines, "actors", "actors", "mps"), *newest(lines, "cap")]
    return "\n\n".join(part for part in [*tables, _actors(shared)] if part)


def _made(lines: Sequence[Line]) -> str:
    """On what, and from which commits."""
    used = [line for line in lines if line["device"] != "cpu"]
    named = {name: ", ".join(dict.fromkeys(line[name] for line in used)) for name in ("device", "torch", "day")}
    commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(line["commit"] for line in used))
    ceiling = newest(lines, "ceiling")[-1]
    return (
        f"{named['device']}, torch {named['torch']}, {named['day']}, commits {commits}. A copy moves "
        f"{ceiling['copy_gb_s']:,.0f} GB/s, read and written; a bfloat16 matrix product does "
        f"{ceiling['bf16_tflop_s']:,.0f} TFLOP/s, which is the ceiling below."
    )


def _steps(steps: Sequence[Line]) -> str:
    rows = ["| loss | batch | pairs/s | as a graph | of the ceiling | waits a step | same bits |", "|---" * 7 + "|"]
    for line in steps:
        rate = f"{line['graph_pairs_per_s']:,.0f} ({line['graph_speedup']:.2f} x)"
        best = line["share_of_ceiling"] * max(line["graph_speedup"], 1)
        rows.append(
            f"| {line['objective']} | {line['batch']} | {line['pairs_per_s']:,.0f} | {rate} | {best:.1%} | "
            f"{line['syncs_per_step']:g} | {_yes(line['same_bits'])} |"
        )
    return "\n".join(rows)


def _augmentation(found: Sequence[Line], steps: Sequence[Line]) -> str:
    """Two views of a batch: milliseconds, and beside the time of a recorded SimCLR step."""
    if not found:
        return ""
    rates = {line["batch"]: line["graph_pairs_per_s"] for line in steps if line["objective"] == "simclr"}
    rows = ["| augmentation, batch | pairs/s | ms | of a SimCLR step |", "|---" * 4 + "|"]
    for line in found:
        rate, batch = line["pairs_per_s"], line["batch"]
        share = f"{rates[batch] / rate:.0%}" if batch in rates else "-"
        rows.append(f"| {batch} | {rate:,.0f} | {1e3 * batch / rate:.2f} | {share} |")
    return "\n".join(rows)


def _actors(found: Sequence[Line]) -> str:
    """Rounds of actors that share the GPU, over those of one process; whether a cap on memory held."""
    rows = ["| actors on one GPU | a round of ten clients | times one process | same bits |", "|---" * 4 + "|"]
    for line in found:
        if line["benchmark"] == "actors":
            name = f"{line['actors']}{', under MPS' if line['mps'] else ''}"
            rows.append(
                f"| {name} | {line['round_s']:.2f} s | {line['times_one_process']:.2f} | {_yes(line['same_bits'])} |"
            )
    caps = [
        f"An actor with a share of {line['share']:g} that asked for 1.2 times it was "
        f"{'refused' if line['held'] else 'not refused'}."
        for line in found
        if line["benchmark"] == "cap"
    ]
    return "\n\n".join([*(["\n".join(rows)] if len(rows) > 2 else []), *caps])


def _yes(value: bool) -> str:
    return "yes" if value else "**no**"


def sentence(lines: Sequence[Line]) -> str:
    """What README says of it."""
    steps = {(line["objective"], line["batch"]): line for line in newest(lines, "step", "objective", "batch")}
    step, shared = steps.get(("simclr", BATCH)), newest(lines, "actors", "actors", "mps")
    if step is None or not shared:
        return NOT_MEASURED
    most = max(shared, key=lambda line: (line["actors"], line["mps"]))
    same = all(line["same_bits"] for line in [*steps.values(), *shared])
    return (
        f"On one {step['device']}, SimCLR with a ResNet-18 at 32 pixels trains on {step['graph_pairs_per_s']:,.0f} "
        f"pairs of views a\nsecond at batches of {BATCH}. {most['actors']} actors that share it take "
        f"{most['times_one_process']:.2f} of one process's rounds a second,\n"
        f"{'with' if same else 'but not with'} the same bits."
    )
