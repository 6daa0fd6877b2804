"""Mistakes in an objective, a protocol or a plug-in of one's own are named where they are made."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.evaluation import Protocol
from rayfed_ssl.extensions import gather
from rayfed_ssl.extensions import load as add
from rayfed_ssl.federated.messages import ClientError
from rayfed_ssl.testing.tiny import run_locally, tiny_run

OBJECTIVE = """
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from rayfed_ssl.objectives.base import Objective, ObjectiveConfig, Step, encoded_together


class Config(ObjectiveConfig):
    name: Literal["own"] = "own"


@dataclass(frozen=True)
class Own(Objective):
    config: Config
    block: ClassVar[type[ObjectiveConfig]] = Config
    heads: ClassVar[frozenset[str]] = frozenset({"projector"})

    def step(self, network, batch):
        features, projections = encoded_together(network, batch.views)
        loss = (projections[0] - projections[1]).square().mean()
        STEP


OBJECTIVES = {"own": Own}
"""
PROTOCOL = """
from rayfed_ssl.base.schema import Block
from rayfed_ssl.evaluation import Protocol


class Config(Block):
    share: float = 0.5


def measure(material, config):
    FOUND


PROTOCOLS = {"own": Protocol(Config, measure, tags=lambda config: ("own",))}
"""
PLUGIN = """
from typing import Literal

from rayfed_ssl.federated.method import Info, Method, unlabelled
from rayfed_ssl.federated.plugin import ClientPlugin, ServerPlugin
from rayfed_ssl.methods import fedavg
from rayfed_ssl.settings.run import PluginConfig


class Config(PluginConfig):
    name: Literal["own"] = "own"
    weights: Literal["size"] = "size"


class OnTheClient(ClientPlugin[Config]):
    def penalty(self, projections, features=()):
        return projections[0].PENALTY

    def reply(self):
        REPLY


class OnTheServer(ServerPlugin[Config]):
    def message(self, t, client):
        MESSAGE

    def collect(self, t, client, fields):
        fields["count"]


METHODS = {"own": Method(Config, fedavg.Client, fedavg.Server, Info("own", "weights"), objective="simclr",
                         accepts=unlabelled, plugin=(OnTheClient, OnTheServer))}
