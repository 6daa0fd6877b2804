"""Images of one patient are held out together: counted over random tables, and through Parquet to a run's shards."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.data.holdout import stratified_halves, stratified_share
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.readers.folders.names import groups_of
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.settings.files import parse_overrides
from rayfed_ssl.simulation.checks import split_groups
from tests.data.columns import read, write
from tests.dotted import dotted
from tests.places import ROOT


def hospital(seed: int, mixed: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(labels, patients, clients) of about 600 images, 1 to 3 of a patient, of three classes and some without a label;
    ``mixed``: also within a patient."""
    rng = np.random.default_rng(seed)
    patients = np.repeat(np.arange(300), rng.integers(1, 4, 300))
    labels = rng.choice([-1, 0, 1, 2], len(patients), p=[0.1, 0.6, 0.2, 0.1])
    if not mixed:
        labels = labels[np.searchsorted(patients, patients)]  # that of the patient's first image
    clients = rng.integers(0, 4, 300)[patients]
    order = rng.permutation(len(patients))
    return labels[order], patients[order], clients[order]


@pytest.mark.long
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_no_patient_lies_in_two_parts_and_classes_keep_their_shares(share: float, mixed: bool) -> None:
    for seed in range(20):
        labels, patients, clients = hospital(seed, mixed)
        rest, held_out = stratified_halves(labels, share, clients, patients)
        assert np.array_equal(np.sort(np.r_[rest, held_out]), np.arange(len(labels)))
        chosen = stratified_share(labels, share, seed, clients, patients)
        for out in (held_out, chosen):
            assert set(patients[out].tolist()).isdisjoint(np.delete(patients, out).tolist())
            assert (labels[out] >= 0).sum() > 0
            for label in range(3):  # one patient more or less
                assert abs((labels[out] == label).sum() - share * (labels == label).sum()) <= 3
        labelled = set(patients[labels >= 0].tolist())
        assert set(patients[held_out].tolist()) <= labelled  # nothing could be measured on the others
        assert np.array_equal(held_out, stratified_halves(labels, share, clients, patients)[1])
        assert not np.array_equal(chosen, stratified_share(labels, share, seed + 1, clients, patients))


