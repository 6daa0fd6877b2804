"""The JSON Schema of a configuration file, with which editors complete, explain and check its keys.

It is less strict than the loader: required keys may be given in a profile instead, and blocks are not checked against
each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from rayfed_ssl.base.choice import chosen_by_name

DIALECT = "https://json-schema.org/draft/2020-12/schema"
DEFINITIONS = "#/$defs/"


def json_schema(model: type[BaseModel], *, profiles: bool = False) -> dict[str, Any]:
    """The schema of a file.

    Args:
        profiles: whether the file may have ``profiles``, a mapping of names to the keys that each profile changes.
    """
    schema = model.model_json_schema()
    definitions, required, keys = schema.pop("$defs", {}), schema.pop("required", []), schema.pop("properties")
    for key, body in keys.items():
        if "properties" in body or "items" in body:  # defined once, for the file and for its profiles
            definitions[key], keys[key] = body, {"$ref": f"{DEFINITIONS}{key}"}
    top: dict[str, Any] = keys
    if profiles:
        definitions["profile"] = {
            "type": ["object", "null"], "properties": keys, "patternProperties": {r"\.": {}},
            "additionalProperties": False,
        }  # fmt: skip
        named = {key: {"allOf": [keys[key], {"required": ["name"]}]} for key in required}
        top = {**keys, **named, "profiles": _profiles()}
    whole = {"$schema": DIALECT, **schema, "properties": top, "$defs": definitions}
    return {**_tidied(whole, definitions), "required": required}


def _profiles() -> dict[str, Any]:
    return {
        "description": "Named sets of keys, of which `profile`, else `cpu`, is laid over the rest of the file.",
        "type": "object",
        "additionalProperties": {"$ref": f"{DEFINITIONS}profile"},
    }


def _tidied(node: Any, definitions: Mapping[str, Any]) -> Any:
    """``node`` without titles and without the required keys of blocks, with the kinds of a block chosen by name, and
    with texts as Markdown.
    """
    if isinstance(node, list):
        return [_tidied(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    left_out = {"title"} if isinstance(node.get("title"), str) else set()
    if node.get("additionalProperties") is False:
        left_out.add("required")
    if "discriminator" in node:
        left_out |= {"discriminator", "oneOf"}
    tidied = {key: _tidied(value, definitions) for key, value in node.items() if key not in left_out}
    if isinstance(text := node.get("description"), str):
        tidied["description"] = re.sub(r":\w+:`", "``", text).replace("``", "`")
    if "discriminator" in node:
        kinds: dict[str, str] = node["discriminator"]["mapping"]
        keys = {name: definitions[ref.removeprefix(DEFINITIONS)]["properties"] for name, ref in kinds.items()}
        tidied |= chosen_by_name({name: {"$ref": ref} for name, ref in kinds.items()}, keys)
    return tidied
