"""What is said of every key, against what pydantic itself makes, refuses and offers, and the shipped configs."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import jsonschema
import pytest
from pydantic import BaseModel, Field

import rayfed_ssl
import tune
from rayfed_ssl.base.schema import Block, UserError, texts
from rayfed_ssl.commands.config import File, schema_of
from rayfed_ssl.config import RunConfig, load
from rayfed_ssl.methods import METHODS
from rayfed_ssl.objectives import OBJECTIVES
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.settings.keys import BLOCK, KIND, Key, find, first_sentence, keys
from tests.command_line import command
from tests.places import ROOT

CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
RUN = keys(RunConfig)


def of_ours() -> Iterator[type[Block]]:
    """Every block of the library and of sweeps."""
    for package in (rayfed_ssl, tune):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    waiting: list[type[Block]] = [Block]
    while waiting:
        waiting += (found := waiting.pop()).__subclasses__()
        if found.__module__.split(".")[0] in ("rayfed_ssl", "tune") and found is not Block:
            yield found


def parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from parts(part)


def described(block: type[Block], name: str) -> bool:
    """Whether a field has a text, or holds a block that has one, or is the name of a kind, which has a text itself."""
    field = block.model_fields[name]
    kinds = [kind for kind in parts(field.annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]
    tag = name == "name" and get_origin(field.annotation) is Literal
    return name in texts(block) or tag or bool(kinds and all(kind.__doc__ for kind in kinds))


def test_every_field_of_every_block_is_described() -> None:
    silent = [f"{b.__module__}.{b.__qualname__}.{n}" for b in of_ours() for n in b.model_fields if not described(b, n)]
    assert silent == []


@pytest.mark.parametrize("file", list(File))
def test_every_key_has_one_sentence(file: File) -> None:
    for key in keys(schema_of(file)):
        assert re.fullmatch(r"\S.{3,300}\.", key.sentence), key
        assert "``" not in key.sentence
        assert ":class:" not in key.sentence


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, name))
        else:
            yield ".".join((*path, name)), value


@pytest.mark.parametrize(
    "method", ["fedsimclr", "fedprox", "fedsc", "fedfoa", "fedema", "ldawa", "fedu2", "fedx", "fur"]
)
def test_defaults_are_those_of_a_run_that_says_nothing(method: str) -> None:
    """Every key that a resolved run holds is known with the value it got."""
    config = RunConfig.model_validate({"method": {"name": method}})
    found = dict(leaves(config.model_dump(mode="json")))
    known = {
        key.path: key
        for key in RUN
        if key.type != KIND and all(found.get(f"{block}.name") == name for block, name in key.when)
    }
    for path, value in found.items():
        if path == "method.name" or path.endswith(".name") or path.startswith(("objective.", "model.projector.")):
            continue
        assert known[path].default == value, path
        assert not known[path].required


def test_what_is_allowed_is_what_a_question_answers() -> None:
    """``key=?`` asks the validator itself."""
    literal = [key for key in RUN if not key.when and re.fullmatch(r"text", key.type) and key.allowed]
    assert len(literal) > 15
    for key in literal:
        if ".images." in key.path or ".N." in key.path or key.path.startswith(("evaluation.transfer.data", "system.")):
            continue  # blocks that demo.yaml has not
        with pytest.raises(UserError) as asked:
            load(ROOT / "configs" / "demo.yaml", [f"{key.path}=?"])
        answer = str(asked.value).split("must be one of ")[1].split("; ")[0]
        assert answer == key.allowed, key.path


@pytest.mark.parametrize(
    ("key", "below", "least"), [("train.rounds", 0, ">= 1"), ("train.optimizer.lr", 0, "> 0"), ("seed", -1, ">= 0")]
)
def test_bounds_are_the_validators(key: str, below: int, least: str) -> None:
    assert find(RUN, key)[0].allowed == least
    with pytest.raises(UserError, match=key):
        load(ROOT / "configs" / "demo.yaml", [f"{key}={below}"])


def test_all_kinds_of_a_table_are_shown() -> None:
    def kinds(path: str) -> list[str]:
        return [key.when[-1][1] for key in find(RUN, path) if key.type == KIND]

    assert kinds("method") == list(METHODS)
    assert kinds("objective") == list(OBJECTIVES)
    assert "class_blocks" in kinds("data.partition")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("train.rounds", ["train.rounds"]),
        ("method.fedca.beta", ["method.beta"]),
        ("method.name=fedca.beta", ["method.beta"]),
        ("method.fedprox", ["method", "method.weights", "method.mu"]),
        ("method.mu", ["method.mu"]),
        ("plugins.0.batch_free", ["plugins.N.batch_free"]),
        ("system.seconds_per_image", [f"system.seconds_per_image{k}" for k in ("", ".median", ".sigma")]),
        ("method.fedsc.privacy.delta", ["method.privacy.delta"]),
    ],
)
def test_a_key_is_found_as_people_write_it(asked: str, expected: list[str]) -> None:
    assert [key.path for key in find(RUN, asked)] == expected


@pytest.mark.parametrize(
    ("asked", "near"),
    [("train.round", "train.rounds"), ("rounds", "train.rounds"), ("fedca", "method.fedca"), ("datta", "data")],
)
def test_an_unknown_key_ends_in_one_line_with_the_nearest(
    asked: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = command(capsys, "config", asked)
    assert status == 2
    assert re.fullmatch(rf"config: found '{asked}', .*did you mean {near}( or .*)?\?\n", err)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status, out, _ = command(capsys, "config", *arguments)
    assert status == 0
    return out


def test_the_command_says_type_default_allowed_and_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "train.rounds") == (
        "train.rounds: 20\n    whole number; >= 1\n    Communication rounds of the run.\n"
    )
    (found,) = json.loads(shown(capsys, "method.fedca.beta", "--json"))
    assert found == {
        "key": "method.beta", "when": {"method.name": "fedca"}, "type": "number", "default": 0.01, "required": False,
        "allowed": ">= 0", "description": "Weight of the alignment.",
    }  # fmt: skip
    assert len(json.loads(shown(capsys, "--json"))) == len(RUN)
    assert "space" in shown(capsys, "--of", "sweep")


def test_the_command_knows_what_imports_bring(capsys: pytest.CaptureFixture[str]) -> None:
    file = ROOT / "examples" / "koleo.py"
    assert "method.weight: 0.1\n" in shown(capsys, "method.koleo", "--imports", str(file))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("One fact (Li et al. 2020, eq. 9). Two.", "One fact (Li et al. 2020, eq. 9)."),
        ("Over two\nlines\n\nA paragraph.", "Over two lines."),
        ("See :class:`Key` or ``x``. More.", "See `Key` or `x`."),
        ("Ends in ``code``", "Ends in `code`."),
    ],
)
def test_the_first_sentence(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence


# -- JSON Schema -------------------------------------------------------------------------------------------------------


def validator_of(path: Path) -> jsonschema.Draft202012Validator:
    """The schema that a config's first line names."""
    first = path.read_text(encoding="utf-8").splitlines()[0]
    named = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", first)
    assert named, f"{path}: the first line names no schema"
    made = json.loads((path.parent / named[1]).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(made)
    assert made == json.loads((ROOT / "rayfed_ssl" / "schemas" / f"{kind_of(path)}.json").read_text(encoding="utf-8"))
    return jsonschema.Draft202012Validator(made)


def kind_of(path: Path) -> str:
    return {"tune": "sweep", "compare": "comparison"}.get(path.parent.name, "run")


def read(path: Path) -> Any:
    return json.loads(json.dumps(configfile.read(path)))


def mappings(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Every mapping of keys in a document; not those whose keys are names of the user's."""
    if isinstance(tree, dict):
        named = path in (("profiles",), ("space",)) or path[:1] in (("points",), ("overrides",), ("variants",))
        if not named:
            yield path, tree
        for name, value in tree.items():
            yield from mappings(value, (*path, name))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from mappings(value, (*path, index))


@pytest.mark.long
@pytest.mark.parametrize("path", CONFIGS, ids=[path.stem for path in CONFIGS])
def test_a_config_fits_the_schema_it_names_and_no_misspelt_key_does(path: Path) -> None:
    validator = validator_of(path)
    assert list(validator.iter_errors(read(path))) == []
    places = [place for place, _ in mappings(read(path))]
    assert places
    for place in places:
        document = read(path)
        dict(mappings(document))[place]["misspelt"] = 1
        assert not validator.is_valid(document), f"{path.name}: {place} took a key that does not exist"


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"train": {"rounds": 0}}, {"train": {"rounds": "many"}}, {"method": {"name": "fedsimclr", "beta": 1}},
        {"method": {}}, {"data": {"partition": {"name": "dirichlet", "classes": 2}}}, {"clients": {"count": None}},
        {"objective": {"name": "simclr", "queue": 3}}, {"profiles": {"cpu": {"train": {"round": 1}}}},
    ],
)  # fmt: skip
def test_the_schema_refuses_what_the_loader_refuses(changes: dict[str, Any], tmp_path: Path) -> None:
    document = {"method": {"name": "fedsimclr"}, "data": {"name": "digits"}, **changes}
    assert not validator_of(ROOT / "configs" / "demo.yaml").is_valid(document)
    (tmp_path / "x.yaml").write_text(json.dumps(document))
    with pytest.raises(UserError):
        load(tmp_path / "x.yaml")


