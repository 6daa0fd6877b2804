"""What a field's type annotation allows, as a plain description. Error lines and the list of keys read the description,
so that annotations are taken apart in one place.
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
    """What may stand at one place of a document. ``form`` says how the rest is read:

    null      null alone
    values    one of ``values``
    block     a mapping of the keys of the pydantic model ``type``
    list      ``parts``: the shape of each place, or one shape for all entries where the length is ``open``
    mapping   ``parts``: the shape of a name, the shape of a value
    union     ``parts``: the members in their order; ``tag`` is the key by whose value blocks are told apart, if any
    plain     a value of the Python type ``type``

    Args:
        type: the class; of lists and mappings without what is inside, of a union the annotation.
        marks: what is annotated of it, such as bounds, the outermost first.
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
        """The members of a union, else the shape alone."""
        return self.parts if self.form == "union" else (self,)

    @property
    def without_null(self) -> Shape:
        """The shape of what is not null: where a union leaves one member, that member with the union's marks."""
        if self.form != "union":
            return self
        members = tuple(part for part in self.parts if part.form != "null")
        if len(members) != 1:
            return replace(self, parts=members)
        return replace(members[0].without_null, marks=(*self.marks, *members[0].without_null.marks))

    @property
    def names(self) -> dict[str, type[BaseModel]]:
        """Value of the ``tag`` -> the block of a union that it chooses; blocks of unions within are among them."""
        tag = self.tag
        blocks = [block.type for part in self.alternatives for block in part.without_null.alternatives]
        return {} if tag is None else {str(name): block for block in blocks for name in values_of(block, tag)}

    def members(self, marks: tuple[object, ...] = ()) -> Iterator[Shape]:
        """The shape, or the members of a union and of unions within it, each with the marks of what it stands in. Of
        several blocks that their ``name`` tells apart there is first one union, without marks, then the other members.

        Args:
            marks: of what the shape stands in.
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
        marks: what is annotated of it outside of the annotation, as in ``FieldInfo.metadata``.
        tag: the discriminator that is known from outside; of one that is no key, the union has none.
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
    """The values that a key of a block may have, where its type lists them; else, and of what is no block, none."""
    if not (isinstance(block, type) and issubclass(block, BaseModel)) or key not in block.model_fields:
        return ()
    return shape_of_field(block.model_fields[key]).values
