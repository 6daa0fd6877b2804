"""What ``run --check`` says beforehand, against what runs then do; and that it leaves nothing behind."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import load
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.methods import METHODS
from rayfed_ssl.models.network import Network
from rayfed_ssl.simulation import forecast as module
from rayfed_ssl.simulation.assembly import rehearse
from rayfed_ssl.simulation.checks import few_steps, no_bfloat16, without_head
from rayfed_ssl.simulation.forecast import (
    STEPS,
    StepTime,
    backward_bytes,
    check_steps_fit,
    forecast,
    step_time,
)
from rayfed_ssl.simulation.memory import Room
from tests.command_line import command
from tests.data.files import put, tree_of
from tests.tiny import UNPREDICTED, measured, run_locally, tiny

CASES = {
    "fedsimclr": {"participation__fraction": 0.5},
    "fedx": {},
    "fedu2": {},
    "fedsc": {},
    "fedsc, alpha share": {"method__alpha": "share", "train__rounds": 3},
    "fedfoa": {"participation__fraction": 0.5, "train__rounds": 4},
    "flesd": {"method__upload": "int8"},
    "fedca": {"train__rounds": 3, "participation__fraction": 0.75},
    "fedca, everybody's own too": {
        "train__rounds": 3,
        "method__exclude_own": False,
        "method__alignment": False,
        "method__alignment_epochs": 100,  # their defaults: given otherwise, they are refused without alignment
        "method__alignment_batch": 128,
    },
    "fedca, no dictionary": {"method__dictionary_size": 0},
    "local": {},
    "centralized": {},
    "fedbyol": {"plugins": [{"name": "fedfoa", "warmup": 0}, {"name": "feddecorr"}]},
    "fedbyol, averaged": {"objective__target": "averaged"},
    "orchestra": {"train__rounds": 3},
    "ssd": {"train__rounds": 3, "participation__fraction": 0.5},
    "fedmd": {"train__rounds": 3, "method__subset": 20},
    "feddf": {"participation__fraction": 0.5},
    "fedmkd": {"participation__fraction": 0.5},
}


def test_a_step_that_takes_long_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[int] = []

    def fit(self: EncoderClient) -> None:
        fitted.append(self.config.train.local_steps or 0)

    monkeypatch.setattr(EncoderClient, "fit", fit)
    config = tiny("fedsimclr")
    for long, steps in ((5.0, [1, STEPS]), (-1.0, [1])):
        monkeypatch.setattr(module, "LONG_S", long)
        assert step_time(config, load_federation(config), "small_cnn_bn").wall_s >= 0
        assert fitted == steps
        fitted.clear()


def test_a_step_that_waits_is_told_from_one_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    def computes(client: EncoderClient) -> None:
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass

    config = tiny("fedsimclr")
    federation = load_federation(config)
    monkeypatch.setattr(module, "STEPS", 1)
    monkeypatch.setattr(EncoderClient, "fit", lambda client: time.sleep(0.5))
    waiting = step_time(config, federation, "small_cnn_bn")
    monkeypatch.setattr(EncoderClient, "fit", computes)
    computing = step_time(config, federation, "small_cnn_bn")
    assert waiting.wall_s >= 0.5 > 0.1 > waiting.cpu_s
    assert computing.wall_s >= 0.1
    assert computing.cpu_s >= 0.1


@pytest.mark.parametrize(
    ("cpu_s", "device", "idle"),
    [(0.25, "cpu", 2 / 3), (0.5, "cpu", 1 / 3), (0.51, "cpu", None), (0.75, "cpu", None), (0.25, "NVIDIA H100", None)],
)
def test_a_share_of_waiting_is_said_of_processors_from_half_a_steps_work_on(
    cpu_s: float, device: str, idle: float | None
) -> None:
    found = dataclasses.replace(forecast(tiny("fedsimclr")), step_s=0.75, step_cpu_s=cpu_s, device=device)
    assert found.idle_share() == (None if idle is None else pytest.approx(idle))
    assert dataclasses.replace(found, step_s=0.0, step_cpu_s=0.0).idle_share() is None
    assert dataclasses.replace(found, threads=2).idle_share() is None


@pytest.mark.long
def test_a_batch_that_cannot_fit_is_refused_by_its_shapes() -> None:
    """A ResNet-50 on 1,024 px would need hundreds of gigabytes: nothing of it is computed."""
    config = tiny("fedsimclr", clients__encoders="resnet50", data__image_size=1024, model__width=1.0)
    federation = load_federation(tiny("fedsimclr", clients__encoders="resnet50"))
    line = (
        r"train\.batch_size: found 16; a local step of resnet50 on 16 images of 1024 px keeps .* has 20 GB: room for 0"
    )
    with pytest.raises(UserError, match=line) as caught:
        check_steps_fit(config, federation, Room("memory", 20e9))
    assert "\n" not in str(caught.value)
    assert check_steps_fit(tiny("fedsimclr"), load_federation(tiny("fedsimclr")), Room("memory", 20e9)) == []


@pytest.mark.parametrize("encoder", ["small_cnn_bn", "resnet18", "small_cnn", "fedlinked_cnn"])
def test_what_shapes_say_is_kept_is_what_a_step_keeps(encoder: str) -> None:
    """Beside the real pass: tensors by where they lie, those of parameters left out, views of them, too."""
    config = tiny("fedsimclr", clients__encoders=encoder, data__image_size=16)
    initial = InitialWeights(config, load_federation(config))
    network = initial.network(encoder).train()
    parameters = {p.untyped_storage().data_ptr() for p in network.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        z = network.project(torch.rand(16, 3, 16, 16))
    real = sum(count for place, count in kept.items() if place not in parameters)
    assert backward_bytes(initial.network(encoder), (16, 3, 16, 16), config) == real
    halved = config.model_copy(update={"train": config.train.model_copy(update={"precision": "bfloat16"})})
    assert backward_bytes(initial.network(encoder), (32, 3, 16, 16), halved) == pytest.approx(real, rel=0.05)
    z.sum().backward()


def test_of_attention_shapes_do_not_tell() -> None:
    pytest.importorskip("timm")
    config = tiny("fedsimclr", clients__encoders="timm/test_vit", data__image_size=32, model__width=1.0)
    (note,) = check_steps_fit(config, load_federation(config), Room("memory", 1.0))
    assert note.startswith("the memory of a step of timm/test_vit is not known beforehand: its attention")


def test_a_step_of_an_encoder_that_wants_values_is_not_known_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Network, "represent", lambda self, images: torch.from_numpy(images.numpy()))
    config = tiny("fedsimclr")
    (note,) = check_steps_fit(config, load_federation(config), Room("memory", 1.0))
    assert note.startswith("the memory of a step of small_cnn_bn is not known beforehand (")


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_bytes_are_those_the_ledger_books(case: str, tmp_path: Path) -> None:
    config = tiny(case.split(",")[0], **{"train__rounds": 2, "evaluation__protocols": [], **CASES[case]})
    expected = forecast(config).traffic
    summary = run_locally(config, tmp_path / "run")
    booked = summary["communication"]
    assert expected is not None
    assert (expected.down, expected.up) == (booked["down_bytes"], booked["up_bytes"])


@pytest.mark.parametrize("method", UNPREDICTED)
def test_bytes_that_are_not_known_are_not_made_up(method: str) -> None:
    assert forecast(tiny(method)).traffic is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "changes", "begins"),
    [
        ("fedprox", {"train__batch_size": 200}, "every client takes one local step a round"),
        ("flesd", {}, "small_cnn_bn uploads "),
        ("fedsc", {"method__privacy": {"sigma": 1.0}, "objective__clip": 1.0}, "privacy: after all"),
    ],
)
def test_what_a_method_has_to_say_is_said_beforehand(
    method: str, changes: dict[str, object], begins: str, tmp_path: Path
) -> None:
    config = tiny(method, **changes)
    run_locally(config, tmp_path)
    said = json.loads((tmp_path / "environment.json").read_text())["notes"]
    assert [line for line in said if begins in line]
    assert set(said) <= set(forecast(config).notes)


def test_a_method_that_needs_to_be_started_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MethodServer, "notes", lambda server: [f"{server.state['bank']} values"])
    assert "what fedsimclr has to say is known once a run has started" in forecast(tiny("fedsimclr")).notes


@pytest.mark.parametrize("method", METHODS)
def test_no_method_here_needs_to_be_started_for_it(method: str) -> None:
    config = tiny(method)
    assert rehearse(config, load_federation(config))[0].server.notes() is not None


def test_steps_are_all_batches_of_all_rounds() -> None:
    config = tiny("fedsimclr", train__rounds=3, train__local_epochs=2, participation__fraction=1.0)
    batches = 0
    for shard in load_federation(config).shards:
        images = len(shard["train"])
        batches += len(range(0, images - min(16, images) + 1, min(16, images)))
    assert config.train.batch_size == 16
    found = forecast(config)
    assert found.steps == 3 * 2 * batches
    assert found.step_s > 0
    assert found.seconds(2) == pytest.approx(found.steps * found.step_s / 2)


BESIDE = {
    "fedsimclr": {},
    "fedsc": {"method__sharing_passes": 3, "participation__fraction": 0.5, "train__rounds": 4},
    "fedx": {},
    "fedx, no local relation": {"method__local_relation": 0.0},
    "fedx, no global terms": {"method__global_relation": 0.0, "method__global_contrast": 0.0},
    "fedca": {"method__alignment_epochs": 1, "method__alignment_batch": 16},
    "fedu2": {},
    "fedu2, no turns": {"method__rotation": 0.0},
    "flesd": {},
    "fedmd": {"objective__name": "simclr", "method__digest_epochs": 2, "method__public_epochs": 3},
    "fedbyol": {"plugins": [{"name": "fedfoa", "warmup": 0, "correlation": "round"}]},
}


@pytest.mark.long
@pytest.mark.parametrize("case", BESIDE)
def test_passes_are_those_that_clients_make_beside_their_steps(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the forward passes of a run's clients, counted: with a gradient, which is taken back, three each."""
    config = tiny(case.split(",")[0], **{"evaluation__protocols": [], **BESIDE[case]})
    expected = forecast(config)
    made, at_work, apart = [0], [False], [0.0]
    represent, perform = Network.represent, EncoderClient.perform

    def counted(network: Network, images: torch.Tensor) -> torch.Tensor:
        if at_work[0]:
            made[0] += len(images) * (3 if torch.is_grad_enabled() else 1)
        return represent(network, images)

    def watched(client: EncoderClient, message: dict[str, object]) -> dict[str, object]:
        at_work[0] = client.id >= 0
        reply = perform(client, message)
        at_work[0] = False
        if client.operation == "pretrain":  # a fit that is not of the local steps
            apart[0] += client.metrics["images"]
        return reply

    monkeypatch.setattr(Network, "represent", counted)
    monkeypatch.setattr(EncoderClient, "perform", watched)
    run_locally(config, tmp_path / "run")
    fitted = sum(int(value) for (_, _, tag), value in measured(tmp_path / "run").items() if tag == "train/images")
    fitted -= int(apart[0])
    target = 1 if config.objective.momentum_target is not None else 0  # of each view, in a step: not beside it
    assert expected.passes == made[0] - (3 + target) * 2 * fitted
    assert expected.seconds(1) == pytest.approx(
        expected.steps * expected.step_s + (expected.passes or 0) * expected.pass_s
    )
    whole = 3 * 2 * fitted * expected.pass_s  # a step's passes are all of its time
    assert whole == pytest.approx(expected.steps * expected.step_s)


