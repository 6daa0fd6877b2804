"""Federated self-supervised learning: the library, and a Python API as small as the command line.

    import rayfed_ssl
    run = rayfed_ssl.run("configs/demo.yaml", train__rounds=5)
    encoder = run.encoder()

``run``, ``load`` and ``compare`` are imported, and torch with them, when they are first used. ``__init__.pyi`` gives
their types.
"""

from importlib import import_module

_HOMES = {
    "ClientError": "rayfed_ssl.federated.messages",
    "Compared": "rayfed_ssl.api.comparing",
    "ImageEncoder": "rayfed_ssl.api.encoder",
    "Progress": "rayfed_ssl.simulation.progress",
    "Run": "rayfed_ssl.api.folder",
    "UserError": "rayfed_ssl.base.schema",
    "compare": "rayfed_ssl.api.comparing",
    "load": "rayfed_ssl.api.folder",
    "run": "rayfed_ssl.api.running",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'rayfed_ssl' has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
