"""Label and client columns as people's tables have them, against what pyarrow reads of the same files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.catalogue import catalogued
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.partition import Natural, partition
from rayfed_ssl.data.partition_base import NaturalClients
from rayfed_ssl.data.readers.column_values import count_likely_labels
from rayfed_ssl.data.readers.columns import OF_LABELS
from rayfed_ssl.data.sources import SourceConfig
from tests.data.columns import SIZE, config, read, write

TEXTS = [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]


@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_empty_and_blank_text_is_no_class_and_no_client(tmp_path: Path, kind: pa.DataType) -> None:
    root = tmp_path / "d"
    labels, clients = ["sick", "", " \t", None, "well"], ["a", "b", "", None, " "]
    write(root / "train.parquet", label=pa.array(labels).cast(kind), hospital=pa.array(clients).cast(kind))
    write(root / "test.parquet", label=pa.array(["", "sick"]).cast(kind), hospital=pa.array(["a", "a"]).cast(kind))
    for _ in range(2):  # the second time from the cache
        data = read(root, client="hospital")
        assert data.train.class_names == ("sick", "well")
        assert data.train.labels.tolist() == [0, -1, -1, -1, 1]
        assert data.test.labels.tolist() == [-1, 0]
        assert data.train.client_names == ("a", "b")
        assert data.train.clients.tolist() == [0, 1, -1, -1, -1]
        assert texts(data.notes) == (
            "4 images have an empty label: unlabelled",
            "3 images have an empty client: nobody's",
        )
    shards = partition(Natural(), data.train.labels, 2, 0, NaturalClients(data.train.clients))
    assert [*map(len, shards)] == [1, 1]  # as of null
    assert catalogued(config(root)).class_names == ("sick", "well")


def test_empty_labels_of_one_file_are_counted_once_and_null_alone_needs_no_words(tmp_path: Path) -> None:
    write(tmp_path / "all.parquet", label=["x"] * 8 + ["", None, None])
    data = read(tmp_path / "all.parquet")
    assert texts(data.notes)[1:] == ("3 images have an empty label: unlabelled",)
    assert (data.train.labels < 0).sum() == 3
    write(tmp_path / "nulls.parquet", label=["x"] * 8 + [None] * 3)
    write(tmp_path / "numbers.parquet", label=[0] * 8 + [-1, None])
    for file in ("nulls", "numbers"):
        assert len(texts(read(tmp_path / f"{file}.parquet").notes)) == 1


def test_empty_labels_are_counted_in_all_files_where_one_has_blank_text(tmp_path: Path) -> None:
    root = tmp_path / "d"
    write(root / "train-0.parquet", label=["x", "", "y"])
    write(root / "train-1.parquet", label=pa.array([None, None], pa.string()))
    write(root / "train-2.parquet", label=pa.nulls(2))
    write(root / "train-3.parquet", label=[-1, -1])
    write(root / "test.parquet", label=["y", None])
    data = read(root)
    assert texts(data.notes) == ("8 images have an empty label: unlabelled",)
    assert sum(int((images.labels < 0).sum()) for images in (data.train, data.test)) == 8


VIEW = pa.string_view()
AS_PANDAS_WRITES_THEM = {
    "float64": (pa.array([0.0, float("nan"), 2.0, 1.0, None]), [0, -1, 2, 1, -1], ("0", "1", "2")),
    "float32": (pa.array([0.0, float("nan"), 2.0, -1.0, 1.0], pa.float32()), [0, -1, 2, -1, 1], ("0", "1", "2")),
    "all NaN": (pa.array([float("nan")] * 5), [-1] * 5, ()),
    "bool": (pa.array([True, False, None, True, False]), [1, 0, -1, 1, 0], ("0", "1")),
    "string_view": (pa.array(["b", "a", None, "b", ""], VIEW), [1, 0, -1, 1, -1], ("a", "b")),
    "large_string": (pa.array(["b", "a", None, "b", ""], pa.large_string()), [1, 0, -1, 1, -1], ("a", "b")),
}


@pytest.mark.parametrize("name", AS_PANDAS_WRITES_THEM)
def test_labels_may_be_of_the_types_that_pandas_writes(tmp_path: Path, name: str) -> None:
    column, labels, class_names = AS_PANDAS_WRITES_THEM[name]
    write(tmp_path / "d/train.parquet", label=column)
    assert pq.read_schema(tmp_path / "d/train.parquet").field("label").type == column.type
    write(tmp_path / "d/test.parquet", label=column)
    data = read(tmp_path / "d")
    assert data.train.labels.tolist() == data.test.labels.tolist() == labels
    assert data.train.class_names == class_names
    found = catalogued(config(tmp_path / "d"))
    assert found.labels.tolist() == labels * 2


def test_clients_may_be_whole_floats_as_integers_with_gaps_are(tmp_path: Path) -> None:
    write(tmp_path / "d/train.parquet", label=[0] * 4, site=pa.array([10.0, float("nan"), 9.0, 10.0]))
    write(tmp_path / "d/test.parquet", label=[0], site=pa.array([9]))
    data = read(tmp_path / "d", client="site")
    assert data.train.client_names == ("9", "10")
    assert data.train.clients.tolist() == [1, -1, 0, 1]
    assert data.test.clients is not None
    assert data.test.clients.tolist() == [0]


UNMEASURED = {
    "several labels": pa.array([[0, 2], [1], [], [0]]),
    "targets": pa.array([0.25, 1.5, 2.0, 3.0]),
    "dates": pa.array([1, 2, 3, 4], pa.timestamp("s")),
}


@pytest.mark.parametrize("name", UNMEASURED)
@pytest.mark.parametrize("single", [True, False], ids=["file", "folder"])
def test_a_label_column_of_no_use_is_left_unread_where_the_run_says_so(tmp_path: Path, name: str, single: bool) -> None:
    """All rows train then, and no test split is asked for. The message names the key that works."""
    place = tmp_path / ("all.parquet" if single else "d/train.parquet")
    write(place, label=UNMEASURED[name], site=["a", "b", "a", "b"])
    path = place if single else tmp_path / "d"
    with pytest.raises(UserError) as error:
        read(path)
    assert "several labels per image and targets of a regression are not measured" in str(error.value)
    assert str(error.value).endswith("or read none, data.columns.label=false")
    data = read(path, label=False, client="site")
    assert (data.train.labels.tolist(), len(data.test), data.train.class_names) == ([-1] * 4, 0, ())
    assert data.train.client_names == ("a", "b")
    assert not catalogued(config(path, label=False)).labelled
    assert catalogued(config(path, label=False)).class_names is None


def test_labels_that_could_be_read_are_left_unread_too_with_the_names_in_the_file(tmp_path: Path) -> None:
    write(tmp_path / "named.parquet", label=[0, 1])
    named = pq.read_table(tmp_path / "named.parquet").replace_schema_metadata({"class_names": '["x", "y"]'})
    pq.write_table(named, tmp_path / "named.parquet")
    assert read(tmp_path / "named.parquet", label=False).train.class_names == ()
    assert catalogued(config(tmp_path / "named.parquet", label=False)).class_names is None
    write(tmp_path / "d/train.parquet", label=["x", "y"])
    write(tmp_path / "d/test.parquet", label=["z"])  # of no training image
    data = read(tmp_path / "d", label=False)
    assert (data.train.labels.tolist(), data.test.labels.tolist(), data.train.class_names) == ([-1, -1], [-1], ())
    with pytest.raises(UserError, match="holds the class z, which no training image has"):
        read(tmp_path / "d")
    write(tmp_path / "d/train.parquet", label=pa.array([None, None], pa.string()))
    with pytest.raises(
        UserError, match=r"test\.parquet has labels, and no training image has; .* data\.columns\.label=false trains"
    ):
        read(tmp_path / "d")


def test_one_image_per_class_is_called_that_as_of_folders(tmp_path: Path) -> None:
    write(tmp_path / "uniq.parquet", label=[0, 1, 2])
    with pytest.raises(UserError) as error:
        read(tmp_path / "uniq.parquet")
    end = "has no test images, and of no class enough images to hold a fifth out: labelled images need test images"
    label = "data.columns.label=false reads no label and needs none"
    assert str(error.value) == f"data.path: {tmp_path}/uniq.parquet {end}; {label}"
    assert len(read(tmp_path / "uniq.parquet", label=False).train) == 3
    for label in "abc":
        (tmp_path / "d" / label).mkdir(parents=True)
        Image.fromarray(np.zeros((SIZE, SIZE), np.uint8)).save(tmp_path / "d" / label / "1.png")
    with pytest.raises(UserError, match=f"{tmp_path}/d {end}; data.layout=flat reads no label and needs none; found"):
        load(SourceConfig(name="imagefolder", path=tmp_path / "d"), tmp_path / "cache")
    flat = load(SourceConfig(name="imagefolder", path=tmp_path / "d", layout="flat", image_size=8), tmp_path / "cache")
    assert len(flat.train) == 3


def test_without_labels_a_folder_needs_no_test_split(tmp_path: Path) -> None:
    write(tmp_path / "d/train.parquet", label=pa.array([None, None], pa.int64()))
    assert len(read(tmp_path / "d").test) == 0
    write(tmp_path / "e/train.parquet", label=[0, None])
    with pytest.raises(UserError, match="of no class enough images to hold a fifth out"):
        read(tmp_path / "e")


@pytest.mark.parametrize("values", [[0.5, 1.0], [float("inf"), 1.0], [1e300, 0.0], [float("nan"), 0.1]])
def test_floats_that_are_not_whole_are_refused(tmp_path: Path, values: list[float]) -> None:
    write(tmp_path / "d/train.parquet", label=values)
    write(tmp_path / "d/test.parquet", label=[0, 1])
    with pytest.raises(UserError, match=r"column label of .* is of type double; labels are integers from 0, or text"):
        read(tmp_path / "d")


def test_floats_beyond_the_classes_are_refused_as_integers_are(tmp_path: Path) -> None:
    write(tmp_path / "d/train.parquet", label=[0.0, 1e8])
    write(tmp_path / "d/test.parquet", label=[0, 1])
    with pytest.raises(UserError, match="holds the label 100000000; allowed: 0 to 1048575"):
        read(tmp_path / "d")


def test_classes_of_one_file_that_are_too_small_for_a_test_image_are_named(tmp_path: Path) -> None:
    write(tmp_path / "all.parquet", label=["x"] * 8 + ["y", "z", "z"])
    write(tmp_path / "numbers.parquet", label=[0] * 8 + [2, 1, 1, -1])
    for name, small in (("all", "y, z"), ("numbers", "1, 2")):
        for _ in range(2):  # the second time from the cache
            data = read(tmp_path / f"{name}.parquet")
            assert texts(data.notes)[1:] == (
                f"classes {small} have no test image: too few images to hold a share of 0.2 out",
            )
            assert set(data.test.labels.tolist()) == {0}


@pytest.mark.parametrize("single", [True, False])
def test_numbers_with_gaps_are_classes_as_they_are_and_a_note_says_so(tmp_path: Path, single: bool) -> None:
    labels = [0, 5, 900] * 10
    write(tmp_path / "data/train.parquet", label=labels)
    if not single:
        write(tmp_path / "data/test.parquet", label=[900, 0])  # lacks one: the numbers are the same
    path = tmp_path / "data/train.parquet" if single else tmp_path / "data"
    data = read(path)
    assert set(data.test.labels) <= set(data.train.labels) == {0, 5, 900}
    assert len(data.train.class_names) == 901
    said = "labels are 3 of the numbers 0 to 900 (0, 5, 900): they count as 901 classes, 898 of them without images; "
    assert [note for note in texts(data.notes) if note.startswith("labels")] == [said + "written as text, they are 3"]
    assert read(path).notes == data.notes  # of the cache
    write(tmp_path / "text/train.parquet", label=[str(label) for label in labels])
    assert not [note for note in texts(read(tmp_path / "text/train.parquet").notes) if note.startswith("labels")]
    assert len(read(tmp_path / "text/train.parquet").train.class_names) == 3


def test_gaps_between_named_classes_and_those_that_a_limit_leaves_are_no_gaps(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", label=[0, 1, 2] * 10)
    limited = load(config(tmp_path / "a.parquet").model_copy(update={"limit": 1}), tmp_path / "cache")
    assert not [note for note in texts(limited.notes) if note.startswith("labels")]
    table = pq.read_table(tmp_path / "a.parquet")
    for labels in ([0, 2] * 15, [1, 2, -1] * 10):
        named = table.set_column(1, "label", pa.array(labels))
        pq.write_table(named, tmp_path / "unnamed.parquet")
        pq.write_table(named.replace_schema_metadata({"class_names": '["a", "b", "c"]'}), tmp_path / "named.parquet")
        assert not [note for note in texts(read(tmp_path / "named.parquet").notes) if note.startswith("labels")]
        assert len([note for note in texts(read(tmp_path / "unnamed.parquet").notes) if note.startswith("labels")]) == 1


def unread(path: Path, **columns: str | bool) -> list[str]:
    return [note for note in texts(read(path, **columns).notes) if "not read" in note]


def test_columns_that_are_not_read_are_named_with_the_keys_that_name_some(tmp_path: Path) -> None:
    odd, rows = tmp_path / "odd.parquet", 10
    beside = {"ID": [*range(rows)], "image_path": ["x"] * rows, "split": ["train"] * rows, "width": [8] * rows}
    write(odd, diagnosis=["x", "y"] * 5, site=["a", "b"] * 5, **beside, __index_level_0__=[*range(rows)])
    all_three = (
        "columns diagnosis, site are not read; data.columns.label, .client, .group say which are; diagnosis (2 values) "
        "or site (2 values) may be the labels: data.columns.label=diagnosis"
    )
    assert unread(odd) == [all_three]
    assert unread(odd) == [all_three]  # of the cache
    assert unread(odd, label="diagnosis") == ["column site is not read; data.columns.client, .group say which are"]
    assert unread(odd, label=False, group="site") == ["column diagnosis is not read; data.columns.client says which is"]
    assert unread(odd, label="diagnosis", client="site") == []
    assert unread(odd, label=False, client="site", group="site") == []  # every key is answered
    public = load(config(odd), tmp_path / "cache", key="data.public.images", splits=("train",))
    assert not [note for note in texts(public.notes) if "not read" in note]
    write(tmp_path / "d/train.parquet", label=[0, 1] * 5, img=["x"] * rows, Patient_ID=[*range(rows)])
    write(tmp_path / "d/test.parquet", label=[0, 1] * 5, img=["x"] * rows)
    group, other = unread(tmp_path / "d", image="image")  # what one line names, the other does not
    assert group.startswith("column Patient_ID is not read as a group: ")
    assert other == "column img is not read; data.columns.label, .client, .group say which are"
    assert unread(tmp_path / "d", image="image", label=False, group="Patient_ID") == [
        "column img is not read; data.columns.client says which is"
    ]


TWICE = ["sick", "well"] * 4
LIKELY: dict[str, tuple[list[pa.Array], int]] = {
    "text": ([pa.array(TWICE)], 2),
    "dictionary": ([pa.array(TWICE).dictionary_encode()], 2),
    "in parts": ([pa.array(["a", "a"]), pa.array(["b", "c", None, "b", "c", " "])], 3),
    "grades": ([pa.array([1, 2, 3] * 2)], 3),
    "booleans": ([pa.array([True, False] * 2)], 2),
    "one value": ([pa.array(["x"] * 9)], 0),
    "each once": ([pa.array(["a", "b", "c"])], 0),
    "many": ([pa.array([str(k // 2) for k in range(42)])], 0),
    "not too many": ([pa.array([str(k // 2) for k in range(40)])], 20),
    "fractions": ([pa.array([0.5, 1.5] * 4)], 0),
    "whole floats": ([pa.array([0.0, 1.0] * 4)], 0),
    "text with a bar": ([pa.array(["a|b", "b|c"] * 4)], 2),
    "years": ([pa.array([1999, 2001] * 4)], 0),
    "negative": ([pa.array([-1, 1] * 4)], 0),
    "nested": ([pa.array([["a"], ["b"]] * 4)], 0),
    "no text at all": ([pa.array([b"\xff", b"\xfe"] * 4).view(pa.string())], 0),
    "nothing": ([], 0),
}


@pytest.mark.parametrize(("parts", "count"), LIKELY.values(), ids=LIKELY)
def test_which_columns_look_like_labels(parts: list[pa.Array], count: int) -> None:
    assert count_likely_labels(parts) == count


NAN = float("nan")
CALLED: dict[str, tuple[list[pa.Array], int]] = {
    "text": ([pa.array(TWICE)], 2),
    "integers with gaps, as pandas writes them": ([pa.array([0.0, 1.0, None, NAN] * 4)], 2),
    "each once, and gaps": ([pa.array([0.0, 1.0] + [NAN] * 58)], 0),
    "fractions": ([pa.array([0.5, 1.5] * 4)], 0),
    "several in a cell": ([pa.array(["a|b", "b | c", "a|b|c", "a|"] * 2)], 3),
    "several in the only cell": ([pa.array(["CT|axial"] * 8)], 0),
}


@pytest.mark.parametrize(("parts", "count"), CALLED.values(), ids=CALLED)
def test_which_columns_look_like_labels_if_they_are_called_so(parts: list[pa.Array], count: int) -> None:
    assert count_likely_labels(parts, called=True) == count


def test_names_of_columns_of_labels() -> None:
    assert all(map(OF_LABELS.fullmatch, ["label", "Finding Labels", "class_id", "Diagnosis", "target"]))
    assert not any(map(OF_LABELS.fullmatch, ["dx", "label_source", "subclass", "target_size", "No Finding"]))


def test_columns_that_are_called_labels_are_proposed_before_others(tmp_path: Path) -> None:
    """As in NIH's table of chest X-rays, of which sex and position would be proposed otherwise."""
    sex, findings = ["F", "M"] * 12, ["Mass|Nodule", "No Finding", "Nodule"] * 8
    write(tmp_path / "x.parquet", **{str(k): [k] * 24 for k in range(8)}, sex=sex, **{"Finding Labels": findings})
    (note,) = unread(tmp_path / "x.parquet")
    told = "Finding Labels (3 values) or sex (2 values) may be the labels: 'data.columns.label=Finding Labels'"
    assert note.endswith(told)


