"""Keys of a method, or of its objective, that have no effect beside other keys are refused, as is all that has none."""

from __future__ import annotations

import pytest

from rayfed_ssl.settings.files import ConfigError
from rayfed_ssl.testing.tiny import tiny_run

DIRECTED = {"objective.directional": True}
REFUSED = {
    "fedx, another loss": ("fedx", DIRECTED, "objective.directional: found true; it needs another method: no term"),
    "orchestra, another loss": ("orchestra", DIRECTED, "objective.directional: found true; it needs another method"),
    "lambda, which autoscaling sets": (
        "fedema", {"method.scaler": 0.5}, "method.scaler: found 0.5; it needs method.autoscale=false",
    ),
    "tau without autoscaling": (
        "fedema", {"method.autoscale": False, "method.tau": 0.5}, "method.tau: found 0.5; it needs method.autoscale=t",
    ),
    "the rate of a step that is a mean": (
        "fedu2", {"method.eua": False, "method.lr": 8.0}, "method.lr: found 8.0; it needs method.eua=true",
    ),
    "a step relative to nothing": (
        "fedu2", {"method.eua": False, "method.relative": False}, "method.relative: found false; it needs method.eua",
    ),
}  # fmt: skip
ALLOWED = {
    "fedx at its default": ("fedx", {"objective.directional": False, "method.global_contrast": 0.0}),
    "lambda of all clients": ("fedema", {"method.autoscale": False, "method.scaler": 0.5, "method.tau": 0.7}),
    "tau": ("fedema", {"method.scaler": 1.0, "method.tau": 0.5}),
    "a mean": ("fedu2", {"method.eua": False, "method.temperature": 0.5}),
    "a relative step, whatever the rate": ("fedu2", {"method.relative": True, "method.lr": 8.0}),
}


@pytest.mark.parametrize(("method", "changes", "line"), REFUSED.values(), ids=REFUSED)
def test_a_key_without_effect_is_refused_in_one_line(method: str, changes: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        tiny_run(method, changes)
    assert str(refusal.value).startswith(line)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("method", "changes"), ALLOWED.values(), ids=ALLOWED)
def test_defaults_and_keys_with_an_effect_are_legal(method: str, changes: dict[str, object]) -> None:
    assert tiny_run(method, changes).method.name == method
