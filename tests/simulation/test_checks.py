"""The first line of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.simulation.checks import describe
from tests.data.files import put, tree_of
from tests.tiny import tiny


def test_the_first_line_names_images_that_are_left_out_and_says_how_large_batches_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "d", tree_of({"a": 20, "b": 20}))
    for name in ("x", "y", "z, too", "zz"):
        (tmp_path / f"d/a/{name}.png").write_bytes(b"\x89PNG\r\n\x1a\nno image")
    data = {"name": "imagefolder", "path": "d", "limit": None, "test_limit": None, "on_bad_image": "skip"}
    keys = {f"data__{key}": value for key, value in {**data, "partition": {"name": "iid"}}.items()}
    config = tiny("fedsimclr", **keys, clients__count=4, train__batch_size=16)
    assert describe(config, load_federation(config)) == (
        "fedsimclr on imagefolder: 4 clients x 8 images; batches of 16, or of all images of a client that has fewer; "
        '4 broken images left out (d/a/x.png, d/a/y.png, "d/a/z, too.png" and 1 more), which skipped_images.txt in the '
        "run folder names"
    )