@pytest.mark.parametrize("method", UNPREDICTED)
def test_passes_that_a_method_does_not_know_are_not_made_up(method: str) -> None:
    found = forecast(tiny(method))
    assert found.passes is None
    said = f"{method} does not know beforehand what its clients compute beside local steps: the time is without it"
    assert said in found.notes


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, a home and a folder for temporary files, all empty; nobody named a cache."""
    for name in ("work", "home", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.delenv("RAYFED_SSL_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "demo.yaml").write_text(json.dumps({"method": {"name": "fedsimclr"}, "data": {"limit": 200}}))
    return tmp_path


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status, out, err = command(capsys, "run", *arguments, "--check")
    return status, out + err


def test_a_check_says_the_plan_and_leaves_nothing(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = ray.is_initialized()  # by another test of this process
    status, said = check(capsys, str(empty / "demo.yaml"), "resources.actors=1", "train.rounds=4")
    assert status == 0
    lines = {line[:13].strip(): line[14:] for line in said.splitlines() if line[:13].strip()}
    assert lines["plan"] == "1 client actor(s) of 1 CPU, 1 thread(s) each, on this machine"
    assert lines["folder"] == "runs/demo"
    assert "5 clients x 40 images" in said
    assert lines["bytes"].endswith("of all clients")
    assert f"{4 * 5} local steps" in lines["time"]
    assert ray.is_initialized() == before
    assert [path.name for path in sorted(empty.rglob("*"))] == ["demo.yaml", "home", "temporary", "work"]


@pytest.mark.parametrize(("cpu_s", "told"), [(1.5, True), (5.0, False)])
def test_a_check_on_a_busy_machine_says_what_the_time_is_without_waiting(
    cpu_s: float, told: bool, empty: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "step_time", lambda config, federation, encoder: StepTime(6.0, cpu_s))
    _, said = check(capsys, str(empty / "demo.yaml"), "resources.actors=1", "train.rounds=4")
    assert "about 2 minutes of training: 20 local steps of 6 s, measured on cpu" in said
    line = "75% of a step this process waited, as on a busy machine: about 30 s without waiting"
    assert (line in said, "this process waited" in said) == (told, told)


def test_a_check_fills_a_cache_that_was_named_and_the_run_finds_it(
    empty: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYFED_SSL_CACHE", str(empty / "cache"))
    put(empty / "images", tree_of({"a": 20, "b": 20}))
    images = ["data.name=imagefolder", f"data.path={empty / 'images'}", "data.image_size=8", "data.limit=null"]
    images += ["clients.count=2", "resources.actors=1"]
    assert check(capsys, str(empty / "demo.yaml"), *images)[0] == 0
    assert len([*(empty / "cache").glob("*.arrow")]) == 2
    monkeypatch.setattr("rayfed_ssl.data.pixels.store.decoded_blocks", None)  # nothing is decoded any more
    assert check(capsys, str(empty / "demo.yaml"), *images)[0] == 0
    assert [path.name for path in sorted(empty.iterdir())] == [
        "cache", "demo.yaml", "home", "images", "temporary", "work",
    ]  # fmt: skip


@pytest.mark.parametrize("quiet", [False, True])
def test_long_decoding_says_how_far_it_is(
    empty: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    monkeypatch.setattr("rayfed_ssl.data.decoding.threads.TOLD_S", 0.0)
    put(empty / "images", tree_of({"a": 20, "b": 20}))
    images = ["data.name=imagefolder", f"data.path={empty / 'images'}", "data.image_size=8", "data.limit=null"]
    images += ["clients.count=2", "resources.actors=1"]
    run = ["run", empty / "demo.yaml", *images, *(["--quiet"] if quiet else [])]
    _, _, err = command(capsys, *run, "--check")
    told = ["decoding images: 32 of 32 (100%)", "decoding images: 8 of 8 (100%)"]
    assert err.splitlines() == ([] if quiet else told)
    end = ["train.rounds=1", "evaluation.protocols=[rank]", "evaluation.select=null", "--executor", "local"]
    _, out, _ = command(capsys, *run, *end)
    assert [line for line in out.splitlines() if line.startswith("decoding")] == ([] if quiet else told)


@pytest.mark.parametrize(
    ("change", "line"),
    [("resources.actors=900", "resources.actors: found 900"), ("clients.count=150", "clients.count: client 50 has 1 ")],
)
def test_a_check_refuses_what_the_run_would_be_refused_for(
    change: str, line: str, empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = check(capsys, str(empty / "demo.yaml"), change)
    assert status == 2
    assert said.startswith(line)


@pytest.mark.long
def test_a_check_names_a_folder_that_is_taken_here_beside_a_plan_for_a_cluster(
    empty: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (empty / "work/runs/demo").mkdir(parents=True)
    (empty / "work/runs/demo/config.yaml").write_text("{}")
    line = "--out: runs/demo already holds a run; add --resume"
    status, said = check(capsys, str(empty / "demo.yaml"))
    assert (status, said.startswith(line)) == (2, True)
    monkeypatch.setenv("RAY_ADDRESS", "another machine's")
    monkeypatch.setattr("rayfed_ssl.commands.checked.planned_on_ray", lambda config: ("as that one has it", 1))
    status, said = check(capsys, str(empty / "demo.yaml"))
    assert (status, f"note          {line}" in said, "of training: " in said) == (0, True, True)
    status, said = check(capsys, str(empty / "demo.yaml"), "--resume")
    assert (status, "already holds" in said) == (0, False)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"train__rounds": 4},
            "with 44 images, as the median client, takes 2 local steps on 16 images in a round, 8 one after the "
            "other in 4 rounds",
        ),
        ({"train__rounds": 24}, "takes 2 local steps on 16 images in a round, 48 one after the other in 24 rounds: "),
        ({"train__rounds": 25}, ""),
        ({"train__rounds": 1, "train__local_epochs": 25}, ""),
        (
            {"train__rounds": 1, "train__batch_size": 100},
            "takes 1 local step on 44 images in a round, 1 one after the other in 1 round: ",
        ),
        ({"train__rounds": 4, "method__name": "centralized"}, ""),
    ],
)
def test_too_few_local_steps_are_noted_with_the_keys_that_give_more(changes: dict[str, Any], told: str) -> None:
    config = tiny(changes.pop("method__name", "fedsimclr"), clients__count=4, **changes)
    lines = few_steps(config, rehearse(config, load_federation(config))[0].server)
    assert bool(lines) == bool(told)
    assert all(told in line for line in lines)
    assert all("train.rounds or train.local_epochs, or a smaller train.batch_size give more" in line for line in lines)


def test_a_run_and_its_check_say_that_local_steps_are_few(tmp_path: Path) -> None:
    config = tiny("fedsimclr", train__local_steps=2)
    run_locally(config, tmp_path)
    (said,) = (
        line for line in json.loads((tmp_path / "environment.json").read_text())["notes"] if "local steps" in line
    )
    assert said.endswith("more train.rounds or train.local_steps give more")
    assert said in forecast(config).notes


def test_a_run_notes_that_a_cpu_has_no_bfloat16(tmp_path: Path) -> None:
    for precision, device, told in (
        ("bfloat16", "NVIDIA H200, cpu", 1), ("bfloat16", "NVIDIA H200", 0), ("float32", "cpu", 0)
    ):  # fmt: skip
        config = tiny("fedsimclr", train__precision=precision, resources__device="auto")
        assert len(no_bfloat16(config, device)) == told
    config = tiny("fedsimclr", train__precision="bfloat16", train__rounds=1, resources__device="auto")
    run_locally(config, tmp_path)
    notes = json.loads((tmp_path / "environment.json").read_text())["notes"]
    assert "train.precision: bfloat16 has no effect on a CPU, where forward passes are float32" in notes


def test_a_run_notes_keys_of_heads_that_its_network_lacks(tmp_path: Path) -> None:
    shape = {"dim": 8, "hidden": [4]}
    told = "model.predictor has no effect: with objective.name=simclr fedsimclr has no predictor"
    config = tiny("fedsimclr", model__predictor=shape, train__rounds=1)
    assert told in forecast(config).notes
    run_locally(config, tmp_path)
    assert told in json.loads((tmp_path / "environment.json").read_text())["notes"]
    for method, changes, keys in (
        ("fedx", {"model__predictor": shape}, []),
        ("fedbyol", {"model__predictor": shape, "model__prototypes": 8}, ["prototypes"]),
        ("fedavg", {"objective__name": "swav", "model__prototypes": 8, "model__head_dropout": 0.5}, ["head_dropout"]),
        ("fedavg_supervised", {"model__head_dropout": 0.5}, ["projector"]),
        ("fedavg_supervised", {"model__projector": {"dim": 64, "hidden": [128], "batch_norm": "none"}}, []),
        ("fedpr", {"model__calibration": 8}, ["projector", "calibration"]),
        ("fedsimclr", {"model__calibration": 8}, []),
        ("fedae", {"model__patch_decoder__dim": 48}, ["projector", "patch_decoder"]),
        ("fedmae", {}, ["projector"]),
    ):
        lines = without_head(tiny(method, **changes))
        assert [line.partition(" ")[0] for line in lines] == [f"model.{key}" for key in keys]


@pytest.mark.parametrize("name", ["demo", "unreliable_clients"])
def test_recipes_have_steps_enough(name: str) -> None:
    config = load(Path(f"configs/{name}.yaml"))
    assert few_steps(config, rehearse(config, load_federation(config))[0].server) == []
