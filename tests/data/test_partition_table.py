"""Third-party partitions: what they may bring, and one line for each mistake that is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.config import build
from rayfed_ssl.data import corruptions
from rayfed_ssl.data.partition import PARTITIONS, client_names, hold_out, partition, take_public
from rayfed_ssl.data.partition_base import Deal, NaturalClients, Partition
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.simulation.checks import ignored_clients
from rayfed_ssl.simulation.resuming import digests_of
from tests.tiny import BASE, run_locally, tiny

LABELS = np.arange(40) % 4
GIVEN: dict[str, Callable[[Deal], Any]] = {}


class Given(Partition):
    """Whatever the test says."""

    name: Literal["given"] = "given"
    rule: str = ""
    table: Path | None = None

    def shards(self, deal: Deal) -> Any:
        return GIVEN[self.rule](deal)

    def names(self, images: Any) -> Any:
        return ("north", "south") if self.rule == "names" else None

    def public(self, labels: Any) -> Any:
        return {"public": np.array([3, 7, 30]), "beyond": np.array([3, 40])}.get(self.rule)

    def corruption(self, client: int) -> Any:
        return {"noisy": ("noise", 4) if client == 3 else None, "odd": ("snow", 3), "strong": ("blur", 6)}.get(
            self.rule
        )


def striped(deal: Deal) -> list[Any]:
    return [deal.chosen[client :: deal.clients] for client in range(deal.clients)]


GIVEN |= dict.fromkeys(("", "names", "public", "beyond", "odd", "strong"), striped)
GIVEN["noisy"] = lambda deal: [shard[:-2] for shard in striped(deal)]  # eight images are nobody's


@pytest.fixture(autouse=True)
def added() -> Iterator[None]:
    PARTITIONS.add("given", Given, "a test")
    yield
    PARTITIONS.remove("a test")


def config_of(**changes: object) -> Any:
    return tiny("fedsimclr", **{"data__partition": {"name": "given"}, **changes})


REFUSED: dict[str, tuple[Callable[[Deal], Any], str]] = {
    "an image twice": (
        lambda deal: [[1, 5], [8], [5, 9]],
        "gives the image 5 twice, to client 0 and to client 2; an image has one client at most",
    ),
    "an image twice within a client": (
        lambda deal: [[1], [8, 9, 8], [5]], "gives the image 8 twice, to client 1 and to client 1; ",
    ),
    "a foreign index": (
        lambda deal: [[1], [2, 31], [3]], "gives client 1 the image 31, which is not among the 30 to share out",
    ),
    "an index that is none": (lambda deal: [[1], [2], [-1]], "gives client 2 the image -1, which is not among the 30"),
    "a large index": (
        lambda deal: [[1], np.array([2**63 + 5], np.uint64), [3]], "which is not among the 30 to share out",
    ),
    "an empty shard": (lambda deal: [[1], [], [3]], "leaves 1 of 3 clients (first: 1) empty"),
    "too few shards": (lambda deal: striped(deal)[:2], "gives 2 shards; must be a list with one array of indices for "),
    "no list": (lambda deal: deal.chosen, "gives ndarray; must be a list with one array of indices for each of the 3"),
    "a mask": (
        lambda deal: [deal.chosen % 3 == client for client in range(3)],
        "gives client 0 values of shape (30,) and type bool; must be whole numbers, the indices of training images",
    ),
    "halves": (lambda deal: [[0.5], [1], [2]], "gives client 0 values of shape (1,) and type float64; must be whole"),
    "columns": (lambda deal: [[[0], [1]], [2], [3]], "gives client 0 values of shape (2, 1) and type int64; must be"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_partition_is_refused_in_one_line(case: str) -> None:
    rule, message = REFUSED[case]
    GIVEN[case] = rule
    with pytest.raises(UserError) as refused:
        partition(Given(rule=case), LABELS, 3, 0, indices=np.arange(30))
    assert str(refused.value).startswith("data.partition: given (a test) ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_a_rule_is_asked_and_what_becomes_of_its_answer() -> None:
    asked: list[Deal] = []

    def rule(deal: Deal) -> list[Any]:
        asked.append(deal)
        mixed = deal.draw.permutation(deal.chosen)
        return [mixed[:3], list(mixed[3:5]), mixed[5:6].astype(np.int32)]

    GIVEN["asked"] = rule
    natural, indices = np.arange(40) % 5, np.arange(39, 0, -2)
    for config, seed in ((Given(rule="asked"), 7), (Given(rule="asked", seed=9), 9)):
        shards = partition(config, LABELS, 3, 7, NaturalClients(natural), indices)
        (found, mixed) = asked.pop(), numpy_generator(seed, "partition").permutation(np.arange(1, 40, 2))
        assert np.array_equal(found.chosen, np.arange(1, 40, 2))
        assert (found.clients, found.seed) == (3, seed)
        assert found.labels is LABELS
        assert found.natural is natural
        assert [shard.tolist() for shard in shards] == [sorted(mixed[:3]), sorted(mixed[3:5]), [mixed[5]]]
        assert {shard.dtype for shard in shards} == {np.dtype(np.int64)}


def test_a_rule_by_labels_is_not_asked_about_images_without(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.where(LABELS == 3, -1, LABELS)
    assert len(partition(Given(), labels, 3, 0)) == 3
    monkeypatch.setattr(Given, "by_label", True)
    with pytest.raises(UserError) as refused:
        partition(Given(), labels, 3, 0)
    others = "iid, quantity, feature_skew, folders, natural, file"
    assert str(refused.value) == (
        f"data.partition.name: given goes by labels, but 10 of 40 images have none; allowed here: {others}"
    )
    monkeypatch.setattr(Given, "by_label", False)
    with pytest.raises(UserError, match=f"allowed here: {others}, given$"):
        partition(PARTITIONS["dirichlet"](name="dirichlet"), labels, 3, 0)


class NoName(Partition):
    def shards(self, deal: Deal) -> list[Any]:
        return striped(deal)


class NoRule(Partition):
    name: Literal["mine"] = "mine"


class NoPartition(Block):
    name: Literal["mine"] = "mine"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (NoName, "whose block has another name; must have name: Literal[\"mine\"] = \"mine\""),
        (Given, "whose block has another name; "),
        (NoRule, "which has no rule; must define shards"),
        (NoPartition, "which is no subclass of rayfed_ssl.data.partition_base.Partition"),
        (Given(), "which is no subclass of "),
        (striped, "which is no subclass of "),
    ],
)  # fmt: skip
def test_a_row_that_is_no_partition_is_refused_as_it_is_added(row: object, message: str) -> None:
    with pytest.raises(UserError) as refused:
        PARTITIONS.add("mine", row, "imports: mine.py")  # type: ignore[arg-type]
    assert str(refused.value).startswith(f"imports: mine.py: found partition 'mine', {message}")
    assert "mine" not in PARTITIONS


def test_its_keys_are_checked_like_any_others() -> None:
    base = BASE | {"method": {"name": "fedsimclr"}}
    with pytest.raises(UserError) as refused:
        build(base, {"data.partition.name": "givn"}, origin="run.yaml")
    assert str(refused.value) == (
        "data.partition.name: found 'givn'; must be one of iid, dirichlet, classes_per_client, class_blocks, quantity, "
        "feature_skew, folders, natural, file, given; did you mean given?"
    )
    with pytest.raises(
        UserError, match=r"^data\.partition\.rules: found 1; unknown key, allowed here: seed, name, rule"
    ):
        build(base, {"data.partition": {"name": "given", "rules": 1}}, origin="run.yaml")


def test_without_a_name_it_is_the_default_one() -> None:
    base = {key: value for key, value in BASE.items() if key != "data"} | {"method": {"name": "fedsimclr"}}
    assert build(base, {"data.partition.seed": 3}, origin="x").data.partition == PARTITIONS["iid"](name="iid", seed=3)
    for changes, message in (
        ({"data.partition.seed": "x"}, r"^data\.partition\.seed: found 'x'; must be a whole number$"),
        ({"data.partition.alpha": 1}, r"^data\.partition\.alpha: found 1; unknown key, allowed here: seed, name$"),
    ):
        with pytest.raises(UserError, match=message):
            build(base, changes, origin="x")


def test_its_names_are_its_clients(tmp_path: Path) -> None:
    config = config_of(data__partition={"name": "given", "rule": "names"}, clients__count=2)
    assert load_federation(config, tmp_path).names == ("north", "south")
    assert client_names(Given(), load_federation(config, tmp_path).dataset.train, 2) == ("client 0", "client 1")
    with pytest.raises(
        UserError, match=r"^data\.partition: given \(a test\) names 2 clients; must be clients\.count=3"
    ):
        load_federation(config_of(data__partition={"name": "given", "rule": "names"}, clients__count=3), tmp_path)


def test_images_that_it_calls_public_are_public_but_for_those_that_are_held_out() -> None:
    among = np.delete(np.arange(40), [7, 8])
    public, rest = take_public(Given(rule="public"), LABELS, 0.5, 0, among)
    assert public.tolist() == [3, 30]
    assert rest.tolist() == [i for i in range(40) if i not in (3, 7, 8, 30)]
    with pytest.raises(UserError, match=r"given \(a test\) calls the image 40 public; there are 40, from 0 on"):
        take_public(Given(rule="beyond"), LABELS, 0.5, 0)
    public, rest = take_public(Given(), LABELS, 0.25, 5, among)
    taken, kept = hold_out(38, 0.25, 5)
    assert public.tolist() == among[taken].tolist()
    assert rest.tolist() == among[kept].tolist()


def test_it_may_change_what_clients_images_look_like(tmp_path: Path) -> None:
    plain = load_federation(config_of(), tmp_path)
    noisy = load_federation(config_of(data__partition={"name": "given", "rule": "noisy", "seed": 6}), tmp_path)
    row = int(noisy.shards[3]["train"][2])
    before = plain.dataset.train.pixels
    expected = corruptions.noise(before[row], 4, numpy_generator(6, "corruption", row))
    assert np.array_equal(noisy.dataset.train.pixels[row], expected)
    others = np.delete(np.arange(160), noisy.shards[3]["train"])
    assert len(others) == 122
    assert np.array_equal(noisy.dataset.train.pixels[others], before[others])
    assert texts(noisy.dataset.notes)[-1] == "clients' training images were changed by noise at severity 4"
    for rule, change in (("odd", r"\('snow', 3\)"), ("strong", r"\('blur', 6\)")):
        with pytest.raises(
            UserError, match=rf"given changes images by {change}; must be one of none, noise, .*1 to 5$"
        ):
            load_federation(config_of(data__partition={"name": "given", "rule": rule}), tmp_path)


def test_files_that_it_reads_are_held_to_what_they_were(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("1\n")
    config = config_of(data__partition={"name": "given", "table": str(tmp_path / "table.csv")})
    assert list(digests_of(config)) == ["data.partition.table"]
    assert digests_of(config_of()) == {}
    seen: list[int] = []
    run_locally(config, tmp_path / "run", report=lambda p: seen.append(p.round), stopping=lambda: max(seen) >= 1)
    files = json.loads((tmp_path / "run/environment.json").read_text())["files"]
    assert files == digests_of(config)
    (tmp_path / "table.csv").write_text("2\n")
    with pytest.raises(UserError, match=r"^data\.partition\.table: found .*table\.csv with digest \w+, but the run in"):
        run_locally(config, tmp_path / "run", resume=True)


def test_what_it_says_of_itself_is_what_a_run_goes_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, federation = config_of(), load_federation(config_of(), tmp_path)
    dataset = federation.dataset
    train = replace(dataset.train, clients=np.arange(160) % 4, client_names=tuple("abcd"))
    test = replace(dataset.test, clients=np.arange(60) % 3)
    owned = replace(federation, dataset=replace(dataset, train=train, test=test))
    assert "given deals the images of 4 client folders or values anew" in ignored_clients(config, owned)[0]
    monkeypatch.setattr(Given, "by_client", True)
    assert ignored_clients(config, owned) == []
    share, select = {"data__public__source": "share"}, {"evaluation__select": {"share": 0.2}}
    assert config_of(**share)
    monkeypatch.setattr("rayfed_ssl.data.loading.load", lambda *_: owned.dataset)
    assert load_federation(config, tmp_path).own_tests is None
    monkeypatch.setattr(Given, "natural", True)
    with pytest.raises(UserError, match="'share' cannot be taken out of `given`; allowed: client 0, source"):
        config_of(**share)
    assert [rows.tolist() for rows in load_federation(config, tmp_path).own_tests or ()] == [
        list(range(0, 60, 3)), list(range(1, 60, 3)), list(range(2, 60, 3)), [],
    ]  # fmt: skip
    assert config_of(**select)
    monkeypatch.setattr(Given, "listed", True)
    with pytest.raises(UserError, match=r"^evaluation\.select: .* data\.partition\.name=given, which says itself who"):
        config_of(**select)
