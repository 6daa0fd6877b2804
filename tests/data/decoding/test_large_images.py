"""Large encoded images: how much of a Parquet file lies in memory while it is read and decoded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayfed_ssl.data.decoding import threads
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.decoding.threads import WAITING_BYTES, decoded_blocks
from rayfed_ssl.data.images import BadImage
from rayfed_ssl.data.readers.parquet.files import BYTES_AT_A_TIME, few_rows, readable

MIB = 2**20


@pytest.mark.long
@pytest.mark.parametrize("group", [4, 64])
def test_a_file_of_large_images_is_read_a_few_at_a_time(tmp_path: Path, group: int) -> None:
    images = [np.random.default_rng(row).bytes(2 * MIB) for row in range(64)]
    file = tmp_path / "scans.parquet"
    pq.write_table(pa.table({"image": images}), file, compression="none", use_dictionary=False, row_group_size=group)
    read: list[bytes] = []
    before, most = pa.total_allocated_bytes(), 0
    with readable(file, "data") as opened:
        for batch in few_rows(opened, ["image"]):
            most = max(most, pa.total_allocated_bytes() - before)
            assert batch.nbytes <= BYTES_AT_A_TIME
            read += batch.column("image").to_pylist()
    assert read == images
    if group == 4:
        assert most < 48 * MIB  # of the file's 128


def test_small_images_of_many_row_groups_are_all_read_in_order(tmp_path: Path) -> None:
    images = [bytes([row % 256]) for row in range(2000)]
    file = tmp_path / "icons.parquet"
    pq.write_table(pa.table({"image": images, "id": range(2000)}), file, row_group_size=900)
    with readable(file, "data") as opened:
        batches = list(few_rows(opened, ["image", "id"]))
    assert max(map(len, batches)) <= 512
    assert [value for batch in batches for value in batch.column("image").to_pylist()] == images
    assert [value for batch in batches for value in batch.column("id").to_pylist()] == list(range(2000))


def test_no_more_large_images_are_read_than_are_soon_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    payload, decoded, most = b"x" * MIB, [], 0

    def slow(payload: bytes, form: ImageForm) -> None:
        time.sleep(0.0005)
        decoded.append(len(payload))
        raise BadImage("none")

    def rows() -> Iterator[tuple[int, bytes]]:
        nonlocal most
        for row in range(1500):
            most = max(most, (row + 1) * MIB - sum(decoded))
            yield row, payload

    monkeypatch.setattr(threads, "decode", slow)
    monkeypatch.setattr(threads, "THREADS", 16)
    blocks = list(decoded_blocks(rows(), ImageForm(8), 256))
    assert [len(names) for names, _ in blocks] == [256] * 5 + [220]
    assert [name for names, _ in blocks for name in names] == list(range(1500))
    assert all(len(names) == len(results) for names, results in blocks)
    assert most <= WAITING_BYTES + 16 * MIB
