"""The shapes of annotations: by hand, and against the JSON Schema that pydantic makes of every field of ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Le
from pydantic import Discriminator, Field, TypeAdapter

from rayfed_ssl.base.annotations import Shape, shape_of, shape_of_field, values_of
from rayfed_ssl.base.choice import BlocksOf, NameOf, OneOf, Short
from rayfed_ssl.base.schema import Block
from tests.test_keys import of_ours


class Cat(Block):
    name: Literal["cat", "tomcat"] = "cat"
    lives: int = 9


class Dog(Block):
    name: Literal["dog"] = "dog"


class Nameless(Block):
    lives: int = 1


class Owner(Block):
    one: Cat | Dog = Field(Cat(), discriminator="name")
    maybe: Annotated[Cat | Dog, Field(discriminator="name")] | None = None
    later: Annotated[Cat | Dog, "a mark"] | None = Field(None, discriminator="name")
    age: Annotated[int, Ge(1)] = Field(3, le=99)


NULL, TEXT, NUMBER = Shape("null", type(None)), Shape("plain", str), Shape("plain", int)
CAT, DOG = Shape("block", Cat), Shape("block", Dog)


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (int, NUMBER),
        (Path, Shape("plain", Path)),
        (Any, Shape("plain", Any)),
        (None, NULL),
        (Cat, CAT),
        (Literal["a", 3], Shape("values", Literal, values=("a", 3))),
        (Annotated[int, Ge(1)], Shape("plain", int, (Ge(1),))),
        (Annotated[int, Field(ge=1, le=2)], Shape("plain", int, (Ge(1), Le(2)))),
        (tuple[int, ...], Shape("list", tuple, parts=(NUMBER,), open=True)),
        (list[int], Shape("list", list, parts=(NUMBER,), open=True)),
        (frozenset[str], Shape("list", frozenset, parts=(TEXT,), open=True)),
        (tuple[int, str], Shape("list", tuple, parts=(NUMBER, TEXT))),
        (tuple[int], Shape("list", tuple, parts=(NUMBER,))),
        (tuple, Shape("plain", tuple)),
        (dict[str, int], Shape("mapping", dict, parts=(TEXT, NUMBER))),
        (Mapping[str, Cat], Shape("mapping", Mapping, parts=(TEXT, CAT))),
    ],
)
def test_a_shape_is_what_the_annotation_says(annotation: Any, expected: Shape) -> None:
    assert shape_of(annotation) == expected


def test_a_union_has_its_members_in_their_order_and_the_key_that_tells_them_apart() -> None:
    plain = shape_of(int | None | str)
    assert (plain.form, plain.parts, plain.tag) == ("union", (NUMBER, NULL, TEXT), None)
    tagged = shape_of(Annotated[Cat | Dog, Field(discriminator="name")])
    assert (tagged.parts, tagged.tag) == ((CAT, DOG), "name")
    assert tagged.names == {"cat": Cat, "tomcat": Cat, "dog": Dog}
    by_function = shape_of(Annotated[Cat | Dog, Discriminator(lambda value: "cat")])
    assert (by_function.tag, by_function.names) == (None, {})


def test_a_field_has_what_stands_in_it_and_beside_it() -> None:
    fields = {name: shape_of_field(field) for name, field in Owner.model_fields.items()}
    for name in ("one", "maybe", "later"):
        assert fields[name].without_null.tag == "name"
        assert fields[name].without_null.parts == (CAT, DOG)
    assert set(fields["age"].marks) == {Ge(1), Le(99)}


def test_without_null_the_marks_of_what_is_left_are_those_of_both() -> None:
    shape = shape_of(Annotated[Annotated[int, Ge(1)] | None, Le(2)])
    assert shape.without_null == Shape("plain", int, (Le(2), Ge(1)))
    assert shape_of(int | None | str).without_null.parts == (NUMBER, TEXT)
    assert NUMBER.without_null is NUMBER


def test_members_are_flat_and_inherit_marks_but_null_does_not() -> None:
    shape = shape_of(Annotated[Annotated[int | str, Le(2)] | Annotated[float, Ge(1)] | None, Ge(0)])
    assert list(shape.members()) == [
        Shape("plain", int, (Ge(0), Le(2))),
        Shape("plain", str, (Ge(0), Le(2))),
        Shape("plain", float, (Ge(0), Ge(1))),
        NULL,
    ]


def test_blocks_that_a_name_tells_apart_are_one_member() -> None:
    found = list(shape_of(Cat | None | Dog | Nameless).members())
    assert found == [Shape("union", parts=(CAT, DOG), tag="name"), NULL, Shape("block", Nameless)]
    assert found[0].names == {"cat": Cat, "tomcat": Cat, "dog": Dog}


def test_the_values_of_a_key_are_those_its_type_lists() -> None:
    assert values_of(Cat, "name") == ("cat", "tomcat")
    assert values_of(Cat, "lives") == values_of(Cat, "tail") == values_of(int, "name") == ()


def forms_in_schema(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> set[str]:
    """The forms of which a JSON Schema speaks; ``any`` where it says nothing."""
    if "$ref" in schema:
        return forms_in_schema(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return set().union(*(forms_in_schema(one, definitions) for one in several))
    if "enum" in schema or "const" in schema:
        return {"values"}
    if schema.get("type") == "object":
        return {"block" if "properties" in schema else "mapping"}
    return {{"array": "list", "null": "null", None: "any"}.get(schema.get("type"), "plain")}


def forms(shape: Shape) -> set[str]:
    if shape.form == "union":
        return set().union(*map(forms, shape.parts))
    return {"any" if shape.type is Any else shape.form}


def test_forms_are_those_of_pydantics_schema() -> None:
    seen = 0
    for block in of_ours():
        for name, field in block.model_fields.items():
            shape = shape_of_field(field)
            marks = [mark for part in (shape, *shape.members()) for mark in part.marks]
            if any(isinstance(mark, OneOf | BlocksOf | NameOf | Short) for mark in marks):
                continue  # these make a schema of their own
            made = TypeAdapter(field.annotation).json_schema()
            assert forms(shape) == forms_in_schema(made, made.get("$defs", {})), f"{block.__qualname__}.{name}"
            seen += 1
    assert seen > 200