def test_a_column_that_looks_like_labels_is_named_where_none_is_read(tmp_path: Path) -> None:
    """As text that a shell takes, with at most three candidates; not where there are labels, or none are wanted."""
    odd = tmp_path / "odd.parquet"
    others = {"Final Diagnosis": ["x", "y"] * 5, "age": [0.5 + k for k in range(10)]}
    write(odd, **others, a=[0, 1] * 5, b=[True, False] * 5, c=["u", "v"] * 5)
    (note,) = unread(odd)
    told = "Final Diagnosis (2 values) or a (2 values) or b (2 values) may be the labels: "
    assert note.endswith(f"say which are; {told}'data.columns.label=Final Diagnosis'")
    assert "may be the labels" not in unread(odd, label="a")[0]
    assert "may be the labels" not in unread(odd, label=False)[0]
    write(tmp_path / "labelled.parquet", **others, label=[0, 1] * 5)
    assert "may be the labels" not in unread(tmp_path / "labelled.parquet")[0]
    write(tmp_path / "none.parquet", age=others["age"])
    assert unread(tmp_path / "none.parquet")[0].endswith(".group say which are")


def test_of_many_columns_that_are_not_read_ten_are_named_without_what_terminals_act_on(tmp_path: Path) -> None:
    many = {f"f{number}": [0.5] * 5 for number in range(12)}
    write(tmp_path / "many.parquet", label=[0] * 5, **{"\x1b[2J": [1] * 5}, **many)
    (note,) = unread(tmp_path / "many.parquet")
    assert note.startswith("columns \\x1b[2J, f0, f1, f2, f3, f4, f5, f6, f7, f8 and 3 more are not read; data.columns")


