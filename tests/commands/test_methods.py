"""``rayfed-ssl methods NAME``: what it says a method goes with is what a run of it is allowed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rayfed_ssl.config import RunConfig
from rayfed_ssl.methods import METHODS, fedprox
from rayfed_ssl.objectives import OBJECTIVES

Call = Callable[..., tuple[int, str, str]]


def facts(out: str) -> dict[str, str]:
    """The lines of the second paragraph, by their first words."""
    told: dict[str, str] = {}
    for line in out.split("\n\n")[1].splitlines():
        about, said = line[4:22].strip(), line[22:]
        told[about or list(told)[-1]] = said if about else f"{told[list(told)[-1]]} {said}"
    return told


def refused(words: str, blocks: dict[str, Any]) -> bool:
    """Whether a run with these blocks is refused with these words."""
    data = {"name": "digits", "public": {"source": "share"}}
    try:
        RunConfig.model_validate({"data": data, "system": {}, **blocks})
    except ValueError as error:
        return words in str(error)
    return False


@pytest.mark.parametrize("name", METHODS)
def test_what_a_method_goes_with_is_what_a_run_is_allowed(name: str, call: Call) -> None:
    told = facts(call("methods", name)[1])
    method = {"method": {"name": name}}
    steps = refused("server step is no plain mean", {**method, "server": {"optimizer": {"name": "adam"}}})
    assert steps == (not told["server.optimizer"].startswith("may "))
    buffers = refused("is not one exchange of weights", {**method, "server": {"schedule": "fedbuff"}})
    assert buffers == (told["server.schedule"] == "sync")
    mixed = refused(
        "so all clients need one architecture",
        {**method, "clients": {"count": 2, "encoders": ["small_cnn", "resnet18"]}},
    )
    assert mixed == (told["encoders"] == "the same for all clients")
    allowed = told["objectives"].replace(" (default)", "").split(", ")
    assert [o for o in OBJECTIVES if not refused("objective.name: ", {**method, "objective": {"name": o}})] == sorted(
        allowed, key=list(OBJECTIVES).index
    )
    if name not in ("fedlinked", "fedavg_trunk"):  # which need clients' tasks first
        without = refused("needs public images", {**method, "data": {"name": "digits"}})
        assert without == told["public images"].startswith("used")
    added = refused("plugins", {"method": {"name": "fedavg"}, "plugins": [{"name": name}]})
    assert added == ("as a plug-in" not in told)


def test_several_methods_and_their_keys(call: Call) -> None:
    status, out, said = call("methods", "fedprox", "fedca", "fedprox")
    assert (status, said) == (0, "")
    assert out.index("method.name=fedprox") < out.index("method.mu: 0.01\n") < out.index("method.name=fedca")
    assert out.count("method.name=fedprox") == 1
    assert "method.beta: 0.01\n" in out
    assert "rayfed-ssl config" not in out
    status, out, _ = call("methods", "fedprox", "--json")
    (row,) = json.loads(out)
    keys = json.loads(call("config", "method.fedprox", "--json")[1])
    assert row["file"] == fedprox.__file__
    assert row["keys"] == [key for key in keys if key["type"] != "kind"]
    assert (row["server_optimizer"], row["fedbuff"], row["plugin"]) == (True, True, False)


def test_a_method_that_is_not_there(call: Call) -> None:
    status, out, said = call("methods", "fedprocks")
    assert (status, out) == (2, "")
    assert said.startswith("methods: found 'fedprocks'; must be one of fedsimclr, ")
    assert said.endswith("; did you mean fedprox?\n")
