"""What a client actor computes without Ray: its environment, its cap on GPU memory, a repeated client in its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from actors.client import environment, fitting_share, memory_fraction, merged
from rayfed_ssl.aggregation import FixedPointSum
from rayfed_ssl.cohort import Chunk, ClientError
from rayfed_ssl.schema import UserError
from rayfed_ssl.workbench import Outcome

GB = 1e9


def test_the_cap_is_the_share_less_the_context() -> None:
    assert memory_fraction(0.25, 16 * GB) == pytest.approx((0.25 * 16 - 0.4) / 16)
    assert memory_fraction(0.5, 8 * GB, reserve_bytes=1 * GB) == pytest.approx(3 / 8)
    # four processes of a quarter, contexts included, stay within the GPU
    assert 4 * (memory_fraction(0.25, 16 * GB) * 16 + 0.4) == pytest.approx(16)  # type: ignore[operator]


@pytest.mark.parametrize("share", [0.0, 1.0, 2.0])
def test_no_cap_without_a_share_and_for_whole_gpus(share: float) -> None:
    assert memory_fraction(share, 16 * GB) is None


def test_a_share_below_the_context_is_refused() -> None:
    with pytest.raises(UserError, match=r"resources\.gpus_per_client: found 0\.02"):
        memory_fraction(0.02, 16 * GB)


def test_the_share_that_would_have_fitted() -> None:
    assert fitting_share(3 * GB, 0.6 * GB, 16 * GB) == 0.25  # 3 + 0.6 + 0.4 of 16
    assert fitting_share(3 * GB, 0.61 * GB, 16 * GB) == 0.26  # rounded up


def test_actors_without_a_gpu_share_see_no_gpu() -> None:
    assert environment(2, 0.0)["CUDA_VISIBLE_DEVICES"] == ""
    assert environment(2, 0.0)["OMP_NUM_THREADS"] == "2"
    assert "CUDA_VISIBLE_DEVICES" not in environment(2, 0.25)  # Ray says which


def test_a_repeated_client_stands_where_it_stood() -> None:
    def outcome(client: int) -> Outcome:
        return Outcome(client, {}, {})

    def total(weight: float, value: float) -> FixedPointSum:
        made = FixedPointSum()
        made.add(weight, {"x": np.array([value], np.float32)})
        return made

    failed, other = (ClientError(c, 1, "train", "here", "trace") for c in (7, 8))
    chunk = Chunk([outcome(5), outcome(9)], [{"a": 1}, {"a": 2}], [failed, other], total(0.75, 4.0))
    again: Any = Chunk([outcome(7)], [{"a": 3}], [], total(0.25, 8.0))
    result = merged(chunk, failed, again, [5, 7, 8, 9])
    assert [o.client for o in result.outcomes] == [5, 7, 9]
    assert [s["a"] for s in result.sizes] == [1, 3, 2]
    assert result.errors == [other]
    assert result.total is not None
    assert result.total.mean()["x"] == pytest.approx(5.0)  # 0.75 * 4 + 0.25 * 8
