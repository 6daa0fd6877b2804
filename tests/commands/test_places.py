"""What is no place, or is another than was meant, is one line that says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.settings.data_argument import parse_data_argument
from tests.tiny import run_locally, tiny

Call = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("given", [["--out", ""], ["--out="]], ids=["apart", "joined"])
@pytest.mark.parametrize("command", ["run", "compare", "tune", "export"])
def test_an_empty_out_is_not_the_folder_that_the_command_is_given_in(
    command: str, given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    status, _, said = call(command, "something.yaml", *given)
    assert (status, said) == (
        2,
        "--out: found nothing, as where a variable is not set; must be a place, or be left out\n",
    )
    assert list(here.iterdir()) == []


@pytest.mark.long
def test_a_place_in_the_home_folder_is_there_however_out_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """A shell leaves the ~ of ``--out=~/x`` as it is."""
    (here := tmp_path / "here").mkdir()
    (home := tmp_path / "home").mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    run_locally(tiny("fedsimclr", train__rounds=1), tmp_path / "run")
    for command in (
        ("new", "partition", "mine", "--out=~/new"),
        ("embed", str(tmp_path / "run"), "digits", "--out=~/table.parquet"),
        ("export", str(tmp_path / "run"), "--to", "torch", "--out=~/encoder"),
        ("compare", "fedsimclr", "--base=~/base.yaml", "--executor", "local", "--out=~/compared", "train.rounds=1"),
    ):
        (home / "base.yaml").write_text((tmp_path / "run/config.yaml").read_text())
        status, _, said = call(*command)
        assert status == 0, said
    assert {"new", "table.parquet", "encoder", "compared"} <= {path.name for path in home.iterdir()}
    assert list(here.iterdir()) == []


def test_a_single_image_is_no_data_set(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "a.PNG")
    with pytest.raises(UserError, match=r"^--data: found the image '.*a\.PNG'; must be a data set: give its folder$"):
        parse_data_argument(str(tmp_path / "a.PNG"), "--data")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("labels.csv", "data.name=table reads it, and the images that it names"),
        ("labels.json", "docs/python.md makes one Parquet file of a table and the images beside it"),
    ],
)
def test_a_table_of_text_is_told_how_to_be_read(tmp_path: Path, call: Call, name: str, remedy: str) -> None:
    (tmp_path / name).write_text("file,label\na.png,3\n")
    config = tmp_path / "own.yaml"
    config.write_text(f"method: {{name: fedsimclr}}\ndata: {{name: parquet, path: {name}}}\n")
    status, _, said = call("run", str(config), f"data.path={tmp_path / name}", "--executor", "local")
    assert status == 2
    assert said.endswith(f"; {remedy}\n")


def test_a_key_of_another_version_is_named_with_the_file_that_holds_it(tmp_path: Path, call: Call) -> None:
    run = tmp_path / "run"
    run_locally(tiny("fedsimclr", train__rounds=1), run)
    own = tmp_path / "own.yaml"
    own.write_text((run / "config.yaml").read_text())
    with (run / "config.yaml").open("a") as file:
        file.write("future_key: 3\n")
    for command in (
        ["run", str(own), "--out", str(run), "--resume", "--executor", "local"],
        ["evaluate", str(run), "evaluation.knn.k=5"],
    ):
        status, _, said = call(*command)
        assert status == 2
        assert said.startswith(f"{run / 'config.yaml'}: future_key: found 3; unknown key")
