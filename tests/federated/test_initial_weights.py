"""What a run begins with: drawn values, each client's own, or those of a file or of an earlier run."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import load
from rayfed_ssl.federated import initial_weights as initial_values
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.process_context import ProcessContext
from rayfed_ssl.models import build_network, load_exported
from rayfed_ssl.models.network import Network
from rayfed_ssl.settings.files import dumped
from rayfed_ssl.simulation.checks import with_start
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.loop import run
from rayfed_ssl.simulation.reevaluation import reevaluate
from tests.tiny import TASKS, encoders, measured, run_locally, tiny

NAME = "small_cnn_bn"


def initial(**changes: object) -> InitialWeights:
    config = tiny("local", **changes)
    return InitialWeights(config, load_federation(config))


def test_common_values_are_everybodys_and_own_values_are_each_clients() -> None:
    common, own = initial(), initial(model__initial="own")
    everybody = common(NAME).vector
    assert np.array_equal(common(NAME, None, 0).vector, everybody)
    assert np.array_equal(common(NAME, None, 1).vector, everybody)
    clients = [own(NAME, None, client).vector for client in range(4)]
    assert np.array_equal(clients[0], own(NAME, None, 0).vector)
    assert len({values.tobytes() for values in (everybody, *clients)}) == 5
    assert np.array_equal(own(NAME).vector, everybody)  # of the architecture, without a client


def test_clients_alone_begin_with_their_own_values_and_are_evaluated_with_them(tmp_path: Path) -> None:
    results = {}
    for kind in ("common", "own"):
        config = tiny("local", model__initial=kind, train__rounds=1, train__optimizer__lr=1e-12)
        run_locally(config, tmp_path / kind)
        results[kind] = measured(tmp_path / kind)
        build = InitialWeights(config, load_federation(config))
        for client in range(4):
            weights = load_file(tmp_path / kind / "encoder" / f"client-{client:05d}.safetensors")["features.0.weight"]
            drawn = torch.from_numpy(build(NAME, None, client).vector[: weights.numel()]).view(weights.shape)
            torch.testing.assert_close(weights, drawn, rtol=0, atol=1e-6)
    before = {kind: [found[0, client, "eval/knn"] for client in range(4)] for kind, found in results.items()}
    assert len(set(before["common"])) == 1
    assert len(set(before["own"])) > 1


def test_a_process_measures_each_clients_own_beginning() -> None:
    config = tiny("local", model__initial="own")
    context = ProcessContext(config, load_federation(config))
    for client in (0, 2):
        expected = context.evaluate(NAME, context.initial(NAME, client=client))
        assert context.evaluate(NAME, None, client=client) == expected
        assert context.evaluate(NAME, None, client=client) == expected


@pytest.mark.parametrize("method", ["fedsimclr", "fedsc", "fedprox", "fedavg_trunk", "flesd"])
def test_methods_that_share_weights_refuse_own_values(method: str) -> None:
    with pytest.raises(UserError, match=r"model\.initial: found 'own'; .*allowed: common"):
        tiny(method, model__initial="own")


@pytest.mark.parametrize("method", ["local", "fedlinked", "fedfoa"])
def test_methods_whose_clients_keep_their_models_allow_them(method: str) -> None:
    assert tiny(method, model__initial="own").model.initial == "own"


@pytest.mark.parametrize(
    ("method", "changes", "expected"),
    [
        ("fedlinked", {}, "own"),
        ("local", TASKS, "own"),
        ("local", {"clients.encoders": ["small_cnn", "small_cnn_bn", "small_cnn", "small_cnn"]}, "own"),
        ("local", {"clients.encoders": ["small_cnn"] * 4}, "common"),
        ("local", {}, "common"),
        ("fedfoa", {}, "own"),
        ("fedfoa", {"clients.encoders": "small_cnn"}, "common"),
        ("fedmd", {}, "common"),
        ("fedavg_trunk", {}, "common"),
        ("fedlinked", {"model.initial": "common"}, "common"),
    ],
)
def test_independently_designed_models_begin_with_their_own_values(
    method: str, changes: dict[str, object], expected: str
) -> None:
    config = tiny(method, **{key.replace(".", "__"): value for key, value in changes.items()})
    assert config.model.initial == expected
    assert f"initial: {expected}" in dumped(config)
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.long
def test_a_run_begun_with_common_values_goes_on_with_them(tmp_path: Path) -> None:
    """Run folders of before: ``initial: common`` in config.yaml, or no such key."""
    whole = tiny("fedlinked", model__initial="common", train__rounds=2)
    run_locally(whole, tmp_path / "whole")
    own = tiny("fedlinked", train__rounds=2)
    for written in (True, False):
        folder, asked = tmp_path / str(written), iter([False, True])
        run_locally(whole, folder, stopping=lambda asked=asked: next(asked))
        text = (folder / "config.yaml").read_text()
        assert "  initial: common\n" in text
        if not written:
            (folder / "config.yaml").write_text(text.replace("  initial: common\n", ""))
        assert load(folder / "config.yaml") == whole
        lines: list[str] = []
        run_locally(own, folder, resume=True, report=lambda progress, lines=lines: lines.append(progress.line))
        assert [line for line in lines if line.startswith("model.initial: common, as this run began")]
        assert encoders(folder) == encoders(tmp_path / "whole")
        assert measured(folder) == measured(tmp_path / "whole")
        assert load(folder / "config.yaml") == whole
    with pytest.raises(UserError, match=r"cannot resume with changed .*model\.initial"):
        run_locally(tiny("local", model__initial="own"), tmp_path / "whole", resume=True)


# -- model.start -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "earlier"
    run_locally(tiny("fedsimclr", seed=5), folder)
    return folder


def started(config: Any, folder: Path, **options: Any) -> tuple[dict[str, Any], list[str]]:
    lines: list[str] = []
    report = lambda progress: lines.append(progress.line)  # noqa: E731
    return run(config, folder, LocalCohort, report=report, **options), lines


@pytest.mark.parametrize("which", ["run folder", "file"])
def test_a_run_goes_on_from_an_earlier_ones_encoder(which: str, earlier: Path, tmp_path: Path) -> None:
    path = earlier if which == "run folder" else earlier / "encoder" / "global.safetensors"
    config = tiny("fedsimclr", model__start=str(path), train__rounds=1)
    summary, lines = started(config, tmp_path / "run")
    assert summary["untrained"]["knn"] == measured(earlier)[3, None, "eval/knn"]  # the earlier run's last round
    assert "evaluated the encoder as it started" in lines
    (line,) = [line for line in lines if line.startswith("model.start: ")]
    assert line.startswith(f"model.start: {NAME} begins with 24 tensors of {earlier}/encoder/global.safetensors")
    digest = summary["start"]["digest"]
    assert summary["start"] == {"path": str(path), "digest": digest}
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["start"] == summary["start"]
    assert f"sha256: {digest}" in (tmp_path / "run" / "config.yaml").read_text()
    assert len(digest) == 64


def test_a_run_without_a_start_says_what_it_always_said(tmp_path: Path) -> None:
    summary, lines = started(tiny("fedsimclr", train__rounds=1), tmp_path / "run")
    assert "start" not in summary
    assert "evaluated the untrained encoder" in lines


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedsimclr", "local"])
def test_no_networks_are_built_for_each_client(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the checks before the first round to the export after the last: as many for 4 clients as for 12."""
    made: list[str] = []

    def counted(encoder: str, *args: Any, **options: Any) -> Network:
        made.append(encoder)
        return build_network(encoder, *args, **options)

    monkeypatch.setattr(initial_values, "build_network", counted)
    built = []
    for count in (4, 12):
        made.clear()
        protocols = {"evaluation__protocols": ["knn", "angles"], "evaluation__angles": {"images": 40}}
        run_locally(tiny(method, train__rounds=1, clients__count=count, **protocols), tmp_path / str(count))
        built.append(len(made))
    assert built[0] == built[1] > 0


