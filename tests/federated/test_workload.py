"""A client's local batches, counted beforehand and drawn: the two are one definition, against a count by hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.ledger import array_size, sizes
from rayfed_ssl.federated.plugin import ClientPlugin, ServerPlugin
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.workload import Batches, Traffic, Workload, local_batches
from rayfed_ssl.methods import METHODS
from rayfed_ssl.settings.transport import Float16
from rayfed_ssl.simulation.forecast import forecast
from rayfed_ssl.simulation.worker import Worker
from tests.tiny import TASKS, booked, encoders, run_locally, tiny

ALONE = {"data__partition__name": "iid", "evaluation__protocols": [], "method__batch_ratio": 0.3}


def sized(method: str = "fedsimclr", **changes: object) -> Any:
    """count, epochs, size -> the batches as the server counts them and as a client draws them, which are the same."""
    config = tiny(method, **changes)
    context = Worker(config, load_federation(config))
    client = context.method.client(context, 0, 1, "train", {})

    def both(count: int, epochs: int | None = None, size: int | None = None) -> Batches:
        counted, drawn = local_batches(config, count, epochs, size), list(client.batches(count, epochs, size))
        assert [len(rows) for rows in drawn] == [counted.size] * counted.steps
        assert counted.images == sum(map(len, drawn))
        epoch = [row for rows in drawn[: counted.per_epoch] for row in rows.tolist()]
        assert len(set(epoch)) == len(epoch) > count - counted.size
        return counted

    return both


def test_batches_are_full_and_short_last_ones_dropped() -> None:
    batches = sized()
    assert batches(40) == Batches(16, 2, 2)
    assert batches(40, 3) == Batches(16, 2, 6)
    assert batches(10) == Batches(10, 1, 1)
    assert batches(40, 1, 12) == Batches(12, 3, 3)
    assert sized(train__local_epochs=2)(48) == Batches(16, 3, 6)


def test_no_epochs_are_none_and_not_the_default() -> None:
    config = tiny("fedsimclr")
    client = (context := Worker(config, load_federation(config))).method.client(context, 0, 1, "train", {})
    assert local_batches(config, 40, 0) == Batches(16, 2, 0)
    assert list(client.batches(40, 0)) == []


def test_steps_stand_in_place_of_epochs_where_no_epochs_are_asked_for() -> None:
    batches = sized(train__local_steps=5)
    assert batches(40) == Batches(16, 2, 5)
    assert batches(40, 2) == Batches(16, 2, 4)


def test_rows_are_a_share_of_the_images_where_the_method_says_so() -> None:
    assert sized("fedlinked")(4374).size == 16
    found = sized("fedlinked", method__batch_ratio=0.02)
    assert [found(count).size for count in (4374, 5500, 10)] == [87, 110, 2]


def test_a_share_leaves_a_plug_in_its_rows() -> None:
    changes = {"model__projector": {"dim": 12}, "plugins": [{"name": "fedfoa"}], "method__batch_ratio": 0.01}
    found = sized("local", objective__name="simclr", **changes)
    assert (found(100).size, found(3000).size) == (12, 30)


def test_work_adds_up_field_by_field() -> None:
    """A sum of two works that send the same field sends the bytes of both."""
    one, two = Workload(3, {"weights": 10, "rows": 1}, passes=2), Workload(4, {"rows": 5, "x": 7}, passes=1)
    assert one + two == Workload(7, {"weights": 10, "rows": 6, "x": 7}, passes=3)
    assert (one + two).up_bytes == one.up_bytes + two.up_bytes


@pytest.mark.long
def test_a_share_is_predicted_too(tmp_path: Path) -> None:
    """40 images by 0.3: three batches of 12, of which a deadline's clock keeps account and `--check` counts steps."""
    run_locally(tiny("local", **ALONE), tmp_path / "plain")
    config = tiny("local", **ALONE, system={"deadline_s": 1e9})
    assert run_locally(config, tmp_path / "timed")["status"] == "complete"
    assert encoders(tmp_path / "timed") == encoders(tmp_path / "plain")
    assert booked(tmp_path / "timed") == []
    assert {len(shard["train"]) for shard in load_federation(config).shards} == {40}
    assert forecast(config).steps == 3 * 4 * 3  # rounds, clients, batches


