"""The base of every configuration block: frozen, unknown keys forbidden.

A component owns its config: the block stands in the component's own file, and ``rayfed_ssl.config`` only composes the
blocks into one schema. PyYAML reads ``1e-3`` as a string; pydantic's lax mode turns it into a float again.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Block(BaseModel):
    """One block of a run's configuration. Derived values are properties and never written back.

    The text below a field is its description: ``rayfed-ssl config`` and docs/configuration.md show its first sentence,
    and editors do. A field that holds a block is described by that block's docstring; text of its own adds to it.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        protected_namespaces=(),
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class UserError(Exception):
    """Something the user can mend. The text is one line: the key or file, what was found, what is allowed.

    The command line prints it without a traceback and exits with status 2.
    """
