"""Rewrites pydantic's validation errors for users: the key as the user wrote it, what was found, the rule, and a guess.

Pydantic's locations contain labels of the union members it tried: ``method.fedsc.views``,
``encoders.tuple[str, ...].1``. Following a location through the schema tells these labels from keys, even if a kind and
a key share a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rayfed_ssl.base.annotations import Shape, shape_of_field
from rayfed_ssl.base.choice import OneOf
from rayfed_ssl.base.text import nearest, printable

LINE = 2000  # characters that a line of an error has at most
_ABSENT = object()
_WORDS = {str: "text", Path: "a path", int: "a whole number", float: "a number", bool: "true or false"}
_NAMES_KEY = re.compile(r"[a-z_]+(\.\w+)*: found |[a-z_]+(\.\w+)+[: ]")  # matches a rule that begins with a key

_RULES = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "none_required": "must be null",
    "path_type": "must be a path",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "set_type": "must be a list",
    "frozen_set_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
    "too_short": "must have at least {min_length} entries, has {actual_length}",
    "too_long": "must have at most {max_length} entries, has {actual_length}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
}


def value_text(value: object) -> str:
    """A value as an error shows it: YAML's words for true, false and null, one line, at most 60 characters."""
    if value is _ABSENT:
        return "nothing"
    text = (
        {True: "true", False: "false"}[value] if isinstance(value, bool) else "null" if value is None else repr(value)
    )
    return text if len(text) <= 60 else text[:57] + "..."


def closest(name: object, choices: Iterable[str]) -> str:
    """``; did you mean NAME?`` with the choice that is most like ``name``; empty if none is similar."""
    return nearest(name, choices, 1) if isinstance(name, str) else ""


def explain(model: type[BaseModel], document: object, error: ValidationError, origin: str) -> list[str]:
    """One line per error, in the schema's order. Errors of the whole document begin with ``origin``."""
    complaints = [_complaint(model, document, details) for details in error.errors(include_url=False)]
    lines = []
    for complaint in _united(complaints):
        path = printable(".".join(complaint.path) or origin)
        if complaint.found is None and (names := _NAMES_KEY.match(complaint.rule)):
            inside = complaint.path and not names[0].startswith(f"{path}.")
            lines.append(f"{path}.{complaint.rule}" if inside else complaint.rule)
            continue
        found = "" if complaint.found is None else f"found {complaint.found}; "
        lines.append(f"{path}: {found}{complaint.rule}{complaint.guess}")
    return [printable(line, LINE) for line in lines]


def kind_of(model: type[BaseModel], key: str, document: object) -> str:
    """What a key accepts, in words: "text", "a path", .., or "a value" if the schema does not say."""
    shape = _place(model, key.split("."), document).shape
    words = [_word(member) for member in (shape.alternatives if shape else ())]
    return " or ".join(words) or "a value"


def _word(shape: Shape) -> str:
    if shape.form == "block":
        return f"a mapping of {', '.join(shape.type.model_fields)}"
    return "a list" if shape.form == "list" else _WORDS.get(shape.type, "a value")


@dataclass(frozen=True)
class _Place:
    """The end of a location: the path as the user wrote it, and the schema there."""

    path: tuple[str, ...]
    shape: Shape | None  # without null
    block: type[BaseModel] | None  # the innermost block on the path
    unions: tuple[int, ...]  # the length of the path at each union of which pydantic tried all members


@dataclass(frozen=True)
class _Complaint:
    """One error: ``unions`` is that of its place; ``found`` is None if the line shows no value."""

    path: tuple[str, ...]
    unions: tuple[int, ...]
    found: str | None
    rule: str
    guess: str


def _place(model: type[BaseModel], location: Sequence[str | int], document: object) -> _Place:
    """Follow ``location`` through schema and document, without the labels that pydantic adds for unions."""
    place, value = _Place((), Shape("block", model), model, ()), document
    for part in location:
        shape = place.shape
        if shape and shape.tag:
            chosen = [member for member in shape.alternatives if str(part) in replace(shape, parts=(member,)).names]
            place = replace(place, shape=chosen[0].without_null if chosen else None)
            continue
        if shape and shape.form == "union":
            chosen = [member for member in shape.alternatives if _labelled(member, str(part))]
            inner = chosen[0].without_null if chosen else None
            place = replace(place, shape=inner, unions=(*place.unions, len(place.path)))
            continue
        following: Shape | None = None
        block = place.block
        if shape and shape.form == "block":
            block = shape.type
            field = shape.type.model_fields.get(str(part))
            following = _chosen(shape_of_field(field), _entry(value, part)) if field else None
        elif shape and shape.form == "list" and isinstance(part, int):
            inner = shape.parts[min(part, len(shape.parts) - 1)] if shape.parts else None
            following = _chosen(inner, _entry(value, part)) if inner else None
        elif shape and shape.form == "mapping" and part != "[key]":
            following = shape.parts[1].without_null
        elif not _holds(value, part):
            continue  # a label that the annotation does not show
        place = replace(place, path=(*place.path, str(part)), shape=following, block=block)
        value = _entry(value, part)
    return place