@pytest.mark.parametrize("change", [{"scheduler": "asha"}, {"scheduler": {"name": "asha", "grace": 2}}])
def test_a_sweeps_schema_takes_short_forms(change: dict[str, Any]) -> None:
    path = ROOT / "configs" / "tune" / "flesd_temperature.yaml"
    assert validator_of(path).is_valid({**read(path), **change})


def test_schemas_are_part_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "schemas/*.json" in project["tool"]["setuptools"]["package-data"]["rayfed_ssl"]


def test_a_block_is_a_key_of_its_own() -> None:
    whole: list[Key] = find(RUN, "participation")
    assert [key.type == BLOCK for key in whole] == [True, False, False]


def test_a_key_that_may_be_false_says_so_as_yaml_does() -> None:
    (label,) = (key for key in RUN if key.path == "data.columns.label")
    assert (label.type, label.allowed) == ("text or list of texts or false or null", "")
    document = {"method": {"name": "fedsimclr"}, "data": {"name": "parquet", "path": "x", "columns": {"label": True}}}
    with pytest.raises(
        UserError, match=r"data\.columns\.label: found true; must be text \(put it in quotes\) or a list or false$"
    ):
        configfile.validate(RunConfig, document, origin="")
    document["data"] = {"name": "parquet", "path": "x", "columns": {"label": False}}
    assert configfile.validate(RunConfig, document, origin="").data.columns.label is False


def test_lists_and_mappings_of_any_class_are_named_as_such() -> None:
    class Own(Block):
        steps: list[int] = Field(default_factory=list)
        words: frozenset[str] = frozenset()
        sizes: Mapping[str, float] = Field(default_factory=dict)

    assert [key.type for key in keys(Own)] == ["list of whole numbers", "list of texts", "mapping"]