@pytest.mark.parametrize("name", ["cifar10", "fashion_mnist"])
def test_files_of_which_all_columns_are_read_have_no_such_note(shared_data: Path, tmp_path: Path, name: str) -> None:
    data = load(SourceConfig(path=shared_data / name, limit=20, test_limit=20), tmp_path)
    assert not [note for note in texts(data.notes) if "not read" in note]


@pytest.mark.parametrize(("key", "columns"), [("label", {}), ("who", {"client": "who"}), ("who", {"group": "who"})])
def test_text_that_is_not_utf8_is_reported_with_its_column(tmp_path: Path, key: str, columns: dict[str, str]) -> None:
    offsets = pa.py_buffer(np.arange(5, dtype=np.int32).tobytes())
    latin = pa.Array.from_buffers(pa.string(), 4, [None, offsets, pa.py_buffer(b"ab\xf6b")])
    write(tmp_path / "x.parquet", **{"label": [0, 0, 1, 1], key: latin})
    message = rf"^data\.path: .*x\.parquet cannot be read as Parquet \(column {key}: .*UTF8.*index 2\)$"
    with pytest.raises(UserError, match=message):
        read(tmp_path / "x.parquet", **columns)


def test_a_damaged_file_is_reported_whose_names_are_no_text_or_whose_columns_have_other_lengths(tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    write(file, who=[f"p{k}" for k in range(10)])
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"who", b"wh\xf6"))
    with pytest.raises(UserError, match=r"^data\.path: .*x\.parquet cannot be read as Parquet \('utf-8' codec"):
        read(file)
    counts = [place for place in range(len(whole) - 2000, len(whole)) if whole[place] == 20]  # 10, as Thrift writes it
    for place in counts:
        file.write_bytes(whole[:place] + bytes([18]) + whole[place + 1 :])
        if pq.ParquetFile(file).metadata.num_rows == 9:
            break
    with pytest.raises(UserError, match=r"cannot be read as Parquet \(column who has 10 values, the file 9 rows\)"):
        read(file, client="who", group="who")


