"""Describes what a field's type annotation allows. Error messages and the list of keys read this description, so only
this module takes annotations apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Form = Literal["null", "values", "block", "list", "mapping", "union", "plain"]
_LISTS, _MAPPINGS = (tuple, list, set, frozenset), (dict, Mapping)


@dataclass(frozen=True)
class Shape:
    """What may stand at one place of a document. ``form`` decides what the other fields mean:

    null      only null is allowed
    values    one of ``values`` is allowed
    block     a mapping with the keys of the pydantic model ``type``
    list      ``parts`` has the shape of each entry, or one shape for all entries if the length is ``open``
    mapping   ``parts`` has the shape of a key and the shape of a value
    union     ``parts`` has the members in order; ``tag`` is the key whose value tells blocks apart, if there is one
    plain     a value of the Python type ``type``

    Args:
        type: the class. For lists and mappings it is the bare container, for a union the whole annotation.
        marks: the metadata of the annotation, such as bounds, outermost first.
    """

    form: Form
    type: Any = None
    marks: tuple[object, ...] = ()
    parts: tuple[Shape, ...] = ()
    values: tuple[Any, ...] = ()
    open: bool = False
    tag: str | None = None

    @property
    def alternatives(self) -> tuple[Shape, ...]:
        """The members of a union; of any other shape, the shape itself."""
        return self.parts if self.form == "union" else (self,)

    @property
    def without_null(self) -> Shape:
        """The shape without null. A union that is left with one member becomes that member, with the union's marks."""
        if self.form != "union":
            return self
        members = tuple(part for part in self.parts if part.form != "null")
        if len(members) != 1:
            return replace(self, parts=members)
        return replace(members[0].without_null, marks=(*self.marks, *members[0].without_null.marks))

    @property
    def names(self) -> dict[str, type[BaseModel]]:
        """Value of the ``tag`` -> the block that it chooses. Blocks of nested unions are included."""
        tag = self.tag
        blocks = [block.type for part in self.alternatives for block in part.without_null.alternatives]
        return {} if tag is None else {str(name): block for block in blocks for name in values_of(block, tag)}

    def members(self, marks: tuple[object, ...] = ()) -> Iterator[Shape]:
        """The shape itself, or the members of a union and of its nested unions. Each member inherits the marks of the
        unions around it. Several blocks that differ in their ``name`` come first, as one union without marks.

        Args:
            marks: the marks of the unions around the shape.
        """
        if self.form != "union":
            yield self if self.form == "null" else replace(self, marks=(*marks, *self.marks))
            return
        inherited, parts = (*marks, *self.marks), self.parts
        blocks = tuple(part for part in parts if not part.marks and values_of(part.type, "name"))
        if len(blocks) > 1:
            yield Shape("union", parts=blocks, tag="name")
            parts = tuple(part for part in parts if part not in blocks)
        for part in parts:
            yield from part.members(inherited)


def shape_of(annotation: Any, marks: tuple[object, ...] = (), tag: object = None) -> Shape:
    """The shape of a type annotation.

    Args:
        marks: metadata from outside the annotation, as in ``FieldInfo.metadata``.
        tag: the discriminator, if it is given outside the annotation. It is ignored unless it is the name of a key.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        annotation, *extras = arguments
        inner = [mark for extra in extras for mark in (extra.metadata if isinstance(extra, FieldInfo) else [extra])]
        tags = [extra.discriminator for extra in extras if getattr(extra, "discriminator", None)]
        return shape_of(annotation, (*marks, *inner), tags[0] if tags else tag)
    if annotation is NoneType or annotation is None:
        return Shape("null", NoneType, marks)
    if origin in (Union, UnionType):
        single = sum(member is not NoneType for member in arguments) == 1
        parts = tuple(shape_of(member, (), tag if single else None) for member in arguments)
        key = getattr(tag, "discriminator", tag)
        return Shape("union", annotation, marks, parts, tag=key if isinstance(key, str) and not single else None)
    if origin is Literal:
        return Shape("values", Literal, marks, values=arguments)
    if origin in _LISTS:
        inner_shapes = tuple(shape_of(argument) for argument in arguments if argument is not Ellipsis)
        return Shape("list", origin, marks, inner_shapes, open=origin is not tuple or Ellipsis in arguments)
    if origin in _MAPPINGS:
        return Shape("mapping", origin, marks, tuple(map(shape_of, arguments)))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return Shape("block", annotation, marks)
    return Shape("plain", origin or annotation, marks)


def shape_of_field(field: FieldInfo) -> Shape:
    """The shape of a field of a pydantic model."""
    return shape_of(field.annotation, tuple(field.metadata), field.discriminator)


def values_of(block: object, key: str) -> tuple[Any, ...]:
    """The values that a key of a block may have, if its type lists them. Empty if it does not, if the block has no such
    key, or if ``block`` is no block.
    """
    if not (isinstance(block, type) and issubclass(block, BaseModel)) or key not in block.model_fields:
        return ()
    return shape_of_field(block.model_fields[key]).values
