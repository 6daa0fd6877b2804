"""Who holds which images: names of clients, their own test images, seeds of the split, files, feature skew."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.data.corruptions import rotation
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.federated.federation import Federation, load_federation, require_public
from rayfed_ssl.federated.remarks import remarks
from rayfed_ssl.methods import METHODS
from rayfed_ssl.records.tables import PartitionRows, write_partition
from rayfed_ssl.simulation.checks import image_notes
from tests.data.columns import write
from tests.data.files import write_parquet
from tests.dotted import dotted
from tests.tiny import tiny


def run(tmp_path: Path, changes: dict[str, object] | None = None) -> RunConfig:
    document = {
        "method": {"name": "fedsimclr"},
        "data": {"name": "digits", "image_size": 8, "limit": 120, "test_limit": 20},
        "clients": {"count": 3},
    }
    return build(document, changes or {}, origin="a test")


def loaded(tmp_path: Path, **changes) -> Federation:
    return load_federation(run(tmp_path, dotted(**changes)), tmp_path / "cache")


def held(federation: Federation) -> list[list[int]]:
    return [shard["train"].tolist() for shard in federation.shards]


def put(root: Path, names: list[str]) -> Path:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), number * 10, np.uint8)).save(root / name)
    return root


FOLDERS = [
    "train/ward 7/a/1.png", "train/ward 7/b/1.png", "train/ambulance/a/1.png", "train/ambulance/b/2.png",
    "test/ambulance/a/1.png", "test/a/1.png", "test/ward 7/b/1.png", "test/ward 7/a/1.png",
]  # fmt: skip


def of_folders(tmp_path: Path, **changes) -> Federation:
    root = put(tmp_path / "images", FOLDERS)
    config = RunConfig.model_validate(
        {
            "method": {"name": "fedsimclr"},
            "data": {"name": "imagefolder", "path": str(root), "layout": "clients", "image_size": 8} | changes,
            "clients": {"count": 2},
        }
    )
    return load_federation(config, tmp_path / "cache")


@pytest.mark.parametrize("name", ["folders", "natural"])
def test_clients_of_folders_have_their_names_and_their_own_test_images(tmp_path, name):
    federation = of_folders(tmp_path, partition={"name": name})
    assert federation.names == ("ambulance", "ward 7")
    test = federation.dataset.test
    assert [len(rows) for rows in federation.own_tests] == [1, 2]
    colours = [sorted(test.pixels[rows, 0, 0, 0].tolist()) for rows in federation.own_tests]
    assert colours == [[40], [60, 70]]


def test_other_partitions_of_the_same_folders_have_neither(tmp_path):
    federation = of_folders(tmp_path, partition={"name": "iid"})
    assert federation.names == ("client 0", "client 1")
    assert federation.own_tests is None


def test_the_splits_own_seed_lets_runs_differ_on_one_split(tmp_path):
    public = {"data__public": {"source": "share", "share": 0.2}}
    first = loaded(tmp_path, seed=1, data__partition__seed=7, **public)
    second = loaded(tmp_path, seed=2, data__partition__seed=7, **public)
    as_before = loaded(tmp_path, seed=7, **public)
    assert held(first) == held(second) == held(as_before)
    assert np.array_equal(first.public_indices, second.public_indices)
    assert held(first) != held(loaded(tmp_path, seed=1, **public))


def test_tasks_follow_the_splits_seed_too(tmp_path):
    tasks = {"data__tasks": [[0, 1], [2, 3], [4, 5]], "data__public": {"source": "share", "share": 0.2}}
    first = loaded(tmp_path, seed=1, data__partition__seed=7, **tasks)
    assert held(first) == held(loaded(tmp_path, seed=7, **tasks)) != held(loaded(tmp_path, seed=1, **tasks))
    assert first.names == ("client 0", "client 1", "client 2")


def test_a_runs_partition_is_taken_over_with_its_public_images(tmp_path):
    public = {"data__public": {"source": "share", "share": 0.25}}
    first = loaded(tmp_path, seed=1, **public)
    labels = first.dataset.train.labels
    indices = first.public_indices
    write_partition(
        tmp_path,
        PartitionRows(dict(enumerate(first.shards)), labels=labels, public=indices, public_labels=labels[indices]),
    )
    path = str(tmp_path / "partition.parquet")
    second = loaded(tmp_path, seed=2, data__partition={"name": "file", "path": path}, **public)
    assert held(second) == held(first)
    assert np.array_equal(second.public_indices, indices)
    with pytest.raises(UserError, match=r"data\.partition\.path: .*index \d+, but there are 60 training images"):
        loaded(tmp_path, data__limit=60, data__partition={"name": "file", "path": path})
    with pytest.raises(UserError, match=r"names 120 of 200 training images"):
        loaded(tmp_path, data__limit=200, data__partition={"name": "file", "path": path})


def test_a_file_of_lists(tmp_path):
    lists = [list(range(0, 120, 3)), list(range(1, 120, 3)), list(range(2, 120, 3))]
    path = tmp_path / "lists.json"
    path.write_text(json.dumps(lists))
    assert held(loaded(tmp_path, data__partition={"name": "file", "path": str(path)})) == lists


def test_feature_skew_reaches_what_clients_train_on(tmp_path):
    skew = {"name": "feature_skew", "corruptions": ["none", "rotation"], "severity": 4}
    plain, skewed = loaded(tmp_path), loaded(tmp_path, data__partition=skew)
    assert held(plain) == held(skewed)  # the split itself is the iid one
    for client, turned in ((0, False), (1, True), (2, False)):
        row = skewed.shards[client]["train"][0]
        before, after = plain.dataset.train.pixels[row], skewed.dataset.train.pixels[row]
        expected = rotation(before, 4, np.random.default_rng()) if turned else before
        assert np.array_equal(after, expected)
    assert skewed.dataset.digest != plain.dataset.digest


def test_public_images_take_the_runs_channels(tmp_path):
    public = {"source": "source", "images": {"name": "digits", "image_size": 8}}
    federation = loaded(tmp_path, data__channels=1, data__public=public)
    assert federation.dataset.train.pixels.shape[1:] == federation.public.pixels.shape[1:] == (8, 8, 1)


def test_public_images_in_folders_need_neither_classes_nor_test_images(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    for image, name in zip(pixels, ("1", "2", "nested/deep/3"), strict=True):
        file = tmp_path / f"scans/train/{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)
    images = {"name": "imagefolder", "path": str(tmp_path / "scans"), "image_size": 8}
    federation = loaded(tmp_path, data__image_size=8, data__public={"source": "source", "images": images})
    assert np.array_equal(federation.public.pixels, pixels)


def test_a_share_cannot_be_taken_out_of_natural_clients(tmp_path):
    with pytest.raises(UserError, match=r"data\.public\.source: 'share' cannot be taken out of `natural`"):
        run(tmp_path, {"data.partition": {"name": "natural"}, "data.public": {"source": "share"}})
    for partition, allowed in (("folders", "client 0, source"), ("iid", "client 0, share, source")):
        with pytest.raises(UserError, match=f"flesd needs public images; allowed: {allowed}$"):
            run(tmp_path, {"method": {"name": "flesd"}, "data.partition": {"name": partition}})


def test_public_images_of_client_0_are_as_client_0_has_them(tmp_path):
    changes = {"method": {"name": "flesd"}, "data.partition": {"name": "feature_skew", "corruptions": ["rotation"]}}
    config = run(tmp_path, changes | {"data.public": {"source": "client 0"}})
    federation, plain = load_federation(config, tmp_path / "cache"), loaded(tmp_path)
    row = federation.public_indices[0]
    expected = rotation(plain.dataset.train.pixels[row], 3, np.random.default_rng())
    assert np.array_equal(federation.public.pixels[0], expected)


@pytest.mark.parametrize(
    ("labels", "share"),
    [
        ([0] * 17 + [1, 2, 2], "85%"),
        ([0] * 10 + [1, 2] * 5, "50%"),
        ([0] * 8 + [1, 2] * 6, None),  # 40%, and a third is chance
        ([0] * 12 + [1] * 8, None),  # ten points above chance, not more
        ([0] * 13 + [1] * 7, "65%"),
        ([0, 0, *range(1, 10), *range(1, 10)], None),
        ([0] * 5 + [*range(1, 10), *range(4, 10)], "25%"),
        ([1] * 16 + [0] * 4, "80%"),
        ([1] * 20, None),
        ([-1] * 20, None),
    ],
)
def test_a_class_that_makes_guessing_more_than_ten_points_better_than_chance_is_noted(
    labels: list[int], share: str | None, tmp_path: Path
) -> None:
    federation = loaded(tmp_path)
    test = replace(federation.dataset.test, labels=np.array(labels))
    said = texts(replace(federation, dataset=replace(federation.dataset, test=test)).notes())
    notes = [note for note in said if "fewer than" not in note and "no test image" not in note]
    expected = () if share is None else (f"{share} of the test images are of class {max(labels, key=labels.count)}: ",)
    assert tuple(note.startswith(text) for note, text in zip(notes, expected, strict=True)) == (True,) * len(expected)


def test_classes_of_almost_one_name_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", label=["cat", "Cat ", "dog", "dogs", "CAT"] * 10)
    data = load(SourceConfig(name="parquet", path=tmp_path / "a.parquet", image_size=8), tmp_path / "cache")
    said = [note for note in texts(remarks(data)) if "differ by" in note]
    assert said == ["classes 'CAT', 'Cat ', 'cat' differ by capitals or blanks alone, and are read as 3 classes"]


def test_clients_of_almost_one_name_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", label=["cat", "dog"] * 25, site=["North", "north", "north ", "south", "south"] * 10)
    source = {"name": "parquet", "path": tmp_path / "a.parquet", "image_size": 8, "columns": {"client": "site"}}
    (note,) = (note for note in remarks(load(SourceConfig.model_validate(source), tmp_path / "cache"))
               if "differ by" in note.text)  # fmt: skip
    assert (
        note.text == "clients 'North', 'north', 'north ' differ by capitals or blanks alone, and are read as 3 clients"
    )
    assert note.public == "3 clients have names that differ by capitals or blanks alone"


def test_balanced_accuracy_is_advised_only_where_it_is_not_chosen(tmp_path: Path) -> None:
    federation = loaded(tmp_path)
    test = replace(federation.dataset.test, labels=np.array([0] * 17 + [1, 2, 2]))
    federation = replace(federation, dataset=replace(federation.dataset, test=test))
    for metrics in (["accuracy"], ["accuracy", "auc"], ["accuracy", "balanced_accuracy"]):
        config = tiny("fedsimclr", evaluation__metrics=metrics)
        (note,) = (note for note in texts(image_notes(config, federation)) if "always naming it" in note)
        advice = "; balanced accuracy (evaluation.metrics=[accuracy,balanced_accuracy]) tells more"
        assert note.endswith("says little" + ("" if "balanced_accuracy" in metrics else advice))


def test_too_few_public_images_are_one_line_that_says_how_many_and_for_whom(tmp_path: Path) -> None:
    some = loaded(tmp_path, data__public__source="share", data__public__share=0.1)
    count = len(some.public_images)
    assert count == len(some.public_images.pixels) > 2
    require_public(some, count, "somebody")
    with pytest.raises(UserError) as caught:
        require_public(some, count + 1, "method.subset=99", "a smaller subset")
    assert str(caught.value) == (
        f"data.public: found {count} public images; method.subset=99 needs at least {count + 1} (more of them, or a "
        "smaller subset)"
    )
    none = loaded(tmp_path)
    with pytest.raises(
        UserError, match=r"^data\.public: found 0 public images; feddf needs at least 2 \(more of them\)$"
    ):
        require_public(none, 2, "feddf")
    with pytest.raises(ValueError, match="no public images; a method that uses them says so"):
        assert none.public_images


@pytest.mark.parametrize("method", sorted(name for name, row in METHODS.items() if row.info.public_data))
def test_every_method_on_public_images_refuses_to_do_without(method: str) -> None:
    config = tiny(method)
    check = METHODS[method].check_federation
    assert check is not None
    check(config, federation := load_federation(config))
    with pytest.raises(UserError, match=r"^data\.public: found 0 public images; .* needs at least \d+ \(more of them"):
        check(config, replace(federation, public=None))


def written(folder: Path, federation: Federation) -> str:
    labels, indices = federation.dataset.train.labels, federation.public_indices
    origin, public_labels = federation.origin, None if indices is None else labels[indices]
    write_partition(
        folder,
        PartitionRows(
            dict(enumerate(federation.shards)),
            labels=labels,
            public=indices,
            public_labels=public_labels,
            origin=origin,
        ),
    )
    return str(folder / "partition.parquet")


def uneven(folder: Path, sizes: list[int], **public: object) -> Federation:
    """Of clients of so many images, those with three and less left out."""
    path, ends = folder / "uneven.json", np.cumsum([0, *sizes]).tolist()
    path.write_text(json.dumps([list(range(*ends[at : at + 2])) for at in range(len(sizes))]))
    partition = {"name": "file", "path": str(path), "min_size": 4}
    return loaded(
        folder, clients__count=len(sizes), data__partition=partition, data__public=public or {"source": "none"}
    )


def test_clients_left_out_of_a_run_are_left_out_where_its_partition_is_read(tmp_path):
    """Client 0 and the last one hold nothing, and the public images, a share, are nobody's."""
    share = {"source": "share", "share": 0.25}
    first = uneven(tmp_path, [3, 60, 54, 3], **share)
    assert [len(mine) > 0 for mine in held(first)] == [False, True, True, False]
    kept = {"name": "file", "path": written(tmp_path, first), "partial": True, "min_size": 1}
    second = loaded(tmp_path, seed=9, clients__count=4, data__partition=kept, data__public=share)
    assert held(second) == held(first)
    assert np.array_equal(second.public_indices, first.public_indices)


