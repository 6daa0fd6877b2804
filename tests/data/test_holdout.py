"""What is held out before images are dealt: counted, and against a draw that spares nobody."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.data.holdout import stratified_halves, stratified_share
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.leak.run import leak
from rayfed_ssl.simulation.checks import check_shards
from tests.data.columns import write
from tests.data.files import put, tree_of
from tests.dotted import dotted
from tests.tiny import run_locally

Draw = Callable[..., np.ndarray]


def fifth(labels: np.ndarray, clients: np.ndarray | None = None) -> np.ndarray:
    rest, held_out = stratified_halves(labels, 0.2, clients)
    assert np.array_equal(np.sort(np.r_[rest, held_out]), np.arange(len(labels)))
    return held_out


def half(labels: np.ndarray, clients: np.ndarray | None = None) -> np.ndarray:
    return stratified_share(labels, 0.5, 3, clients)


def emptied(held_out: np.ndarray, clients: np.ndarray) -> set[int]:
    return set(clients[clients >= 0].tolist()) - set(np.delete(clients, held_out).tolist())


@pytest.mark.parametrize("draw", [fifth, half])
def test_no_client_loses_its_last_image_and_nothing_else_changes(draw: Draw) -> None:
    some = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        labels = rng.integers(-1, 3, 200)
        clients = np.minimum(rng.geometric(0.03, 200), 60) - 2  # a long tail, and some images of nobody
        plain, spared = draw(labels), draw(labels, clients)
        lost = emptied(plain, clients)
        some += len(lost)
        assert emptied(spared, clients) == set()
        back, instead = np.setdiff1d(plain, spared), np.setdiff1d(spared, plain)
        assert sorted(clients[back].tolist()) == sorted(lost)  # one image each, and no other client's
        assert np.array_equal(np.bincount(labels[spared]), np.bincount(labels[plain]))  # shares stay
        assert set(clients[instead].tolist()).isdisjoint(lost)
        if not lost:
            assert np.array_equal(plain, spared)
    assert some > 40


def test_where_nobody_has_an_image_to_spare_fewer_are_held_out() -> None:
    labels = np.zeros(50, np.int64)
    assert len(fifth(labels)) == 10
    assert len(fifth(labels, np.arange(50))) == 0
    assert len(fifth(labels, np.r_[np.arange(46), [45] * 4])) == 4
    assert len(fifth(labels, np.r_[np.arange(25), [-1] * 25])) == 10
    with pytest.raises(
        UserError, match=r"^evaluation\.select: found a share of 0\.5, but no client has an image to spare"
    ):
        half(labels, np.arange(50))


def tailed(tmp_path: Path, **changes: object) -> RunConfig:
    """Clients a to h with 1 to 24 images of two classes in one Parquet file, and 6 images that are nobody's."""
    sizes = {"a": 1, "b": 24, "c": 2, "d": 1, "e": 20, "f": 3, "g": 1, "h": 24}
    clients = [name for name, size in sizes.items() for _ in range(size)] + [None] * 6
    order = np.random.default_rng(2).permutation(len(clients))
    labels = (np.arange(len(clients)) % 2).tolist()
    write(tmp_path / "all.parquet", label=labels, client=[clients[row] for row in order])
    document = {
        "method": {"name": "fedsimclr"},
        "data": {"name": "parquet", "path": str(tmp_path / "all.parquet"), "image_size": 8},
        "clients": {"count": 8, "encoders": "small_cnn"},
        "model": {"width": 0.1, "projector": {"hidden": [16], "dim": 8}},
        "train": {"rounds": 1, "batch_size": 8},
        "evaluation": {"protocols": ["knn"], "knn": {"k": 3}},
    }
    keys = {"data.columns.client": "client", "data.partition.name": "natural"} | dotted(**changes)
    return build(document, keys, origin="a test")


@pytest.mark.parametrize("select", [None, {"share": 0.3}])
def test_a_long_tail_of_clients_trains_but_for_those_that_are_too_small(
    tmp_path: Path, select: dict[str, float] | None
) -> None:
    config = tailed(tmp_path, evaluation__select=select)
    federation = load_federation(config, tmp_path / "cache")
    assert len(federation.clients) == 8  # nobody is emptied by the test images, or by what is held out
    with pytest.raises(UserError) as refused:
        check_shards(config, federation)
    assert str(refused.value).endswith("at least 2 (data.partition.min_size=2 leaves smaller clients out)")
    assert str(refused.value).startswith("data.partition: client 0 (a) has 1 image; the simclr objective needs")
    whole = federation.sizes
    for least in (2, 12):
        config = tailed(tmp_path, evaluation__select=select, data__partition__min_size=least)
        federation = load_federation(config, tmp_path / "cache")
        check_shards(config, federation)
        small = [client for client, size in enumerate(whole) if size < least]
        assert federation.sizes.tolist() == [0 if size < least else size for size in whole]
        assert federation.clients == tuple(client for client in range(8) if client not in small)
        clients = federation.dataset.train.clients
        assert clients is not None
        strays, left = texts(federation.notes())[-2:]
        assert strays.startswith(
            f"{(clients < 0).sum()} of {len(clients)} training images have no client (folder or value)"
        )
        found = f"below data.partition.min_size={least} images to train on: {len(small)} of 8 clients take no part, "
        assert left.startswith(f"{found}and their images, {whole[small].sum()} in all, are nobody's (a, ")