@pytest.mark.parametrize(("share", "count"), [(0.04, 0), (0.06, 10), (0.14, 10), (0.16, 20), (0.24, 20)])
def test_as_many_patients_are_held_out_as_come_nearest(share: float, count: int) -> None:
    assert len(stratified_halves(np.zeros(100, np.int64), share, None, np.arange(100) // 10)[1]) == count


@pytest.mark.long
def test_which_patients_are_held_out_is_chance() -> None:
    """Of 100 patients with an image each, every one about 200 times in 1000: within 5 standard deviations of 12.6."""
    labels, patients = np.zeros(100, np.int64), np.random.default_rng(0).permutation(100)
    often = np.zeros(100)
    for seed in range(1000):
        often[stratified_share(labels, 0.2, seed, None, patients)] += 1
    assert often.sum() == 20_000
    assert (abs(often - 200) < 63).all()


def test_rows_of_no_patient_are_each_alone() -> None:
    labels = np.zeros(100, np.int64)
    held_out = stratified_halves(labels, 0.2, None, np.full(100, -1))[1]
    assert len(held_out) == 20
    labels, patients = np.zeros(20, np.int64), np.r_[np.full(18, 0), -1, -1]
    assert stratified_halves(labels, 0.1, None, patients)[1].tolist() == [18, 19]


def test_a_class_and_a_client_with_several_patients_keep_one() -> None:
    labels, patients = np.repeat([0, 1, 2], [40, 4, 2]), np.r_[np.repeat(np.arange(20), 2), [20, 20, 21, 21], [22, 22]]
    chosen = stratified_share(labels, 0.9, 0, None, patients)
    assert np.bincount(labels[chosen]).tolist() == [36, 2]  # class 2 is one patient
    assert np.bincount(labels[stratified_share(labels, 0.01, 0, None, patients)]).tolist() == [2, 2]
    assert np.bincount(labels[stratified_halves(labels, 0.01, None, patients)[1]]).tolist() == []
    labels, patients = np.zeros(40, np.int64), np.arange(40) // 2
    clients = np.r_[[0] * 2, [1] * 4, [2] * 34]
    for seed in range(30):
        kept = np.delete(clients, stratified_share(labels, 0.6, seed, clients, patients))
        assert {1, 2} <= set(kept.tolist())
    gone = [0 not in np.delete(clients, stratified_share(labels, 0.6, seed, clients, patients)) for seed in range(30)]
    assert any(gone)  # one patient, who may be held out
    with pytest.raises(
        UserError, match=r"^evaluation\.select: found a share of 0\.3, but no group \(data\.columns\.group"
    ):
        stratified_share(np.zeros(9, np.int64), 0.3, 0, None, np.zeros(9, np.int64))


def config(path: Path, **changes: object) -> RunConfig:
    document = {
        "method": {"name": "fedsimclr"},
        "data": {"name": "parquet", "path": str(path), "image_size": 8, "columns": {"group": "patient"}},
        "clients": {"count": 2},
    }
    return build(document, dotted(**changes), origin="a test")


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("text", [True, False])
def test_a_parquet_file_of_patients(tmp_path: Path, text: bool, labelled: bool) -> None:
    labels, patients, hospitals = hospital(5, False)
    given = [f"P{number:03d}" if text else int(number) for number in patients]
    given[7] = given[11] = None
    columns = {"patient": given, "hospital": hospitals.tolist()} | ({"label": labels.tolist()} if labelled else {})
    write(tmp_path / "all.parquet", **columns)
    changes = {"data__columns__client": "hospital", "data__partition__name": "natural", "clients__count": 4}
    for _ in range(2):  # the second time from the cache
        federation = load_federation(
            config(tmp_path / "all.parquet", evaluation__select={"share": 0.2}, **changes), tmp_path / "cache"
        )
        train, test, held_out = federation.dataset.train, federation.dataset.test, federation.held_out
        assert train.groups is not None
        assert test.groups is not None
        assert held_out is not None
        out = stratified_halves(labels if labelled else np.full(len(labels), -1), 0.2)[1]
        assert abs(len(test) - len(out)) < 12
        where = {
            name: number for number, name in enumerate(sorted({value for value in given if value is not None}, key=str))
        }
        parts = [
            test.groups,
            train.groups[held_out],
            *(train.groups[shard["train"]] for shard in federation.shards),
        ]
        assert sum(map(len, parts)) == len(labels)
        sets = [set(part.tolist()) - {-1} for part in (*parts[:2], np.concatenate(parts[2:]))]
        assert sum(map(len, sets)) == len(set().union(*sets)) == len(where)
        counted = np.bincount(np.array([where[value] for value in given if value is not None]))
        assert np.array_equal(counted, sum(np.bincount(part[part >= 0], minlength=len(where)) for part in parts))
        assert int((np.concatenate(parts) < 0).sum()) == 2
    if labelled:
        assert "as near as whole groups of data.columns.group allow" in texts(federation.notes())[0]


def test_test_images_of_patients_who_train_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "d/train.parquet", label=[0, 1, 0, 1], patient=["a", "b", "c", ""])
    write(tmp_path / "d/test.parquet", label=[0, 1, 0, 1], patient=["d", "a", "a", " "])
    note = "2 of 4 test images are of a group (data.columns.group) with training images"
    data = read(tmp_path / "d", group="patient")
    assert note in texts(data.notes)
    assert "2 images have an empty group: each is one of its own" in texts(data.notes)
    assert data.test.groups is not None
    assert data.test.groups.tolist() == [3, 0, 0, -1]
    assert note not in texts(read(tmp_path / "d").notes)
    assert read(tmp_path / "d").train.groups is None


def test_test_files_need_no_group_column_and_training_files_do(tmp_path: Path) -> None:
    write(tmp_path / "d/train.parquet", label=[0, 1, 0, 1], patient=["a", "b", "c", "d"])
    write(tmp_path / "d/test.parquet", label=[0, 1, 0, 1])
    for _ in range(2):  # the second time from the cache
        data = read(tmp_path / "d", group="patient")
        assert data.train.groups is not None
        assert data.test.groups is not None
        assert data.train.groups.tolist() == [0, 1, 2, 3]
        assert data.test.groups.tolist() == [-1] * 4
        assert texts(data.notes) == (
            "no test image has a group (data.columns.group): how many show one with training images is not known",
        )
    write(tmp_path / "e/train-0.parquet", label=[0, 1, 0, 1], patient=["a", "b", "c", "d"])
    write(tmp_path / "e/train-1.parquet", label=[0, 1, 0, 1])
    write(tmp_path / "e/test.parquet", label=[0, 1, 0, 1], patient=["a", "b", "c", "d"])
    with pytest.raises(UserError, match=r"^data\.columns\.group: found 'patient'; .*train-1\.parquet has the columns"):
        read(tmp_path / "e", group="patient")


def test_another_grouping_is_other_data(tmp_path: Path) -> None:
    write(tmp_path / "d/train.parquet", label=[0, 1, 0, 1], patient=[1, 2, 3, 3], eye=[1, 1, 2, 3])
    write(tmp_path / "d/test.parquet", label=[0, 1], patient=[4, 5], eye=[6, 7])
    assert (
        len({read(tmp_path / "d", **columns).digest for columns in ({}, {"group": "patient"}, {"group": "eye"})}) == 3
    )


def test_what_groups_cannot_be_is_refused_in_one_line(tmp_path: Path) -> None:
    write(tmp_path / "all.parquet", label=[0, 1] * 8, patient=[0.5] * 16)
    found = r"^data\.columns\.group: column patient of .*all\.parquet is of type double; groups are text or integers$"
    with pytest.raises(UserError, match=found):
        load_federation(config(tmp_path / "all.parquet"), tmp_path / "cache")
    with pytest.raises(
        UserError, match=r"^data\.columns\.group: found 'name'; .*all\.parquet has the columns image, label"
    ):
        read(tmp_path / "all.parquet", group="name")
    with pytest.raises(UserError, match=r"^data\.columns\.group: found 'patient' beside data\.tasks"):
        config(tmp_path / "all.parquet", data__tasks=[[0], [1]])
    folder = {"name": "imagefolder", "path": tmp_path, "columns": {"group": "patient"}}
    with pytest.raises(ValueError, match=r"columns: found a value; imagefolder reads none; .* parquet, hub"):
        load(SourceConfig.model_validate(folder))
    with pytest.raises(ValueError, match=r"reads none; .*arrays; layout=flat reads no labels \["):
        SourceConfig(name="imagefolder", path=Path("x"), columns={"label": False})
    with pytest.raises(ValueError, match=r"digits reads none; .*arrays \["):
        SourceConfig(name="digits", columns={"label": False})


def test_a_column_that_seems_to_name_patients_is_noted_where_it_is_not_used(tmp_path: Path) -> None:
    write(tmp_path / "all.parquet", label=[0, 1] * 8, Patient_ID=list(range(8)) * 2)
    note = (
        "column Patient_ID is not read as a group: images of one may train and test; data.columns.group=Patient_ID "
        "forbids it"
    )
    assert texts(read(tmp_path / "all.parquet").notes)[0] == note
    assert note not in texts(read(tmp_path / "all.parquet", group="Patient_ID").notes)
    for split in ("train", "test"):
        write(tmp_path / "own" / f"{split}.parquet", label=[0, 1] * 8, Patient_ID=list(range(8)) * 2)
    (own,) = [line for line in texts(read(tmp_path / "own").notes) if "Patient_ID" in line]
    assert own.startswith(
        "column Patient_ID is not read as a group: evaluation.select may hold out images of one who trains; "
    )


@pytest.mark.parametrize("name", ["Patient ID", "patient-id", "SUBJECT", "lesion_id", "participant.id"])
def test_whom_an_image_shows_is_known_by_what_people_call_the_column(tmp_path: Path, name: str) -> None:
    write(tmp_path / "all.parquet", label=[0, 1] * 8, **{name: list(range(8)) * 2})
    (note,) = (line for line in texts(read(tmp_path / "all.parquet").notes) if "as a group" in line)
    assert note.startswith(f"column {name} is not read as a group: images of one may train and test; ")
    (key,) = shlex.split(note.split("; ")[1])[:1]  # as a shell reads what is advised
    assert key == f"data.columns.group={name}"


def test_a_column_of_another_name_is_not_taken_for_whom_an_image_shows(tmp_path: Path) -> None:
    write(tmp_path / "all.parquet", label=[0, 1] * 8, **{"Patient Age": list(range(8)) * 2})
    assert not [line for line in texts(read(tmp_path / "all.parquet").notes) if "as a group" in line]


def test_one_file_of_which_no_patient_can_be_held_out_is_refused_in_words(tmp_path: Path) -> None:
    write(tmp_path / "all.parquet", label=[0] * 8 + [1] * 8, patient=[0] * 8 + [1] * 8)
    with pytest.raises(UserError, match="has no test images, and of no class enough images to hold a fifth out"):
        read(tmp_path / "all.parquet", group="patient")
    assert len(read(tmp_path / "all.parquet").test) == 4


def put(root: Path, *paths: str) -> None:
    """Different images at these places."""
    numbers = itertools.count(len([*root.rglob("*.png")]))
    for path, number in zip(paths, numbers, strict=False):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / path)


