"""Measures the simulator's costs in addition to training, and prints the table with the measured ratios.

    python benchmarks/bench.py [--only parts,zero_work,...] [--label now] [--out FILE]

One JSON line per figure is appended to ``--out``, with machine, commit and load average. On an idle machine the load is
about what the benchmark itself causes; if it is larger, only ratios are meaningful. Peers and the bare loop are those
of ``--bench`` (by default ../shared/bench), real images those of ``--data``. If one is absent, its figures are left
out, and the table says so. ``docs/generate.py`` writes the same table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(1, str(HERE))

import json_lines  # noqa: E402
from machine import described  # noqa: E402
from speed_table import RESULTS, driver_memory, many_actors, parts, table  # noqa: E402

GROUPS = "parts,zero_work,round_time,startup,local_step,evaluation,many_actors,driver_memory"
SHARED = HERE.parents[1] / "shared"


def commands(bench: Path, data: Path) -> dict[str, list[list[str]]]:
    """The commands for each group of figures; none if its peer or its images are absent."""
    python = [sys.executable, "-W", "ignore"]
    rounds = [*python, str(HERE / "round_time.py"), "--bench", str(bench), "--data", str(data), "--channels-last"]
    fashion = data.with_name("fashion_mnist")
    real = (bench / "sys_bare.py").exists() and data.exists()
    return {
        "parts": [[*python, str(HERE / "parts.py")]],
        "zero_work": [[*python, str(HERE / "zero_work.py"), "--bench", str(bench)]],
        "startup": [[*python, str(HERE / "startup.py")]],
        "local_step": [[*python, str(HERE / "local_step.py")]],
        "evaluation": [[*python, str(HERE / "evaluation_time.py")]],
        "many_actors": [[*python, str(HERE / "many_actors.py")]],
        "driver_memory": [[*python, str(HERE / "driver_memory.py"), "--data", str(fashion)]]
        if fashion.exists()
        else [],
        "round_time": [rounds, [*rounds, "--clients", "64", "--images", "64", "--reps", "2"]] if real else [],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", type=Path, default=SHARED / "bench")
    parser.add_argument("--data", type=Path, default=SHARED / "data" / "cifar10")
    parser.add_argument("--only", default=GROUPS)
    parser.add_argument("--label", default="now")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    failed = 0
    for group in options.only.split(","):
        wanted = commands(options.bench.resolve(), options.data.resolve())[group]
        if not wanted:
            print(f"{group}: left out, {options.bench} or {options.data} is absent", file=sys.stderr)
        for command in wanted:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            failed += done.returncode != 0
            with options.out.open("a", encoding="utf-8") as file:
                for line in done.stdout.splitlines():
                    measured = {"load": round(os.getloadavg()[0], 1), **described(), **json.loads(line)}
                    file.write(json.dumps({"label": options.label} | measured) + "\n")
    lines = json_lines.read(options.out)
    print("\n\n".join(make(lines) for make in (table, parts, many_actors, driver_memory)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
