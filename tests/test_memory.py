"""What a run would keep of its clients, against what it does keep; refusals; memory that does not grow with rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.weights import Weights
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.coding import RECENT, Downloads
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.records import journal
from rayfed_ssl.records.tables import metrics_parts, read_communication, read_metrics
from rayfed_ssl.settings.transport import TransportConfig
from rayfed_ssl.simulation import local as cohorts
from rayfed_ssl.simulation import loop, memory
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.memory import Estimate, Room, check_fits, estimate
from rayfed_ssl.simulation.progress import Progress
from tests.tiny import run_locally, tiny

STATELESS: list[tuple[str, dict[str, Any]]] = [
    ("fedsimclr", {}), ("fedsc", {"participation__fraction": 1.0}), ("flesd", {}), ("centralized", {}),
    ("centralized", {"objective__name": "dino", "train__optimizer": {"name": "adam", "lr": 0.003, "keep": True}}),
    ("fedavg_supervised", {}), ("fedbyol", {"objective__target": "reset"}),
    ("fedsimclr", {"plugins": [{"name": "fedfoa", "warmup": 0}]}),
]  # fmt: skip
STATEFUL: list[tuple[str, dict[str, Any]]] = [
    ("fedbyol", {}), ("local", {}), ("local", {"objective__name": "byol"}), ("fedfoa", {}),
    ("fedca", {"participation__fraction": 1.0}), ("fedlinked", {}), ("fedavg_trunk", {}),
    ("flesd", {"clients__encoders": ["small_cnn", "small_cnn_bn", "small_cnn", "fedlinked_cnn"],
               "method__student": "small_cnn"}),
    ("fedmd", {"participation__fraction": 1.0, "train__optimizer": {"name": "adam", "lr": 0.003, "keep": True}}),
    ("fedbyol", {"train__optimizer": {"name": "lars", "lr": 0.1, "keep": True}}),
]  # fmt: skip


def held(value: Any) -> int:
    """Bytes of the arrays inside."""
    match value:
        case Weights():
            return value.vector.nbytes
        case np.ndarray():
            return value.nbytes
        case dict():
            return sum(map(held, value.values()))
    return 0


def kept_by(config: RunConfig, folder: Path) -> tuple[int, int, int]:
    """(clients with a state, bytes of all states, bytes of banks) after a run."""
    found: list[LocalCohort] = []

    def connect(*args: Any) -> LocalCohort:
        found.append(LocalCohort(*args))
        return found[0]

    runs: list[loop.RunLoop] = []
    init = loop.RunLoop.__init__

    class Watched(loop.RunLoop):
        def __init__(self, *args: Any) -> None:
            init(self, *args)
            runs.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "RunLoop", Watched)
        loop.run(config, folder, connect)
    states = dict(found[0].states())
    kept = [runs[0].server.state, *(plugin.state for plugin in runs[0].plugins.values())]
    banks = sum(held(state.get(name)) for state in kept for name in ("bank", "dictionaries"))
    return len(states), sum(map(held, states.values())), banks


@pytest.mark.long
@pytest.mark.parametrize(("method", "changes"), STATEFUL + STATELESS)
def test_the_estimate_is_what_a_run_keeps(method: str, changes: dict[str, Any], tmp_path: Path) -> None:
    config = tiny(method, **{"train__rounds": 2, "evaluation__protocols": [], **changes})
    needed = estimate(config, load_federation(config))
    clients, states, banks = kept_by(config, tmp_path / "run")
    assert needed.clients == needed.again == config.clients.count
    if (method, changes) in STATELESS:
        assert needed.state == states == 0
    else:
        assert clients == needed.clients
        # A mean over shards is rounded, Adam counts steps, classifiers of tasks have fewer outputs than all classes.
        assert states <= needed.state * clients * 1.02
        assert needed.state * clients <= states * 1.1
    assert needed.bank * needed.clients == pytest.approx(banks, rel=0.02)


def remembered_by(config: RunConfig, folder: Path) -> tuple[int, int]:
    """(downloads, their bytes as they were sent and as they arrived) that the server remembered at most in a run."""
    seen, forget = list[tuple[int, int]](), Downloads.forget

    def forgotten(downloads: Downloads) -> None:
        both = [weights.vector.nbytes for pair in downloads.recent.values() for weights in pair]
        seen.append((len(downloads.recent), sum(both)))
        forget(downloads)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Downloads, "forget", forgotten)
        run_locally(config, folder)
    return max(seen)


HALVES: dict[str, Any] = {"train__rounds": 4, "evaluation__protocols": [], "transport__down": {"name": "float16"}}
FEDBUFF: dict[str, Any] = {
    "server__schedule": "fedbuff", "server__concurrency": 4, "server__buffer": 3, "clients__count": 8,
    "system": {"latency_s": {"median": 10.0, "sigma": 1.0}}, "train__rounds": 8,
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "changes", "downloads"),
    [
        ("fedsimclr", {}, 1),
        ("fedbyol", {"objective__target": "averaged"}, 2),
        ("orchestra", {}, 2),
        ("fedca", {}, 1),
        ("feddf", {"clients__encoders": ["small_cnn", "small_cnn_bn"] * 2}, 2),
        ("fedmkd", {"participation__fraction": 1.0}, 4),
        ("fedmkd", {"clients__count": 10, "clients__encoders": "small_cnn"}, RECENT),
        ("fedsimclr", FEDBUFF, 3),
    ],
)
def test_the_estimate_counts_the_downloads_that_the_server_remembers(
    method: str, changes: dict[str, Any], downloads: int, tmp_path: Path
) -> None:
    config = tiny(method, **{**HALVES, **changes})
    needed = estimate(config, load_federation(config)).downloads
    assert remembered_by(config, tmp_path / "run") == (downloads, needed)
    plain = config.model_copy(update={"transport": TransportConfig()})
    assert estimate(plain, load_federation(plain)).downloads == 0


def test_downloads_take_room_from_banks_and_may_take_it_all() -> None:
    config, place = tiny("fedca", transport__down={"name": "float16"}), Room("memory", 1000.0)
    check_fits(config, Estimate(9, 1, 50.0, 50.0, 50.0), Room("memory", 1001.0), Room("memory", 1001.0))
    with pytest.raises(UserError, match=r"memory has 1 kB, 50 B of it for downloads \(transport\.down\): at most 9 "):
        check_fits(config, Estimate(10, 0, 50.0, 50.0, 50.0), place, place)
    check_fits(config, Estimate(9, 1, 100.0, 0.0, 50.0), Room("the object store", 1000.0), place)
    with pytest.raises(
        UserError, match=r"^transport\.down: found float16, with which .* 2 kB of what .*; allowed then: f"
    ):
        check_fits(config, Estimate(0, 0, 0.0, 0.0, 2000.0), place, place)


def test_an_estimate_counts_those_who_can_have_taken_part() -> None:
    config = tiny("fedbyol", clients__count=40, participation__fraction=0.1, train__rounds=3)
    assert (estimate(config, load_federation(config)).clients, estimate(config, load_federation(config)).again) == (
        12,
        4,
    )
    config = tiny("fedbyol", clients__count=40, participation__fraction=0.1, train__rounds=300)
    assert estimate(config, load_federation(config)).clients == 40


def test_a_round_that_asks_everybody_is_counted_with_all_that_it_leaves(tmp_path: Path) -> None:
    """FedSC's first round that shares: the server then has everybody's matrix, however few take part in a round."""
    config = tiny("fedsc", clients__count=12, participation__fraction=0.1, train__rounds=2, evaluation__protocols=[])
    needed = estimate(config, load_federation(config))
    assert (needed.clients, needed.again) == (12, 12)
    assert needed.bank * needed.clients == kept_by(config, tmp_path / "run")[2] == 12 * 8 * 8 * 4
    never = tiny("fedsc", participation__fraction=0.25, train__rounds=2, method__alpha_floor=1)
    assert estimate(never, load_federation(never)).bank == kept_by(never, tmp_path / "never")[2] == 0


def test_what_does_not_fit_is_refused_with_the_sum() -> None:
    config = tiny("fedbyol", clients__count=100)
    store, heap = Room("the object store", 2e9), Room("memory", 8e9)
    check_fits(config, Estimate(9_900, 100, 2e5, 0.0), store, heap)  # 10,000 x 0.2 MB: just fits
    with pytest.raises(UserError) as refused:
        check_fits(config, Estimate(10_000, 100, 2e5, 0.0), store, heap)
    text = str(refused.value)
    assert text.startswith("clients.count: found 100; fedbyol keeps 200 kB of each client between rounds, 2.02 GB of")
    assert "the object store has 2 GB: at most 9900 clients" in text
    assert "objective.target=reset" in text
    assert "\n" not in text


def test_banks_and_states_in_one_place_are_added() -> None:
    config, place = tiny("fedca"), Room("memory", 1000.0)
    check_fits(config, Estimate(9, 1, 50.0, 50.0), place, place)
    with pytest.raises(UserError, match="memory has 1 kB: at most 9 clients"):
        check_fits(config, Estimate(10, 1, 50.0, 50.0), place, place)


def test_a_run_that_does_not_fit_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohorts, "free_memory", lambda: Room("memory", 1e4))
    with pytest.raises(UserError, match=r"clients\.count: found 4; local keeps"):
        run_locally(tiny("local"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run_locally(tiny("fedsimclr", train__rounds=1), tmp_path / "run")


def test_free_memory_is_at_most_a_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, usage = tmp_path / "memory.max", tmp_path / "memory.current"
    monkeypatch.setattr(memory, "CGROUPS", ((limit, usage),))
    whole = memory.free_memory().bytes
    assert whole > 1e7
    usage.write_text("600\n")
    limit.write_text("max\n")
    assert memory.free_memory().bytes == pytest.approx(whole, rel=0.2)
    limit.write_text("1000\n")
    assert memory.free_memory().bytes == 400


@pytest.mark.long
def test_a_run_without_checkpoints_holds_few_rows_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing rows between checkpoints changes neither what the tables hold nor what a resumed run makes of them."""
    changes = {"train__rounds": 6, "checkpoint__every": 4, "evaluation__every": 3}
    whole = run_locally(tiny("fedsimclr", **changes), tmp_path / "whole")
    most: list[int] = []
    monkeypatch.setattr(journal, "SPILL", 20)  # two rounds' rows
    write = journal.Journal.write

    def counted(self: journal.Journal, round: int) -> None:
        most.append(len(self._rows))
        write(self, round)

    monkeypatch.setattr(journal.Journal, "write", counted)
    spilled = run_locally(tiny("fedsimclr", **changes), tmp_path / "spilled")
    assert len(most) > 4
    assert len(metrics_parts(tmp_path / "spilled").files()) > len(metrics_parts(tmp_path / "whole").files())
    assert rows_of(tmp_path / "spilled") == rows_of(tmp_path / "whole")
    assert spilled["accuracy"] == whole["accuracy"]

    interrupted = tmp_path / "interrupted"

    def fail(progress: Progress) -> None:
        if "system/round_s" in progress.values and progress.round == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_locally(tiny("fedsimclr", **changes), interrupted, report=fail)
    assert max(metrics_parts(interrupted).files()).round == 5  # past the checkpoint of round 4
    run_locally(tiny("fedsimclr", **changes), interrupted, resume=True)
    assert rows_of(interrupted) == rows_of(tmp_path / "whole")


