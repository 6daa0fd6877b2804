"""Imports slow libraries at their first use, because many commands never need them."""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterator
from typing import Any


class LazyModule:
    """A module that is imported when one of its names is first used: ``metrics = LazyModule("sklearn.metrics")``.

    Importing torchvision takes two seconds and scikit-learn one; a mistake in a configuration should be reported
    sooner.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        """Raises ImportError or AttributeError, as an import would."""
        return getattr(importlib.import_module(self._module), name)

    def __repr__(self) -> str:
        return f"LazyModule({self._module!r})"


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Imports within this context run without garbage collection, which would scan the growing modules repeatedly."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
