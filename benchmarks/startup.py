"""The time until a command trains or reports a mistake: seconds of wall and CPU time, and as multiples of
``import torch``, measured in turn.

    python benchmarks/startup.py [--reps 5] [--cases typo,taken,local,ray,floor] [--trees before=OTHER_TREE,now=.]

``local`` and ``ray`` end with the line of a round in which every client takes one step on 16 images, shortly after the
first client's first step. ``floor`` is the cost of Ray itself: an instance, and two actors that import torch. CPU time
is that of the command and of everything it started, including Ray's processes, up to that line. Trees are measured in
turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
STEP = (
    "train.rounds=1", "train.local_steps=1", "train.batch_size=16", "evaluation.protocols=[]", "evaluation.every=0",
    "checkpoint.every=0",
)  # fmt: skip
FLOOR = """
import os, ray, tempfile
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
class Actor:
    def go(self):
        import torch
with tempfile.TemporaryDirectory(prefix="floor") as folder:
    options = {"num_gpus": 0, "include_dashboard": False, "logging_level": "ERROR"}
    ray.init("local", _temp_dir=folder, _node_ip_address="127.0.0.1", **options)
    actors = [ray.remote(Actor).options(num_cpus=0.5).remote() for _ in range(2)]
    ray.get([actor.go.remote() for actor in actors])
    print('"round"', flush=True)
    ray.shutdown()
"""


def commands(folder: Path) -> dict[str, list[str]]:
    """Python's arguments for each case."""
    run = ["-m", "rayfed_ssl", "run", "configs/demo.yaml"]
    return {
        "typo": [*run, "trainn.rounds=3"],
        "taken": [*run, "--out", str(folder / "taken")],
        "local": [*run, *STEP, "--executor", "local", "--json", "--out"],
        "ray": [*run, *STEP, "--json", "--out"],
        "floor": ["-c", FLOOR],
    }


class Watch(threading.Thread):
    """CPU seconds of a process and of all processes below it, including those that have ended, sampled until it is
    stopped.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.root, self.seen, self.over = psutil.Process(pid), dict[int, float](), threading.Event()

    def look(self) -> None:
        """Sample once."""
        try:
            for process in (self.root, *self.root.children(recursive=True)):
                times = process.cpu_times()
                self.seen[process.pid] = times.user + times.system
        except psutil.Error:
            return

    def run(self) -> None:
        while not self.over.wait(0.1):
            self.look()

    def stop(self) -> float:
        """Stop sampling and return the CPU seconds."""
        self.look()
        self.over.set()
        return sum(self.seen.values())


def timed(command: list[str], until: str | None = None, root: Path = ROOT) -> tuple[float, float]:
    """(seconds of wall time, of CPU time of all processes) until a line holds ``until``, or until the command ends."""
    began, seen = time.perf_counter(), 0.0
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=root, env=environment
    ) as process:
        watch = Watch(process.pid)
        watch.start()
        assert process.stdout is not None
        for line in process.stdout:
            if until is not None and until in line and not seen:
                seen, cpu = time.perf_counter() - began, watch.stop()
        if until is None:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its times can still be read
            seen, cpu = time.perf_counter() - began, watch.stop()
    if not seen:
        raise SystemExit(f"{' '.join(command)}: no line with {until}")
    return seen, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--cases", default="typo,taken,local,ray,floor")
    parser.add_argument("--trees", default="", help="label=folder,..: this tree without a label by default")
    options = parser.parse_args()
    trees = dict(item.split("=", 1) for item in options.trees.split(",")) if options.trees else {"": str(ROOT)}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "taken").mkdir()
        (folder / "taken" / "config.yaml").write_text("name: taken\n")
        for case in options.cases.split(","):
            measured: dict[str, list[tuple[float, float]]] = {name: [] for name in (*trees, "torch")}
            for number in range(options.reps):
                for name, tree in trees.items() if case != "floor" else [(next(reversed(trees)), str(ROOT))]:
                    root = Path(tree).resolve()
                    python = root / ".venv" / "bin" / "python"
                    command = [str(python) if python.exists() else sys.executable, *commands(folder)[case]]
                    until = None
                    if case in ("local", "ray"):
                        command = [*command, str(folder / f"{case}{name}{number}")]
                    if case in ("local", "ray", "floor"):
                        until = '"round"'
                    measured[name].append(timed(command, until, root))
                measured["torch"].append(timed([sys.executable, "-c", "import torch"]))
            torch = [statistics.median(column) for column in zip(*measured.pop("torch"), strict=True)]
            for name, values in measured.items():
                if values:
                    wall, cpu = (statistics.median(column) for column in zip(*values, strict=True))
                    line = {"benchmark": "startup", "case": case, "wall_s": round(wall, 3), "cpu_s": round(cpu, 3)}
                    line |= {"torch_s": round(torch[0], 3), "torch_cpu_s": round(torch[1], 3)}
                    line |= {"ratio": round(wall / torch[0], 2), "cpu_ratio": round(cpu / torch[1], 2)}
                    print(json.dumps(({"label": name} if name else {}) | line), flush=True)


if __name__ == "__main__":
    main()
