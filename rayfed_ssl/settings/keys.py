"""Lists every key of a schema with its path, type, default, allowed values and description, and finds keys by name.

A block whose ``name`` decides which other keys it has (``method``, ``data.partition``) is walked once for each kind.
A key that only some kind has says so in ``when``. In paths, ``N`` stands for an index of a list and ``KEY`` for a name
that the user chooses.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rayfed_ssl.base.annotations import Shape, shape_of_field
from rayfed_ssl.base.choice import BlocksOf, NameOf, OneOf, Short
from rayfed_ssl.base.schema import UserError, texts

BLOCK, KIND = "block", "kind"
_WORDS = {str: "text", Path: "path", int: "whole number", float: "number", bool: "true or false"}
_MANY = {"text": "texts", "path": "paths", "whole number": "whole numbers", "number": "numbers", BLOCK: "blocks"}
_BOUNDS = (("ge", ">= {}"), ("gt", "> {}"), ("le", "<= {}"), ("lt", "< {}"), ("pattern", "matching {}"))


@dataclass(frozen=True)
class Key:
    """One key. ``type`` is ``block`` for a mapping of further keys, and ``kind`` for one of the kinds of a block."""

    path: str
    when: tuple[tuple[str, str], ...]  # (path of a block, the name that it must have for this key to exist)
    type: str
    default: Any  # as JSON; None if ``required``
    required: bool
    allowed: str  # "" if all values of the type are allowed
    text: str

    @property
    def sentence(self) -> str:
        """The first sentence of the text."""
        return first_sentence(self.text)

    @property
    def address(self) -> str:
        """The path with the kinds of blocks in it: ``method.fedca.beta``."""
        address = self.path
        for block, name in sorted(self.when, reverse=True):
            address = f"{block}.{name}{address.removeprefix(block)}"
        return address

    @property
    def default_text(self) -> str:
        """The default as YAML on one line."""
        return "must be given" if self.required else _yaml(self.default)

    def as_json(self) -> dict[str, Any]:
        """The key as plain values: key, when, type, default, required, allowed, description."""
        return {
            "key": self.path, "when": {f"{block}.name": name for block, name in self.when}, "type": self.type,
            "default": self.default, "required": self.required, "allowed": self.allowed, "description": self.text,
        }  # fmt: skip


def first_sentence(text: str) -> str:
    """The first sentence of a docstring on one line, as Markdown, with a full stop at its end."""
    paragraph = re.sub(r":\w+:`", "``", " ".join(text.split("\n\n")[0].split())).replace("``", "`")
    sentence = re.split(r"(?<=[\w)`'\]])\. (?=[A-Z`(])", paragraph)[0]
    return sentence if not sentence or sentence.endswith((".", "..")) else sentence.rstrip(":") + "."


def keys(model: type[BaseModel]) -> list[Key]:
    """Every key of a schema, in its order. A block comes before its keys."""
    return list(_walk(model, (), ()))


def _walk(
    model: type[BaseModel], prefix: tuple[str, ...], when: tuple[tuple[str, str], ...], skip: Sequence[str] = ()
) -> Iterator[Key]:
    """The keys of ``model``, whose path is ``prefix``, without those that ``skip`` names."""
    described = texts(model)
    for name, field in model.model_fields.items():
        if name not in skip:
            yield from _of_field(field, described.get(name, ""), (*prefix, name), when)


def _of_field(field: FieldInfo, own: str, path: tuple[str, ...], when: tuple[tuple[str, str], ...]) -> Iterator[Key]:
    """The key of a field, whose own text is ``own``, followed by the keys of the blocks in it."""
    shape = shape_of_field(field)
    type_, allowed = _in_words(shape)
    inner = [place for member in shape.members() for place in _blocks(member)]
    text = "\n\n".join(dict.fromkeys(filter(None, [own, *(place.text for place in inner)])))
    required = field.is_required()
    default = None if required else _default_as_json(field.get_default(call_default_factory=True))
    whole = [place for place in inner if not place.steps]
    if whole and not required and not _differs(field.get_default(call_default_factory=True)):
        default = {}
    yield Key(".".join(path), when, type_, default, required, allowed, text)
    for place in inner:
        here = (*path, *place.steps)
        if place.chooses:
            named = default.get("name") if isinstance(default, dict) else None
            text = "Which kind it is, and so which other keys it has."
            yield Key(".".join((*here, "name")), when, "text", named, named is None, ", ".join(place.kinds), text)
        yield from place.keys(here, when)


@dataclass(frozen=True)
class _Blocks:
    """The blocks at one place below a key: a single one, or several kinds."""

    kinds: Mapping[str, type[BaseModel]]  # by name; a single block has the name ""
    steps: tuple[str, ...] = ()  # the path from the key to the place, through lists and mappings
    named: bool = True  # whether a key ``name`` chooses one kind; if not, all are values of a mapping by name

    @property
    def chooses(self) -> bool:
        """Whether a key ``name`` chooses one of several kinds."""
        return self.named and "" not in self.kinds

    @property
    def text(self) -> str:
        """The docstring of a single block that is the key's own value; else ""."""
        return _own_text(self.kinds[""]) if "" in self.kinds and not self.steps else ""

    def keys(self, path: tuple[str, ...], when: tuple[tuple[str, str], ...]) -> Iterator[Key]:
        """The keys of the blocks, which stand at ``path``. The keys of a kind come after a key for the kind itself."""
        here = ".".join(path)
        for name, kind in self.kinds.items():
            if not name:
                yield from _walk(kind, path, when)
            elif self.named:
                inside = (*when, (here, name))
                yield Key(here, inside, KIND, None, False, "", _kind_text(kind))
                yield from _walk(kind, path, inside, skip=("name",))
            else:
                yield Key(f"{here}.{name}", when, BLOCK, {}, False, "", _kind_text(kind))
                yield from _walk(kind, (*path, name), when)


