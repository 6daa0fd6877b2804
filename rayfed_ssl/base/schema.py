"""The base of every configuration block: frozen, unknown keys forbidden.

A component owns its config: the block stands in the component's own file, and ``rayfed_ssl.config`` only composes the
blocks into one schema. PyYAML reads ``1e-3`` as a string; pydantic's lax mode turns it into a float again.
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

from rayfed_ssl.base.user_error import UserError as UserError  # for who has both from here


class Block(BaseModel):
    """One block of a run's configuration. Derived values are properties and never written back.

    The text below a field describes it; ``rayfed-ssl config`` and docs/configuration.md show its first sentence, and
    editors do. A field that holds a block is described by that block's docstring; text of its own comes before it.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, protected_namespaces=(), allow_inf_nan=False
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return described(cls, schema, handler)


def described(block: type[BaseModel], schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
    """The JSON Schema of a block with its fields' texts."""
    made = handler(schema)
    properties = handler.resolve_ref_schema(made).get("properties", {})
    for name, text in texts(block).items():
        if name in properties:
            properties[name].setdefault("description", text)
    return made


def texts(block: type[BaseModel]) -> dict[str, str]:
    """Field -> what describes it: ``Field(description=..)``, or the text below it in the source.

    The source is read on demand: pydantic's ``use_attribute_docstrings`` reads it as each class is made, which
    every process would pay for. A field that a subclass gives another default keeps its text.
    """
    found: dict[str, str] = {}
    for kind in reversed(block.__mro__):
        module = sys.modules.get(kind.__module__)
        if issubclass(kind, BaseModel) and kind is not BaseModel and module is not None:
            with contextlib.suppress(OSError, TypeError):  # of a class made at a prompt or in a notebook there is none
                found |= _in_source(inspect.getsource(module)).get(kind.__qualname__, {})
    own = {name: field.description for name, field in block.model_fields.items() if field.description}
    return found | own


@lru_cache(maxsize=256)
def _in_source(source: str) -> dict[str, dict[str, str]]:
    """Class -> field -> the text below it."""
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
