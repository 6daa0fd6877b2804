"""Every key of a schema: its path, type, default, what may stand there, and its sentence, read from the schema itself.

A block whose ``name`` decides which other keys it has (``method``, ``data.partition``) is walked once for each kind;
a key of a kind says so in ``when``. In paths ``N`` stands for a place in a list and ``KEY`` for a name of the user's.
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
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rayfed_ssl.base.choice import BlocksOf, NameOf, OneOf, Short
from rayfed_ssl.base.schema import UserError, texts

BLOCK, KIND = "block", "kind"
_WORDS = {str: "text", Path: "path", int: "whole number", float: "number", bool: "true or false"}
_MANY = {"text": "texts", "path": "paths", "whole number": "whole numbers", "number": "numbers", BLOCK: "blocks"}
_BOUNDS = (("ge", ">= {}"), ("gt", "> {}"), ("le", "<= {}"), ("lt", "< {}"), ("pattern", "matching {}"))


@dataclass(frozen=True)
class Key:
    """One key. ``type`` is ``block`` for a mapping of further keys, ``kind`` for one of the kinds of such a block."""

    path: str
    when: tuple[tuple[str, str], ...]  # (path of a block, the name that it must have for this key to be there)
    type: str
    default: Any  # as JSON; None where ``required``
    required: bool
    allowed: str  # "" where the type says it all
    text: str

    @property
    def sentence(self) -> str:
        """The first sentence of the text."""
        return first_sentence(self.text)

    @property
    def address(self) -> str:
        """The path with the kinds in it: ``method.fedca.beta``."""
        address = self.path
        for block, name in sorted(self.when, reverse=True):
            address = f"{block}.{name}{address.removeprefix(block)}"
        return address

    @property
    def default_text(self) -> str:
        """The default as YAML on one line."""
        return "must be given" if self.required else _yaml(self.default)

    def as_json(self) -> dict[str, Any]:
        """Plain values: key, when, type, default, required, allowed, description."""
        return {
            "key": self.path, "when": {f"{block}.name": name for block, name in self.when}, "type": self.type,
            "default": self.default, "required": self.required, "allowed": self.allowed, "description": self.text,
        }  # fmt: skip


def first_sentence(text: str) -> str:
    """The first sentence of a docstring on one line, as Markdown, ended by a full stop."""
    paragraph = re.sub(r":\w+:`", "``", " ".join(text.split("\n\n")[0].split())).replace("``", "`")
    sentence = re.split(r"(?<=[\w)`'\]])\. (?=[A-Z`(])", paragraph)[0]
    return sentence if not sentence or sentence.endswith((".", "..")) else sentence.rstrip(":") + "."


def keys(model: type[BaseModel]) -> list[Key]:
    """Every key of a schema, in its order, each block before what stands in it."""
    return list(_walk(model, (), ()))


def _walk(
    model: type[BaseModel], prefix: tuple[str, ...], when: tuple[tuple[str, str], ...], skip: Sequence[str] = ()
) -> Iterator[Key]:
    described = texts(model)
    for name, field in model.model_fields.items():
        if name not in skip:
            yield from _of_field(field, described.get(name, ""), (*prefix, name), when)


def _of_field(field: FieldInfo, own: str, path: tuple[str, ...], when: tuple[tuple[str, str], ...]) -> Iterator[Key]:
    members = list(_members(field.annotation, tuple(field.metadata)))
    type_, allowed = _in_words(members)
    inner = [place for member, extras in members for place in _blocks(member, extras)]
    text = "\n\n".join(dict.fromkeys(filter(None, [own, *(place.text for place in inner)])))
    required = field.is_required()
    default = None if required else _plain(field.get_default(call_default_factory=True))
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
    """Blocks below a key: one, or several of which a ``name`` chooses; ``steps`` lead there through lists, mappings."""

    kinds: Mapping[str, type[BaseModel]]  # "" -> the only one
    steps: tuple[str, ...] = ()
    named: bool = True  # whether a key ``name`` chooses; else it is a mapping of these names to blocks

    @property
    def chooses(self) -> bool:
        """Whether a key ``name`` chooses among them."""
        return self.named and "" not in self.kinds

    @property
    def text(self) -> str:
        """What describes the key: the docstring of the only kind."""
        return _own_text(self.kinds[""]) if "" in self.kinds and not self.steps else ""

    def keys(self, path: tuple[str, ...], when: tuple[tuple[str, str], ...]) -> Iterator[Key]:
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


def _blocks(member: Any, extras: tuple[Any, ...]) -> Iterator[_Blocks]:
    """The blocks that stand at a member of a key's type, or in its list or mapping."""
    for extra in extras:
        if isinstance(extra, OneOf):
            yield _Blocks(extra.kinds())
            return
        if isinstance(extra, BlocksOf):
            yield _Blocks(extra.kinds(), named=False)
            return
    if isinstance(member, _Chosen):
        yield _Blocks(member.kinds)
    elif inspect.isclass(member) and issubclass(member, BaseModel):
        yield _Blocks({"": member})
    elif get_origin(member) in (tuple, dict):
        arguments, step = get_args(member), "N" if get_origin(member) is tuple else "KEY"
        for inner, more in _members(arguments[0] if step == "N" else arguments[1], ()):
            for place in _blocks(inner, more):
                yield _Blocks(place.kinds, (step, *place.steps), place.named)


@dataclass(frozen=True)
class _Chosen:
    """The members of a union of blocks that a ``name`` tells apart."""

    kinds: Mapping[str, type[BaseModel]]


