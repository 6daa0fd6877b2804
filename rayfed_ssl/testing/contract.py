"""The promises of every method: results are finite, deterministic, and the same wherever it runs and however it was
interrupted; and its costs are those predicted.

A method of your own gets the whole suite with two lines in a file that pytest collects:

    from rayfed_ssl.testing import contract
    TestMine = contract("mine", {"imports": ["my_method.py"]}, beside=Path(__file__).parent)
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rayfed_ssl.base import seeding
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import Address
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import Federation, load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.plugin import ServerPlugin
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods import METHODS, plugin_halves
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.timing import images_of_server
from rayfed_ssl.testing.tiny import booked, counted, encoders, measured, outcomes, run_locally, tiny_run

SPEEDS = {"seconds_per_image": 0.05, "down_mbps": 1.0, "up_mbps": 0.5, "latency_s": 0.2}
"""A virtual clock whose clients all take the same time."""

SERVER_S = 0.25
"""The server's seconds per image in runs with a clock; multiples of it are exact."""

TIMED = {"time/virtual_s", "time/server_s", "system/asked", "system/late", "system/gone", "system/dropped_out"}
"""Tags that only runs with a virtual clock have."""

UNSEEN: dict[str, Any] = {"evaluation__protocols": [], "checkpoint__every": 0}
"""Changes for a run that is compared by its encoders and bookings only: it need not evaluate or save anything."""


@contextlib.contextmanager
def addresses() -> Iterator[Counter[tuple[Address, ...]]]:
    """Count, for each address, how often a generator was made or the global ones were seeded from it within the
    block.
    """
    counts: Counter[tuple[Address, ...]] = Counter()
    seed_of = seeding.seed_of

    def counted(*address: Address) -> int:
        counts[address] += 1
        return seed_of(*address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeding, "seed_of", counted)
        yield counts