"""


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("pass", "gave NoneType; must give rayfed_ssl.objectives.base.Step"),
        ("return loss", "gave Tensor; must give rayfed_ssl.objectives.base.Step"),
        ("return Step(0.5, projections)", "gave a Step whose loss is float; must be a scalar tensor with a gradient"),
        (
            "return Step(loss.detach(), projections)",
            r"gave a Step whose loss is a tensor of shape \(\) without gradient; must be",
        ),
        (
            "return Step(projections[0].sum(1), projections)",
            r"gave a Step whose loss is a tensor of shape \(16,\); must",
        ),
    ],
)
def test_a_loss_that_is_no_step_is_named(lines: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OBJECTIVE.replace("STEP", lines))
    keys = {"imports": ["own.py"], "objective": {"name": "own"}, "train.rounds": 1, "evaluation.protocols": []}
    with pytest.raises(ClientError, match=f"the loss, of objective own or built on it, {said}"):
        run_locally(tiny_run("fedavg", keys, beside=tmp_path), tmp_path / "run")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("pass", r"found NoneType; must be a dict of numbers by tag, as {'own': 0.5}"),
        ("return {'own': 'good'}", r"\['own'\]: found 'good'; must be a number"),
        ("return {'other': 0.5}", "found the tag 'other'; must be 'own', or begin with 'own_'"),
        ("material.train.features.zero_()\n    return {'own': 0.5}", "it wrote into the features, which other"),
    ],
)
def test_what_a_protocol_measures_wrongly_is_named(lines: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(PROTOCOL.replace("FOUND", lines))
    keys = {"imports": ["own.py"], "train.rounds": 1, "evaluation.protocols": ["own", "knn"]}
    with pytest.raises(TypeError, match=f"evaluation protocol 'own'.*{said}"):
        run_locally(tiny_run("fedsimclr", keys, beside=tmp_path), tmp_path / "run")


@pytest.mark.parametrize("name", ["map", "own_map"])  # clients' own test images have tags that begin with own_
def test_a_protocol_of_any_name_measures_under_it(name: str) -> None:
    found = dict.fromkeys((name, f"{name}_10", f"{name}@auc", f"own_{name}", f"own_{name}@auc", "features/spread"), 0.5)
    material: Any = SimpleNamespace(train=SimpleNamespace(changed=False), tests={})
    row = Protocol(Block, lambda material, settings: found, lambda settings: (name,))
    assert row.values(name, material, Block()) == found
    found["own"] = 0.5
    with pytest.raises(TypeError, match=f"found the tag 'own'; must be '{name}', or begin with '{name}_'"):
        row.values(name, material, Block())


@pytest.mark.parametrize(
    ("part", "lines", "said"),
    [
        ("PENALTY", "sum(1)", r"plug-in own: penalty gave a term of shape \(16,\); must be a scalar"),
        ("REPLY", "pass", "plug-in own: found NoneType as fields to send; must be a dict, {} for none"),
        ("MESSAGE", "pass", "plug-in own: found NoneType as fields to send; must be a dict, {} for none"),
        ("REPLY", "return {'counts': 1}", "count: there is counts"),
    ],
)
def test_a_mistake_of_a_plugin_is_named(part: str, lines: str, said: str, tmp_path: Path) -> None:
    whole = {"PENALTY": "square().mean()", "REPLY": "return {'count': 1}", "MESSAGE": "return {}", part: lines}
    text = PLUGIN
    for name, given in whole.items():
        text = text.replace(name, given)
    (tmp_path / "own.py").write_text(text)
    keys = {"imports": ["own.py"], "plugins": [{"name": "own"}], "train.rounds": 1, "evaluation.protocols": []}
    with pytest.raises((ClientError, TypeError, KeyError), match=said):
        run_locally(tiny_run("fedsimclr", keys, beside=tmp_path), tmp_path / "run")


def test_a_typo_in_the_settings_of_a_protocol_names_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(PROTOCOL.replace("FOUND", "return {'own': config.share}"))
    keys = {"imports": ["own.py"], "evaluation.protocols": ["own"], "evaluation.options": {"own": {"shares": 1}}}
    said = r"evaluation\.options\.own\.shares: found 1; unknown key, allowed here: share; did you mean share\?"
    with pytest.raises(UserError, match=said):
        tiny_run("fedsimclr", keys, beside=tmp_path)


@pytest.mark.parametrize(
    ("text", "old", "new", "said"),
    [
        (OBJECTIVE, '"own": Own}', '"own": Own(Config())}', "objective 'own', which is no subclass of rayfed_ssl"),
        (OBJECTIVE, "    block: ", "    blok: ", "objective 'own', whose block has another name; must have block"),
        (OBJECTIVE, 'frozenset({"projector"})', '["projector"]', "objective 'own', which says no heads; must have"),
        (OBJECTIVE, "def step(", "def steps(", "objective 'own', which has no loss; must define step"),
        ("PROTOCOLS = {'own': print}", "", "", "protocol 'own', which is no rayfed_ssl.evaluation.Protocol or"),
        (PROTOCOL, "Protocol(Config,", "Protocol(Config(),", "protocol 'own', whose config is no subclass of"),
        ("ENCODERS = {'own': print}", "", "", "encoder 'own', which is no rayfed_ssl.models.Family"),
    ],
)  # fmt: skip
def test_a_row_that_does_not_fit_its_table_is_one_line(
    text: str, old: str, new: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(text.replace(old, new))
    with pytest.raises(UserError, match=rf"^imports: own\.py: found .*{said}.*$"):
        add(gather(["own.py"], tmp_path))