def folder(path: Path, **keys: object) -> SourceConfig:
    return SourceConfig.model_validate({"name": "imagefolder", "path": path, "image_size": 8, **keys})


def patients_of(config: SourceConfig, cache: Path) -> tuple[set[int], set[int]]:
    """Of the training and of the test images, less those of nobody."""
    data = load(config, cache)
    assert data.train.groups is not None
    assert data.test.groups is not None
    assert len(data.train.groups) == len(data.train)
    return set(data.train.groups.tolist()) - {-1}, set(data.test.groups.tolist()) - {-1}


@pytest.mark.parametrize(
    ("tree", "group"),
    [
        ("{label}/P{patient:03d}/{view}.png", "[^/]+(?=/[^/]+$)"),
        ("{label}/P{patient:03d}_{view}.png", "P[0-9]+"),
        ("{label}/scan-{view}-of-{patient:03d}.png", "scan-[0-9]+-of-([0-9]+)"),
        ("ward/{label}/P{patient:03d}-{view}.png", r"(?i)p\d+"),
        ("{label}/P{view}_{patient:03d}.png", r"P0_([0-9]+)|P1_([0-9]+)"),
        ("{label}/Mu\u0308ller{patient:03d}-{view}.png", "Müller[0-9]+"),
        ("{label}/Müller{patient:03d}-{view}.png", "Mu\u0308ller[0-9]+"),
    ],
)
def test_a_tree_of_patients(tmp_path: Path, tree: str, group: str) -> None:
    """Each of 20 patients with two images of either class: one at a time, chance would leave a few of them whole."""
    root, cache = tmp_path / "d", tmp_path / "cache"
    place = {"patient": range(20), "label": ("sick", "well"), "view": range(2)}
    put(root, *(tree.format(**dict(zip(place, of, strict=True))) for of in itertools.product(*place.values())))
    layout = {"layout": "clients"} if tree.startswith("ward") else {}
    for _ in range(2):  # the second time from the cache
        train, test = patients_of(folder(root, group=group, **layout), cache)
        assert sorted(train | test) == list(range(20))
        assert not train & test
        assert len(test) == 4
    note = "16 of 80 images, is held out as test images, as near as whole groups of data.group allow"
    assert note in texts(load(folder(root, group=group, **layout), cache).notes)[0]
    data = {"name": "imagefolder", "path": str(root), "image_size": 8, "group": group, **layout}
    document = {"method": {"name": "fedsimclr"}, "data": data, "clients": {"count": 2}}
    federation = load_federation(build(document, {"evaluation.select": {"share": 0.25}}, origin="a test"), cache)
    assert federation.held_out is not None
    assert federation.dataset.train.groups is not None
    chosen = federation.dataset.train.groups[federation.held_out]
    assert len(set(chosen.tolist())) == 4
    assert not set(chosen.tolist()) & set(np.delete(federation.dataset.train.groups, federation.held_out).tolist())
    alone = layout or {"layout": "classes"}  # patients in either class could be classes of two sites, too
    assert load(folder(root, **alone), cache).digest != load(folder(root, group=group, **layout), cache).digest


