"""How long a command takes before it trains, or says what is wrong: seconds of wall and CPU time, and how many times
``import torch`` that is, measured in turn.

    python benchmarks/startup.py [--reps 5] [--cases typo,taken,local,ray]

``local`` and ``ray`` end with the line of a round in which every client takes one step on 16 images: the first client's
first step comes before it. CPU time is that of the command and of the processes it has waited for, so not of Ray's.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEP = (
    "train.rounds=1", "train.local_steps=1", "train.batch_size=16", "evaluation.protocols=[]", "evaluation.every=0",
    "checkpoint.every=0",
)  # fmt: skip


def commands(folder: Path) -> dict[str, list[str]]:
    """Each case's arguments of the command line."""
    run = ["run", "configs/demo.yaml"]
    return {
        "typo": [*run, "trainn.rounds=3"],
        "taken": [*run, "--out", str(folder / "taken")],
        "local": [*run, *STEP, "--executor", "local", "--json", "--out"],
        "ray": [*run, *STEP, "--json", "--out"],
    }


def timed(command: list[str], until: str | None = None) -> tuple[float, float]:
    """(seconds of wall time to the line that holds ``until``, or to the end; seconds of CPU time to the end)."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    seen = 0.0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT, env={**os.environ}
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if until is not None and until in line and not seen:
                seen = time.perf_counter() - began
    wall = seen if until is not None else time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if until is not None and not seen:
        raise SystemExit(f"{' '.join(command)}: no line with {until}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--cases", default="typo,taken,local,ray")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "taken").mkdir()
        (folder / "taken" / "config.yaml").write_text("name: taken\n")
        for case in options.cases.split(","):
            ours, torch = [], []
            for number in range(options.reps):
                command = [sys.executable, "-m", "rayfed_ssl", *commands(folder)[case]]
                until = None
                if case in ("local", "ray"):
                    command, until = [*command, str(folder / f"{case}{number}")], '"round"'
                ours.append(timed(command, until))
                torch.append(timed([sys.executable, "-c", "import torch"]))
            wall, cpu, base = (
                statistics.median(values)
                for values in ([w for w, _ in ours], [c for _, c in ours], [w for w, _ in torch])
            )
            line = {"benchmark": "startup", "case": case, "wall_s": round(wall, 3), "cpu_s": round(cpu, 3)}
            print(json.dumps({**line, "torch_s": round(base, 3), "ratio": round(wall / base, 2)}), flush=True)


if __name__ == "__main__":
    main()
