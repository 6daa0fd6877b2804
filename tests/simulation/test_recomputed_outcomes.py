"""``evaluate`` writes the outcomes that a run of an earlier version did not keep, and none of other numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.records.outcomes import FILE
from rayfed_ssl.simulation.reevaluation import reevaluate
from tests.tiny import run_locally, tiny

SCORES = {"evaluation__protocols": ["knn", "fewshot"], "evaluation__fewshot__draws": 2, "train__rounds": 2}


def columns(folder: Path) -> dict[str, list[object]]:
    found: dict[str, list[object]] = pq.read_table(folder / FILE).to_pydict()
    return found


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedsimclr", "local"])
def test_the_file_comes_back_as_the_run_wrote_it(tmp_path: Path, method: str) -> None:
    run_locally(tiny(method, **SCORES), tmp_path)
    there, schema = columns(tmp_path), pq.read_schema(tmp_path / FILE)
    (tmp_path / FILE).unlink()
    reevaluate(tmp_path, ["fewshot"])
    assert columns(tmp_path) == {name: of for name, of in there.items() if name != "knn"}
    reevaluate(tmp_path)  # what was missing is added
    assert columns(tmp_path) == there
    again = pq.read_schema(tmp_path / FILE)
    assert {field.name: field.type for field in again} == {field.name: field.type for field in schema}
    told = again.metadata[b"round"], json.loads(again.metadata[b"draws"])
    assert told == (b"2", {"knn": 1, "fewshot": 2})


def test_nothing_is_kept_of_what_the_run_did_not_record(tmp_path: Path) -> None:
    """Other settings, another protocol, a run that was stopped, a value that comes out otherwise."""
    run_locally(tiny("fedsimclr", **SCORES), tmp_path)
    (tmp_path / FILE).unlink()
    nearest = ["evaluation.knn.k=1", "evaluation.linear.epochs=1"]
    found = reevaluate(tmp_path, ["knn", "linear"], nearest)
    assert not (tmp_path / FILE).exists()
    summary = json.loads((tmp_path / "summary.json").read_text())
    (tmp_path / "summary.json").write_text(json.dumps({**summary, "accuracy": found["accuracy"]["global"]}))
    reevaluate(tmp_path, ["knn"], nearest[:1])  # the same accuracy by chance is not the same answers
    assert not (tmp_path / FILE).exists()
    for changed in ({"status": "stopped"}, {"accuracy": {"knn": summary["accuracy"]["knn"] + 1 / 60}}):
        (tmp_path / "summary.json").write_text(json.dumps({**summary, **changed}))
        reevaluate(tmp_path, ["knn"])
        assert not (tmp_path / FILE).exists()
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    reevaluate(tmp_path, ["knn"])
    assert columns(tmp_path)["knn"]


@pytest.mark.long
def test_what_the_run_kept_is_left_alone(tmp_path: Path) -> None:
    run_locally(tiny("fedsimclr", **SCORES), tmp_path)
    before = (tmp_path / FILE).stat()
    reevaluate(tmp_path)
    assert (tmp_path / FILE).stat().st_mtime_ns == before.st_mtime_ns
    (tmp_path / FILE).write_bytes(b"cut")
    with pytest.raises(UserError, match=r"outcomes\.parquet: cannot be read \(.*\); move it away"):
        reevaluate(tmp_path)
