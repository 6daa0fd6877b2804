"""Reads plain YAML within bounds: no tags, no text that a file or a path cannot contain, and limits on size and depth.

A few hundred bytes of aliases to aliases can stand for 10^9 values, and 10^5 brackets overflow the interpreter's stack.
So size and depth are counted while the document is composed, before any value is constructed.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from rayfed_ssl.base.text import in_one_line, printable

DEPTH = 64  # levels of nested mappings and lists, with aliases followed
ENTRIES = 200_000  # keys, values and entries, counted as often as aliases repeat them
DIGITS = 100  # characters of a number

_EXPONENT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_TEXT = "tag:yaml.org,2002:str"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")  # NUL ends a path, and UTF-8 cannot encode a surrogate


class Loader(yaml.SafeLoader):
    """Reads YAML where ``1e-3`` is a number, a date is text, keys are the text as written, and no key is repeated."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own, without dates)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._level = 0
        self._measured: dict[yaml.Node, tuple[int, int]] = {}  # complete node -> (entries, levels)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        tag = getattr(event, "tag", None)
        if tag not in (None, "!", _TEXT):
            raise _refusal(f"found the tag {tag!r}; tags have no meaning here", event.start_mark)
        if self._level >= DEPTH:
            raise _refusal(f"found more than {DEPTH} levels of nesting", event.start_mark)
        self._level += 1
        node = super().compose_node(parent, index)
        self._level -= 1
        if node is not None:
            self._measure(node, event)
        return node

    def _measure(self, node: yaml.Node, event: Any) -> None:
        """Count the entries and levels of ``node``, whose parts are counted already. Raises YAMLError if there are too
        many.
        """
        if isinstance(event, yaml.AliasEvent):
            if node not in self._measured:
                raise _refusal(f"found the alias {event.anchor!r} within what it stands for", event.start_mark)
            return
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            parts = node.value
        elif isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        counts = [self._measured[part] for part in parts]
        entries, levels = 1 + sum(count[0] for count in counts), 1 + max((count[1] for count in counts), default=0)
        if entries > ENTRIES:
            raise _refusal(f"found more than {ENTRIES} entries, aliases followed", event.start_mark)
        if levels > DEPTH:
            raise _refusal(f"found more than {DEPTH} levels of nesting, aliases followed", event.start_mark)
        self._measured[node] = (entries, levels)

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if found := _UNWRITABLE.search(node.value):
            raise _refusal(f"found the character {found[0]!r}, which no file can hold", node.start_mark)
        if node.tag in _NUMBERS and len(node.value) > DIGITS:
            raise _refusal(f"found a number of {len(node.value)} characters, more than {DIGITS}", node.start_mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refusal("found a key that is not text", key.start_mark)
            if key.value in seen:
                raise _refusal(f"found the key {key.value!r} twice", key.start_mark)
            seen.add(key.value)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)  # resolves "<<: *anchor"; the mapping's own keys come last and win
        return {key.value: self.construct_object(value, deep=deep) for key, value in node.value}


class Dumper(yaml.SafeDumper):
    """Writes YAML, and quotes text that ``Loader`` would read as a number."""


for _yaml in (Loader, Dumper):
    _yaml.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def parse(text: str) -> Any:
    """The value of a YAML document. Raises ``yaml.YAMLError`` if it is no YAML, has tags, or exceeds the bounds."""
    try:
        return yaml.load(text, Loader=Loader)
    except (ValueError, OverflowError) as error:  # a scalar looks like a number but is none, such as 0b_
        raise yaml.YAMLError(f"found a number that cannot be read ({error})") from None
    except RecursionError:  # raised by PyYAML's scanner, before nodes are counted
        raise yaml.YAMLError("found more nesting than can be read") from None


def problem(error: yaml.YAMLError) -> str:
    """Where PyYAML stopped and what it found there, in one line."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        return printable(where + " ".join(str(error.problem or error.context).split()))
    return in_one_line(error)


def _refusal(words: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=words, problem_mark=mark)
