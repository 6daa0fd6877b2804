"""A tree that does not say which folders are the classes: new runs are refused, those that had begun go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.simulation.forecast import forecast
from rayfed_ssl.simulation.reevaluation import reevaluate
from tests.data.files import put, tree_of
from tests.tiny import run_locally, tiny

UNDECIDED = "the tree does not say which are the classes"


@pytest.mark.long
def test_a_run_begun_without_a_layout_is_resumed_and_measured_without_one(tmp_path: Path) -> None:
    """Run folders of before say ``layout: classes``, as every run folder says the defaults."""
    put(tmp_path / "sites", tree_of({f"site_{site}/{label}": 10 for site in "ab" for label in ("sick", "well")}))
    own = {"data__name": "imagefolder", "data__path": str(tmp_path / "sites"), "train__rounds": 2}
    unset, layout = tiny("fedsimclr", **own), tiny("fedsimclr", **own, data__layout="classes")
    for refused in (lambda: run_locally(unset, tmp_path / "new"), lambda: forecast(unset)):
        with pytest.raises(UserError, match=UNDECIDED):
            refused()
    assert not (tmp_path / "new/config.yaml").exists()
    asked = iter([False, True])
    run_locally(layout, tmp_path / "run", stopping=lambda: next(asked))
    assert "  layout: classes\n" in (tmp_path / "run/config.yaml").read_text()
    run_locally(unset, tmp_path / "run", resume=True)
    assert (tmp_path / "run/summary.json").exists()
    assert reevaluate(tmp_path / "run", ["knn"])["accuracy"]
    with pytest.raises(UserError, match=UNDECIDED):
        reevaluate(tmp_path / "run", ["knn"], data="{name: imagefolder, path: " + str(tmp_path / "sites") + "}")
