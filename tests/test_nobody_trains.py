"""A round in which every client's training failed ends the run, under ``drop``, too: methods that average nothing would
otherwise finish with encoders that nobody trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.messages import ClientError
from tests.tiny import run_locally, tiny


@pytest.mark.parametrize("method", ["local", "fedfoa", "fedlinked", "fedsc"])
def test_a_round_without_any_training_ends_the_run(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: EncoderClient, *args: Any, **options: Any) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(EncoderClient, "fit", fails)
    with pytest.raises(ClientError, match="failed in round 1, operation 'train'"):
        run_locally(tiny(method, on_client_error="drop"), tmp_path / "run")
    assert not (tmp_path / "run" / "summary.json").exists()


def test_one_client_that_trains_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = EncoderClient.fit

    def fails(self: EncoderClient, *args: Any, **options: Any) -> None:
        if self.id:
            raise RuntimeError("no room")
        fit(self, *args, **options)

    monkeypatch.setattr(EncoderClient, "fit", fails)
    assert run_locally(tiny("local", on_client_error="drop"), tmp_path / "run")["status"] == "complete"
