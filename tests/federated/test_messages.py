"""What a server keeps of the replies it was given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.messages import Averaging, copy_views

MESSAGE = np.arange(64, dtype=np.float32)


def test_what_is_kept_holds_no_message_and_has_the_same_bits() -> None:
    view = MESSAGE[8:16].reshape(2, 4).T
    state: dict[str, Any] = {
        "bank": {3: view},
        "listed": [MESSAGE[:4], (MESSAGE[4:8], 1, None)],
        "weights": Weights("layout", MESSAGE[16:], 40),
    }
    bank, listed = state["bank"], state["listed"]
    copy_views(state)
    kept = [bank[3], listed[0], listed[1][0], state["weights"].vector]
    assert not any(np.shares_memory(array, MESSAGE) for array in kept)
    assert state["bank"] is bank  # in place: every holder of the bank holds what is in it
    assert state["listed"] is listed
    np.testing.assert_array_equal(bank[3], view)
    assert bank[3].strides == (4, 16)  # in the same order, on which sums depend
    np.testing.assert_array_equal(listed[1][0], MESSAGE[4:8])
    assert listed[1][1:] == (1, None)
    assert (state["weights"].layout, state["weights"].parameters) == ("layout", 40)


def test_what_is_the_servers_own_stays_and_what_stands_twice_is_copied_once() -> None:
    own, view, weights = np.ones(3), MESSAGE[:2], Weights("layout", MESSAGE[2:], 3)
    server: dict[str, Any] = {"own": own, "views": {0: view, 1: view}, "models": [weights, weights]}
    plugin: dict[str, Any] = {"view": view}
    copy_views(server, plugin)
    assert server["own"] is own
    assert server["views"][0] is server["views"][1] is plugin["view"]
    assert server["models"][0] is server["models"][1]
    again = dict(server["views"])
    copy_views(server)
    assert server["views"][0] is again[0]


def test_what_is_published_stays_as_it_is() -> None:
    published = {"views": [MESSAGE[:4], MESSAGE[4:8]], "weights": Weights("layout", MESSAGE[8:], 40)}
    state: dict[str, Any] = {"own": [*published["views"], MESSAGE[8:16]], "model": published["weights"]}
    own = list(state["own"])
    copy_views(state, published=published)
    assert state["own"][0] is own[0]
    assert state["own"][1] is own[1]
    assert state["own"][2] is not own[2]
    assert state["model"] is published["weights"]


def test_what_was_read_only_stays_so() -> None:
    frozen = MESSAGE[:4]
    frozen.flags.writeable = False
    state = {"frozen": frozen, "free": MESSAGE[4:8]}
    copy_views(state)
    with pytest.raises(ValueError, match="read-only"):
        state["frozen"][0] = 1
    state["free"][0] = -1
    assert MESSAGE[4] == 4


@pytest.mark.parametrize("counts", [[0.0, 0.0], [1.0, -1.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_counts_that_are_no_weights_are_refused(counts: list[float]) -> None:
    with pytest.raises(ValueError, match="must be finite, none below 0 and one above"):
        Averaging.over([3, 5], {3: counts[0], 5: counts[1]}, ["weights"])


def test_counts_are_normalised() -> None:
    assert Averaging.over([3, 5], {3: 1.0, 5: 3.0, 7: 9.0}, ["weights"]).weights == {3: 0.25, 5: 0.75}