def _chosen(shape: Shape, value: object) -> Shape:
    """The shape without null. For a shape that is marked ``OneOf``, it is the block that the name in ``value`` chooses,
    or the union of all kinds if the name is unknown.
    """
    choice = next((mark for mark in shape.marks if isinstance(mark, OneOf)), None)
    if choice is None:
        return shape.without_null
    kinds, name = choice.kinds(), choice.named(value)
    if isinstance(name, str) and name in kinds:
        return Shape("block", kinds[name])
    blocks = tuple(Shape("block", kind) for kind in dict.fromkeys(kinds.values()))
    return Shape("union", parts=blocks, tag="name")


def _labelled(shape: Shape, label: str) -> bool:
    """Whether pydantic's ``label``, such as ``str``, ``tuple[str, ...]`` or ``literal['auto']``, may stand for
    ``shape``.
    """
    first = shape.without_null.alternatives[0]
    name = "literal" if first.form == "values" else getattr(first.type, "__name__", str(first.type))
    return re.search(rf"(^|[\s,(]){re.escape(name)}($|[\[\],)])", label) is not None


def _holds(value: object, part: str | int) -> bool:
    if isinstance(value, Mapping):
        return part in value
    return isinstance(value, list | tuple) and isinstance(part, int) and 0 <= part < len(value)


def _entry(value: Any, part: str | int) -> object:
    return value[part] if _holds(value, part) else None


def _joined(name: object, keys: Iterable[str]) -> str:
    """What to write in place of a key that YAML has read as one word with its value, as in ``{name:digits}``; "" for
    other keys.
    """
    key, colon, value = str(name).partition(":")
    return f"; with a blank after the colon: '{key}: {value}'" if colon and key in keys else ""


def _complaint(model: type[BaseModel], document: object, details: Any) -> _Complaint:
    """One of pydantic's errors as a complaint."""
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    place = _place(model, details["loc"], document)
    path, rule, guess = place.path, "", ""
    if kind == "missing":
        value, rule = _ABSENT, "must be given"
    elif kind == "extra_forbidden":
        keys = list(place.block.model_fields) if place.block else []
        rule, guess = (
            f"unknown key, allowed here: {', '.join(keys)}",
            _joined(path[-1], keys) or closest(path[-1], keys),
        )
    elif kind in ("union_tag_invalid", "union_tag_not_found") and place.shape and place.shape.tag:
        path, choices = (*path, place.shape.tag), list(place.shape.names)
        value = context.get("tag", _ABSENT)
        rule, guess = f"must be one of {', '.join(choices)}", closest(value, choices)
    elif kind in ("literal_error", "enum"):
        choices = [choice.strip("'\"") for choice in re.split(r", | or ", context["expected"])]
        choices = [choice.lower() if choice in ("False", "True") else choice for choice in choices]  # as in YAML
        rule = f"must be one of {', '.join(choices)}" if len(choices) > 1 else f"must be {choices[0]}"
        guess = closest(value, choices)
    elif kind == "string_type":
        rule = "must be text" + (" (put it in quotes)" if isinstance(value, bool | int | float) else "")
    elif kind in ("value_error", "assertion_error"):
        rule = " ".join(str(context["error"]).split())
    elif kind in _RULES:
        rule = _RULES[kind].format(**context)
    else:
        rule = details["msg"][:1].lower() + details["msg"][1:]
    whole_block = kind in ("value_error", "assertion_error") and isinstance(value, Mapping)
    return _Complaint(path, place.unions, None if whole_block else value_text(value), rule, guess)


def _united(complaints: Sequence[_Complaint]) -> list[_Complaint]:
    """The complaints with those of one union united. If pydantic got into a member of the union, the member's own
    complaints are kept; otherwise they become one, "must be this or that".
    """
    entered = {complaint.path[:at] for complaint in complaints for at in complaint.unions if len(complaint.path) > at}
    united: dict[tuple[tuple[str, ...], str], _Complaint] = {}
    for complaint in complaints:
        of_union = len(complaint.path) in complaint.unions
        if of_union and complaint.path in entered:
            continue
        key = (complaint.path, "" if of_union else complaint.rule)
        united[key] = _either(united[key], complaint) if key in united else complaint
    return list(united.values())


def _either(first: _Complaint, second: _Complaint) -> _Complaint:
    """``first`` with the rule "must be this or that", unless it has the rule of ``second`` already."""
    known = first.rule.removeprefix("must be ").split(" or ")
    other = second.rule.removeprefix("must be ")
    rule = first.rule if other in known else f"{first.rule} or {other}"
    return replace(first, rule=rule, guess=first.guess or second.guess)
