"""A tree that does not say which folders are the classes: it is refused where ``data.layout`` is not given."""

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
def test_a_run_with_a_layout_is_measured_again_without_giving_one(tmp_path: Path) -> None:
    """Its config.yaml has it."""
    put(tmp_path / "sites", tree_of({f"site_{site}/{label}": 10 for site in "ab" for label in ("sick", "well")}))
    own = {"data__name": "imagefolder", "data__path": str(tmp_path / "sites"), "train__rounds": 2}
    unset, layout = tiny("fedsimclr", **own), tiny("fedsimclr", **own, data__layout="classes")
    for refused in (lambda: run_locally(unset, tmp_path / "new"), lambda: forecast(unset)):
        with pytest.raises(UserError, match=UNDECIDED):
            refused()
    assert not (tmp_path / "new/config.yaml").exists()
    run_locally(layout, tmp_path / "run")
    assert "  layout: classes\n" in (tmp_path / "run/config.yaml").read_text()
    longer = tiny("fedsimclr", **own | {"train__rounds": 3})
    with pytest.raises(UserError, match=UNDECIDED):
        run_locally(longer, tmp_path / "run", resume=True)
    assert reevaluate(tmp_path / "run", ["knn"])["accuracy"]
    with pytest.raises(UserError, match=UNDECIDED):
        reevaluate(tmp_path / "run", ["knn"], data="{name: imagefolder, path: " + str(tmp_path / "sites") + "}")
