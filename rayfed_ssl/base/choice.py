"""Configuration blocks whose ``name`` selects one of several kinds: in ``method: {name: fedsc, ...}`` the name decides
which other keys exist.

A pydantic union would have to know every kind when the class is defined. ``OneOf`` looks the name up in a table when a
document is validated, so packages can add kinds to the table later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from rayfed_ssl.base.schema import Block, described


def chosen_by_name(schemas: Mapping[str, Any], keys: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON Schema of a mapping whose ``name`` chooses which of ``schemas`` applies. A mapping without a name, as in
    a profile that changes a few keys, may have keys of any kind.

    Args:
        keys: kind -> the schemas of its keys.
    """
    schemas_of_key: dict[str, list[Any]] = {}
    for keys_of_kind in keys.values():
        for key, schema in keys_of_kind.items():
            if schema not in schemas_of_key.setdefault(key, []):
                schemas_of_key[key].append(schema)
    either = {key: options[0] if len(options) == 1 else {"anyOf": options} for key, options in schemas_of_key.items()}
    unnamed = {"if": {"not": {"required": ["name"]}}, "then": {"properties": either, "additionalProperties": False}}
    rules = [
        {"if": {"properties": {"name": {"const": name}}, "required": ["name"]}, "then": schema}
        for name, schema in schemas.items()
    ]
    return {"type": "object", "properties": {"name": {"enum": list(schemas)}}, "allOf": [unnamed, *rules]}


class OneOf:
    """Marks a field: ``method: Annotated[MethodConfig, OneOf(kinds)]``.

    Args:
        kinds: returns name -> the block of that kind. It is called at every validation.
        default: the name to assume for a mapping without a name; None: a name is required.
    """

    def __init__(self, kinds: Callable[[], Mapping[str, type[Block]]], default: str | None = None) -> None:
        self.kinds, self.default = kinds, default

    def named(self, value: object) -> object:
        """The name of the kind that ``value`` is; None if it has no name."""
        return value.get("name", self.default) if isinstance(value, Mapping) else None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.validate, serialization=core_schema.plain_serializer_function_ser_schema(_dumped, info_arg=True)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        kinds = {
            name: described(schema_of_kind, schema_of_kind.__pydantic_core_schema__, handler)
            for name, schema_of_kind in self.kinds().items()
        }
        keys = {
            name: handler.resolve_ref_schema(schema_of_kind)["properties"] for name, schema_of_kind in kinds.items()
        }
        return chosen_by_name(kinds, keys)

    def validate(self, value: Any) -> Block:
        """The block of the kind that ``value`` names; ``value`` itself if it is a block already. Raises
        PydanticCustomError if it is no mapping, or has no name or an unknown one.
        """
        if isinstance(value, Block):
            return value
        if not isinstance(value, Mapping):
            raise PydanticCustomError("model_type", "must be a mapping of keys to values")
        kinds, name = self.kinds(), self.named(value)
        if name is None:
            raise PydanticCustomError("union_tag_not_found", "needs a name", {"discriminator": "'name'"})
        if not isinstance(name, str) or name not in kinds:
            raise PydanticCustomError(
                "union_tag_invalid",
                "found {tag}; must be one of {expected_tags}",
                {"discriminator": "'name'", "tag": str(name), "expected_tags": ", ".join(f"'{k}'" for k in kinds)},
            )
        return kinds[name].model_validate({"name": name, **value})


class NameOf:
    """Marks a text whose usual values are known: ``Annotated[str, NameOf(names)]``. It validates nothing.

    Args:
        names: returns the usual values. It is called each time they are shown.
        others: describes other values that are allowed; empty if there are none.
    """

    def __init__(self, names: Callable[[], Iterable[str]], others: str = "") -> None:
        self.names, self.others = names, others

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        usual = {"enum": list(self.names())}
        return {"anyOf": [usual, handler(schema)]} if self.others else usual


class Short:
    """Marks a block that may also be given as a text. It validates nothing.

    Args:
        names: returns the texts that are allowed; None: any text.
    """

    def __init__(self, names: Callable[[], Iterable[str]] | None = None) -> None:
        self.names = names

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        text = {"type": "string"} if self.names is None else {"enum": list(self.names())}
        return {"anyOf": [text, handler(schema)]}


class BlocksOf:
    """Marks a mapping of names to blocks, where each name is the kind of its block. It validates nothing."""

    def __init__(self, kinds: Callable[[], Mapping[str, type[Block]]]) -> None:
        self.kinds = kinds

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        blocks = {name: described(kind, kind.__pydantic_core_schema__, handler) for name, kind in self.kinds().items()}
        return {"type": "object", "properties": blocks, "additionalProperties": False}


def _dumped(block: Block, info: Any) -> dict[str, Any]:
    return block.model_dump(mode=info.mode)
