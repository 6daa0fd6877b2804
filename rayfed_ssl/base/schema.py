"""The base class of every configuration block: frozen, with unknown keys forbidden.

A component owns its configuration: the block is defined in the component's file, and ``rayfed_ssl.config`` only
composes the blocks into one schema.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
from functools import lru_cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from rayfed_ssl.base.user_error import UserError as UserError  # exported again: most modules need both


class Block(BaseModel):
    """One block of a run's configuration. Derived values are properties and are never written back.

    The text below a field describes it. ``rayfed-ssl config``, docs/configuration.md and editors show it, or its first
    sentence. A field that holds a block is described by its own text, if any, followed by the block's docstring.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, protected_namespaces=(), allow_inf_nan=False
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return described(cls, schema, handler)


def described(block: type[BaseModel], schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
    """The JSON Schema of a block, with the texts of its fields as descriptions."""
    made = handler(schema)
    properties = handler.resolve_ref_schema(made).get("properties", {})
    for name, text in texts(block).items():
        if name in properties:
            properties[name].setdefault("description", text)
    return made


def texts(block: type[BaseModel]) -> dict[str, str]:
    """Field -> its description: ``Field(description=..)``, or the text below the field in the source.

    The source is read on demand. pydantic's ``use_attribute_docstrings`` would read it as each class is defined, which
    costs time in every process. A field keeps its text if a subclass gives it another default.
    """
    found: dict[str, str] = {}
    for kind in reversed(block.__mro__):
        module = sys.modules.get(kind.__module__)
        if issubclass(kind, BaseModel) and kind is not BaseModel and module is not None:
            with contextlib.suppress(OSError, TypeError):  # a class from a prompt or a notebook has no source
                found |= _in_source(inspect.getsource(module)).get(kind.__qualname__, {})
    own = {name: field.description for name, field in block.model_fields.items() if field.description}
    return found | own


@lru_cache(maxsize=256)
def _in_source(source: str) -> dict[str, dict[str, str]]:
    """Class -> field -> the text below the field."""
    return {
        node.name: {
            field.target.id: inspect.cleandoc(below.value.value)
            for field, below in pairwise(node.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        }
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }
