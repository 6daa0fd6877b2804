"""What a user can get wrong in a configuration: every mistake is one printable line, status 2, and nothing is written.

``bad_input/`` holds a file per mistake; its first line is a comment with what the message has to say. The properties
below it hold for any document.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig, build, load
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.settings.plain_yaml import parse
from tests.command_line import command
from tests.tiny import tiny

FILES = sorted((Path(__file__).parent / "bad_input").glob("*.yaml"))
few = settings(max_examples=50, derandomize=True, deadline=None, database=None)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The message of a command that ends with status 2 and a line per mistake, none of which moves a terminal."""
    status, _, message = command(capsys, *arguments)
    assert status == 2
    assert "Traceback" not in message
    assert all(line.isprintable() and ": " in line for line in message.rstrip("\n").split("\n"))
    return message


@pytest.mark.timeout(60)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_mistake_is_one_line(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = path.read_bytes().split(b"\n")[0].decode().removeprefix("# ")
    monkeypatch.chdir(tmp_path)
    message = refused(capsys, "run", str(path), "--executor", "local", "--out", "run")
    assert expected in message
    assert message.count("\n") == 1
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_one_class_is_refused_for_every_protocol_with_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    png = (Path(__file__).parent / "bad_input" / "pixel.png").read_bytes()
    table = pa.table({"image": [png] * 40, "label": [0] * 40})
    (images := tmp_path / "images").mkdir()
    for split in ("train", "test"):
        pq.write_table(table, images / f"{split}.parquet")
    monkeypatch.setenv("RAYFED_SSL_CACHE", str(tmp_path / "cache"))
    configfile.dump(tiny("fedsimclr"), tmp_path / "run.yaml")
    changes = [f"data={{name: parquet, path: {images}, image_size: 8, limit: 40}}", "evaluation.protocols=[knn]"]
    message = refused(
        capsys, "run", str(tmp_path / "run.yaml"), *changes, "--executor", "local", "--out", str(tmp_path / "run")
    )
    assert message.startswith("evaluation.protocols: found knn, but the training images are of 1 class")
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize("name", ["tune", "actors"])
def test_a_users_own_module_in_the_place_of_ours_is_named_and_not_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit('was run')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    message = refused(capsys, "methods")
    assert message.startswith(f"{tmp_path / name}.py: ")
    assert f"package {name!r}" in message


# -- KEY=? -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("method.name", "fedsimclr, fedbyol"),
        ("objective.name", "simclr, byol"),
        ("data.name", "digits, parquet"),
        ("data.partition.name", "iid, dirichlet"),
        ("clients.encoders", "small_cnn"),
        ("evaluation.protocols", "knn, linear"),
        ("plugins", "fedfoa"),
        ("train.optimizer.name", "sgd, adam, adamw, lars"),
        ("train.rounds", "a whole number"),
        ("resources.gpu_kind", "text"),
        ("method", "allowed keys: name, weights"),
        ("profile", "offers no profiles"),
    ],
)
def test_a_question_is_answered_with_what_is_allowed(key: str, names: str, tmp_path: Path) -> None:
    configfile.dump(tiny("fedsimclr"), tmp_path / "run.yaml")
    with pytest.raises(UserError) as caught:
        load(tmp_path / "run.yaml", [f"{key}=?"])
    (line,) = str(caught.value).split("\n")
    assert line.startswith((f"{key}:", f"{key}."))
    assert names in line


def test_no_key_takes_a_question_for_a_value(tmp_path: Path) -> None:
    configfile.dump(tiny("fedsimclr"), tmp_path / "run.yaml")
    for key in KEYS:
        with pytest.raises(UserError) as caught:
            load(tmp_path / "run.yaml", [f"{key}=?"])
        assert str(caught.value).startswith((f"{key}:", f"{key}.")), key


# -- properties --------------------------------------------------------------------------------------------------------


def keys_of(document: dict[str, Any], prefix: str = "") -> list[str]:
    """Every dotted key of a document: those of its blocks and the blocks themselves."""
    found = []
    for key, value in document.items():
        found.append(prefix + key)
        if isinstance(value, dict):
            found += keys_of(value, f"{prefix}{key}.")
    return found


BASE = tiny("fedsimclr").model_dump(mode="json")
KEYS = keys_of(BASE)
NAMES = [
    "fedsc",
    "fedfoa",
    "flesd",
    "byol",
    "spectral",
    "supervised",
    "dirichlet",
    "file",
    "parquet",
    "vgg9",
    "knn",
    "?",
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.integers()
    | st.sampled_from([10**30, 2**63, -(2**63), 10**400])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(NAMES)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "seed", "path", "dim", "a\x1bb", "\n"]) | st.text(max_size=3), inner, max_size=3
        )
    ),
    max_leaves=6,
)


def settled(document: dict[str, Any], changes: dict[str, object]) -> None:
    """A document gives a config that reads back equal, or refusals of one printable line each."""
    try:
        config = build(document, changes, origin="run.yaml")
    except UserError as error:
        for line in str(error).split("\n"):
            assert line.isprintable(), repr(line)
            assert ": " in line, repr(line)
    else:
        assert build(parse(configfile.dumped(config)), {}, origin="config.yaml") == config


@few
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3))
def test_any_change_gives_a_config_or_refusals(changes: dict[str, object]) -> None:
    settled(BASE, changes)


@few
@given(
    st.dictionaries(st.sampled_from([*RunConfig.model_fields, "profiles"]) | st.text(max_size=4), VALUES, max_size=5)
)
def test_any_document_gives_a_config_or_refusals(document: dict[str, Any]) -> None:
    settled(document, {})


@few
@given(st.text(st.sampled_from("ab01:?-[]{}&*!<\"'\\ \n,.eEx#|>%@"), max_size=30))
def test_any_text_is_a_value_or_no_yaml(text: str) -> None:
    try:
        value = parse(text)
    except yaml.YAMLError:
        return
    assert not isinstance(value, BaseModel)
    assert parse(yaml.dump(value, Dumper=configfile.Dumper)) == value or value != value