@pytest.mark.parametrize(
    ("smaller", "share", "named"),
    [(1, 0.6, "data.partition: client 0 (a) has 1 image"), (2, 0.9, "evaluation.select.share: found 0.9, which")],
)
def test_evaluation_select_is_named_where_it_took_what_a_client_lacks(
    smaller: int, share: float, named: str, tmp_path: Path
) -> None:
    clients = ["a"] * smaller + ["b"] * 40
    write(tmp_path / "train.parquet", label=[0, 1] * (len(clients) // 2) + [0] * (len(clients) % 2), client=clients)
    write(tmp_path / "test.parquet", label=[0, 1], client=["b", "b"])
    config = tailed(tmp_path, data__path=str(tmp_path), clients__count=2, evaluation__select={"share": share})
    federation = load_federation(config, tmp_path / "cache")
    assert federation.sizes[0] == 1
    with pytest.raises(UserError) as refused:
        check_shards(config, federation)
    assert str(refused.value).startswith(named)


@pytest.mark.long
def test_a_run_with_clients_left_out_ends_and_its_deal_can_be_taken_over(tmp_path: Path) -> None:
    config = tailed(tmp_path, data__partition__min_size=2)
    run_locally(config, tmp_path / "run")
    first = load_federation(config, None)
    with pytest.raises(
        UserError, match=r"^--client: found 3; .* clients 1 to 7, but for those who have no image to train"
    ):
        leak(tmp_path / "run", clients=[3])
    kept = {"name": "file", "path": str(tmp_path / "run/partition.parquet"), "partial": True}
    again = tailed(tmp_path, data__partition=kept | {"min_size": 1})
    assert [shard["train"].tolist() for shard in load_federation(again, None).shards] == [
        shard["train"].tolist() for shard in first.shards
    ]
    assert first.names == tuple("abcdefgh")
    with pytest.raises(UserError, match=r"client 0 .*has no image to train on.* \(the file lists none\)"):
        load_federation(tailed(tmp_path, data__partition=kept), None)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[0], range(1, 30), range(30, 60)], "but data.partition.min_size leaves it out"),
        ([range(30), [30], [31]], "and data.partition.min_size leaves all others out"),
    ],
)
def test_client_0_gives_its_images_away_only_where_it_and_another_take_part(
    tmp_path: Path, lists: list[list[int]], message: str
) -> None:
    (tmp_path / "lists.json").write_text(json.dumps([list(each) for each in lists]))
    partition = {"name": "file", "path": str(tmp_path / "lists.json"), "partial": True, "min_size": 5}
    config = tailed(
        tmp_path, data__partition=partition, clients__count=3, method__name="fedmd", data__public={"source": "client 0"}
    )
    given = "data.public.source: 'client 0' gives that client's images away"
    with pytest.raises(UserError, match=f"^{given},? {re.escape(message)}$"):
        load_federation(config, tmp_path / "cache")


@pytest.mark.parametrize("layout", ["clients", "classes"])
def test_client_folders_keep_an_image_to_train_on(tmp_path: Path, layout: str) -> None:
    singles = {f"solo{number:02d}/a/": 1 for number in range(16)}
    put(tmp_path / "d", tree_of(singles | {"many/a/": 14}))
    source = SourceConfig.model_validate({"name": "imagefolder", "path": tmp_path / "d", "layout": layout})
    found = load(source, tmp_path / "cache")
    if layout == "clients":
        assert found.train.clients is not None
        assert found.test.clients is not None
        assert len(set(found.train.clients.tolist())) == 17
        assert set(found.test.clients.tolist()) == {0}  # many
        assert len(found.test) == 6
    else:  # each is a class of its own, too small for a test image
        assert len(found.test) == 3


def test_images_that_are_dealt_anew_are_held_out_as_ever(tmp_path: Path) -> None:
    """Measured runs rest on these draws: only natural clients are spared."""
    config = tailed(tmp_path, evaluation__select={"share": 0.3}, data__partition__name="iid", clients__count=2)
    federation = load_federation(config, tmp_path / "cache")
    assert federation.held_out is not None
    labels, clients = federation.dataset.train.labels, federation.dataset.train.clients
    assert clients is not None
    assert federation.held_out.tolist() == stratified_share(labels, 0.3, config.seed).tolist()
    assert federation.held_out.tolist() != stratified_share(labels, 0.3, config.seed, clients).tolist()
    assert federation.partition_notes == ()


@pytest.mark.parametrize(("sizes", "said"), [((3, 10), True), ((2, 10), True), ((10, 101), False), ((5, 6), False)])
def test_a_fifth_that_is_none_is_called_rounded(tmp_path: Path, sizes: tuple[int, int], said: bool) -> None:
    """One image of three is a third of them, and none of two nothing."""
    labels = [0] * sizes[0] + [1] * sizes[1]
    write(tmp_path / "a.parquet", label=labels)
    put(tmp_path / "f", tree_of({"a": sizes[0], "b": sizes[1]}))
    held_out = sum(round(size / 5) for size in sizes)
    rounded = ", rounded to whole images" if said else ""
    for path, name, each in (("a.parquet", "parquet", " class"), ("f", "imagefolder", "")):
        config = SourceConfig.model_validate({"name": name, "path": tmp_path / path, "image_size": 8})
        notes = texts(load(config, tmp_path / "cache").notes)
        wanted = f"a fifth of each{each}{rounded}, {held_out} of {sum(sizes)} images, is held out as test images"
        assert any(wanted in note for note in notes)
