"""The table of speed: figures, targets and peers from this file, measured values from JSON lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results" / "speed.jsonl"
Line = Mapping[str, Any]
FIGURES: tuple[tuple[str, dict[str, Any], str, str], ...] = (  # figure, whose lines, target, best peer
    (
        "FedSimCLR round, 8 clients x 512, over the bare 2-process channels-last loop",
        {"benchmark": "round_time", "clients": 8, "channels_last": True},
        "1.00",
        "pfl 0.99",
    ),
    ("the same, 64 x 64", {"benchmark": "round_time", "clients": 64, "channels_last": True}, "1.03", "pfl 1.02"),
    ("zero-work `mean`, 0.4 MB, a client", {"benchmark": "zero_work", "case": "mean"}, "0.25 ms, 1.3 x", "pfl 0.21 ms"),
    ("zero-work `ask`, 0.4 MB, a client", {"benchmark": "zero_work", "case": "ask"}, "1.5 ms", "raw Ray 2.5 ms"),
    ("zero-work `mean` with 0.4 MB of state", {"benchmark": "zero_work", "case": "state"}, "0.6 ms", "-"),
    (
        "zero-work `mean`, 45 MB, a client",
        {"benchmark": "zero_work", "case": "large"},
        "9.4 ms, 2.5 GB PSS",
        "raw Ray 9.5 ms, pfl 1.7 GB",
    ),
    ("command to the end of a one-step round, on Ray", {"benchmark": "startup", "case": "ray"}, "4.5 s", "pfl 2.5 s"),
    ("the same in process", {"benchmark": "startup", "case": "local"}, "1.5 s", "-"),
    ("a typo in a config", {"benchmark": "startup", "case": "typo"}, "2 s", "-"),
    ("a folder that already holds a run", {"benchmark": "startup", "case": "taken"}, "2 s", "-"),
    ("a local step of FedSC over its objective's", {"benchmark": "local_step", "case": "fedsc"}, "1.10", "-"),
    ("of FedCA", {"benchmark": "local_step", "case": "fedca"}, "1.10", "-"),
    ("of FLESD", {"benchmark": "local_step", "case": "flesd"}, "1.10", "-"),
    ("of FedX", {"benchmark": "local_step", "case": "fedx"}, "1.10", "-"),
    ("of FedFoA", {"benchmark": "local_step", "case": "fedfoa"}, "1.15", "-"),
    (
        "kNN, 50,000 x 512, over its products",
        {"benchmark": "evaluation_time", "case": "knn", "device": "cpu"},
        "-",
        "-",
    ),
    ("linear probe, the same", {"benchmark": "evaluation_time", "case": "linear", "device": "cpu"}, "-", "-"),
)  # fmt: skip
PARTS = {
    "load": "load the round's model",
    "reply": "take the values",
    "finite": "check them",
    "add": "add to the exact sum",
    "mean": "divide (once per round)",
}
HOLDS = {  # method -> what the driver's process, or the store for it, holds of each client
    "fedsimclr": "nothing; two sums of the weights at a time",
    "fedsc": "its matrix, D x D",
    "fedfoa": "its triangle R, D (D + 1) / 2",
    "fedca": "its dictionary, n_j x D, and all of them once more in a round",
    "flesd": "M x D representations until the student is distilled, in the store",
    "fedlinked": "M x r representations until they are linked, in the store; a target, M x r; N x N utilities",
}


def newest(lines: Iterable[Line], label: str, wanted: Mapping[str, Any]) -> Line | None:
    """The last line with this label and these values."""
    fitting = [x for x in lines if x.get("label") == label and all(x.get(k) == v for k, v in wanted.items())]
    return fitting[-1] if fitting else None


def _value(line: Line | None) -> str:
    """What a line says, in a cell: wall, CPU and ratio of a zero-work round; the ratio of a real one."""
    if line is None:
        return "not measured"
    if line["benchmark"] == "round_time":
        return f"{line['ratio']:.2f}"
    if line["benchmark"] == "local_step":
        return f"{line['ratio']:.2f} ({line['method_ms']:.0f} ms CPU)"
    if line["benchmark"] == "evaluation_time":
        return f"{line['ratio']:.1f} x ({line['seconds']:.1f} s CPU)"
    if line["benchmark"] == "startup":
        return f"{line['cpu_s']:.1f} s CPU, {line['cpu_ratio']:.1f} x `import torch` ({line['wall_s']:.1f} s)"
    if line["case"] == "large":
        return f"{_zero_work(line)}, {line['pss_mb'] / 1e3:.1f} GB PSS"
    return _zero_work(line)


def _zero_work(line: Line) -> str:
    text = f"{line['ours_ms_per_client']:.2f} ms ({line['ours_cpu_ms_per_client']:.2f} CPU)"
    return f"{text}, {line['ratio']:.1f} x" if "ratio" in line else f"{text}, no peer"


def table(lines: list[dict[str, Any]]) -> str:
    """Figures beside their targets and the best peer's, as Markdown; below, the commits at which they were measured."""
    rows, commits = ["| figure | target | best peer | measured | load |", "|---|---|---|---|---|"], set[str]()
    for figure, wanted, target, peer in FIGURES:
        line = newest(lines, "now", wanted)
        commits |= {line["commit"]} if line is not None and "commit" in line else set()
        load = "-" if line is None else line.get("load", "-")
        rows.append(f"| {figure} | {target} | {peer} | {_value(line)} | {load} |")
    return "\n".join([*rows, *(["", f"Measured at {', '.join(sorted(commits))}."] if commits else [])])