def test_only_the_encoder_is_loaded(earlier: Path) -> None:
    drawn, begun = initial(), initial(model__start=str(earlier))
    network, values = drawn.network(NAME), begun(NAME)
    encoder = sum(p.numel() for p in network.encoder.parameters())
    assert not np.array_equal(values.vector[:encoder], drawn(NAME).vector[:encoder])
    heads = slice(encoder, values.parameters)
    assert np.array_equal(values.vector[heads], drawn(NAME).vector[heads])


def test_clients_go_on_from_their_own_encoders(tmp_path: Path) -> None:
    run_locally(tiny("local", seed=5), tmp_path / "first")
    own = tiny("local", model__start=str(tmp_path / "first"), model__initial="own")
    build = InitialWeights(own, load_federation(own))
    for client in range(4):
        network = build.network(NAME)
        count = sum(p.numel() for p in network.encoder.parameters())
        exported = load_exported(tmp_path / "first", f"client-{client:05d}")
        expected = np.concatenate([p.detach().numpy().ravel() for p in exported.parameters()])
        assert np.array_equal(build(NAME, None, client).vector[:count], expected)
    assert len(build.notes()) == 4
    common = own.model_copy(update={"model": own.model.model_copy(update={"initial": "common"})})
    with pytest.raises(UserError, match=r"has 4 encoders 'small_cnn_bn'; name one of its files"):
        InitialWeights(common, load_federation(common)).notes()


