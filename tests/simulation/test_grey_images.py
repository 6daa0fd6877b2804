"""Grey images that are read with three channels, and who is told so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from rayfed_ssl.base.notes import texts
from rayfed_ssl.config import RunConfig
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.simulation.checks import image_notes
from tests.data.files import pictures, put
from tests.tiny import tiny

LINE = (
    "all 20 images are grey, and are read with three channels that are the same: data.channels=1 reads one, a third of "
    "the memory; views that change hue or saturation do nothing"
)


def grey_folder(root: Path) -> Path:
    """Half of the files have one channel, half three."""
    files = {}
    for number, image in enumerate(pictures(20)):
        grey = Image.fromarray(image).convert("L")
        split, label = ("test", "train")[number % 5 > 0], "ab"[number % 2]
        files[f"{split}/{label}/{number}.png"] = np.array(grey.convert("RGB") if number % 3 else grey)
    put(root, files)
    return root


def said(config: RunConfig) -> list[str]:
    return [line for line in texts(image_notes(config, load_federation(config))) if "grey" in line]


def of_folder(root: Path, **data: object) -> RunConfig:
    shared = {"data__limit": None, "data__test_limit": None, "data__name": "imagefolder", "data__path": str(root)}
    return tiny("fedsimclr", **shared, **{f"data__{key}": value for key, value in data.items()})


def test_grey_images_that_are_read_as_colours_are_noted_where_nobody_chose_so(tmp_path: Path) -> None:
    root = grey_folder(tmp_path / "d")
    assert said(of_folder(root)) == [LINE]
    assert said(of_folder(root, channels=1)) == said(of_folder(root, channels=3)) == []
    assert said(of_folder(root, bands=[1, 1, 1])) == []  # of which data.channels=1 is refused
    coloured = np.array(Image.open(root / "train/b/1.png"))
    coloured[0, 0] = (200, 0, 0)  # one pixel of all
    Image.fromarray(coloured).save(root / "train/b/1.png")
    assert said(of_folder(root)) == []


def test_a_data_set_that_is_known_to_be_grey_has_no_such_note(tmp_path: Path) -> None:
    assert load(SourceConfig(name="digits"), tmp_path / "cache").grey
    assert said(tiny("fedsimclr")) == []
