"""``outcomes.parquet`` holds what was counted, in few bytes, and is read back as shares of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.evaluation import Outcomes
from rayfed_ssl.records.outcomes import FILE, outcomes_by_client, read_outcomes, write_outcomes

LABELS = np.array([3, -1, 0, 3])  # the second test image has none


def outcomes(knn: list[int], fewshot: list[int]) -> Outcomes:
    return Outcomes({"knn": np.array(knn, np.uint8), "fewshot": np.array(fewshot, np.uint8)}, {"knn": 1, "fewshot": 4})


def test_a_row_is_a_test_image_and_an_encoder(tmp_path: Path) -> None:
    write_outcomes(tmp_path, 7, {2: outcomes([1, 0, 0], [4, 3, 0]), 0: outcomes([1, 1, 0], [2, 0, 0])}, LABELS)
    table = pq.read_table(tmp_path / FILE)
    assert table.to_pydict() == {
        "client": [0, 0, 0, 2, 2, 2], "index": [0, 2, 3, 0, 2, 3], "label": [3, 0, 3, 3, 0, 3],
        "knn": [1, 1, 0, 1, 0, 0], "fewshot": [2, 0, 0, 4, 3, 0],
    }  # fmt: skip
    assert [table.schema.field(name).type for name in ("client", "index", "knn")] == [
        pa.int32(),
        pa.int64(),
        pa.uint8(),
    ]
    assert table.schema.metadata == {b"round": b"7", b"draws": b'{"knn": 1, "fewshot": 4}'}
    found = read_outcomes(tmp_path)
    assert found is not None
    assert (found.round, found.index.tolist(), found.labels.tolist()) == (7, [0, 2, 3], [3, 0, 3])
    assert found.shares["knn"].tolist() == [1.0, 0.5, 0.0]
    assert found.shares["fewshot"].tolist() == [6 / 8, 3 / 8, 0.0]


def test_an_area_has_a_column_of_what_images_contribute_to_it(tmp_path: Path) -> None:
    """To the last bit; of encoders and draws the mean. A balanced accuracy has none: it is read out of its accuracy."""
    parts = {client: np.array([0.1 + client, 0.7, 1 / 3]) for client in (0, 1)}
    kept: dict[int | None, Outcomes] = {
        client: Outcomes({"knn": np.array([1, 0, 1], np.uint8), "fewshot_auc": part}, {"knn": 1, "fewshot_auc": 2})
        for client, part in parts.items()
    }
    write_outcomes(tmp_path, 1, kept, LABELS)
    assert pq.read_table(tmp_path / FILE)["fewshot_auc"].to_pylist() == [*parts[0], *parts[1]]
    again = outcomes_by_client(tmp_path)
    assert again[1].right["fewshot_auc"].tolist() == parts[1].tolist()
    assert again[1].right["knn"].dtype == np.uint8
    assert again[1].share("fewshot_auc") == pytest.approx((1.1 + 0.7 + 1 / 3) / 6)
    found = read_outcomes(tmp_path)
    assert found is not None
    mean = (parts[0] + parts[1]) / 4
    assert found.of("fewshot_auc", float(mean.mean())) == pytest.approx(mean)
    assert (found.has("knn_balanced_accuracy"), found.has("linear_balanced_accuracy")) == (True, False)
    assert found.of("knn_balanced_accuracy", 0.5) == pytest.approx([1, 0, 1])  # of label 3 all, of label 0 none
    assert found.of("knn_balanced_accuracy", 2 / 3) is None


def test_a_global_encoder_and_named_clients(tmp_path: Path) -> None:
    write_outcomes(tmp_path, 1, {None: outcomes([1, 0, 1], [0, 0, 4])}, LABELS, ["north", "south"])
    assert pq.read_table(tmp_path / FILE)["client"].to_pylist() == [None] * 3
    assert pq.read_table(tmp_path / FILE)["client_name"].to_pylist() == [None] * 3
    write_outcomes(tmp_path, 1, {1: outcomes([1, 0, 1], [0, 0, 4])}, LABELS, ["north", "south"])
    assert pq.read_table(tmp_path / FILE).column_names[-1] == "client_name"
    assert pq.read_table(tmp_path / FILE)["client_name"].to_pylist() == ["south"] * 3
    found = read_outcomes(tmp_path)
    assert found is not None
    assert set(found.shares) == {"knn", "fewshot"}


def test_beside_a_global_encoder_clients_do_not_count(tmp_path: Path) -> None:
    """As in the summary, whose accuracy is the global encoder's there."""
    write_outcomes(tmp_path, 1, {1: outcomes([1, 1, 1], [4, 4, 4]), None: outcomes([1, 0, 0], [0, 0, 4])}, LABELS)
    found = read_outcomes(tmp_path)
    assert found is not None
    assert found.shares["knn"].tolist() == [1.0, 0.0, 0.0]
    assert found.of("fewshot", 1 / 3) is not None
    assert sorted(outcomes_by_client(tmp_path), key=str) == [1, None]


def test_a_score_that_not_all_encoders_have_is_left_out(tmp_path: Path) -> None:
    without = Outcomes({"knn": np.zeros(3, np.uint8)}, {"knn": 1})
    write_outcomes(tmp_path, 1, {0: outcomes([1, 1, 1], [1, 1, 1]), 1: without}, LABELS)
    assert pq.read_table(tmp_path / FILE).column_names == ["client", "index", "label", "knn"]
    write_outcomes(tmp_path, 1, {0: without, 1: Outcomes({}, {})}, LABELS)
    assert not (tmp_path / FILE).exists()  # nor an earlier one, of other rounds
    assert read_outcomes(tmp_path) is None


def test_shares_that_are_not_of_the_recorded_accuracy_are_not_given(tmp_path: Path) -> None:
    write_outcomes(tmp_path, 1, {None: outcomes([1, 0, 1], [0, 0, 4])}, LABELS)
    found = read_outcomes(tmp_path)
    assert found is not None
    assert found.of("knn", 2 / 3) is found.shares["knn"]
    assert found.of("knn", 2 / 3 + 1e-6) is None
    assert found.of("linear", 2 / 3) is None


@pytest.mark.parametrize("how", ["cut", "no metadata", "rows missing"])
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, how: str) -> None:
    path = tmp_path / FILE
    write_outcomes(tmp_path, 1, {0: outcomes([1, 0, 1], [0, 0, 4]), 1: outcomes([1, 0, 1], [0, 0, 4])}, LABELS)
    table = pq.read_table(path)
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    elif how == "no metadata":
        pq.write_table(table.replace_schema_metadata(None), path)
    else:
        pq.write_table(table.slice(1), path)
    with pytest.raises(UserError, match=r"outcomes\.parquet: cannot be read \(.*\); move it away to go on without it"):
        read_outcomes(tmp_path)


def test_ten_thousand_images_of_an_encoder_take_few_bytes(tmp_path: Path) -> None:
    rng, size = np.random.default_rng(0), 10_000
    right = {"knn": rng.random(size) < 0.6, "linear": rng.random(size) < 0.7, "fewshot": rng.binomial(20, 0.5, size)}
    counted = Outcomes(
        {name: of.astype(np.uint8) for name, of in right.items()}, {"knn": 1, "linear": 1, "fewshot": 20}
    )
    write_outcomes(tmp_path, 1, {None: counted}, rng.integers(0, 10, size))
    assert (tmp_path / FILE).stat().st_size < 2.2 * size  # bits: 1 + 1 + 5 of counts, 4 of labels, and none of indices