def test_a_start_that_does_not_fit_leaves_nothing_behind(earlier: Path, tmp_path: Path) -> None:
    for changes in ({"model__width": 0.5}, {"clients__encoders": "small_cnn"}):
        with pytest.raises(UserError, match=r"^model\.start: "):
            run_locally(tiny("fedsimclr", model__start=str(earlier), **changes), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_resuming_compares_the_file(earlier: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes((earlier / "encoder" / "global.safetensors").read_bytes())
    config = tiny("local", model__start=str(path), participation__fraction=0.25)
    whole = started(config, tmp_path / "whole")[0]
    stops = iter([False, True])
    started(config, tmp_path / "cut", stopping=lambda: next(stops))
    values = load_file(path)
    save_file({key: value + 1 for key, value in values.items()}, path)
    with pytest.raises(UserError, match=r"cannot resume with changed model\.start\.sha256"):
        started(config, tmp_path / "cut", resume=True)
    save_file(values, path)
    path.write_bytes((earlier / "encoder" / "global.safetensors").read_bytes())
    resumed = started(config, tmp_path / "cut", resume=True)[0]
    assert resumed["start"] == whole["start"]
    assert encoders(tmp_path / "cut") == encoders(tmp_path / "whole")


def test_the_configuration_that_actors_get_names_the_digest(earlier: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes((earlier / "encoder" / "global.safetensors").read_bytes())
    config = with_start(tiny("fedsimclr", model__start=str(path)))
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(UserError, match=r"the file has changed, or this machine has another one"):
        InitialWeights(config, load_federation(config))(NAME)


def test_a_run_is_evaluated_without_the_file_it_began_with(earlier: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes((earlier / "encoder" / "global.safetensors").read_bytes())
    summary, _ = started(tiny("fedsimclr", model__start=str(path), train__rounds=1), tmp_path / "run")
    path.unlink()
    found = reevaluate(tmp_path / "run", ())
    assert found["accuracy"]["global"]["knn"] == pytest.approx(summary["accuracy"]["knn"])
    assert found["untrained"][NAME] != {"knn": summary["untrained"]["knn"]}  # that one was trained, in another run


def test_an_exported_encoder_without_tensors_is_not_evaluated(earlier: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(earlier, folder)
    save_file({}, folder / "encoder" / "global.safetensors")
    with pytest.raises(UserError, match=r"global\.safetensors: found no values; encoder 'small_cnn_bn' has 24$"):
        reevaluate(folder, ())
    assert not (folder / "evaluation.json").exists()


def test_one_channel_images_build_one_channel_networks() -> None:
    config = tiny("fedsimclr")
    federation = load_federation(config)
    grey = replace(federation.dataset.train, pixels=federation.dataset.train.pixels[..., :1])
    federation = replace(federation, dataset=replace(federation.dataset, train=grey))
    network = InitialWeights(config, federation).network(NAME)
    assert network.channels == 1
    assert network.represent(torch.zeros(2, 1, 16, 16)).shape == (2, network.dim)
