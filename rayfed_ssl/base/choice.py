"""Configuration blocks of many kinds: ``method: {name: fedsc, ...}``, where the name decides which other keys exist.

A pydantic union would have to know every kind when the class is made. ``OneOf`` looks the name up in a table when a
document is validated, so a table that outsiders add to is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from rayfed_ssl.base.schema import Block


class OneOf:
    """Marks a field: ``method: Annotated[MethodConfig, OneOf(kinds)]``.

    Args:
        kinds: name -> the block of that kind, asked anew at every validation.
    """

    def __init__(self, kinds: Callable[[], Mapping[str, type[Block]]]) -> None:
        self.kinds = kinds

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.validate, serialization=core_schema.plain_serializer_function_ser_schema(_dumped, info_arg=True)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"oneOf": [kind.model_json_schema() for kind in self.kinds().values()]}

    def validate(self, value: Any) -> Block:
        """A mapping with a known ``name``, or a block already made, as the block of that kind."""
        if isinstance(value, Block):
            return value
        if not isinstance(value, Mapping):
            raise PydanticCustomError("model_type", "must be a mapping of keys to values")
        kinds, name = self.kinds(), value.get("name")
        if name is None:
            raise PydanticCustomError("union_tag_not_found", "needs a name", {"discriminator": "'name'"})
        if not isinstance(name, str) or name not in kinds:
            raise PydanticCustomError(
                "union_tag_invalid",
                "found {tag}; must be one of {expected_tags}",
                {"discriminator": "'name'", "tag": str(name), "expected_tags": ", ".join(f"'{k}'" for k in kinds)},
            )
        return kinds[name].model_validate(value)


def _dumped(block: Block, info: Any) -> dict[str, Any]:
    return block.model_dump(mode=info.mode)
