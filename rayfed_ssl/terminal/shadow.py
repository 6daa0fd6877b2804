"""Refuses to start if a user's own ``tune.py`` or ``actors.py`` hides our packages: Python finds it before them."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

from rayfed_ssl.base.text import printable
from rayfed_ssl.base.user_error import UserError

PACKAGES = ("actors", "tune")


def refuse_shadows() -> None:
    """Raise UserError, which names the file, if one of our packages is hidden by another module of its name. A user's
    file is only found, not imported, so none of it is run.
    """
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and not _ours(spec, name):
            raise UserError(
                f"{printable(_place(spec))}: found in the place of rayfed-ssl's own package {name!r}, which it hides; "
                "rename it, or start rayfed-ssl in another folder"
            )


def _ours(spec: ModuleSpec, name: str) -> bool:
    """Whether this is our package, which lies beside ``rayfed_ssl``, installed or in a checkout."""
    ours = Path(__file__).resolve().parents[2] / name / "__init__.py"
    return spec.origin is not None and Path(spec.origin).resolve() == ours


def _place(spec: ModuleSpec) -> str:
    """The file or folders that a module was found in."""
    if spec.origin is not None:
        return spec.origin
    return ", ".join(spec.submodule_search_locations or ()) or spec.name
