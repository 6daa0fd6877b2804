"""Config files: reading, profiles, overrides, and the exact words of every error a user can meet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, model_validator

from rayfed_ssl.base.choice import OneOf
from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.config import load
from rayfed_ssl.settings.files import ConfigError, dump, merge, overlay, parse_overrides, read, validate


class Optimizer(Block):
    lr: float = Field(0.1, gt=0)
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)


class Train(Block):
    rounds: int = Field(1, ge=1)
    local_epochs: int = 1
    optimizer: Optimizer = Optimizer()

    @model_validator(mode="after")
    def _whole(self) -> Train:
        if self.rounds * self.local_epochs > 1000:
            raise ValueError("rounds times local_epochs must stay under 1000")
        return self


class Fedsc(Block):
    name: Literal["fedsc"] = "fedsc"
    views: int = 2
    alpha_floor: float | None = None


class Fedprox(Block):
    name: Literal["fedprox"] = "fedprox"
    mu: float = 0.01


class Clipped(Block):
    name: Literal["clipped"] = "clipped"
    clip: float = 1.0


class Iid(Block):
    name: Literal["iid"] = "iid"


class Dirichlet(Block):
    name: Literal["dirichlet"] = "dirichlet"
    alpha: float


class Share(Block):
    """A kind whose name is also one of its keys: the location alone cannot tell label from key."""

    name: Literal["share"] = "share"
    share: float = 0.1
    fraction: float = 0.5


class FromClient(Block):
    name: Literal["client"] = "client"


class Data(Block):
    path: Path | None = None
    image_size: Literal[8, 32, 224] = 32
    partition: Iid | Dirichlet = Field(Iid(), discriminator="name")
    public: Annotated[Share | FromClient, Field(discriminator="name")] | None = None


Encoder = Literal["resnet18", "vgg9", "lenet"]


class Clients(Block):
    count: int = 2
    encoders: Encoder | tuple[Encoder, ...] = "resnet18"


class Config(Block):
    name: str = "run"
    profile: str | None = None
    method: Annotated[Fedsc | Fedprox, Field(discriminator="name")]
    plugins: tuple[Annotated[Clipped | Fedprox, Field(discriminator="name")], ...] = ()
    data: Data = Data()
    clients: Clients = Clients()
    train: Train = Train()
    notes: dict[str, int] = Field(default_factory=dict)


def errors(document: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        validate(Config, {"method": {"name": "fedsc"}, **document}, origin="demo.yaml")
    assert isinstance(caught.value, UserError)
    return str(caught.value).splitlines()


def write(folder: Path, text: str) -> Path:
    path = folder / "demo.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# --- read ----------------------------------------------------------------------------------------------------------


def test_read_takes_exponents_as_numbers_and_dates_and_keys_as_text(tmp_path: Path) -> None:
    path = write(tmp_path, "a: 1e-3\nb: [-2E4, .5e1, 1.5e+2]\nname: 2024-01-02\non: 'x'\n1: one\nquoted: '1e-3'\n")
    assert read(path) == {
        "a": 0.001,
        "b": [-20000.0, 5.0, 150.0],
        "name": "2024-01-02",
        "on": "x",
        "1": "one",
        "quoted": "1e-3",
    }


def test_read_lets_a_mapping_override_what_it_merges_in(tmp_path: Path) -> None:
    text = "deep: {base: &base {x: 1, y: 1}, more: &more {<<: *base, x: 2}}\nuse: {<<: *more, x: 3}\n"
    assert read(write(tmp_path, text))["use"] == {"x": 3, "y": 1}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", "line 3: expected ',' or ']', but got ':'; must be YAML"),
        ("a: 1\nb:\n\t- 2\n", "line 3: found character '\\t' that cannot start any token; must be YAML"),
        ("a: 1\ntrain:\n  rounds: 1\n  rounds: 2\n", "line 4: found the key 'rounds' twice; must be YAML"),
        ("[1, 2]: x\n", "line 1: found a key that is not text; must be YAML"),
        ("a: *nobody\n", "line 1: found undefined alias 'nobody'; must be YAML"),
        ("a: 1\n---\nb: 2\n", "line 2: but found another document; must be YAML"),
        ("a: !!python/object:os.system {}\n", "line 1: found the tag"),
        ("a: \x01\n", "special characters are not allowed"),
        ("- a\n- b\n", "found ['a', 'b']; must be a mapping"),
        ("", "found an empty file; must be a mapping"),
    ],
)
def test_read_names_the_file_and_the_line(tmp_path: Path, text: str, found: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert found in message
    assert "\n" not in message


def test_read_of_what_is_no_text_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.yaml: found no such file or directory; must be a readable YAML file"):
        read(tmp_path / "absent.yaml")
    with pytest.raises(UserError, match="found a folder"):
        read(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\xe8\n")
    with pytest.raises(UserError, match="text that is not UTF-8"):
        read(tmp_path / "latin.yaml")


# --- profiles ------------------------------------------------------------------------------------------------------

FILE: dict[str, Any] = {
    "method": {"name": "fedsc", "views": 4},
    "train": {"rounds": 2, "local_epochs": 3},
    "profiles": {
        "cpu": None,
        "paper": {"train": {"rounds": 100}, "method": {"name": "fedprox"}},
        "dotted": {"train.optimizer.lr": 0.5, "method.views": 8},
    },
}


def test_a_profile_lies_over_the_file_and_under_the_command_line() -> None:
    assert overlay(FILE, None) == {
        "method": {"name": "fedsc", "views": 4},
        "train": {"rounds": 2, "local_epochs": 3},
        "profile": "cpu",
    }
    paper = overlay({**FILE, "profile": "paper"}, None)
    assert paper == {"method": {"name": "fedprox"}, "train": {"rounds": 100, "local_epochs": 3}, "profile": "paper"}
    assert merge(paper, {"train.rounds": 7})["train"] == {"rounds": 7, "local_epochs": 3}
    dotted = overlay({**FILE, "profile": "paper"}, "dotted")
    assert dotted["method"] == {"name": "fedsc", "views": 8}
    assert dotted["train"]["optimizer"] == {"lr": 0.5}


def test_a_resolved_document_keeps_its_profile_and_resolves_to_itself() -> None:
    resolved = overlay(FILE, "paper")
    assert overlay(resolved, None) == overlay(resolved, "paper") == resolved
    with pytest.raises(
        UserError, match=r"profile: found 'cpu'; this config offers no profiles .*resolved with 'paper'"
    ):
        overlay(resolved, "cpu")
    assert "profile" not in overlay({"name": "x"}, None)


def test_wrong_profiles_are_named() -> None:
    with pytest.raises(
        UserError, match=r"^profile: found 'papr'; must be one of cpu, paper, dotted; did you mean paper\?$"
    ):
        overlay(FILE, "papr")
    with pytest.raises(UserError, match=r"^profile: found 'cpu'; must be one of big$"):
        overlay({"profiles": {"big": {}}}, None)
    with pytest.raises(UserError, match=r"^profiles: found \['cpu'\]; must be a mapping"):
        overlay({"profiles": ["cpu"]}, None)
    with pytest.raises(UserError, match=r"^profiles\.cpu: found 3; must be a mapping"):
        overlay({"profiles": {"cpu": 3}}, None)


# --- overrides -----------------------------------------------------------------------------------------------------


def test_override_values_are_yaml() -> None:
    items = [
        "train.rounds=3",
        "train.optimizer.lr=1e-3",
        "clients.encoders=[resnet18,vgg9]",
        "method.name=fedsc",
        "train.optimizer.nesterov=true",
        "data.path=/a=b",
        "method.alpha_floor=null",
        "notes={a: 1}",
        "train.rounds=4",
    ]
    overrides = parse_overrides(items)
    assert overrides == {
        "train.optimizer.lr": 0.001,
        "clients.encoders": ["resnet18", "vgg9"],
        "method.name": "fedsc",
        "train.optimizer.nesterov": True,
        "data.path": "/a=b",
        "method.alpha_floor": None,
        "notes": {"a": 1},
        "train.rounds": 4,
    }
    assert type(overrides["train.optimizer.lr"]) is float


@pytest.mark.parametrize("value", ["on", "off", "auto"])
def test_words_that_yaml_takes_for_booleans_are_words(value: str, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("method: {name: fedsimclr}\n")
    config = load(tmp_path / "base.yaml", [f"resources.cuda_graphs={value}"])
    assert config.resources.cuda_graphs == value
    dump(config, tmp_path / "config.yaml")
    assert read(tmp_path / "config.yaml")["resources"]["cuda_graphs"] == value


@pytest.mark.parametrize("item", ["train.rounds", "=3", "train..rounds=3", ".rounds=3", "train rounds=3", "train.=3"])
def test_an_item_that_is_not_key_equals_value(item: str) -> None:
    with pytest.raises(UserError, match=r"^command line: found '.*'; must be key=value, such as train\.rounds=3$"):
        parse_overrides([item])


def test_an_override_that_is_not_yaml_names_its_key() -> None:
    with pytest.raises(
        UserError,
        match=r"^clients\.encoders: found '\[resnet18'; must be a YAML value, text with signs in quotes \(.*\)$",
    ):
        parse_overrides(["clients.encoders=[resnet18"])
    with pytest.raises(UserError, match=r"^notes: found '\{a: 1, a: 2\}'; .*the key 'a' twice"):
        parse_overrides(["notes={a: 1, a: 2}"])


# --- merge ---------------------------------------------------------------------------------------------------------


def test_merge_is_deep_reaches_into_lists_and_leaves_its_arguments_alone() -> None:
    document = {"train": {"rounds": 2}, "clients": {"encoders": ["vgg9", "vgg9"]}, "data": None}
    overrides: dict[str, object] = {
        "train.optimizer": {"lr": 0.5},
        "train": {"local_epochs": 2, "optimizer": {}},
        "clients.encoders.1": "lenet",
        "data.partition.name": "iid",
    }
    before = repr((document, overrides))
    merged = merge(document, overrides)
    assert merged == {
        "train": {"rounds": 2, "optimizer": {"lr": 0.5}, "local_epochs": 2},
        "clients": {"encoders": ["vgg9", "lenet"]},
        "data": {"partition": {"name": "iid"}},
    }
    merged["train"]["optimizer"]["lr"] = 1
    merged["clients"]["encoders"].append("x")
    assert repr((document, overrides)) == before


@pytest.mark.parametrize("spelling", ["dotted", "nested", "block"])
def test_a_new_kind_drops_the_old_kinds_keys(spelling: str) -> None:
    document = {"method": {"name": "fedsc", "views": 4}, "data": {"image_size": 8, "partition": {"name": "iid"}}}
    overrides: dict[str, object] = {
        "dotted": {"method.mu": 0.5, "method.name": "fedprox", "data.partition.name": "dirichlet"},
        "nested": {"method": {"name": "fedprox", "mu": 0.5}, "data": {"partition": {"name": "dirichlet"}}},
        "block": {"method": {"mu": 0.5, "name": "fedprox"}, "data.partition": {"name": "dirichlet"}},
    }[spelling]
    merged = merge(document, overrides)
    assert merged == {
        "method": {"name": "fedprox", "mu": 0.5},
        "data": {"image_size": 8, "partition": {"name": "dirichlet"}},
    }


def test_the_same_kind_keeps_its_keys_and_untagged_blocks_are_ordinary() -> None:
    document = {"method": {"name": "fedsc", "views": 4}, "other": {"name": "a", "x": 1}}
    assert merge(document, {"method.name": "fedsc", "other.name": "b"}) == {
        "method": {"name": "fedsc", "views": 4},
        "other": {"name": "b", "x": 1},
    }
    assert merge(document, {"other.name": "b"}, tagged=("other",))["other"] == {"name": "b"}
    assert merge({"method": "fedsc"}, {"method.name": "fedprox"}) == {"method": {"name": "fedprox"}}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("clients.encoders.2", "clients.encoders.2: found index '2'; clients.encoders is a list of 2, counted from 0"),
        ("clients.encoders.x", "clients.encoders.x: found index 'x'; clients.encoders is a list of 2, counted from 0"),
        (
            "clients.encoders.-1",
            "clients.encoders.-1: found index '-1'; clients.encoders is a list of 2, counted from 0",
        ),
        ("train.rounds.x", "train.rounds.x: found train.rounds set to 2; only a mapping or a list has keys"),
        ("train.rounds.x.y", "train.rounds.x.y: found train.rounds set to 2; only a mapping or a list has keys"),
    ],
)
def test_a_path_that_leads_nowhere(key: str, message: str) -> None:
    document = {"train": {"rounds": 2}, "clients": {"encoders": ["vgg9", "vgg9"]}}
    with pytest.raises(UserError) as caught:
        merge(document, {key: 1})
    assert str(caught.value) == message


# --- validate ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"train": {"optimizer": {"lr": "fast"}}}, "train.optimizer.lr: found 'fast'; must be a number"),
        ({"train": {"optimizer": {"lr": 0}}}, "train.optimizer.lr: found 0; must be greater than 0.0"),
        ({"train": {"rounds": 0}}, "train.rounds: found 0; must be at least 1"),
        ({"train": {"rounds": 2.5}}, "train.rounds: found 2.5; must be a whole number"),
        ({"train": {"rounds": None}}, "train.rounds: found null; must be a whole number"),
        ({"train": {"rounds": True}}, "train.rounds: found true; must be a number"),
        ({"train": {"optimizer": {"betas": [True, 0.5]}}}, "train.optimizer.betas.0: found true; must be a number"),
        ({"train": {"optimizer": {"nesterov": 7}}}, "train.optimizer.nesterov: found 7; must be true or false"),
        ({"train": {"optimizer": {"betas": [0.9]}}}, "train.optimizer.betas.1: found nothing; must be given"),
        ({"train": 3}, "train: found 3; must be a mapping of keys to values"),
        ({"train": {"rounds": 1001}}, "train: rounds times local_epochs must stay under 1000"),
        ({"name": 2024}, "name: found 2024; must be text (put it in quotes)"),
        ({"name": ["x"]}, "name: found ['x']; must be text"),
        (
            {"train": {"round": 3}},
            "train.round: found 3; unknown key, allowed here: rounds, local_epochs, optimizer; did you mean rounds?",
        ),
        ({"notes": {"a": "x"}}, "notes.a: found 'x'; must be a whole number"),
        (
            {"method": {"name": "FedSC2"}},
            "method.name: found 'FedSC2'; must be one of fedsc, fedprox; did you mean fedsc?",
        ),
        ({"method": {"name": "zzz"}}, "method.name: found 'zzz'; must be one of fedsc, fedprox"),
        ({"method": {"views": 2}}, "method.name: found nothing; must be one of fedsc, fedprox"),
        ({"method": "fedsc"}, "method: found 'fedsc'; must be a mapping of keys to values"),
        ({"method": {"name": "fedsc", "views": "x"}}, "method.views: found 'x'; must be a whole number"),
        ({"method": {"name": "fedsc", "alpha_floor": "x"}}, "method.alpha_floor: found 'x'; must be a number"),
        (
            {"method": {"name": "fedprox", "views": 2}},
            "method.views: found 2; unknown key, allowed here: name, mu",
        ),
        ({"data": {"partition": {"name": "dirichlet"}}}, "data.partition.alpha: found nothing; must be given"),
        ({"data": {"image_size": 30}}, "data.image_size: found 30; must be one of 8, 32, 224"),
        ({"data": {"public": {"name": "share", "share": "x"}}}, "data.public.share: found 'x'; must be a number"),
        (
            {"data": {"public": {"name": "share", "share": 0.1, "fraction": "x"}}},
            "data.public.fraction: found 'x'; must be a number",
        ),
        (
            {"data": {"public": {"name": "share", "shares": 1}}},
            "data.public.shares: found 1; unknown key, allowed here: name, share, fraction; did you mean share?",
        ),
        (
            {"plugins": [{"name": "fedprox"}, {"name": "clipped", "clip": "x"}]},
            "plugins.1.clip: found 'x'; must be a number",
        ),
        (
            {"plugins": [{"name": "cliped"}]},
            "plugins.0.name: found 'cliped'; must be one of clipped, fedprox; did you mean clipped?",
        ),
        ({"plugins": {"name": "clipped"}}, "plugins: found {'name': 'clipped'}; must be a list"),
        (
            {"clients": {"encoders": "vgg"}},
            "clients.encoders: found 'vgg'; must be one of resnet18, vgg9, lenet or a list; did you mean vgg9?",
        ),
        (
            {"clients": {"encoders": ["vgg9", "resnet"]}},
            "clients.encoders.1: found 'resnet'; must be one of resnet18, vgg9, lenet; did you mean resnet18?",
        ),
    ],
)
def test_each_error_is_one_line_in_the_users_words(document: dict[str, Any], message: str) -> None:
    assert errors(document) == [message]


def test_all_errors_come_at_once_in_one_line_each() -> None:
    document = {
        "method": {"name": "fedprox", "mu": "x"},
        "train": {"rounds": 0, "optimizer": {"lr": "a\nb", "momentum": 0.9}},
        "clients": {"count": "many"},
        "trein": {},
    }
    lines = errors(document)
    assert sorted(line.split(":")[0] for line in lines) == [
        "clients.count",
        "method.mu",
        "train.optimizer.lr",
        "train.optimizer.momentum",
        "train.rounds",
        "trein",
    ]
    assert "trein: found {}; unknown key" in "\n".join(lines)
    assert lines[-1].endswith("did you mean train?")


def test_long_values_are_cut_and_the_whole_document_is_called_by_its_origin() -> None:
    assert errors({"train": {"rounds": "9" * 300 + "x"}}) == [
        f"train.rounds: found '{'9' * 56}...; must be a whole number"
    ]
    with pytest.raises(ConfigError) as caught:
        validate(Config, [1], origin="demo.yaml")  # type: ignore[arg-type]
    assert str(caught.value) == "demo.yaml: found [1]; must be a mapping of keys to values"


# --- kinds that a table says ---------------------------------------------------------------------------------------

KINDS: dict[str, type[Block]] = {"share": Share, "clipped": Clipped}


class Extensible(Block):
    """The same places as in ``Config``, their kinds looked up by name."""

    public: Annotated[Block, OneOf(lambda: KINDS)] = Share()
    plugins: tuple[Annotated[Block, OneOf(lambda: KINDS)], ...] = ()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"public": {"name": "shore"}},
            "public.name: found 'shore'; must be one of share, clipped; did you mean share?",
        ),
        ({"public": {"name": 3}}, "public.name: found '3'; must be one of share, clipped"),
        ({"public": {"clip": 1}}, "public.name: found nothing; must be one of share, clipped"),
        ({"public": "share"}, "public: found 'share'; must be a mapping of keys to values"),
        ({"public": {"name": "share", "share": "x"}}, "public.share: found 'x'; must be a number"),
        ({"public": {"name": "clipped", "clip": True}}, "public.clip: found true; must be a number"),
        (
            {"public": {"name": "share", "shares": 1}},
            "public.shares: found 1; unknown key, allowed here: name, share, fraction; did you mean share?",
        ),
        (
            {"plugins": [{"name": "share"}, {"name": "clipped", "clip": "x"}]},
            "plugins.1.clip: found 'x'; must be a number",
        ),
        (
            {"plugins": [{"name": "cliped"}]},
            "plugins.0.name: found 'cliped'; must be one of share, clipped; did you mean clipped?",
        ),
    ],
)
def test_kinds_of_a_table_have_the_same_errors(document: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(Extensible, document, origin="demo.yaml")
    assert str(caught.value) == message


def test_a_kind_that_was_added_is_a_kind_and_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "fedprox", Fedprox)
    config = validate(Extensible, {"plugins": [{"name": "fedprox", "mu": 2}]}, origin="x")
    assert config.plugins == (Fedprox(mu=2),)
    dump(config, tmp_path / "config.yaml")
    assert read(tmp_path / "config.yaml")["plugins"] == [{"name": "fedprox", "mu": 2.0}]
    assert validate(Extensible, read(tmp_path / "config.yaml"), origin="x") == config


# --- dump ----------------------------------------------------------------------------------------------------------


def test_dump_round_trips_to_an_equal_model_in_the_schemas_order(tmp_path: Path) -> None:
    document = {
        "train": {"optimizer": {"lr": 1e-7, "betas": [0.1 + 0.2, 1e300]}, "rounds": 3},
        "method": {"name": "fedsc", "alpha_floor": 1e-3},
        "name": "1e-3",
        "profile": "2024-01-02",
        "plugins": [{"name": "clipped", "clip": 1e20}, {"name": "fedprox"}],
        "data": {"path": "/data/ß x", "public": {"name": "share"}, "partition": {"name": "dirichlet", "alpha": 0.3}},
        "clients": {"encoders": ["vgg9", "lenet"]},
        "notes": {"yes": 1, "1": 2},
    }
    config = validate(Config, document, origin="x")
    path = tmp_path / "config.yaml"
    dump(config, path)
    again = read(path)
    assert validate(Config, again, origin="x") == config
    assert list(again) == list(Config.model_fields)
    assert list(again["train"]["optimizer"]) == list(Optimizer.model_fields)
    assert again["clients"]["encoders"] == ["vgg9", "lenet"]
    assert again["data"]["path"] == "/data/ß x"
    first = path.read_bytes()
    dump(validate(Config, again, origin="x"), path)
    assert path.read_bytes() == first
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.yaml"]


def test_a_config_that_cannot_be_written_leaves_the_old_one_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "config.yaml", Path.write_text
    path.write_text("name: old\n")

    def full(self: Path, text: str, **named: Any) -> None:
        write(self, text[:5], **named)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        dump(Fedprox(mu=2), path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.yaml"]
    assert path.read_text() == "name: old\n"


def test_a_config_is_not_written_into_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        dump(Fedprox(mu=2), tmp_path / "gone" / "config.yaml")
    assert list(tmp_path.iterdir()) == []
