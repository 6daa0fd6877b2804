"""Partitions from files: both formats, a run's own table, and every way in which a file may not fit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.partition import FromFile, Iid, client_names, hold_out, partition, take_public
from rayfed_ssl.data.partition_file import read_partition
from rayfed_ssl.records.tables import PartitionRows, write_partition

LABELS = np.arange(12) % 3
LISTS = [[0, 5, 1], [2, 3, 4, 11], [6, 7, 8, 9, 10]]


def write(path: Path, content) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def parquet(path: Path, **columns) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def rows_of(lists) -> dict[str, list[int]]:
    return {
        "client": [client for client, mine in enumerate(lists) for _ in mine],
        "index": [index for mine in lists for index in mine],
    }


def test_json_and_parquet_say_who_holds_what(tmp_path):
    tables = [parquet(tmp_path / name, **rows_of(LISTS)) for name in ("p.parquet", "P.PARQUET")]
    for path in (write(tmp_path / "p.json", LISTS), *tables):
        shards = partition(FromFile(path=path), LABELS, 3, 0)
        assert [shard.tolist() for shard in shards] == [sorted(mine) for mine in LISTS]


def test_a_client_column_of_text_and_a_mapping_name_clients(tmp_path):
    names = ["north", "south", "east"]
    rows = rows_of(LISTS)
    path = parquet(tmp_path / "p.parquet", client=[names[client] for client in rows["client"]], index=rows["index"])
    mapping = write(tmp_path / "p.json", dict(zip(names, LISTS, strict=True)))
    for found in (read_partition(path, LABELS), read_partition(mapping, LABELS)):
        assert found.names == ("east", "north", "south")
        assert [held.tolist() for held in found.lists] == [LISTS[2], LISTS[0], LISTS[1]]


@pytest.mark.parametrize("public", ["none", "share", "client 0"])
def test_a_runs_own_partition_comes_out_again(tmp_path, public):
    """``partition.parquet`` as a run writes it, read for a run with another seed."""
    indices, rest = np.array([], np.int64), np.arange(12)
    if public == "share":
        indices, rest = hold_out(12, 0.25, 7)
    shards = partition(Iid(), LABELS, 3, 7, indices=rest)
    written = list(shards)
    if public == "client 0":
        indices, written[0] = shards[0], shards[0][:0]
    write_partition(
        tmp_path,
        PartitionRows(
            {client: {"train": shard} for client, shard in enumerate(written)},
            labels=LABELS,
            public=indices if len(indices) else None,
            public_labels=LABELS[indices] if len(indices) else None,
        ),
    )
    config = FromFile(path=tmp_path / "partition.parquet")
    taken, left = np.array([], np.int64), np.arange(12)
    if public == "share":
        taken, left = take_public(config, LABELS, 0.25, 99)
        assert np.array_equal(taken, indices)
    again = partition(config, LABELS, 3, 99, indices=left)
    assert all(np.array_equal(one, other) for one, other in zip(shards, again, strict=True))


@pytest.mark.parametrize("public", ["none", "share", "client 0"])
def test_images_to_choose_by_are_nobodys_and_never_public(tmp_path, public):
    """Of a run with ``evaluation.select``: its rows without a client are public by their split, not by having none."""
    given, select = np.array([0, 3, 6, 9]), np.array([2, 5, 8, 11])
    shards = {0: {"train": np.array([1, 4])}, 1: {"train": np.array([7, 10] if public != "none" else [7, 10, *given])}}
    if public == "client 0":
        shards[0] = {"train": given[:0]}
        select = np.array([1, 2, 4, 5, 8, 11])
    taken = None if public == "none" else given
    write_partition(
        tmp_path,
        PartitionRows(
            shards,
            labels=LABELS,
            public=taken,
            public_labels=None if taken is None else LABELS[taken],
            held_out=select,
        ),
    )
    config = FromFile(path=tmp_path / "partition.parquet")
    found = read_partition(config.path, LABELS)
    assert found.public.tolist() == (given.tolist() if public == "share" else [])
    assert found.lists[0].tolist() == (given.tolist() if public == "client 0" else [1, 4])
    assert not set(select.tolist()) & {index for mine in found.lists for index in mine.tolist()}
    if public == "none":  # the share asked for
        assert np.array_equal(take_public(config, LABELS, 0.25, 3)[0], hold_out(12, 0.25, 3)[0])


@pytest.mark.parametrize("column", [[0] * 6 + [1] * 4 + [None, -1], ["a"] * 6 + ["b"] * 4 + [None, " "]])
@pytest.mark.parametrize("first", [0, 1])
def test_rows_of_nobody_are_nobodys_where_a_table_has_no_splits(tmp_path, column, first):
    if column[0] == 0:
        column = [value + first if value in (0, 1) else value for value in column]  # client 0 may hold nothing
    path = parquet(tmp_path / "p.parquet", client=column, index=list(range(12)))
    found = read_partition(path, LABELS)
    assert [mine.tolist() for mine in found.lists][-2:] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]
    assert (found.public.tolist(), found.nobodys) == ([], 2)
    assert [len(mine) for mine in found.lists[:-2]] == ([0] if column[0] == 1 else [])
    images: Any = SimpleNamespace(labels=LABELS)
    notes = FromFile(path=path).notes(images, np.arange(12), [np.arange(1)] * len(found.lists))
    assert list(texts(notes)) == [
        "data.partition.path: 2 of 12 training images are nobody's: the file gives them no client"
    ]


def test_images_that_a_file_leaves_out_are_counted_as_nobodys(tmp_path):
    path = write(tmp_path / "p.json", [[0, 1, 2], [3, 4]])
    assert read_partition(path, LABELS, partial=True).nobodys == 7


def said(path: Path, **metadata: object) -> Path:
    """The file with the metadata that a run writes."""
    found = pq.read_table(path).replace_schema_metadata({b"rayfed_ssl": json.dumps(metadata).encode()})
    pq.write_table(found, path)
    return path


@pytest.mark.parametrize(
    ("metadata", "rows", "message"),
    [
        ({"clients": 2, "public": "none"}, rows_of(LISTS), r"says 2 clients, but a row is client 2's; allowed: 0 to 1"),
        (
            {"clients": 3, "public": "none"},
            {"client": [1] * 6 + [2] * 4 + [None] * 2, "index": list(range(12))},
            r"says that no image is public, but 2 rows are; allowed: none",
        ),
        ({"clients": 3, "public": "client 0"}, rows_of(LISTS), r"client 0's images are public, but it holds 3 others"),
        ({"clients": 0, "public": "none"}, rows_of(LISTS), r"metadata rayfed_ssl=.*; allowed: clients, from 1 on, and"),
        ({"clients": True, "public": "none"}, rows_of(LISTS), r"allowed: clients, from 1 on, and"),
        ({"clients": 3, "public": "all"}, rows_of(LISTS), r"public, one of client 0, share, none"),
        ({"clients": 3}, rows_of(LISTS), r"public, one of client 0, share, none"),
    ],
)
def test_rows_that_are_not_those_of_the_metadata_are_refused(tmp_path, metadata, rows, message):
    path = said(parquet(tmp_path / "p.parquet", **rows), **metadata)
    with pytest.raises(UserError, match=message) as error:
        read_partition(path, LABELS)
    assert "\n" not in str(error.value)


def test_the_metadata_says_how_many_clients_there_are_and_whose_public_images_were(tmp_path):
    rows = {"client": [1] * 6 + [2] * 4 + [None] * 2, "index": list(range(12))}
    bare = read_partition(parquet(tmp_path / "p.parquet", **rows), LABELS)
    assert ([len(mine) for mine in bare.lists], bare.public.tolist(), bare.nobodys) == ([0, 6, 4], [], 2)
    share = read_partition(said(parquet(tmp_path / "p.parquet", **rows), clients=5, public="share"), LABELS)
    assert ([len(mine) for mine in share.lists], share.public.tolist()) == ([0, 6, 4, 0, 0], [10, 11])
    given = read_partition(said(parquet(tmp_path / "p.parquet", **rows), clients=3, public="client 0"), LABELS)
    assert ([len(mine) for mine in given.lists], given.public.tolist()) == ([2, 6, 4], [])


def test_tasks_splits_are_known_but_only_train_is_shared_out(tmp_path):
    splits = {"train": np.array([0, 1]), "es": np.array([2]), "rb": np.array([3]), "test": np.array([4, 5])}
    other = {"train": np.array([6, 7, 8]), "es": np.array([9]), "rb": np.array([10]), "test": np.array([11])}
    write_partition(tmp_path, PartitionRows({0: splits, 1: other}, labels=LABELS, public=None))
    shards = partition(FromFile(path=tmp_path / "partition.parquet"), LABELS, 2, 0)
    assert [shard.tolist() for shard in shards] == [[0, 1], [6, 7, 8]]


def test_public_images_taken_out_first_are_nobodys(tmp_path):
    path = write(tmp_path / "p.json", LISTS)
    public, rest = take_public(FromFile(path=path), LABELS, 0.25, 3)
    assert np.array_equal(public, hold_out(12, 0.25, 3)[0])
    shards = partition(FromFile(path=path), LABELS, 3, 3, indices=rest)
    assert [shard.tolist() for shard in shards] == [sorted(set(mine) - set(public.tolist())) for mine in LISTS]


def test_names_fall_back_on_numbers(tmp_path):
    class Held:
        labels, client_names = LABELS, ()

    path = write(tmp_path / "p.json", LISTS)
    assert client_names(FromFile(path=path), Held, 3) == ("client 0", "client 1", "client 2")
    assert client_names(Iid(), Held, 2) == ("client 0", "client 1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([[0, 1, 1], *LISTS[1:]], r"holds the index 1 twice"),
        ([[*LISTS[0], 2], *LISTS[1:]], r"holds the index 2 twice"),
        (
            [[*LISTS[0], 12], *LISTS[1:]],
            r"holds the index 12, but there are 12 training images; allowed: 0 to 11 .*size",
        ),
        ([[*LISTS[0], -1], *LISTS[1:]], r"holds the index -1, but there are 12"),
        ([LISTS[0], LISTS[1], [6, 7]], r"names 9 of 12 training images \(.*another size.*partial=true"),
        ([*LISTS[:2], LISTS[2][:2], LISTS[2][2:]], r"clients\.count: 3, but .* has 4 clients; set clients\.count=4"),
        ([LISTS[0] + LISTS[1], LISTS[2], []], r"client 2 has no image to train on \(the file lists none\)"),
        ({"clients": LISTS}, r"has '?\[.* among the indices; allowed: JSON"),
        ({"north": LISTS[0], "south": 3}, r"has no list of lists; allowed: JSON"),
        ({" ": LISTS[0]}, r"has the name ' '"),
        ([0, 1, 2], r"has no list of lists"),
        ([[0, "1"], [2], [3]], r"'1' among the indices"),
        ([[0.5], [2], [3]], r"0\.5 among the indices"),
        ([[True], [2], [3]], r"True among the indices"),
        ([[10**30], [2], [3]], r"an index beyond 2\^62"),
        ("[[0, 1", r"has no JSON"),
        ("[" * 100_000, r"has no JSON|no list of lists"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(tmp_path, content, message):
    path = write(tmp_path / "p.json", content)
    with pytest.raises(UserError, match=message) as error:
        partition(FromFile(path=path), LABELS, 3, 0)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"index": [0]}, r"has the columns index; allowed"),
        ({"client": [0] * 12, "index": [0.5] * 12}, r"an index that is no integer"),
        ({"client": [0] * 12, "index": [None, *range(11)]}, r"an index that is no integer"),
        ({"client": [10**8] * 12, "index": list(range(12))}, r"has the client 100000000"),
        ({"client": [0.5] * 12, "index": list(range(12))}, r"clients of type double"),
        (rows_of(LISTS) | {"label": [0] * 12}, r"gives image 5 the label 0, which is 2 here \(8 such images\)"),
    ],
)
def test_tables_that_do_not_fit_are_refused(tmp_path, columns, message):
    path = parquet(tmp_path / "p.parquet", **columns)
    with pytest.raises(UserError, match=message):
        partition(FromFile(path=path), LABELS, 3, 0)


def test_partial_files_leave_the_rest_to_nobody(tmp_path):
    path = write(tmp_path / "p.json", [[0], [5, 7], [1]])
    shards = partition(FromFile(path=path, partial=True), LABELS, 3, 0)
    assert [shard.tolist() for shard in shards] == [[0], [5, 7], [1]]


def test_files_that_cannot_be_read_are_named(tmp_path):
    def refused(path: Path, message: str) -> None:
        with pytest.raises(UserError, match=message) as error:
            read_partition(path, LABELS)
        assert str(error.value).isprintable()

    refused(tmp_path / "none.json", r"data\.partition\.path: .*none\.json cannot be read \(No such file")
    refused(tmp_path, r"is no regular file")
    refused(tmp_path / ("x" * 5000), r"cannot be read \(File name too long\)")
    refused(tmp_path / "a\0b", r"cannot be read")
    os.mkfifo(tmp_path / "fifo.json")
    refused(tmp_path / "fifo.json", r"is no regular file")
    refused(write(tmp_path / "p.parquet", "text"), r"has no readable Parquet")
