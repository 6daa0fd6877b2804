"""The table of heads: what stands on an encoder has the values it always had, and others can add to it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import forked
from rayfed_ssl.base.weights import layout_of, pack
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.methods import METHODS
from rayfed_ssl.models import HEADS, HeadConfig, HeadInputs, ModelConfig, Network, build_network
from rayfed_ssl.models.decoder import Decoder
from rayfed_ssl.models.encoders import build_encoder
from rayfed_ssl.models.heads import mlp
from rayfed_ssl.models.vit import PatchDecoder
from rayfed_ssl.objectives import OBJECTIVES, Batch, Objective, Step
from rayfed_ssl.objectives import base as objectives
from tests.tiny import tiny

MODEL = ModelConfig(width=0.25, projector=HeadConfig(hidden=(12,), dim=6, batch_norm="hidden"), prototypes=2)
EXTRA = {
    "byol turned": {"projector", "predictor", "projected_rotation"},
    "every head": set(HEADS) - {"calibration", "patch_decoder"},
}
NEEDED = {name: set(objective.heads) for name, objective in OBJECTIVES.items()} | EXTRA


def encoder_under(heads: Any) -> str:
    return "vit_tiny" if "patch_decoder" in heads else "small_cnn"


def network_of(heads: Any, calibration: int | None = None) -> Network:
    with forked(3, "heads"):
        model = MODEL.model_copy(update={"calibration": calibration})
        return build_network(encoder_under(heads), model, 16, heads=heads, classes=5)


def digest_of(network: Network) -> str:
    """Of the names of all values in their order, and the values to a 4096th."""
    found = hashlib.sha256()
    for name, value in network.state_dict().items():
        found.update(f"{name} {tuple(value.shape)}".encode())
        found.update((value.double() * 4096).round().to(torch.int64).numpy().tobytes())
    return found.hexdigest()[:16]


BEFORE = {
    "simclr": ("aca5d3934be31fb8", "629dc597ed0eef39"),
    "byol": ("c9d19bf6f2b8208d", "b903d58b6a438dbb"),
    "simsiam": ("c9d19bf6f2b8208d", "b903d58b6a438dbb"),
    "spectral": ("aca5d3934be31fb8", "629dc597ed0eef39"),
    "moco": ("aca5d3934be31fb8", "629dc597ed0eef39"),
    "barlow": ("aca5d3934be31fb8", "629dc597ed0eef39"),
    "vicreg": ("aca5d3934be31fb8", "629dc597ed0eef39"),
    "swav": ("d2f8eb048f74b35c", "c1899a3e67baca10"),
    "nnclr": ("c9d19bf6f2b8208d", "b903d58b6a438dbb"),
    "dino": ("d2f8eb048f74b35c", "c1899a3e67baca10"),
    "align_uniform": ("aca5d3934be31fb8", "629dc597ed0eef39"),
    "autoencoder": ("dc01272706e9248c", "dc01272706e9248c"),
    "rotation": ("13dab77dd6a5f5af", "13dab77dd6a5f5af"),
    "supervised": ("528bfd88096e9b83", "528bfd88096e9b83"),
    "byol turned": ("6301ff1294b55c06", "f6f9539dd9e53752"),
    "every head": ("8a4b11573a752b57", "20777e1001d5b620"),
    "mae": ("ba2aa1f02411c2f9", "ba2aa1f02411c2f9"),
}  # of commit 8dd08f2, when every head was an ``if``: without a calibration layer, and with one; mae's, of when it came


@pytest.mark.parametrize("name", BEFORE)
def test_initial_values_are_those_from_before_there_was_a_table(name: str) -> None:
    assert (digest_of(network_of(NEEDED[name])), digest_of(network_of(NEEDED[name], 5))) == BEFORE[name]


def test_the_digests_are_of_every_objective() -> None:
    assert BEFORE.keys() >= {name for name in OBJECTIVES if OBJECTIVES.origin(name) is None}
    assert len({one for both in BEFORE.values() for one in both}) == 14


@pytest.mark.parametrize("calibration", [None, 5])
@pytest.mark.parametrize("name", NEEDED)
def test_initial_values_are_drawn_head_by_head_in_the_papers_order(name: str, calibration: int | None) -> None:
    """To the bit: encoder, projector, calibration, predictor, prototypes, classifier, rotation, projected, decoders."""
    heads, d = NEEDED[name], calibration or 6
    with forked(3, "heads"):
        parts: dict[str, nn.Module] = {"encoder": build_encoder(encoder_under(heads), MODEL, 16)}
        dim = parts["encoder"].dim
        if "projector" in heads:
            parts["projector"] = mlp(dim, MODEL.projector)
            if calibration is not None:
                parts["calibration"] = nn.Linear(6, calibration)
        if "predictor" in heads:
            parts["predictor"] = mlp(d, HeadConfig(hidden=(12,), dim=d, batch_norm="hidden"))
        if "prototypes" in heads:
            parts["prototypes"] = nn.Linear(d, 2, bias=False)
            parts["prototypes"].weight = nn.Parameter(F.normalize(torch.randn(2, d), dim=1))
        if "classifier" in heads:
            parts["classifier"] = nn.Sequential(nn.Dropout(0.0), nn.Linear(dim, 5))
        if "rotation" in heads:
            parts["rotation"] = nn.Linear(dim, 4)
        if "projected_rotation" in heads:
            parts["projected_rotation"] = nn.Linear(d, 4)
        if "decoder" in heads:
            parts["decoder"] = Decoder(dim, MODEL, 16, 3)
        if "patch_decoder" in heads:
            parts["patch_decoder"] = PatchDecoder(dim, MODEL, 4, 3)
    expected = nn.ModuleDict(parts)
    network = network_of(heads, calibration)
    assert layout_of(network) == layout_of(expected)
    assert pack(network).vector.tobytes() == pack(expected).vector.tobytes()
    assert all(getattr(network, head) is None for head in HEADS.keys() - parts.keys())


# -- third-party heads -------------------------------------------------------------------------------------------------


class ScaledConfig(objectives.ObjectiveConfig):
    name: Literal["scaled"] = "scaled"
    width: int = 3


@dataclass(frozen=True)
class Scaled(Objective):
    config: ScaledConfig
    block: ClassVar[type[objectives.ObjectiveConfig]] = ScaledConfig
    heads: ClassVar[frozenset[str]] = frozenset({"scaler"})

    def step(self, network: Network, batch: Batch) -> Step:
        features = tuple(network.represent(view) for view in batch.views)
        return Step(torch.stack([network.through("scaler", h).square().mean() for h in features]).mean(), (), features)


def scaler(inputs: HeadInputs) -> nn.Module:
    assert isinstance(inputs.objective, ScaledConfig)
    return nn.Linear(inputs.dim, inputs.objective.width)


@pytest.fixture
def added() -> Iterator[None]:
    HEADS.add("scaler", scaler, "a test")
    OBJECTIVES.add("scaled", Scaled, "a test")
    yield
    HEADS.remove("a test")
    OBJECTIVES.remove("a test")


def config_of(**changes: object) -> RunConfig:
    return tiny("fedavg", objective={"name": "scaled", "width": 7}, **changes)


@pytest.mark.usefixtures("added")
def test_an_objectives_own_head_is_built_from_its_own_keys() -> None:
    config = config_of()
    network = InitialWeights(config, load_federation(config)).network("small_cnn_bn")
    assert network.through("scaler", torch.zeros(2, network.dim)).shape == (2, 7)
    assert list(network.state_dict())[-2:] == ["scaler.weight", "scaler.bias"]
    plain = tiny("fedsimclr")
    bare = InitialWeights(plain, load_federation(plain)).network("small_cnn_bn")
    assert all(torch.equal(value, network.encoder.state_dict()[k]) for k, value in bare.encoder.state_dict().items())
    with pytest.raises(RuntimeError, match="built without a scaler"):
        bare.through("scaler", torch.zeros(2, bare.dim))


def made(of: HeadInputs) -> nn.Module:
    return nn.Linear(of.dim, 2)


@pytest.mark.parametrize("names", [("zeta", "alpha"), ("alpha", "zeta")])
def test_heads_of_others_come_after_ours_by_name_whichever_was_loaded_first(names: tuple[str, str]) -> None:
    for name in names:
        HEADS.add(name, made, f"package {name}")
    try:
        network = network_of(["zeta", "decoder", "alpha", "projector"])
    finally:
        for name in names:
            HEADS.remove(f"package {name}")
    parts = dict.fromkeys(name.split(".")[0] for name, _ in network.named_parameters())
    assert list(parts) == ["encoder", "projector", "decoder", "alpha", "zeta"]


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("encoder", made, "which every network has already; must be another name"),
        ("dim", made, "which every network has already"),
        ("state_dict", made, "which every network has already"),
        ("through", made, "which every network has already"),
        ("a.b", made, "which is no name of an attribute; must be letters, digits and _"),
        ("_parameters", made, "which is no name of an attribute"),
        ("mine", nn.Linear(2, 2).weight, "which is not callable; must make a module from rayfed_ssl.models.network."),
        ("projector", made, "which rayfed-ssl itself defines; choose another name"),
    ],
)
def test_a_row_that_is_no_head_is_refused_as_it_is_added(name: str, row: Any, message: str) -> None:
    before = list(HEADS)
    with pytest.raises(UserError) as refused:
        HEADS.add(name, row, "imports: mine.py")
    assert str(refused.value).startswith(f"imports: mine.py: found head '{name}', {message}")
    assert list(HEADS) == before


def test_a_builder_that_makes_no_module_is_one_line() -> None:
    HEADS.add("mine", lambda inputs: None, "imports: mine.py")  # type: ignore[arg-type, return-value]
    try:
        with pytest.raises(UserError, match=r"^imports: mine\.py: head 'mine' is made as NoneType; must be a module$"):
            network_of(["mine"])
    finally:
        HEADS.remove("imports: mine.py")


@pytest.mark.usefixtures("added")
def test_a_head_that_nobody_brings_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scaled, "heads", frozenset({"scalar"}))
    there = "projector, calibration, predictor, prototypes, classifier, rotation, projected_rotation, decoder, "
    there += "patch_decoder, scaler"
    with pytest.raises(UserError) as refused:
        config_of()
    assert str(refused.value) == (
        f"objective.name: found 'scaled', which needs the head 'scalar'; must be one of {there}; did you mean scaler?"
    )
    monkeypatch.setattr(METHODS["fedavg"].config, "heads", frozenset({"nose"}))
    with pytest.raises(
        UserError, match=r"^method\.name: found 'fedavg', which needs the head 'nose'; must be one of p"
    ):
        tiny("fedavg")
    with pytest.raises(UserError, match=r"^heads of the network: found 'projektor'; .*; did you mean projector\?$"):
        network_of(["projektor"])


def test_calibration_comes_with_the_projector_where_the_model_has_it() -> None:
    assert network_of(["projector"], 5).calibration is not None
    assert network_of(["predictor"], 5).calibration is None
    with pytest.raises(UserError, match=r"^model\.calibration: found null; must be given"):
        network_of(["projector", "calibration"])
