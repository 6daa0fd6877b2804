"""Keys of a method, or of its objective, that have no effect beside other keys are refused, as is all that has none."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from rayfed_ssl.api.call_arguments import asked
from rayfed_ssl.config import load
from rayfed_ssl.data.recipes import AugmentConfig
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.settings.blocks import refuse_unused
from rayfed_ssl.settings.files import ConfigError
from rayfed_ssl.testing.tiny import tiny_run
from tests.tiny import TASKS

DIRECTED = {"objective.directional": True}
PUBLIC = {"data.public.source": "share", "data.public.share": 0.2}
MIXED = {"clients.encoders": ["small_cnn", "small_cnn_bn"] * 2, "method.student": "small_cnn"}
ALONE = {"method.alignment": False, "method.dictionary_size": 40}
REFUSED = {
    "momentum": (
        "fedsimclr", {"train.optimizer.name": "adam", "train.optimizer.momentum": 0.5},
        "train.optimizer.momentum: found 0.5; it needs train.optimizer.name=sgd or lars",
    ),
    "a trust coefficient": (
        "fedsimclr", {"train.optimizer.trust_coefficient": 0.01},
        "train.optimizer.trust_coefficient: found 0.01; it needs train.optimizer.name=lars",
    ),
    "bfloat16": (
        "fedsimclr", {"train.precision": "bfloat16", "resources.device": "cpu"},
        "train.precision: found bfloat16; it needs resources.device=auto or cuda",
    ),
    "adagrad": (
        "fedsimclr", {"server.optimizer.name": "adagrad", "server.optimizer.beta_2": 0.5},
        "server.optimizer.beta_2: found 0.5; it needs server.optimizer.name=adam or yogi",
    ),
    "a share of nothing": (
        "fedsimclr", {"data.public.share": 0.3}, "data.public.share: found 0.3; it needs data.public.source=share",
    ),
    "images of no task": ("fedsimclr", {"data.task_images": 5}, "data.task_images: found 5; it needs data.tasks"),
    "a paper's probe": (
        "fedsimclr", {"evaluation.linear.recipes": ["easyfl"], "evaluation.linear.epochs": 7},
        "evaluation.linear.epochs: found 7; it needs evaluation.linear.recipes with ours",
    ),
    "a paper's probe of other images": (
        "fedsimclr", {"evaluation.transfer": {"linear": {"recipes": ["easyfl"], "epochs": 3}}},
        "evaluation.transfer.linear.epochs: found 3; it needs evaluation.transfer.linear.recipes with ours",
    ),
    "ssd, no separation": (
        "ssd", {"method.separation": 0.0, "method.scale": 3.0},
        "method.scale: found 3.0; it needs method.separation above 0",
    ),
    "ssd, no distillation": (
        "ssd", {"method.distillation": 0.0, "method.temperature": 0.1},
        "method.temperature: found 0.1; it needs method.distillation above 0",
    ),
    "fedu2, no FUR": (
        "fedu2", {"method.uniformity": 0.0, "method.directions": 3},
        "method.directions: found 3; it needs method.uniformity above 0",
    ),
    "fur without weight": (
        "fur", {"method.weight": 0.0, "method.tangent_spaces": 3},
        "method.tangent_spaces: found 3; it needs method.weight above 0",
    ),
    "fur without weight, beside a method": (
        "fedbyol", {"plugins": [{"name": "feddecorr"}, {"name": "fur", "weight": 0, "directions": 3}]},
        "plugins.1.directions: found 3; it needs plugins.1.weight above 0",
    ),
    "a plug-in that is not the method counts no clients": (
        "fedbyol", {"plugins": [{"name": "fur", "weights": "uniform"}]},
        "plugins.0.weights: found uniform; it needs method.name=fur",
    ),
    "feddecorr without weight": (
        "feddecorr", {"method.weight": 0.0, "method.batch_free": True},
        "method.batch_free: found true; it needs method.weight above 0",
    ),
    "feddecorr that is not the method": (
        "fedbyol", {"plugins": [{"name": "feddecorr", "weights": "uniform"}]},
        "plugins.0.weights: found uniform; it needs method.name=feddecorr",
    ),
    "fedfoa without weight": (
        "fedfoa", {"method.weight": 0.0, "method.norm": "mean"},
        "method.norm: found mean; it needs method.weight above 0",
    ),
    "fedx, no relations": (
        "fedx", {"method.local_relation": 0, "method.global_relation": 0, "method.target_temperature": 0.5},
        "method.target_temperature: found 0.5; it needs method.local_relation or method.global_relation above 0",
    ),
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
    "the rate of a relative step": (
        "fedu2", {"method.relative": True, "method.lr": 3.0}, "method.lr: found 3.0; it needs method.relative=false",
    ),
    "the weight of no alignment": (
        "fedca", {**ALONE, "method.beta": 0.1}, "method.beta: found 0.1; it needs method.alignment=true",
    ),
    "epochs of no alignment model": (
        "fedca", {**ALONE, "method.alignment_epochs": 7}, "method.alignment_epochs: found 7; it needs method.alignment",
    ),
    "public images of no alignment": (
        "fedca", {**ALONE, "method.alignment_batch": 7}, "method.alignment_batch: found 7; it needs method.alignment=t",
    ),
    "the loss of no alignment model": (
        "fedca", {**ALONE, **DIRECTED}, "objective.directional: found true; it needs method.alignment=true",
    ),
    "whose entries, of none": (
        "fedca", {**ALONE, "method.dictionary_size": 0, "method.exclude_own": False},
        "method.exclude_own: found false; it needs method.dictionary_size=1 or more",
    ),
    "a model that nothing is aligned with": (
        "fedca", {**PUBLIC, "method.dictionary_size": 40, "method.beta": 0, **DIRECTED},
        "objective.directional: found true; it needs method.beta above 0",
    ),
    "shares that are all the same": (
        "fedu2", {"method.weights": "uniform", "method.temperature": 0.5},
        "method.temperature: found 0.5; it needs method.weights=size",
    ),
    "steps that are all the same": (
        "fedu2", {"train.local_steps": 3, "method.equalise": True},
        "method.equalise: found true; it needs train.local_steps=null",
    ),
    "the rate of no step": (
        "orchestra", {"method.fit_steps": 0, "method.fit_lr": 0.1},
        "method.fit_lr: found 0.1; it needs method.fit_steps above 0",
    ),
    "momentum of a fine-tuning's Adam": (
        "fedsimclr", {"evaluation.semi.optimizer": "adam", "evaluation.semi.momentum": 0.5},
        "evaluation.semi.momentum: found 0.5; it needs evaluation.semi.optimizer=sgd",
    ),
    "grey views of grey images": (
        "fedsimclr", {"data.channels": 1, "augment.gray_p": 0.2},
        "augment.gray_p: found 0.2; it needs data.channels=3",
    ),
    "a jitter that is never drawn": (
        "fedsimclr", {"augment.jitter_p": 0, "augment.jitter": [0.4, 0.4, 0.0, 0.0]},
        "augment.jitter: found [0.4, 0.4, 0.0, 0.0]; it needs augment.jitter_p above 0",
    ),
    "a jitter that the preset never draws": (
        "fedsimclr", {"augment": {"preset": "fedx", "jitter": [0.4, 0.4, 0.0, 0.0]}},
        "augment.jitter: found [0.4, 0.4, 0.0, 0.0]; it needs augment.jitter_p above 0 where augment.preset=fedx has 0",
    ),
    "a jitter without strength": (
        "fedsimclr", {"augment.preset": "none", "augment.jitter_p": 0.5},
        "augment.jitter_p: found 0.5; it needs augment.jitter with a strength above 0 where augment.preset=none has 0",
    ),
    "the width of no blur": (
        "fedsimclr", {"augment.blur_sigma": [0.5, 1.0]},
        "augment.blur_sigma: found [0.5, 1.0]; it needs augment.blur_p above 0 where augment.preset=digits has 0",
    ),
    "an ensemble of no entries": (
        "fedca", {**ALONE, "method.dictionary_size": 0, "method.ensembling": 0.9},
        "method.ensembling: found 0.9; it needs method.dictionary_size=1 or more",
    ),
    "a queue that is none": (
        "fedavg", {"objective.name": "swav", "objective.keep_queue": True},
        "objective.keep_queue: found true; it needs objective.queue above 0",
    ),
    "t of no uniformity": (
        "fedavg", {"objective": {"name": "align_uniform", "uniformity": 0, "t": 3}},
        "objective.t: found 3.0; it needs objective.uniformity above 0",
    ),
    "epochs beside steps": (
        "fedsimclr", {"train.local_steps": 3, "train.local_epochs": 2},
        "train.local_epochs: found 2; it needs train.local_steps=null",
    ),
    "nested epochs beside steps": (
        "fedsimclr", {"train": {"local_steps": 3, "local_epochs": 2}},
        "train.local_epochs: found 2; it needs train.local_steps=null",
    ),
    "a second view of rotation": (
        "fedavg", {"objective.name": "rotation", "augment.second_blur_p": 0.5},
        "augment.second_blur_p: found 0.5; it needs objective.name=one with two views of an image (rotation has one)",
    ),
    "of the autoencoder, by a plug-in's method": (
        "fedprox", {"objective.name": "autoencoder", "augment": {"preset": "barlow", "second_solarize_p": 0.0}},
        "augment.second_solarize_p: found 0.0; it needs objective.name=one with two views of an image (autoencoder ",
    ),
    "of labelled images": (
        "centralized", {"objective.name": "supervised", "augment.second_solarize_p": 0.2},
        "augment.second_solarize_p: found 0.2; it needs objective.name=one with two views of an image (supervised has",
    ),
    "of a method's only objective": (
        "fedlinked", {**TASKS, "data.public.share": 0.25, "augment.second_blur_p": 0.5},
        "augment.second_blur_p: found 0.5; it needs method.name=one that trains on two views of an image (fedlinked ",
    ),
    "weights of clients alone": (
        "local", {"transport.up.name": "quantized", "transport.up.bits": 4},
        "transport.up: found quantized; it needs method.name=one that sends weights up (local sends none)",
    ),
    "weights of one place": (
        "centralized", {"transport": {"down": {"name": "float16"}}},
        "transport.down: found float16; it needs method.name=one that sends weights down (centralized sends none)",
    ),
    "weights beside correlations": (
        "fedfoa", {"transport.up": {"name": "float16"}}, "transport.up: found float16; it needs method.name=one that ",
    ),
    "weights beside outputs": (
        "fedmd", {**PUBLIC, "transport.down.name": "quantized"}, "transport.down: found quantized; it needs method.na",
    ),
    "weights up, of those that come down": (
        "flesd", {**PUBLIC, "transport.up.name": "float16"}, "transport.up: found float16; it needs method.name=one th",
    ),
    "weights down, of many architectures": (
        "flesd", {**PUBLIC, **MIXED, "transport.down.name": "float16"}, "transport.down: found float16; it needs met",
    ),
}  # fmt: skip
ALLOWED = {
    "momentum of SGD": ("fedsimclr", {"train.optimizer.momentum": 0.5}),
    "bfloat16 on a GPU": ("fedsimclr", {"train.precision": "bfloat16", "resources.device": "cuda"}),
    "bfloat16 where there is a GPU": ("fedsimclr", {"train.precision": "bfloat16", "resources.device": "auto"}),
    "of LARS": (
        "fedsimclr",
        {"train.optimizer.name": "lars", "train.optimizer.momentum": 0.5, "train.optimizer.trust_coefficient": 0.01},
    ),
    "no momentum": ("fedsimclr", {"train.optimizer.name": "adam", "train.optimizer.momentum": 0.9}),
    "a share of tasks": ("fedlinked", {**TASKS, "data.public.share": 0.3, "data.task_images": 5}),
    "ours beside a paper's": (
        "fedsimclr",
        {"evaluation.linear.recipes": ["easyfl", "ours"], "evaluation.linear.epochs": 7},
    ),
    "fedfoa's matrices cross without its term": (
        "fedfoa",
        {"method.weight": 0.0, "method.scale": True, "method.views": "both"},
    ),
    "a plug-in's own keys": ("fedbyol", {"plugins": [{"name": "fur", "weight": 0.5, "directions": 3}]}),
    "a plug-in's clients, as the method": ("fur", {"method.weights": "uniform"}),
    "fedx, one relation": ("fedx", {"method.local_relation": 0, "method.target_temperature": 0.5}),
    "fedx at its default": ("fedx", {"objective.directional": False, "method.global_contrast": 0.0}),
    "lambda of all clients": ("fedema", {"method.autoscale": False, "method.scaler": 0.5, "method.tau": 0.7}),
    "tau": ("fedema", {"method.scaler": 1.0, "method.tau": 0.5}),
    "a mean": ("fedu2", {"method.eua": False, "method.temperature": 0.5}),
    "a relative step": ("fedu2", {"method.relative": True, "method.lr": None}),
    "no alignment": ("fedca", {**ALONE, "method.beta": 0.01, "objective.directional": False}),
    "no dictionary": ("fedca", {"method.alignment": False, "method.dictionary_size": 0, "method.ensembling": 0.0}),
    "no jitter at all": ("fedsimclr", {"augment.jitter": [0, 0, 0, 0], "augment.jitter_p": 0, "augment.blur_p": 0}),
    "a jitter of a preset that has one": ("fedsimclr", {"augment.jitter": [0.4, 0.4, 0, 0]}),
    "a blur of the second view": ("fedsimclr", {"augment.second_blur_p": 0.1, "augment.blur_sigma": [0.5, 1.0]}),
    "steps that nobody equalises": ("fedu2", {"train.local_steps": 3, "method.equalise": False}),
    "momentum of a fine-tuning": ("fedsimclr", {"evaluation.semi.momentum": 0.5}),
    "a queue": ("fedavg", {"objective.name": "swav", "objective.queue": 24, "objective.keep_queue": True}),
    "t of a method's uniformity": ("ssd", {"objective.t": 3.0}),
    "steps": ("fedsimclr", {"train.local_steps": 3, "train.local_epochs": 1}),
    "epochs": ("fedsimclr", {"train.local_steps": None, "train.local_epochs": 2}),
    "a second view": ("fedprox", {"objective.name": "byol", "augment.second_blur_p": 0.5}),
    "a second view beside a turned one": ("fedx", {"augment.second_solarize_p": 0.5}),
    "a preset's second view": ("fedavg", {"objective.name": "rotation", "augment.preset": "orchestra"}),
    "weights as they are": ("local", {"transport.up.name": "float32", "transport": {"down": {"name": "float32"}}}),
    "weights both ways": ("fedmkd", {**PUBLIC, "transport.up.name": "quantized", "transport.down.name": "float16"}),
    "weights down": ("flesd", {**PUBLIC, "transport.down.name": "float16"}),
    "weights of another method than the plug-in": (
        "fedbyol",
        {"plugins": [{"name": "fedfoa"}], "transport.up.name": "float16"},
    ),
    "no second view": ("fedavg", {"objective.name": "rotation", "augment.second_blur_p": None}),
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


BESIDE = "train.local_epochs: found 4; it needs train.local_steps=null"
NO_MODEL = "method.beta: found 0.5; it needs method.alignment=true"
ALIGNED = "method: {name: fedca, alignment_epochs: 7, beta: 0.5, dictionary_size: 40}\n"
UNSENT = "transport.up: found float16; it needs method.name=one that sends weights up (local sends none)"
EPOCHS, STEPS = "method: {name: fedsimclr}\ntrain: {local_epochs: 4}\n", "train.local_steps=3"
BOTH = "method: {name: fedsimclr}\ntrain: {local_epochs: 4, local_steps: 3}\n"
UNIFORM = "method: {name: ssd, separation: 0, scale: 3.0}\n"
NO_SUBSPACE = "method.scale: found 3.0; it needs method.separation above 0"
UNRELATED = "method: {name: fedx, local_relation: 0, global_relation: 0, target_temperature: 0.5}\n"
NO_RELATION = "method.target_temperature: found 0.5; it needs method.local_relation or method.global_relation above 0"
PLUGGED = "method: {name: fedbyol}\nplugins: [{name: fur, weight: 0, directions: 3}]\n"
JITTER = "method: {name: fedsimclr}\naugment: {preset: fedx, jitter: [0.4, 0.4, 0.0, 0.0]}\n"
NO_JITTER = "augment.jitter: found [0.4, 0.4, 0.0, 0.0]; it needs augment.jitter_p above 0 where augment.preset=fedx "
NO_FUR = "plugins.0.directions: found 3; it needs plugins.0.weight above 0"
PROFILES = "method: {name: fedsimclr}\ntrain: {local_steps: 3}\nprofiles:\n  cpu: {train: {rounds: 2}}\n"


def loaded(folder: Path, text: str, *overrides: str) -> tuple[int | None, int]:
    """The local steps and epochs of a run by a file of this text."""
    (folder / "run.yaml").write_text(text, encoding="utf-8")
    train = load(folder / "run.yaml", overrides).train
    return train.local_steps, train.local_epochs


def test_an_option_may_take_the_effect_from_what_a_file_has_for_other_runs(tmp_path: Path) -> None:
    assert loaded(tmp_path, EPOCHS, STEPS) == (3, 4)
    assert loaded(tmp_path, BOTH, "train.local_steps=null") == (None, 4)
    assert loaded(tmp_path, EPOCHS + "profiles:\n  cpu: {train: {local_steps: 3}}\n") == (3, 4)
    assert loaded(tmp_path, "method: {name: fedsimclr}\ntransport: {up: {name: float16}}\n", "method.name=local")
    assert loaded(tmp_path, PLUGGED.replace("weight: 0, ", ""), "plugins.0.weight=0") == (None, 1)
    assert loaded(tmp_path, JITTER.replace("fedx", "fedca"), "augment.preset=fedx") == (None, 1)
    for one, other in itertools.permutations(("local_relation", "global_relation")):  # one of them is effect enough
        related = f"method: {{name: fedx, {one}: 0, target_temperature: 0.5}}\n"
        assert loaded(tmp_path, related, f"method.{other}=0") == (None, 1)
    directed = ALIGNED + "objective: {name: simclr, directional: true}\ndata: {public: {source: share}}\n"
    assert loaded(tmp_path, directed, "method.alignment=false") == (None, 1)


@pytest.mark.parametrize(
    ("text", "overrides", "line"),
    [
        (BOTH, (), BESIDE),
        (EPOCHS, (STEPS, "train.local_epochs=4"), BESIDE),
        (PROFILES.replace("rounds: 2", "local_steps: 3, local_epochs: 4"), (), BESIDE),
        ("method: {name: fedca, alignment: false, dictionary_size: 40, beta: 0.5}\n", (), NO_MODEL),
        (ALIGNED, ("method.alignment=false", "method.beta=0.5"), NO_MODEL),
        ("method: {name: local}\ntransport: {up: {name: float16}}\n", (), UNSENT),
        ("method: {name: fedsimclr}\n", ("method.name=local", "transport.up.name=float16"), UNSENT),
        (UNIFORM, (), NO_SUBSPACE),
        (UNRELATED, (), NO_RELATION),
        (PLUGGED, (), NO_FUR),
        (JITTER, (), f"{NO_JITTER}has 0"),
        (PLUGGED.replace("weight: 0, ", ""), ("plugins.0.weight=0", "plugins.0.directions=3"), NO_FUR),
    ],
)
def test_what_stands_beside_the_key_that_makes_it_useless_is_refused(
    tmp_path: Path, text: str, overrides: tuple[str, ...], line: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        loaded(tmp_path, text, *overrides)
    assert str(refusal.value) == line


def test_a_mapping_of_a_python_call_is_read_as_a_file_is() -> None:
    for written, line in (
        ({"method": {"name": "local"}, "transport": {"up": {"name": "float16"}}}, UNSENT),
        ({"method.name": "fedsimclr", "train.local_steps": 3, "train.local_epochs": 4}, BESIDE),
    ):
        with pytest.raises(ConfigError) as refusal:
            asked(written, {})
        assert str(refusal.value) == line
    config = asked({"method.name": "fedsimclr", "train.local_epochs": 4}, {"train__local_steps": 3})
    assert asked(config.model_dump(mode="json"), {}) == config


ONE_VIEW = """
from typing import ClassVar, Literal