class Contract:
    """The suite over one method, made by :func:`contract`."""

    method: ClassVar[str]
    changes: ClassVar[Mapping[str, object]]
    beside: ClassVar[Path | None]
    reseeded: ClassVar[Mapping[str, str]]
    made: ClassVar[Counter[tuple[Address, ...]]]  # in the undisturbed run

    @classmethod
    def config(cls, **changes: object) -> RunConfig:
        dotted = {key.replace("__", "."): value for key, value in changes.items()}
        return tiny_run(cls.method, {**cls.changes, **dotted}, cls.beside)

    @pytest.fixture(scope="class")
    @classmethod
    def undisturbed(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The method's run in process, shared by the tests of the class."""
        folder = tmp_path_factory.mktemp("undisturbed") / cls.method
        with addresses() as cls.made:
            run_locally(cls.config(), folder)
        return folder

    @pytest.mark.usefixtures("undisturbed")
    def test_no_address_has_two_generators(self) -> None:
        """Two generators with the same address (seed, round, client, operation, purpose) would draw the same numbers.

        An address without a client is a value of the run, such as an architecture's first values or the images that all
        clients use in a round: every process computes it again. ``reseeded`` holds the operations whose global
        generators, (seed, round, client, operation), start alike in several calls, and why that does no harm.
        """
        of_clients = {a: n for a, n in self.made.items() if [type(part) for part in a[1:3]] == [int, int]}
        assert of_clients
        twice = {a for a, n in of_clients.items() if n > 1}
        excused = {a for a in twice if len(a) == 4 and a[3] in self.reseeded}
        assert not twice - excused, f"made twice: {sorted(twice - excused, key=str)}"
        assert {a[3] for a in excused} == set(self.reseeded), "what is no longer so need not be excused"

    def test_finite_and_complete(self, undisturbed: Path) -> None:
        values = measured(undisturbed)
        assert all(math.isfinite(value) for value in values.values())
        evaluated = {round for round, _, tag in values if tag.startswith("eval/")}
        assert evaluated == set(range(self.config().train.rounds + 1))
        assert (undisturbed / "summary.json").exists()
        assert (undisturbed / "partition.parquet").exists()

    def test_another_seed_has_other_bits(self, undisturbed: Path, tmp_path: Path) -> None:
        """That the same seed gives the same bits, every test below says: each compares its run with the undisturbed
        one.
        """
        run_locally(self.config(seed=1, **UNSEEN), tmp_path / "other")
        first, other = encoders(undisturbed), encoders(tmp_path / "other")
        assert all(other[name] != first[name] for name in first)

    def test_resumed_equals_uninterrupted(self, undisturbed: Path, tmp_path: Path) -> None:
        config = self.config()
        after = min(1, config.train.rounds - 1)  # a method of one round is stopped before it
        seen: list[int] = []
        stopped = run_locally(
            config, tmp_path / "run", report=lambda p: seen.append(p.round), stopping=lambda: max(seen) >= after
        )
        assert stopped["status"] == "stopped"
        assert stopped["rounds"] == after
        lines: list[str] = []
        summary = run_locally(config, tmp_path / "run", resume=True, report=lambda p: lines.append(p.line))
        assert any(f"resumed from round {after}" in line for line in lines)
        assert encoders(tmp_path / "run") == encoders(undisturbed)
        assert measured(tmp_path / "run") == measured(undisturbed)
        assert booked(tmp_path / "run") == booked(undisturbed)
        assert outcomes(tmp_path / "run") == outcomes(undisturbed)
        assert summary["status"] == "complete"

    def test_bytes_are_those_predicted(self, undisturbed: Path) -> None:
        """``traffic`` of the method and its plug-ins equals the ledger, for every client in every round."""
        config = self.config()
        if config.system is not None:
            pytest.skip("bytes are predicted for runs in which nobody can be lost")
        federation = load_federation(config)
        setup = Setup(config, federation, InitialWeights(config, federation))
        server: MethodServer[Any] = METHODS[self.method].server(setup)
        parts: list[MethodServer[Any] | ServerPlugin[Any]] = [server]
        parts += [plugin_halves(p.name)[1](p, setup) for p in config.active_plugins]
        expected, met = Counter[tuple[int, int, str]](), set[int]()
        for t in range(config.train.rounds + 1):
            clients = server.asked(t) if t else federation.clients
            server.rehearse(max(t, 1))
            for client, part in product(clients, parts):
                traffic = part.traffic(t, client, met)
                if traffic is None:
                    pytest.skip(f"{type(part).__qualname__}.traffic of {self.method} is None: not known beforehand")
                expected[t, client, "down"] += traffic.down
                expected[t, client, "up"] += traffic.up
            met |= set(clients) if t else set()
        sent = Counter[tuple[int, int, str]]()
        for t, client, direction, _, _, size in booked(undisturbed):
            sent[t, client, direction] += size
        assert +sent == +expected, "Server.traffic, or a plug-in's, is wrong"

    def test_work_is_that_predicted(self, undisturbed: Path, tmp_path: Path) -> None:
        """``workload`` of the method and its plug-ins is right: the images that each operation reads, and the bytes of
        its reply by field, which a virtual clock with a deadline checks. A deadline that nobody misses changes nothing,
        and neither does a clock without one, which any method may have. If the server predicts the images that it will
        read itself (``server_images``), it reads that many.
        """
        refusal, timed = "", tmp_path / "timed"
        system: dict[str, float] = {**SPEEDS, "server_seconds_per_image": SERVER_S} if self.served() else SPEEDS
        try:
            run_locally(self.config(system={**system, "deadline_s": 1e9}, **UNSEEN), timed)
        except UserError as refused:
            refusal = str(refused)
            if "does not know beforehand" not in refusal:
                raise
            run_locally(self.config(system=system, **UNSEEN), timed)
        assert encoders(timed) == encoders(undisturbed)
        assert booked(timed) == booked(undisturbed)
        known, values = measured(undisturbed), measured(timed)
        assert {key: value for key, value in values.items() if key[2] not in TIMED}.items() <= known.items()
        assert all(tag.startswith("eval/") for _, _, tag in known.keys() - values.keys())
        rounds = self.config().train.rounds if METHODS[self.method].server.reaches_clients else 0
        assert [tag for _, _, tag in values].count("time/virtual_s") == rounds
        if self.served() and self.config().participation.over == 1 and (images := self.server_images()) is not None:
            found = values[rounds, None, "time/server_s"]
            assert found == images * SERVER_S, f"Server.server_images says {images}, the server read {found / SERVER_S}"
        if refusal:
            pytest.skip(refusal)

    @classmethod
    def served(cls) -> bool:
        """Whether the clock counts work of the server itself."""
        method = METHODS[cls.config().method.name]  # ``config()`` has imported the file of a plug-in method
        return method.service is not None and method.server.reaches_clients

    def server_images(self) -> int | None:
        """The number of images that the server says it will read over the whole run; None if it does not say."""
        config = self.config()
        federation = load_federation(config)
        server: MethodServer[Any] = METHODS[self.method].server(
            Setup(config, federation, InitialWeights(config, federation))
        )
        return images_of_server(config, server)

    def test_clients_count_in_its_mean_as_the_server_says(self) -> None:
        """``counts`` equals the mean of weights with which a round ends, if ``Method.step`` says that it ends with one;
        for every value of ``method.weights``, if that is a key.
        """
        config = self.config()
        if not METHODS[config.method.name].optimizable:
            pytest.skip(f"{self.method} does not end with a plain mean")
        has_key = "weights" in type(config.method).model_fields
        for changes in [{"method__weights": weights} for weights in ("size", "uniform")] if has_key else [{}]:
            means, stated = counted(self.config(train__local_steps=1, **changes))
            taken = [mean.shares for mean in means if "weights" in mean.fields][-1]
            assert taken == pytest.approx(stated), f"Server.counts is not how clients count in the mean, {changes}"

    @pytest.mark.parametrize("actors", [1, 2])
    def test_on_ray_equals_in_process(
        self, actors: int, undisturbed: Path, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        from actors.cohort import RayCohort
        from actors.testing import shared_pool

        config = self.config()
        cohorts: list[RayCohort] = []
        pool = shared_pool(actors, request.config, config.resources.device)

        def connect(config: RunConfig, federation: Federation, ledger: Ledger) -> RayCohort:
            cohorts.append(RayCohort(config, federation, ledger, pool, keep=True))
            return cohorts[-1]

        loop.run(config, tmp_path / "ray", connect)
        assert len({info.pid for info in cohorts[0].infos} - {os.getpid()}) == actors
        assert encoders(tmp_path / "ray") == encoders(undisturbed)
        assert measured(tmp_path / "ray") == measured(undisturbed)
        assert booked(tmp_path / "ray") == booked(undisturbed)
        assert outcomes(tmp_path / "ray") == outcomes(undisturbed)


def contract(
    method: str,
    changes: Mapping[str, object] | None = None,
    beside: Path | None = None,
    reseeded: Mapping[str, str] | None = None,
) -> type[Contract]:
    """The suite over one method, as a class for pytest to collect.

    Args:
        method: its ``method.name``.
        changes: dotted keys of the tiny run that make it use the method's own code; ``imports`` names the method's
            file. With ``{"resources.device": "cuda"}`` the suite runs on a GPU, which actors share; else on the CPU.
        beside: the folder to which paths in ``imports`` are relative.
        reseeded: operations that start several times in a round with the same global generators, and why they may.
    """
    members: dict[str, Any] = {
        "method": method, "changes": dict(changes or {}), "beside": beside, "reseeded": dict(reseeded or {}),
    }  # fmt: skip
    return type(f"Test_{method}", (Contract,), members)