def test_test_folders_of_patients_who_train_are_counted(tmp_path: Path) -> None:
    root = tmp_path / "d"
    put(root, *(f"train/{label}/P{patient}.png" for label in "ab" for patient in range(4)), "train/a/nobody.png")
    put(root, *(f"test/{label}/P{patient}.png" for label in "ab" for patient in (3, 4)), "test/b/nobody.png")
    train, test = patients_of(folder(root, group=r"P\d"), tmp_path / "cache")
    assert (train, test) == ({0, 1, 2, 3}, {3, 4})
    assert texts(load(folder(root, group=r"P\d"), tmp_path / "cache").notes) == (
        "data.group finds 5 groups in 12 images, such as P0, P1, P2 and 2 more",
        "data.group finds nothing in the path of 2 images: each is one of its own",
        "2 of 5 test images are of a group (data.group) with training images",
    )
    assert load(folder(root), tmp_path / "cache").train.groups is None


def test_groups_of_a_limited_folder_are_those_of_its_images(tmp_path: Path) -> None:
    root = tmp_path / "d"
    put(root, *(f"P{patient}.png" for patient in range(8)))
    data = load(folder(root, group=r"P\d", layout="flat", limit=3), tmp_path / "cache")
    assert data.train.groups is not None
    assert data.train.groups.tolist() == [0, 3, 7]


