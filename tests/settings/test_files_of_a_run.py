"""Every key of a run that names a file is known to what asks for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.settings.keys import keys
from rayfed_ssl.simulation.resuming import places
from tests.dotted import dotted
from tests.tiny import tiny

NAMED: dict[str, Any] = {
    "data.name": "imagefolder", "data.path": "own",
    "data.public": {"source": "source", "images": {"name": "parquet", "path": "public"}},
    "data.partition": {"name": "file", "path": "~/lists.json"},
    "system": {"devices": "phones.csv", "availability": {"name": "trace", "path": "trace.csv"}},
    "evaluation.transfer": {"data": {"name": "parquet", "path": "other"}},
    "model.start": "first.pth",
}  # fmt: skip


def config(**changes: object) -> RunConfig:
    given = {**NAMED, **dotted(**changes)}
    return build(tiny("fedsimclr").model_dump(mode="json"), given, origin="a test")


def test_they_are_those_of_the_schema() -> None:
    """As the schema's keys whose type is a path: a new one is noticed here."""
    of_schema = {key.path for key in keys(RunConfig) if key.type.removesuffix(" or null") == "path"}
    found = config().files()
    assert {"model.start" if key == "model.start.path" else key for key in of_schema} == set(found)
    assert found == {
        "data.path": Path("own"), "data.public.images.path": Path("public"),
        "data.partition.path": Path("~/lists.json"), "system.devices": Path("phones.csv"),
        "system.availability.path": Path("trace.csv"), "evaluation.transfer.data.path": Path("other"),
        "model.start": Path("first.pth"),
    }  # fmt: skip


def test_the_name_of_a_data_set_is_no_file() -> None:
    hub = {"name": "hub", "path": "lab/cells"}
    found = config(data__name="hub", data__public={"source": "source", "images": hub}).files()
    assert not {"data.path", "data.public.images.path"} & set(found)
    assert tiny("fedsimclr").files() == {}


def test_what_no_digest_is_kept_of_cannot_move() -> None:
    assert set(config().files()) - set(places(config())) == {"evaluation.transfer.data.path", "model.start"}
