"""What describes a field of a block."""

from __future__ import annotations

from pydantic import Field

from rayfed_ssl.base.schema import Block, texts


class Base(Block):
    first: int = 1
    """Over
    two lines."""
    second: int = 2
    third: int = Field(3, description="Given as a description.")
    fourth: int = 4
    """Of the base."""


class Derived(Base):
    first: int = 10
    fourth: int = 40
    """Of the subclass."""
    fifth: int = 5
    """Its own."""


def test_the_text_below_a_field_describes_it() -> None:
    assert texts(Base) == {
        "first": "Over\ntwo lines.",
        "third": "Given as a description.",
        "fourth": "Of the base.",
    }


def test_a_subclass_keeps_texts_and_may_say_otherwise() -> None:
    assert texts(Derived) == {**texts(Base), "fourth": "Of the subclass.", "fifth": "Its own."}


def test_of_a_class_without_a_source_only_descriptions_are_known() -> None:
    """As in a notebook, whose module ``__main__`` has no file."""
    made = type("Prompted", (Block,), {"__module__": "builtins", "__annotations__": {"own": int}, "own": Field(1)})
    assert texts(made) == {}
    assert made.model_json_schema()["properties"]["own"]["default"] == 1


def test_editors_are_told_the_same() -> None:
    shown = Derived.model_json_schema()["properties"]
    assert {name: field["description"] for name, field in shown.items() if "description" in field} == texts(Derived)