def _members(annotation: Any, extras: tuple[Any, ...], tag: object = None) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """The types of a union with what is annotated of each."""
    if get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        flat = [part for extra in more for part in (extra.metadata if isinstance(extra, FieldInfo) else [extra])]
        tagged = [extra.discriminator for extra in more if getattr(extra, "discriminator", None)]
        yield from _members(annotation, (*extras, *flat), tagged[0] if tagged else tag)
    elif get_origin(annotation) in (Union, UnionType):
        parts = get_args(annotation)
        blocks = [part for part in parts if inspect.isclass(part) and issubclass(part, BaseModel)]
        if len(blocks) > 1:
            yield (
                _Chosen({name: part for part in blocks for name in get_args(part.model_fields["name"].annotation)}),
                (),
            )
            parts = tuple(part for part in parts if part not in blocks)
        for part in parts:
            yield from _members(part, () if part is NoneType else extras, tag)
    else:
        yield annotation, extras


def _in_words(members: Iterable[tuple[Any, tuple[Any, ...]]]) -> tuple[str, str]:
    """The type and what is allowed of it."""
    types, rules = [], []
    for member, extras in members:
        type_, rule = _word(member, extras)
        types.append(type_)
        rules.append(rule)
    return " or ".join(dict.fromkeys(types)), "; ".join(dict.fromkeys(filter(None, rules)))


def _word(member: Any, extras: tuple[Any, ...]) -> tuple[str, str]:
    if member is NoneType:
        return "null", ""
    for extra in extras:
        if isinstance(extra, OneOf):
            return BLOCK, f"name: {', '.join(extra.kinds())}"
        if isinstance(extra, BlocksOf):
            return "mapping", ""
        if isinstance(extra, NameOf):
            return "text", ", ".join(extra.names()) + (f", {extra.others}" if extra.others else "")
        if isinstance(extra, Short):
            return f"{BLOCK} or text", ", ".join(extra.names() if extra.names is not None else ())
    if isinstance(member, _Chosen):
        return BLOCK, f"name: {', '.join(member.kinds)}"
    if inspect.isclass(member) and issubclass(member, BaseModel):
        return BLOCK, ""
    arguments = get_args(member)
    if get_origin(member) is Literal and arguments in ((False,), (True,)):
        return _yaml(arguments[0]), ""
    if get_origin(member) is Literal:
        return _WORDS[type(arguments[0])], ", ".join(_yaml(choice) for choice in arguments)
    if get_origin(member) is tuple:
        inner = [_in_words(_members(part, ())) for part in arguments if part is not Ellipsis]
        rules = "; ".join(dict.fromkeys(filter(None, [*(rule for _, rule in inner), _bounds(extras)])))
        names = list(dict.fromkeys(name for name, _ in inner))
        count = "" if Ellipsis in arguments else f"{len(arguments)} "
        return f"list of {count}{' or '.join(_MANY.get(name, name) for name in names)}", rules
    if get_origin(member) is dict:
        return "mapping", _bounds(extras)
    return _WORDS.get(member, "any value"), _bounds(extras)


def _bounds(extras: Iterable[Any]) -> str:
    found = [
        words.format(_yaml(value))
        for extra in extras
        for name, words in _BOUNDS
        if (value := getattr(extra, name, None)) is not None
    ]
    least = ["not empty" for extra in extras if getattr(extra, "min_length", None) == 1]
    return " and ".join([*found, *least])


def _own_text(model: type[BaseModel]) -> str:
    return inspect.cleandoc(model.__dict__.get("__doc__") or "")


def _kind_text(kind: type[BaseModel]) -> str:
    """What describes a kind: its docstring, or that of the file which is about it."""
    return _own_text(kind) or inspect.cleandoc(sys.modules[kind.__module__].__doc__ or "")


def _differs(default: Any) -> bool:
    """Whether a default block is not what its own keys' defaults make."""
    if not isinstance(default, BaseModel):
        return True
    try:
        return default != type(default)() or "name" in type(default).model_fields
    except ValueError:
        return True


def _plain(value: Any) -> Any:
    """A default as JSON; of a block the keys that differ from its own defaults."""
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
    """The keys that ``asked`` names: a key (``train.rounds``), all of a block (``data``) or of a kind
    (``method.fedca``), or the kinds where the block has kinds (``method``).

    Raises:
        UserError: there is none; the line has the nearest.
    """
    wanted = re.sub(r"(?<=\.)\d+(?=\.|$)", "N", asked.strip().replace(".name=", "."))
    exact = [key for key in everything if wanted in (key.path, key.address)]
    chooses = any(key.type == KIND and key.path == wanted for key in exact)
    if chooses:  # its kinds, not every key of each
        return [key for key in exact if key.type != KIND or key.path == wanted]
    found = [key for key in everything if _within(key.path, wanted) or _within(key.address, wanted)]
    if not found:
        raise UserError(f"config: found {asked!r}, which is no key{_nearest(everything, wanted)}")
    return found


def _within(path: str, block: str) -> bool:
    return path == block or path.startswith(f"{block}.")


def _nearest(everything: Sequence[Key], wanted: str) -> str:
    """``; did you mean ..?`` with the keys of that name elsewhere, else those that are spelt alike."""
    addresses = list(dict.fromkeys(name for key in everything for name in (key.path, key.address)))
    last = wanted.rsplit(".", 1)[-1]
    same = [address for address in addresses if address.endswith(f".{last}")]
    alike = difflib.get_close_matches(wanted, addresses, n=3, cutoff=0.6)
    if not same and not alike:  # a leaf misspelt, without its block
        leaves: dict[str, list[str]] = {}
        for address in addresses:
            leaves.setdefault(address.rsplit(".", 1)[-1], []).append(address)
        alike = [a for leaf in difflib.get_close_matches(last, leaves, n=2, cutoff=0.6) for a in leaves[leaf]]
    near = (same or alike) if "." not in wanted else (alike or same)
    return f"; did you mean {' or '.join(near[:3])}?" if near else ""