def test_what_client_0_gave_away_is_its_own_where_the_partition_is_read(tmp_path):
    public = {"source": "client 0"}
    first = loaded(tmp_path, method__name="flesd", data__public=public)
    assert first.given_away
    kept = {"name": "file", "path": written(tmp_path, first)}
    plain = loaded(tmp_path, seed=9, data__partition=kept)
    assert held(plain) == [first.public_indices.tolist(), *held(first)[1:]]
    again = loaded(tmp_path, seed=9, method__name="flesd", data__partition=kept, data__public=public)
    assert held(again) == held(first)
    assert np.array_equal(again.public_indices, first.public_indices)


def test_where_a_partition_finds_no_labels_or_clients_the_columns_that_are_not_read_are_named(tmp_path: Path) -> None:
    pixels = np.zeros((20, 8, 8, 3), np.uint8) + np.arange(20, dtype=np.uint8)[:, None, None, None]
    write_parquet(tmp_path / "x.parquet", pixels, ["oak", "elm"] * 10, label="tree", site=["a", "b"] * 10)
    block = {"name": "parquet", "path": str(tmp_path / "x.parquet"), "image_size": 8}
    for name, problem in (("dirichlet", "goes by labels, but 20 of 20 images have none"), ("natural", "no clients")):
        changes: dict[str, object] = {"data": {**block, "partition": {"name": name}}, "clients.count": 2}
        with pytest.raises(UserError, match=problem) as refused:
            load_federation(run(tmp_path, changes), tmp_path / "cache")
        assert "\ndata: columns site, tree are not read; " in str(refused.value)