def test_what_is_said_of_groups_is_of_the_images_that_the_limits_leave(tmp_path: Path) -> None:
    root = tmp_path / "d"
    put(root, *(f"train/a/P{patient}.png" for patient in range(8)), "train/a/nobody.png")
    put(root, *(f"test/a/P{patient}.png" for patient in range(7)), "test/a/nobody.png")
    assert texts(load(folder(root, group=r"P\d", limit=3, test_limit=2), tmp_path / "cache").notes) == (
        "data.group finds 2 groups in 3 images, such as P0, P4",
        "data.group finds nothing in the path of 2 images: each is one of its own",
        "1 of 2 test images is of a group (data.group) with training images",
    )


def test_test_images_of_a_limited_file_are_those_that_are_taken(tmp_path: Path) -> None:
    """A group of the test images that are left out, or of the training images that are, is none that is shared."""
    for split, patients in (("train", "abcd"), ("test", "dxab")):
        write(tmp_path / f"d/{split}.parquet", label=[0] * 4, patient=list(patients))
    data = {"name": "parquet", "path": str(tmp_path / "d"), "columns": {"group": "patient"}, "image_size": 8}

    def shared(**limits: int) -> list[str]:
        notes = texts(load(SourceConfig.model_validate({**data, **limits}), tmp_path / "cache").notes)
        return [note for note in notes if "with training images" in note]

    assert shared() == ["3 of 4 test images are of a group (data.columns.group) with training images"]
    assert shared(limit=2, test_limit=3) == [  # d is taken as a test image alone, b as a training image alone
        "1 of 3 test images is of a group (data.columns.group) with training images"
    ]
    assert shared(limit=2, test_limit=2) == []


