"""What every test shares: one thread, no leftovers outside temporary folders, real images if present, one local Ray."""

from __future__ import annotations

import atexit
import copy
import functools
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.places import SHARED_DATA

# Read by torch, its OpenMP runtime and Ray when they are imported, so set before any of them is.
os.environ.update(OMP_NUM_THREADS="1", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_USAGE_STATS_ENABLED="0")
# Ray's workers run at niceness 15 by default: on a busy machine they would starve beside the tests that wait for them;
# and it starts one per CPU that no test would use.
os.environ.update({"RAY_worker_niceness": "0", "RAY_prestart_worker_first_driver": "0"})
os.environ.pop("RAY_ADDRESS", None)  # never join a cluster of others
# A shell's background jobs ignore Ctrl-C, and so would the commands that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# So does all under nohup a lost terminal. The tests themselves go on ignoring it.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)

ON_RAY = (
    "tests/actors/", "tests/api/test_api.py", "tests/commands/test_list.py", "tests/test_contract.py",
    "tests/test_examples.py", "tests/simulation/test_unreliable_clients.py", "tests/test_cli.py",
    "tests/simulation/test_forecast.py", "tests/tune/test_comparison.py", "tests/tune/test_groups.py",
    "tests/tune/test_trial.py", "tests/tune/test_tune_search.py",
)  # fmt: skip
"""Files whose tests share one local Ray, and warm actors there."""
REPORTS = "tests/report/"
"""Files that share a run and its report."""
FIRST = (
    "tests/test_imports.py", "tests/test_notebooks.py", "tests/test_third_party.py", "tests/test_python_page.py",
    "tests/commands/test_new.py", "tests/test_environments.py", "tests/exporting/test_export.py",
    "tests/test_output.py",
)  # fmt: skip
"""Files with few tests that take long: begun last, one worker would wait for the other."""


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        return  # it hands out tests, and runs none
    import torch

    if config.getoption("markexpr") != "gpu":  # what a machine has must not decide what a test compares
        torch.cuda.is_available = lambda: False
    torch.set_num_threads(1)  # another thread count changes bits
    gc.disable()  # until everything is collected: it would look again and again through what stays


def pytest_collection_finish() -> None:
    """What was imported stays to the end, so no collection has to look through it again."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 20)  # a test leaves little behind
    atexit.register(gc.unfreeze)  # the interpreter's end finds what it would have found


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """``--dist loadscope``, but everything on Ray goes to one worker: the other needs no instance and no actors. So do
    the reports' tests. What takes long comes first, not what has many tests.
    """
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Grouped(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(ON_RAY):
                return "on Ray"
            return REPORTS if nodeid.startswith(REPORTS) else super()._split_scope(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            for scope in (*reversed(FIRST), REPORTS, "on Ray"):
                if scope in self.workqueue:
                    self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    return Grouped(config, log)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real images (CIFAR-10, Fashion-MNIST) beside the repository; skips where there is none."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no real images: {SHARED_DATA} is absent")
    return SHARED_DATA


@pytest.fixture(autouse=True, scope="session")
def _caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Caches of ours and of matplotlib go to a folder of this session. Ray's workers inherit the variables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYFED_SSL_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("MPLCONFIGDIR", str(tmp_path_factory.mktemp("matplotlib")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """No test cuts the power, so none has to wait until the disk has everything: hundreds of runs wait long.
    What must be handed to ``os.fsync`` before it gets its name, the fixture ``named`` follows.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # a bad descriptor is an error still
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_text_is_parsed_twice() -> Iterator[None]:
    """Hundreds of tests read the same few configurations. What is no YAML is read, and refused, every time."""
    from rayfed_ssl.settings import files

    parsed = functools.lru_cache(maxsize=1000)(files.parse)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "parse", lambda text: copy.deepcopy(parsed(text)))
        yield


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that ``os.replace`` gives; fails where a file had not been synced as it is by then."""
    synced: dict[int, int] = {}  # inode -> bytes
    names: list[str] = []
    replace = os.replace

    def sync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced[found.st_ino] = found.st_size

    def rename(old: Path, new: Path) -> None:
        files = [old] if old.is_file() else [path for path in old.rglob("*") if path.is_file()]
        assert files
        for path in files:
            assert synced[path.stat().st_ino] == path.stat().st_size, path
        names.append(new.name)
        replace(old, new)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    return names


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is of a GPU is skipped where there is none."""
    import torch

    if not torch.cuda.is_available():
        none = pytest.mark.skip(reason="needs a CUDA device, and -m gpu, as make test-gpu has it")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(none)


@pytest.fixture(autouse=True)
def _tables_as_they_were() -> Iterator[None]:
    """What a test's ``imports`` add to the tables of methods, objectives, .. leaves them with the test: the tests that
    read whole tables may run after it in the same process.
    """
    yield
    if extensions := sys.modules.get("rayfed_ssl.extensions"):
        for one in list(extensions.loaded.values()):
            extensions.unload(one)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """A run sets torch's threads as its ``resources`` say: the next test has one again."""
    yield
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ray_session(_caches: None, request: pytest.FixtureRequest) -> ModuleType:
    """The ``ray`` module, connected to one local instance (4 CPUs, one pretended GPU) that all tests share."""
    import ray

    from actors.testing import local_ray

    local_ray(request.config)
    return ray


@pytest.fixture
def only_svg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports draw their figures in the one format that the page holds."""
    monkeypatch.setattr("rayfed_ssl.report.style.FORMATS", ("svg",))


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """The command line in this process, in an empty folder with tiny.yaml: exit status, stdout, stderr."""
    from tests.command_line import caller

    return caller(tmp_path, monkeypatch, capsys)
