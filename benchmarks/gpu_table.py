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
        if line["benchmark"] == benchmark:
            found[tuple(line[key] for key in keys)] = line
    return list(found.values())


def by_gpu(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """The lines that are measurements of a GPU, by its name."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        if line["size"] == "full" and line["device"] != "cpu":
            found.setdefault(line["device"], []).append(line)
    return found


def section(lines: Sequence[Line]) -> str:
    """Steps, augmentation and actors of each GPU, as Markdown."""
    return "\n\n".join(_of_gpu(name, mine) for name, mine in by_gpu(lines).items()) or NOT_MEASURED


def _of_gpu(name: str, lines: Sequence[Line]) -> str:
    """The tables of one GPU."""
    steps, aside = newest(lines, "step", "objective", "batch"), newest(lines, "augmentation", "batch")
    ceiling, shared = newest(lines, "ceiling"), [*newest(lines, "actors", "actors", "mps"), *newest(lines, "cap")]
    rounds = [*newest(lines, "round"), *newest(lines, "evaluation")]
    used = [*ceiling, *steps, *aside, *rounds, *shared]
    parts = [_made(name, used), _steps(steps), _augmentation(aside, steps), _rounds(rounds), _actors(shared)]
    return "\n\n".join(filter(None, parts))


def _made(name: str, used: Sequence[Line]) -> str:
    """The GPU, torch, days and commits of the lines that are shown, and the ceiling."""
    made = {key: ", ".join(dict.fromkeys(line[key] for line in used)) for key in ("torch", "day")}
    commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(line["commit"] for line in used))
    text = f"{name}, torch {made['torch']}, {made['day']}, commits {commits}."
    for line in used:
        if line["benchmark"] == "ceiling":
            text += (
                f" A copy moves {line['copy_gb_s']:,.0f} GB/s, read and written; a bfloat16 matrix product does "
                f"{line['bf16_tflop_s']:,.0f} TFLOP/s, which is the ceiling below."
            )
    return text


def _steps(steps: Sequence[Line]) -> str:
    """A row for each loss and batch size."""
    if not steps:
        return ""
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
    """A row for each batch size: milliseconds for two views, and as a share of a recorded SimCLR step."""
    if not found:
        return ""
    rates = {line["batch"]: line["graph_pairs_per_s"] for line in steps if line["objective"] == "simclr"}
    rows = ["| augmentation, batch | pairs/s | ms | of a SimCLR step |", "|---" * 4 + "|"]
    for line in found:
        rate, batch = line["pairs_per_s"], line["batch"]
        share = f"{rates[batch] / rate:.0%}" if batch in rates else "-"
        rows.append(f"| {batch} | {rate:,.0f} | {1e3 * batch / rate:.2f} | {share} |")
    return "\n".join(rows)


def _rounds(measured: Sequence[Line]) -> str:
    """A round in one process relative to its clients' work, and the seconds of an evaluation."""
    sentences = []
    for line in measured:
        if line["benchmark"] == "round":
            sentences.append(
                f"In one process a round of {line['clients']} clients takes {line['round_s']:.2f} s, "
                f"{line['ratio']:.2f} times their work."
            )
        else:
            sentences.append(f"kNN and linear probe with {line['images']:,} images take {line['seconds']:.2f} s.")
    return " ".join(sentences)


def _actors(found: Sequence[Line]) -> str:
    """A row for each number of actors that share the GPU, and whether a cap on memory held."""
    rows = [
        "| actors on one GPU | a round of ten clients | times as fast as one process | same bits |",
        "|---" * 4 + "|",
    ]
    for line in found:
        if line["benchmark"] == "actors":
            name = f"{line['actors']}{_mps(line)}"
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


def _mps(line: Line) -> str:
    return " under MPS" if line["mps"] else ""


def _yes(value: bool) -> str:
    return "yes" if value else "**no**"


def sentence(lines: Sequence[Line]) -> str:
    """README's sentence about the GPU that was added to the lines last."""
    for name, mine in reversed(by_gpu(lines).items()):
        steps = {(line["objective"], line["batch"]): line for line in newest(mine, "step", "objective", "batch")}
        step, shared = steps.get(("simclr", BATCH)), newest(mine, "actors", "actors", "mps")
        if step is not None and shared:
            most = max(shared, key=lambda line: (line["actors"], line["mps"]))
            same = all(line["same_bits"] for line in [*steps.values(), *shared])
            return (
                f"On one {name}, SimCLR with a ResNet-18 at 32 pixels trains on {step['graph_pairs_per_s']:,.0f} pairs "
                f"of views a\nsecond at batches of {BATCH}. {most['actors']} actors that share it{_mps(most)} are "
                f"{most['times_one_process']:.2f} times as fast as one process, {'with' if same else 'but not with'} "
                "the\nsame bits."
            )
    return NOT_MEASURED
