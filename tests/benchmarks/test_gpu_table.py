"""The tables of speed on a GPU, from lines that are made up: the newest of each kind, and nothing from a CPU."""

from __future__ import annotations

from typing import Any

import gpu_table
import pytest

MACHINE = {"device": "H100", "torch": "2.11.0", "day": "2026-11-26", "size": "full"}


def line(benchmark: str, commit: str = "aaaa", **values: Any) -> dict[str, Any]:
    return {"benchmark": benchmark, **values, **MACHINE, "commit": commit} | values


def step(batch: int, rate: float, **values: Any) -> dict[str, Any]:
    known = {"share_of_ceiling": 0.1, "syncs_per_step": 0.0, "graph_speedup": 2.0, "same_bits": True}
    return line("step", objective="simclr", batch=batch, pairs_per_s=rate, graph_pairs_per_s=2 * rate, **known | values)


CEILING = line("ceiling", copy_gb_s=2958.4, bf16_tflop_s=753.5)
ACTORS = line("actors", "bbbb", actors=4, mps=False, round_s=3.836, times_one_process=1.054, same_bits=True)
LINES = [
    CEILING, step(16, 1000), step(128, 5000), step(128, 8000),  # the second replaces the first
    line("augmentation", "bbbb", batch=128, pairs_per_s=64_000), ACTORS, line("cap", "bbbb", share=0.25, held=True),
]  # fmt: skip


def test_the_newest_of_each_kind() -> None:
    text = gpu_table.section(LINES)
    assert "H100, torch 2.11.0, 2026-11-26, commits `aaaa`, `bbbb`. A copy moves 2,958 GB/s" in text
    assert "| simclr | 16 | 1,000 | 2,000 (2.00 x) | 20.0% | 0 | yes |" in text
    assert "| simclr | 128 | 8,000 | 16,000 (2.00 x) | 20.0% | 0 | yes |" in text
    assert "5,000" not in text
    assert "| 128 | 64,000 | 2.00 | 25% |" in text  # 128 pairs at 64,000 a second; a step takes 128 / 16,000 s
    assert "| 4 | 3.84 s | 1.05 | yes |" in text
    assert "An actor with a share of 0.25 that asked for 1.2 times it was refused." in text


def test_a_graph_that_is_slower_leaves_the_share_as_it_is() -> None:
    assert "| 10.0% |" in gpu_table.section([CEILING, step(16, 1000, graph_speedup=0.9)])


def test_lines_of_a_cpu_or_of_the_small_size_are_no_measurements() -> None:
    assert gpu_table.section([{**step(16, 1000), "device": "cpu"}]) == gpu_table.NOT_MEASURED
    assert gpu_table.section([{**step(16, 1000), "size": "small"}]) == gpu_table.NOT_MEASURED


def test_another_gpu_has_tables_of_its_own_and_a_part_may_be_missing() -> None:
    other = {**step(16, 7000), "device": "H200", "commit": "cccc"}
    text = gpu_table.section([*LINES, other])
    first, second = text.split("\n\nH200")
    assert "7,000" not in first
    assert "| simclr | 16 | 7,000 |" in second
    assert "commits `cccc`" in second
    assert "ceiling below" not in second


def test_a_round_and_an_evaluation_are_sentences() -> None:
    whole = line("round", clients=10, round_s=2.957, clients_s=2.851, ratio=1.0328)
    text = gpu_table.section([whole, line("evaluation", images=1500, protocols=["knn", "linear"], seconds=0.837)])
    assert (
        "In one process a round of 10 clients takes 2.96 s, 1.03 times their work. kNN and linear probe with " in text
    )
    assert text.endswith("with 1,500 images take 0.84 s.")


@pytest.mark.parametrize("same", [True, False])
def test_readmes_sentence(same: bool) -> None:
    text = " ".join(gpu_table.sentence([*LINES, {**ACTORS, "same_bits": same}]).split())
    assert "trains on 16,000 pairs of views a second at batches of 128. 4 actors that share it are 1.05 times" in text
    assert text.endswith("but not with the same bits.") == (not same)
    assert gpu_table.sentence(LINES[:2]) == gpu_table.NOT_MEASURED


def test_readme_speaks_of_the_gpu_that_was_measured_last() -> None:
    other = [{**one, "device": "H200"} for one in (step(128, 9000), {**ACTORS, "mps": True, "times_one_process": 0.97})]
    text = " ".join(gpu_table.sentence([*LINES, *other]).split())
    assert text.startswith("On one H200, SimCLR")
    assert "18,000 pairs" in text
    assert "4 actors that share it under MPS are 0.97 times as fast" in text
    assert gpu_table.sentence([*LINES, other[0]]) == gpu_table.sentence(LINES)  # it has no actors