@pytest.mark.parametrize("what", ["client", "group"])
def test_clients_and_groups_that_are_text_in_one_file_and_numbers_in_another_are_refused(
    tmp_path: Path, what: str
) -> None:
    write(tmp_path / "d" / "train-0.parquet", label=[0, 1] * 4, who=[str(k) for k in range(8)])
    write(tmp_path / "d" / "train-1.parquet", label=[0, 1] * 4, who=[*range(8)])
    message = (
        rf"^data\.columns\.{what}: found text in one file or array \('0'\), numbers in another \(0\); allowed: text in "
        "all, or numbers in all$"
    )
    with pytest.raises(UserError, match=message):
        read(tmp_path / "d", **{what: "who"})


def test_where_whole_groups_leave_none_to_test_on_the_message_names_the_key(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", label=[0, 1] * 8, who=["a", "b"] * 8)
    with pytest.raises(UserError, match=r"need test images; data[.]columns[.]group holds whole groups out, or none"):
        read(tmp_path / "x.parquet", group="who")


@pytest.mark.parametrize("nulls", [pa.nulls(8), pa.nulls(8, pa.string())], ids=["without a type", "of text"])
def test_a_file_whose_column_is_null_alone_has_no_client_no_group_and_no_split(tmp_path: Path, nulls: pa.Array) -> None:
    root, splits = tmp_path / "d", ["train", "train", "test", "test"]
    write(root / "train-0.parquet", label=[0, 1] * 4, who=[1, 2] * 4, split=splits * 2)
    write(root / "train-1.parquet", label=[0, 1] * 4, who=nulls, split=nulls)
    data = read(root, client="who", split="split")
    assert data.train.clients.tolist() == [0, 1] * 2
    assert texts(data.notes)[0].startswith("8 rows of column split of ")
    write(root / "test.parquet", label=[0, 1] * 4, who=nulls)
    assert read(root, client="who").train.clients.tolist() == [0, 1] * 4 + [-1] * 8
    grouped = read(root, group="who")
    assert grouped.train.groups.tolist() == [0, 1] * 4 + [-1] * 8
    assert grouped.test.groups.tolist() == [-1] * 8