def _blocks(shape: Shape) -> Iterator[_Blocks]:
    """The blocks of one member of a key's type, also those in its lists and mappings."""
    for mark in shape.marks:
        if isinstance(mark, OneOf):
            yield _Blocks(mark.kinds())
            return
        if isinstance(mark, BlocksOf):
            yield _Blocks(mark.kinds(), named=False)
            return
    if shape.form == "union":
        yield _Blocks(shape.names)
    elif shape.form == "block":
        yield _Blocks({"": shape.type})
    elif shape.form in ("list", "mapping") and shape.parts:
        step, entry = ("N", shape.parts[0]) if shape.form == "list" else ("KEY", shape.parts[1])
        for member in entry.members():
            for place in _blocks(member):
                yield _Blocks(place.kinds, (step, *place.steps), place.named)


def _in_words(shape: Shape) -> tuple[str, str]:
    """(type, allowed values) of a key, in words."""
    types, rules = [], []
    for member in shape.members():
        type_, rule = _word(member)
        types.append(type_)
        rules.append(rule)
    return " or ".join(dict.fromkeys(types)), "; ".join(dict.fromkeys(filter(None, rules)))


def _word(shape: Shape) -> tuple[str, str]:
    """(type, allowed values) of one member of a key's type, in words."""
    for mark in shape.marks:
        if isinstance(mark, OneOf):
            return BLOCK, f"name: {', '.join(mark.kinds())}"
        if isinstance(mark, BlocksOf):
            return "mapping", ""
        if isinstance(mark, NameOf):
            return "text", ", ".join(mark.names()) + (f", {mark.others}" if mark.others else "")
        if isinstance(mark, Short):
            return f"{BLOCK} or text", ", ".join(mark.names() if mark.names is not None else ())
    match shape.form:
        case "null":
            return "null", ""
        case "union":
            return BLOCK, f"name: {', '.join(shape.names)}"
        case "block":
            return BLOCK, ""
        case "values" if shape.values in ((False,), (True,)):
            return _yaml(shape.values[0]), ""
        case "values":
            return _WORDS[type(shape.values[0])], ", ".join(_yaml(choice) for choice in shape.values)
        case "list":
            inner = [_in_words(part) for part in shape.parts]
            rules = "; ".join(dict.fromkeys(filter(None, [*(rule for _, rule in inner), _bounds(shape.marks)])))
            names = list(dict.fromkeys(name for name, _ in inner))
            count = "" if shape.open else f"{len(shape.parts)} "
            return f"list of {count}{' or '.join(_MANY.get(name, name) for name in names)}", rules
        case "mapping":
            return "mapping", _bounds(shape.marks)
    return _WORDS.get(shape.type, "any value"), _bounds(shape.marks)