def test_steps_of_equalised_clients_are_counted_as_they_are_taken() -> None:
    """FedU2: a client of fewer images has more epochs."""
    config = tiny("fedu2", train__rounds=1, participation__fraction=1.0)
    taken = 0
    context = Worker(config, load_federation(config))
    counts = [len(shard["train"]) for shard in context.federation.shards]
    for count in counts:
        batches = max(1, count // 16)
        taken += min(max(counts) // 16 // batches, 10) * batches
    assert forecast(config).steps == taken


class Silent(ServerPlugin[Any]):
    def end_round(self, t: int) -> None:
        self.metrics["silent"] = 1.0


class Sending(ServerPlugin[Any]):
    def message(self, t: int, client: int) -> dict[str, Any]:
        return {"x": np.zeros(3)}


class Collecting(ServerPlugin[Any]):
    def collect(self, t: int, client: int, fields: Mapping[str, Any]) -> None:
        self.metrics["seen"] = 1.0


@pytest.mark.parametrize("kind", [ServerPlugin, Silent])
def test_a_plugin_without_fields_adds_nothing(kind: type[ServerPlugin[Any]]) -> None:
    plugin = kind(None, None)  # type: ignore[arg-type]
    assert plugin.traffic(1, 0, ()) == Traffic(0, 0)
    assert plugin.workload(0) == Workload(0)


@pytest.mark.parametrize("kind", [Sending, Collecting])
def test_what_a_plugin_with_fields_adds_is_not_made_up(kind: type[ServerPlugin[Any]]) -> None:
    plugin = kind(None, None)  # type: ignore[arg-type]
    assert plugin.traffic(1, 0, ()) is None
    assert plugin.workload(0) is None


class Replying(ClientPlugin[Any]):
    def reply(self) -> dict[str, Any]:
        return {"x": np.zeros(3)}


@pytest.mark.parametrize("server", [ServerPlugin, Silent, Sending])
def test_a_reply_that_no_server_collects_is_refused(server: type[ServerPlugin[Any]]) -> None:
    row = METHODS["feddecorr"]
    said = rf"^feddecorr: found Replying\.reply; {server.__name__} needs a collect that takes it$"
    with pytest.raises(UserError, match=said):
        replace(row, plugin=(Replying, server))
    assert replace(row, plugin=(Replying, Collecting)).exchanges_as_plugin


def test_early_stopping_is_not_predicted(tmp_path: Path) -> None:
    changes = {key.replace(".", "__"): value for key, value in TASKS.items()}
    config = tiny("local", **changes, objective__name="supervised", system={"deadline_s": 1e9})
    with pytest.raises(UserError, match="local does not know beforehand what 'train' costs a client"):
        run_locally(config, tmp_path / "run")


class Asking(MethodServer[Any]):
    """Asks for "a" twice and "b" in round 1, for "c", whose size nobody knows, in round 2."""

    def workload(self, operation: str, client: int) -> Workload | None:
        return {"a": Workload(7, {"x": 3, "y": 4}), "b": Workload(0, {"x": 10 * client})}.get(operation)

    def operations(self, t: int, client: int, met: Collection[int]) -> tuple[str, ...]:
        return ("a", "a", "b") if t == 1 else ("a", "c")


def test_traffic_has_the_replies_of_all_operations_or_is_not_known() -> None:
    server = Asking(cast(Any, SimpleNamespace(config=None)))
    assert server.with_replies(5, 1, 2, ()) == Traffic(down=5, up=7 + 7 + 20)
    assert server.with_replies(5, 2, 2, ()) is None


def test_work_beside_fit_reads_an_image_once_and_has_three_passes_where_it_goes_back() -> None:
    assert Workload.inferred(5, x=np.zeros((2, 3), np.float16), y=1) == Workload(5, {"x": 12}, passes=5)
    assert Workload.inferred(5, 10, views=array_size(2)) == Workload(5, {"views": 8}, passes=50)
    assert Workload.trained(5) == Workload(5, passes=15)
    assert Workload.trained(5, 2) == Workload(5, passes=30)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int8", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (3, 4)])
def test_the_size_of_an_array_is_that_of_one_that_is_there(shape: tuple[int, ...], dtype: str) -> None:
    """Against what the ledger books of an array of zeros."""
    assert sizes({"x": array_size(*shape, dtype=dtype)}) == sizes({"x": np.zeros(shape, dtype)})


class Sharing(Asking):
    """Publishes 3 images; sends weights, 6 parameters and 4 running statistics, and a row for each client met."""

    def publishes(self) -> Mapping[str, object]:
        return {"images": np.zeros((3, 2, 2), np.uint8), "size": array_size(7)}

    def sends(self, t: int, client: int, met: Collection[int]) -> Mapping[str, object] | None:
        assert t >= 1
        weights = Weights("layout", np.zeros(10, np.float32), 6)
        return {"weights": weights, "rows": array_size(len(met), 4), "alpha": 0.5}


class Alone(Asking):
    reaches_clients = False


def test_traffic_is_what_is_sent_and_replied_and_before_the_first_round_what_is_published() -> None:
    config = SimpleNamespace(transport=SimpleNamespace(down=Float16()))
    server = Sharing(cast(Any, SimpleNamespace(config=config)))
    assert server.traffic(0, 2, ()) == Traffic(down=3 * 2 * 2 + 4 * 7, up=0)
    assert server.traffic(1, 2, ()) == Traffic(down=2 * 6 + 4 * 4, up=7 + 7 + 20)
    assert server.traffic(1, 2, (0, 1, 3)) == Traffic(down=2 * 6 + 4 * 4 + 3 * 4 * 4, up=7 + 7 + 20)
    assert server.traffic(2, 2, ()) is None  # a reply's size is not known


def test_a_method_that_does_not_say_what_it_sends_has_no_traffic_in_any_round() -> None:
    setup = cast(Any, SimpleNamespace(config=None))
    assert [Asking(setup).traffic(t, 2, ()) for t in (0, 1)] == [None, None]
    assert [Alone(setup).traffic(t, 2, ()) for t in (0, 1)] == [Traffic(0, 0)] * 2
