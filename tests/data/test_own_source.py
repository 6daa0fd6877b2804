"""A source of one's own: its mistakes are one line, and its images are read again once its code has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.loading import load
from rayfed_ssl.testing.tiny import tiny_run

SOURCE = """
import numpy as np
from rayfed_ssl.data.images import Listing, Source
from rayfed_ssl.data.sources import SourceKind


def opened(config, cache, key):
    def listing(split):
        grey = [np.full((8, 8), LEVEL + k, np.uint8) for k in range(40)]
        return Listing(np.arange(40) % 2, ("even", "odd"), lambda: ((f"{split}/{k}", x) for k, x in enumerate(grey)))

    return Source((), listing)


SOURCES = {"own": SourceKind(opened, frozenset(), bands=False)}
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "return Source((), listing)",
            "pass",
            r"data\.name: own opens no rayfed_ssl\.data\.images\.Source whose files",
        ),
        ("Source((),", "Source(('a.png',),", r"data\.name: own opens no rayfed_ssl\.data\.images\.Source whose files"),
        ("return Listing(", "Listing(", r"data\.name: the source lists NoneType; must list a rayfed_ssl"),
        ("np.arange(40) % 2", "[0, 1] * 20", r"data\.name: the source lists labels as list; must be an array with a"),
        ("np.arange(40) % 2", "np.zeros(40)", r"data\.name: the source lists labels as float64 \(40,\); must be an"),
        ('("even", "odd")', "(0, 1)", r"data\.name: the source lists class_names with 0; must be text"),
        ("lambda: ((", "((", r"data\.name: the source lists images by generator; read must be a function"),
        (
            "('even'",
            "('even'",
            r"data\.limit: found 30; the source lists 40 images; it must list at most config\.limits",
        ),
    ],
)
def test_a_source_that_lists_no_images_is_one_line(old: str, new: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SOURCE.replace("LEVEL", "10").replace(old, new))
    data = {"name": "own", "image_size": 8, "partition": {"name": "iid"}, "limit": 30}
    config = tiny_run("fedsimclr", {"imports": ["own.py"], "data": data}, beside=tmp_path)
    with pytest.raises(UserError, match=f"^{said}[^\n]*$"):
        load(config.data, tmp_path / "cache")


def test_images_are_read_again_once_the_code_of_their_source_has_changed(tmp_path: Path) -> None:
    """Its cache could not know what another version of the code lists."""
    means = []
    for level in (10, 10, 90):
        (tmp_path / "own.py").write_text(SOURCE.replace("LEVEL", str(level)))
        keys = {"imports": ["own.py"], "data": {"name": "own", "image_size": 8, "partition": {"name": "iid"}}}
        config = tiny_run("fedsimclr", keys, beside=tmp_path)
        means.append(float(load(config.data, tmp_path / "cache").train.pixels.mean()))
    assert means == [29.5, 29.5, 109.5]
    assert len(list((tmp_path / "cache").glob("own-*-train.arrow"))) == 2