def test_the_documented_expressions_find_whom_they_say(tmp_path: Path) -> None:
    page = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\S+\.(?:png|jpeg))`.*\| `'(data\.group=.*)'` \|$", page, re.MULTILINE)
    found = {}
    for path, item in rows:
        data = {"name": "imagefolder", "path": str(tmp_path)}
        config = build({"data": data, "method": {"name": "fedsimclr"}}, parse_overrides([item]), origin="a test")
        assert config.data.group is not None
        (found[path],) = groups_of([tmp_path / path], tmp_path, config.data.group, "data")
    assert list(found.values()) == ["person12", "P012", "P012", "hospital2/P3"]
    with pytest.raises(
        UserError, match=r"^data\.group: found '\[0-9\]\+'; must be a YAML value, text with signs in quo"
    ):
        parse_overrides(["data.group=[0-9]+"])
    assert parse_overrides(['data.group="[0-9]+"']) == {"data.group": "[0-9]+"}


def test_folders_that_may_be_clients_are_named_beside_groups_too(tmp_path: Path) -> None:
    root = tmp_path / "d"
    put(root, *(f"h{h}/{label}/P{p}.png" for h in range(2) for label in ("sick", "well") for p in range(5)))
    *_, note = texts(load(folder(root, group=r"P\d"), tmp_path / "cache").notes)
    assert note.endswith("each of them holds sick, well: if they are clients, data.layout=clients")


def test_a_class_of_one_patient_cannot_be_held_out(tmp_path: Path) -> None:
    put(tmp_path / "d", *(f"{label}/P{label}_{view}.png" for label in "ab" for view in range(10)))
    with pytest.raises(UserError, match=r"hold a fifth out: .*needs none; data\.group holds whole groups out, or none"):
        load(folder(tmp_path / "d", group="P[ab]"), tmp_path / "cache")
    put(tmp_path / "d", *(f"c/{patient}.png" for patient in range(10)))
    _, note, _ = texts(load(folder(tmp_path / "d", group="P[ab]|[0-9]+"), tmp_path / "cache").notes)
    assert note == "classes a, b have no test image: too few images to hold a share of 0.2 out, whole groups at a time"


def test_images_without_a_label_that_go_with_their_group_are_counted(tmp_path: Path) -> None:
    put(tmp_path / "d", *(f"{place}P{patient}.png" for place in ("a/", "b/", "") for patient in range(10)))
    note, *_ = texts(load(folder(tmp_path / "d", group=r"P\d"), tmp_path / "cache").notes)
    assert "6 of 30 images, is held out as test images, as near as" in note
    assert note.endswith("allow; 2 of them, of the same groups, have no label")


def test_what_finds_no_patient_in_paths_is_refused_in_one_line(tmp_path: Path) -> None:
    put(tmp_path / "d", "a/1.png", "b/2.png")
    put(tmp_path / "e", "train/a/1.png", "train/b/2.png", "test/a/3.png")
    for tree, path in {"d": "a/1.png", "e": "train/a/1.png"}.items():
        with pytest.raises(UserError) as caught:
            load(folder(tmp_path / tree, group=r"P\d"), tmp_path / "cache")
        assert str(caught.value) == (
            rf"data.group: found 'P\\d', which matches nothing in any image's path below {tmp_path / tree}, such as "
            f"{path}; allowed: a regular expression that finds whom an image shows, or null"
        )
    with pytest.raises(ValueError, match=r"group: found a value; parquet reads none; allowed with name: imagefolder"):
        SourceConfig.model_validate({"name": "parquet", "path": tmp_path, "group": "P"})
    document = {"data": {"name": "imagefolder", "path": str(tmp_path), "group": "P", "tasks": [[0], [1]]}}
    with pytest.raises(UserError, match=r"^data\.group: found 'P' beside data\.tasks"):
        build(document | {"method": {"name": "fedsimclr"}, "clients": {"count": 2}}, {}, origin="a test")
    with pytest.raises(ValueError, match=r"must be a regular expression \(the repetition number is too large\)"):
        folder(tmp_path / "d", group="P[0-9]{9999999999}")
    document = {"data": {"name": "imagefolder", "path": str(tmp_path), "group": "("}}
    with pytest.raises(UserError, match=r"^data\.group: found '\('; must be a regular expression \(missing \).*\)$"):
        build(document | {"method": {"name": "fedsimclr"}, "clients": {"count": 2}}, {}, origin="a test")


def dealt(tmp_path: Path, *changes: str) -> list[str]:
    """What a run over 20 patients of 4 images in two hospitals says of those that it deals apart."""
    patients = [f"p{number // 4}" for number in range(80)]
    hospitals = [f"h{number // 40}" for number in range(80)]
    if not (file := tmp_path / "all.parquet").exists():
        write(file, label=[0, 1] * 40, patient=patients, hospital=hospitals, room=[number % 2 for number in range(80)])
    data = {"name": "parquet", "path": str(file), "image_size": 8, "columns": {"group": "patient"}}
    run = {"method": {"name": "fedsimclr"}, "clients": {"count": 2}, "data": data, "evaluation": {"select": None}}
    config = build(run, parse_overrides(changes), origin="a test")
    return list(texts(split_groups(config, load_federation(config, tmp_path / "cache"))))


def test_patients_that_are_dealt_to_several_clients_are_counted(tmp_path: Path) -> None:
    for partition, by in (("iid", "deals image by image"), ("dirichlet", "deals image by image")):
        (note,) = dealt(tmp_path, f"data.partition.name={partition}")
        count = re.match(r"(\d+) of 16 groups \(data\.columns\.group\) with several images to train on have them", note)
        assert count is not None
        assert 8 < int(count[1]) <= 16
        assert f": data.partition.name={partition} {by}; data.partition.name=natural, of a column " in note
    (note,) = dealt(tmp_path, "data.columns.client=hospital")
    assert note.endswith("; data.partition.name=natural with clients.count=2 keeps them together")
    assert dealt(tmp_path, "data.columns.client=hospital", "data.partition.name=natural") == []
    (note,) = dealt(tmp_path, "data.columns.client=room", "data.partition.name=natural")
    assert note.startswith("16 of 16 groups")
    assert (
        "data.partition.name=natural gives them so; another column data.columns.client whose clients have whole" in note
    )
    assert note.endswith(
        "; if every client has its own P1, P2, .., data.columns.group needs the client in its cells, too"
    )
    assert dealt(tmp_path, "data.columns.group=null") == []
    assert dealt(tmp_path, "clients.count=1") == []