def sentence(lines: list[dict[str, Any]]) -> str:
    """What README says of it. Raises LookupError where a figure it names was never measured."""
    found = []
    for clients in (8, 64):
        wanted = {"benchmark": "round_time", "clients": clients, "channels_last": True}
        if (line := newest(lines, "now", wanted)) is None:
            raise LookupError(f"speed.jsonl: no round of {clients} clients")
        found.append(line)
    empty = newest(lines, "now", {"benchmark": "zero_work", "case": "mean"})
    if empty is None:
        raise LookupError("speed.jsonl: no round without work")
    eight, many = found
    return (
        f"Overhead beyond training, on {empty['machine']}: compared with a bare PyTorch loop in two processes, a round "
        f"of {eight['clients']} clients\ntakes {eight['ratio']:.2f} times as long, and a round of {many['clients']} "
        f"small clients {many['ratio']:.2f} times; a client that does nothing costs "
        f"{empty['ours_ms_per_client']:.2f} ms.\n"
        "[docs/performance.md](docs/performance.md) has the rest."
    )


def parts(lines: list[dict[str, Any]]) -> str:
    """The parts of a model's way, in copies of as many bytes, as Markdown."""
    sizes = sorted({line["values"] for line in lines if line["benchmark"] == "parts"})
    heads = [f"{4 * size / 1e6:.1f} MB {label}" for size in sizes for label in ("before", "now")]
    rows = ["| part | " + " | ".join(heads) + " |", "|---" * (1 + len(heads)) + "|"]
    for part, words in PARTS.items():
        cells = []
        for size in sizes:
            for label in ("before", "now"):
                line = newest(lines, label, {"benchmark": "parts", "part": part, "values": size})
                cells.append("-" if line is None else f"{line['copies']:.1f} ({line['cpu_ms']:.2f} ms)")
        rows.append(f"| {words} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def many_actors(lines: list[dict[str, Any]]) -> str:
    """Rounds of clients that do nothing on more and more actors and nodes, as Markdown."""
    found = [x for x in lines if x["benchmark"] == "many_actors"]
    sizes = sorted({line["values"] for line in found})
    heads = [f"{4 * size / 1e6:.1f} MB: {words}" for size in sizes for words in ("sums read", "CPU of a client")]
    rows = ["| nodes | actors | clients | " + " | ".join(heads) + " |", "|---" * (3 + len(heads)) + "|"]
    for nodes, actors, clients in sorted({(line["nodes"], line["actors"], line["clients"]) for line in found}):
        cells = []
        for size in sizes:
            line = newest(found, "now", {"nodes": nodes, "actors": actors, "clients": clients, "values": size})
            cells += (
                ["-", "-"] if line is None else [f"{line['read_mb']:.1f} MB", f"{line['cpu_ms_per_client']:.2f} ms"]
            )
        rows.append(f"| {nodes} | {actors} | {clients} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def driver_memory(lines: list[dict[str, Any]]) -> str:
    """What the driver keeps of many clients, by method, as Markdown."""
    heads = (
        "clients asked",
        "holds of each",
        "bank, states: estimate",
        "driver",
        "store",
        "sent up",
        "read: replies, sums",
    )
    rows = [f"| method | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for method, words in HOLDS.items():
        line = newest(lines, "now", {"benchmark": "driver_memory", "method": method})
        names = (
            ("bank_mb", "states_mb"),
            ("driver_mb",),
            ("objects_mb",),
            ("up_mb",),
            ("replies_read_mb", "sums_read_mb"),
        )
        cells = ["not measured" if line is None else ", ".join(f"{line[n]:.0f} MB" for n in each) for each in names]
        asked = "-" if line is None else line["asked"]
        rows.append(f"| `{method}` | {asked} | {words} | " + " | ".join(cells) + " |")
    return "\n".join(rows)
