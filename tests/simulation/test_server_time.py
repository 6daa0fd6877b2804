"""Virtual time of the server's own work: images it reads, times seconds per image, worked out by hand. That it is the
same after a resume and on Ray, ``test_unreliable_clients.py`` asks of "server work"; of all methods the contract does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig, build, load
from rayfed_ssl.federated.clock import Clock
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods import feddf, fedmkd
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.simulation.forecast import forecast
from tests.tiny import booked, encoders, measured, run_locally, tiny

SPEEDS = {"seconds_per_image": 0.05, "down_mbps": 1.0, "up_mbps": 0.5, "latency_s": 0.2}
KEY = "system.server_seconds_per_image"

# Images of the server before the first round, and in each: 32 public ones, three of four clients asked, by tiny.OWN.
BY_HAND = {
    "feddf": (0, 3 * 32 + 3 * 4 * 16),  # three teachers; three architectures, 4 steps of 16
    "fedmkd": (0, 32 + 3 * 32),  # the student, three copies
    "flesd": (0, 32 + 2 * 32),  # the first anchors, two epochs
    "fedca": (2 * 32, 0),  # two epochs of the alignment model
    "orchestra": (0, 0),
    "fedlinked": (0, 0),
}


def blind(method: str, **changes: object) -> RunConfig:
    return tiny(method, **{"evaluation__protocols": [], **changes})


def values_of(folder: Path, tag: str) -> dict[int, float]:
    return {t: value for (t, client, name), value in measured(folder).items() if name == tag and client is None}


@pytest.mark.long
@pytest.mark.parametrize("method", BY_HAND)
@pytest.mark.parametrize("deadline", [{}, {"deadline_s": 1e6}])
def test_time_of_the_servers_images_is_added_to_each_round(
    method: str, deadline: dict[str, float], tmp_path: Path
) -> None:
    if method == "fedlinked" and deadline:
        pytest.skip("early stopping: no deadline")
    for name, more in (("free", {}), ("paid", {"server_seconds_per_image": 0.5})):
        run_locally(blind(method, system={**SPEEDS, **deadline, **more}), tmp_path / name)
    before, each = BY_HAND[method]
    expected = {t: 0.5 * (before + t * each) for t in (1, 2, 3)}
    assert values_of(tmp_path / "paid", "time/server_s") == expected
    free, paid = (values_of(tmp_path / name, "time/virtual_s") for name in ("free", "paid"))
    assert paid == {t: pytest.approx(free[t] + expected[t], abs=1e-9) for t in (1, 2, 3)}
    assert values_of(tmp_path / "free", "time/server_s") == {}
    assert encoders(tmp_path / "paid") == encoders(tmp_path / "free")
    assert booked(tmp_path / "paid") == booked(tmp_path / "free")


@pytest.mark.long
@pytest.mark.parametrize("method", ["feddf", "fedca", "fedsimclr", "orchestra"])
def test_a_check_says_what_the_run_then_takes(method: str, tmp_path: Path) -> None:
    before, each = BY_HAND.get(method, (0, 0))
    images = before + 3 * each
    config = blind(method, system={**SPEEDS, "server_seconds_per_image": 0.5})
    said = [note for note in forecast(config).notes if note.startswith(KEY)]
    nothing = f"{KEY}: the server of {method} reads no images, so its work takes no time"
    some = f"{KEY}: the server reads {images} images in all rounds, which takes {images / 2:g} virtual seconds"
    assert said == [some if images else nothing]
    lines: list[str] = []
    run_locally(config, tmp_path / "run", report=lambda p: lines.append(p.line))
    assert said[0] in lines
    assert values_of(tmp_path / "run", "time/server_s")[3] == images / 2
    assert not [note for note in forecast(blind(method, system=SPEEDS)).notes if KEY in note]


@pytest.mark.long
def test_what_a_server_does_not_say_beforehand_is_counted_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(feddf.Server, "server_images", MethodServer.server_images)
    config = blind("feddf", system={"server_seconds_per_image": 0.5})
    said = f"{KEY}: how many images the server of feddf reads is counted once it has read them"
    assert said in forecast(config).notes
    run_locally(config, tmp_path / "run")
    assert values_of(tmp_path / "run", "time/virtual_s") == {t: 144.0 * t for t in (1, 2, 3)}


@pytest.mark.long
def test_images_that_are_read_in_another_way_are_declared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By a server's operation, and by a client's, whose prediction then lacks them."""
    embed, train = feddf.Service.embed, feddf.Client.train

    def embedding(self: feddf.Service, *rest: Any, **fields: Any) -> Any:
        self.count_images(7)
        return embed(self, *rest, **fields)

    def training(self: feddf.Client, *rest: Any, **fields: Any) -> Any:
        self.count_images(5)
        return train(self, *rest, **fields)

    monkeypatch.setattr(feddf.Service, "embed", embedding)
    run_locally(blind("feddf", system={"server_seconds_per_image": 0.5}), tmp_path / "run")
    assert values_of(tmp_path / "run", "time/server_s") == {t: 147.5 * t for t in (1, 2, 3)}
    monkeypatch.setattr(feddf.Client, "train", training)
    with pytest.raises(
        RuntimeError, match=r"'train' of client \d was predicted to cost .*: its server's `workload` is"
    ):
        run_locally(blind("feddf", system={**SPEEDS, "deadline_s": 1e6}), tmp_path / "wrong")


