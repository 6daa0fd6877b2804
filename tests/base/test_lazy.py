"""Libraries that are imported at their first use, and a command line that answers before the slow ones are loaded."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys

import pytest

from rayfed_ssl.base.lazy import LazyModule, importing

LOADED = """
import sys
slow = {'torch', 'torch._dynamo', 'torchvision', 'sklearn', 'ray', 'tensorboard', 'matplotlib', 'pandas', 'ray.tune',
        'ray.data'}
for statement in sys.argv[1:]:
    exec(statement)
    print(sorted(slow & set(sys.modules)))
"""


def test_a_module_is_what_it_would_have_been() -> None:
    lazy = LazyModule("fractions")
    assert lazy.Fraction(1, 3) == lazy.Fraction(2, 6)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        lazy.nothing_of_the_kind  # noqa: B018
    with pytest.raises(ModuleNotFoundError):
        LazyModule("no_such_module").x  # noqa: B018


@pytest.mark.long
@pytest.mark.parametrize(
    "loaded",  # by statements of one process, each after those before it
    [
        {
            "import rayfed_ssl.cli": [],
            "import rayfed_ssl.config as c; c.load(c.Path('configs/demo.yaml'))": ["torch"],
            "import rayfed_ssl.api.execution": ["torch"],
        },
        {
            "import actors.driver_process": ["ray"],  # what an actor's process reads first
            "import actors.client": ["ray", "torch"],
            "import actors.follow": ["ray", "torch"],
        },
    ],
    ids=["cli", "actors"],
)
def test_what_is_loaded_before_it_is_needed(loaded: dict[str, list[str]]) -> None:
    found = subprocess.run(
        [sys.executable, "-c", LOADED, *loaded], capture_output=True, text=True, check=True, timeout=120
    )
    assert found.stdout.splitlines() == [repr(names) for names in loaded.values()]


@pytest.mark.parametrize("collecting", [True, False])
def test_nothing_is_collected_while_modules_are_imported(collecting: bool) -> None:
    before = gc.isenabled()
    gc.enable() if collecting else gc.disable()
    try:
        seen = []
        with contextlib.suppress(ImportError), importing():
            seen.append(gc.isenabled())
            raise ImportError
        assert seen == [False]
        assert gc.isenabled() is collecting
    finally:
        gc.enable() if before else gc.disable()