def rows_of(folder: Path) -> tuple[list[Any], list[Any]]:
    """Both tables without times, in one order."""
    metrics = [
        (row["round"], row["client"] or -1, row["tag"], row["value"])
        for row in read_metrics(folder).to_pylist()
        if not row["tag"].endswith(("_s", "seconds"))
    ]
    return sorted(metrics), sorted(map(repr, read_communication(folder).to_pylist()))


def test_sums_over_ten_thousand_clients_are_made_once() -> None:
    federation = load_federation(tiny("fedsimclr"))
    assert federation.shares is federation.shares
    assert federation.sizes is federation.sizes
    with pytest.raises(ValueError, match="read-only"):
        federation.shares[0] = 1.0


@pytest.mark.parametrize(
    ("usage_name", "stat", "free"),
    [
        ("memory.current", "anon 100\nfile 450\ninactive_file 400\nactive_file 50\n", 800),
        ("memory.usage_in_bytes", "inactive_file 1\ntotal_rss 100\ntotal_inactive_file 300\n", 700),
        ("memory.current", "anon 600\n", 400),
        ("memory.current", "inactive_file 700\n", 1000),  # the files are read one after the other
    ],
)
def test_pages_of_files_that_the_kernel_would_give_up_are_free(
    usage_name: str, stat: str, free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, usage = tmp_path / "limit", tmp_path / usage_name
    monkeypatch.setattr(memory, "CGROUPS", ((limit, usage),))
    limit.write_text("1000\n")
    usage.write_text("600\n")
    (tmp_path / "memory.stat").write_text(stat)
    assert memory.free_memory().bytes == free


def test_banks_and_states_in_memory_that_was_measured_twice_are_added() -> None:
    config, states, banks = tiny("fedca"), Room("memory", 1000.0), Room("memory", 999.0)
    assert states == banks
    assert states != Room("the object store", 1000.0)
    with pytest.raises(UserError, match=r"memory has 1 kB: at most 9 clients"):
        check_fits(config, Estimate(10, 1, 50.0, 50.0), states, banks)
