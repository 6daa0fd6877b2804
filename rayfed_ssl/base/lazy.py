"""Imports slow libraries that are not always needed when they are first used."""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterator
from typing import Any


class LazyModule:
    """A module that is imported at the first use of one of its names: ``metrics = LazyModule("sklearn.metrics")``.

    torchvision takes two seconds and scikit-learn one; a mistake in a configuration should be answered before that.
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
    """Import without garbage collection, which would look again and again through what stays."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