def trace(folder: Path, *rows: str) -> dict[str, object]:
    (folder / "t.csv").write_text("\n".join(["client,start,end", *rows]))
    return {"name": "trace", "path": str(folder / "t.csv")}


ASKING_ALL = {"participation__fraction": 1.0, "train__rounds": 2}
SLOW = {"latency_s": 10.0, "server_seconds_per_image": 0.5}  # FedMKD's server: 32 + 4 * 32 images, 80 s


@pytest.mark.long
def test_who_leaves_while_the_server_works_is_gone(tmp_path: Path) -> None:
    """FedMKD's clients train until 10 s; their targets come at 90 s and are there at 100 s, when client 0 is away. With
    a server whose work is free they come at 10 s.
    """
    there = trace(tmp_path, "0,0,50", "0,100,999", *(f"{c},0,999" for c in (1, 2, 3)))
    for name, each, at, gone in (("paid", 0.5, [100.0, 200.0], 1.0), ("free", 0.0, [20.0, 40.0], 0.0)):
        system = {**SLOW, "server_seconds_per_image": each, "availability": there}
        run_locally(blind("fedmkd", system=system, **ASKING_ALL), tmp_path / name)
        assert list(values_of(tmp_path / name, "time/virtual_s").values()) == at
        assert values_of(tmp_path / name, "system/gone") == {1: gone, 2: 0.0}
        down = {row[1] for row in booked(tmp_path / name) if row[:1] == (1,) and row[2] == "down"}
        assert down == {0, 1, 2, 3}  # also to client 0, in vain


@pytest.mark.long
def test_a_deadline_is_of_exchanges_and_not_of_the_server(tmp_path: Path) -> None:
    run_locally(blind("fedmkd", system={**SLOW, "deadline_s": 15.0}, **ASKING_ALL), tmp_path / "run")
    assert values_of(tmp_path / "run", "system/late") == {1: 0.0, 2: 0.0}
    assert values_of(tmp_path / "run", "time/virtual_s") == {1: 100.0, 2: 200.0}


@pytest.mark.long
def test_a_round_that_comes_to_nothing_after_the_server_worked_took_its_time(tmp_path: Path) -> None:
    """Everybody is away when the targets come, so that the exchange is given up at its deadline."""
    there = trace(tmp_path, *(row for c in range(4) for row in (f"{c},0,50", f"{c},105,999")))
    lines: list[str] = []
    system = {**SLOW, "availability": there, "deadline_s": 30.0}
    config = blind("fedmkd", system=system, **ASKING_ALL)
    run_locally(config, tmp_path / "run", report=lambda p: lines.append(p.line))
    assert "round 1/2 came to nothing: nobody replied" in lines
    assert values_of(tmp_path / "run", "time/virtual_s") == {1: 10.0 + 80.0 + 30.0, 2: 220.0}
    assert values_of(tmp_path / "run", "time/server_s") == {1: 80.0, 2: 160.0}


def test_checkpoints_know_how_long_the_server_worked() -> None:
    config = tiny("feddf", system={"server_seconds_per_image": 0.25})
    assert config.system is not None
    clock, again = (Clock(config, config.system, range(4), lambda *_: None) for _ in range(2))
    clock.served(100)
    again.restore(clock.state)
    assert (again.now, again.server_s) == (25.0, 25.0)


def test_with_fedbuff_it_has_no_effect_and_is_refused_where_it_is_given(tmp_path: Path) -> None:
    """In a file it may be meant for other runs."""
    document = {"method": {"name": "fedsimclr"}, "clients": {"count": 5}, "system": {"latency_s": 1}}
    fedbuff = {"server.schedule": "fedbuff"}
    line = f"{KEY}: found 0.5; it needs server.schedule=sync"
    with pytest.raises(configfile.ConfigError) as caught:
        build(document, {**fedbuff, KEY: 0.5}, origin="x.yaml")
    assert str(caught.value) == line
    (tmp_path / "x.yaml").write_text(
        "{method: {name: fedsimclr}, system: {latency_s: 1, server_seconds_per_image: 0.5}}", encoding="utf-8"
    )
    assert load(tmp_path / "x.yaml", ["server.schedule=fedbuff"]).server.schedule == "fedbuff"
    both = "{method: {name: fedsimclr}, system: {server_seconds_per_image: 0.5}, server: {schedule: fedbuff}}"
    (tmp_path / "x.yaml").write_text(both, encoding="utf-8")
    with pytest.raises(UserError, match=line):
        load(tmp_path / "x.yaml")


def test_below_zero_is_one_line() -> None:
    with pytest.raises(configfile.ConfigError, match=rf"^{KEY}: found -1; must be at least 0\.0$"):
        build({"method": {"name": "feddf"}, "data": {"public": {"source": "share"}}}, {KEY: -1}, origin="x.yaml")


def test_the_student_and_its_teachers_read_a_batch_once() -> None:
    """As many images as the student takes, however many teachers look at them."""
    config = tiny("fedmkd", system={"server_seconds_per_image": 1.0}, method__epochs=3)
    federation = load_federation(config)
    server = fedmkd.Server(Setup(config, federation, InitialWeights(config, federation)))
    assert [server.server_images(t, clients) for t, clients in ((0, ()), (1, (0,)), (2, (0, 1, 2)))] == [0, 128, 192]
