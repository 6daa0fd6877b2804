"""A run in this process takes as many threads as it is configured to, however many this process would take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from rayfed_ssl.testing.tiny import encoders, measured, run_locally
from tests.tiny import tiny

WIDE = {"model.projector.hidden": [1550, 1550], "model.projector.batch_norm": "none"}  # one tensor of 2.4 million
SHORT = {
    "clients.count": 2,
    "data.limit": 40,
    "data.partition.name": "iid",
    "train.rounds": 1,
    "train.local_steps": 1,
    "evaluation.protocols": [],
}


def dot() -> float:
    """A sum that two threads round otherwise than one."""
    x, y = np.random.default_rng(0).normal(size=(2, 2_400_000))
    return float(np.dot(x, x + y))


@pytest.fixture
def controller() -> ThreadpoolController:
    """Numpy's BLAS; skips where this one gives the same bits with two threads."""
    found = ThreadpoolController().select(user_api="blas")
    with found.limit(limits=1):
        one = dot()
    with found.limit(limits=2):
        two = dot()
    if one == two:
        pytest.skip("this BLAS rounds alike with one thread and with two")
    return found


@pytest.mark.long
@pytest.mark.parametrize("method", ["ldawa", "fedema"])
def test_the_bits_do_not_depend_on_the_threads_of_numpys_process(
    method: str, controller: ThreadpoolController, tmp_path: Path
) -> None:
    own = {"ldawa": {"method.warmup": 0}, "fedema": {"method.divergence": "paper", "train.rounds": 3}}[method]
    changes = {key.replace(".", "__"): value for key, value in {**WIDE, **SHORT, **own}.items()}
    for count in (1, 2):
        with controller.limit(limits=count):
            run_locally(tiny(method, **changes), tmp_path / str(count))
            assert {library["num_threads"] for library in controller.info()} == {count}  # as it was before
    assert measured(tmp_path / "1") == measured(tmp_path / "2")
    assert encoders(tmp_path / "1") == encoders(tmp_path / "2")