from rayfed_ssl.objectives.simclr import SimCLR, SimCLRConfig


class Block(SimCLRConfig):
    name: Literal["one_view"] = "one_view"


class OneView(SimCLR):
    block: ClassVar[type[Block]] = Block

    @property
    def views(self) -> int:
        return 1


OBJECTIVES = {"one_view": OneView}
"""


def test_views_that_a_method_makes_itself_count(tmp_path: Path) -> None:
    """FLESD's server makes two views of public images, whatever the clients' objective makes of theirs."""
    (tmp_path / "one_view.py").write_text(ONE_VIEW, encoding="utf-8")
    changes = {"imports": ["one_view.py"], "objective.name": "one_view", "augment.second_blur_p": 0.5}
    with pytest.raises(ConfigError, match=r"augment.second_blur_p: found 0.5; it needs objective.name=one with two"):
        tiny_run("fedavg", changes, tmp_path)
    config = tiny_run("flesd", {**changes, "data.public.source": "share"}, tmp_path)
    assert config.augment.second_blur_p == 0.5


ROTATED = "method: {name: fedavg}\nobjective: {name: rotation}\naugment: {second_blur_p: 0.5}\n"
TRUNKS = f"method: {{name: fedavg_trunk}}\nclients: {{count: 4}}\ndata: {{tasks: {TASKS['data.tasks']}}}\n"


@pytest.mark.parametrize(
    ("text", "named"), [(ROTATED, "objective"), (TRUNKS + "augment: {second_blur_p: 0.5}\n", "method")]
)
def test_a_second_view_in_a_file_beside_what_makes_one_is_refused(text: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        loaded(tmp_path, text)
    assert str(refusal.value).startswith(f"augment.second_blur_p: found 0.5; it needs {named}.name=one ")


def test_a_second_view_of_a_files_other_runs_is_allowed(tmp_path: Path) -> None:
    """An option may name another objective, as a sweep over objectives does; likewise a profile."""
    loaded(tmp_path, ROTATED, "objective.name=simclr")
    both = ROTATED.replace("rotation", "simclr")
    loaded(tmp_path, both, "objective.name=rotation")
    loaded(tmp_path, both + "profiles:\n  cpu: {objective: {name: rotation}}\n")
    with pytest.raises(ConfigError, match="second_blur_p"):
        loaded(tmp_path, both, "objective.name=rotation", "augment.second_blur_p=0.5")


def test_what_was_resolved_once_is_read_again(tmp_path: Path) -> None:
    """A sweep's best.yaml, say, has epochs of its base beside the steps that were tried."""
    (tmp_path / "run.yaml").write_text(EPOCHS, encoding="utf-8")
    config = load(tmp_path / "run.yaml", [STEPS])
    configfile.dump(config, tmp_path / "best.yaml")
    assert load(tmp_path / "best.yaml") == config


def test_a_list_is_shown_as_yaml_has_it() -> None:
    with pytest.raises(ValueError, match=r"^augment\.crop_scale: found \[0\.25, 0\.5\]; it needs crops$"):
        refuse_unused(AugmentConfig(crop_scale=(0.25, 0.5)), "augment", "crop_scale", needs="crops")