def _bounds(marks: Iterable[Any]) -> str:
    """The bounds among ``marks``, in words."""
    bounds = [
        words.format(_yaml(value))
        for mark in marks
        for name, words in _BOUNDS
        if (value := getattr(mark, name, None)) is not None
    ]
    least = ["not empty" for mark in marks if getattr(mark, "min_length", None) == 1]
    return " and ".join([*bounds, *least])


def _own_text(model: type[BaseModel]) -> str:
    return inspect.cleandoc(model.__dict__.get("__doc__") or "")


def _kind_text(kind: type[BaseModel]) -> str:
    """The description of a kind: its docstring, or that of its module if it has none."""
    return _own_text(kind) or inspect.cleandoc(sys.modules[kind.__module__].__doc__ or "")


def _differs(default: Any) -> bool:
    """Whether a default value is anything but a block without a ``name`` whose keys all have their own defaults."""
    if not isinstance(default, BaseModel):
        return True
    try:
        return default != type(default)() or "name" in type(default).model_fields
    except ValueError:
        return True


def _default_as_json(value: Any) -> Any:
    """A default value as JSON. A block has only the keys that differ from its own defaults."""
    if isinstance(value, BaseModel):
        dumped = value.model_dump(mode="json", exclude_defaults=True)
        named = {"name": value.name} if "name" in type(value).model_fields else {}  # type: ignore[attr-defined]
        return {**named, **dumped}
    return json.loads(json.dumps(value, default=str))


def _yaml(value: Any) -> str:
    """A JSON value as YAML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    if isinstance(value, str):
        return value or '""'
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else json.dumps(value)


# -- finding -----------------------------------------------------------------------------------------------------------


def find(everything: Sequence[Key], asked: str) -> list[Key]:
    """The keys that ``asked`` names. It is a key (``train.rounds``), a block (``data``), which stands for all its keys,
    a kind (``method.fedca``), likewise, or a block with kinds (``method``), which stands for its kinds.

    Raises:
        UserError: there is no such key; the line names similar ones.
    """
    wanted = re.sub(r"(?<=\.)\d+(?=\.|$)", "N", asked.strip().replace(".name=", "."))
    exact = [key for key in everything if wanted in (key.path, key.address)]
    chooses = any(key.type == KIND and key.path == wanted for key in exact)
    if chooses:
        return [key for key in exact if key.type != KIND or key.path == wanted]
    found = [key for key in everything if _within(key.path, wanted) or _within(key.address, wanted)]
    if not found:
        raise UserError(f"config: found {asked!r}, which is no key{_nearest(everything, wanted)}")
    return found


def _within(path: str, block: str) -> bool:
    return path == block or path.startswith(f"{block}.")


def _nearest(everything: Sequence[Key], wanted: str) -> str:
    """``; did you mean ..?`` with up to three keys: those of the same name in other blocks, and those of a similar
    spelling. The latter come first if ``wanted`` has a dot.
    """
    addresses = list(dict.fromkeys(name for key in everything for name in (key.path, key.address)))
    last = wanted.rsplit(".", 1)[-1]
    same = [address for address in addresses if address.endswith(f".{last}")]
    alike = difflib.get_close_matches(wanted, addresses, n=3, cutoff=0.6)
    if not same and not alike:  # perhaps a misspelt name without its block
        by_last_part: dict[str, list[str]] = {}
        for address in addresses:
            by_last_part.setdefault(address.rsplit(".", 1)[-1], []).append(address)
        alike = [
            a for part in difflib.get_close_matches(last, by_last_part, n=2, cutoff=0.6) for a in by_last_part[part]
        ]
    near = (same or alike) if "." not in wanted else (alike or same)
    return f"; did you mean {' or '.join(near[:3])}?" if near else ""
