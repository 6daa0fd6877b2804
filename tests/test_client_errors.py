"""Updates that are not finite: refused, or dropped and counted, whatever the method asks of its clients."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.numpy

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.aggregation import FixedPointSum, NonFinite
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.messages import SERVER, Diverged
from rayfed_ssl.methods import METHODS
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.simulation.worker import check_finite, check_replied
from rayfed_ssl.storage import checkpoint
from rayfed_ssl.storage.listing import runs_in
from tests.command_line import command
from tests.tiny import encoders, mean_that_fails, measured, run_locally, tiny

DROPPED = "system/dropped_clients"
ASKING = sorted(set(METHODS) - {"centralized", "local"})  # which have one client, or clients that send nothing
Spoil = Callable[[int, int, str], bool]
Poison = Callable[[Spoil], list[dict[str, Any]]]


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Poison:
    """Puts a NaN into what some client replies; (client, round, operation) says whose. Collects the replies."""
    perform = EncoderClient.perform

    def start(spoil: Spoil) -> list[dict[str, Any]]:
        replies: list[dict[str, Any]] = []

        def poisoned(self: EncoderClient, message: dict[str, Any]) -> dict[str, Any]:
            reply = perform(self, message)
            if self.id != SERVER and spoil(self.id, self.round, self.operation):
                reply = {name: with_nan(value) for name, value in reply.items()}
            replies.append({"client": self.id, "round": self.round, "operation": self.operation, **reply})
            return reply

        monkeypatch.setattr(EncoderClient, "perform", poisoned)
        return replies

    return start


def with_nan(value: Any) -> Any:
    """The value, the first of its numbers NaN where it has floating ones."""
    if isinstance(value, Weights):
        return value.with_vector(with_nan(value.vector))
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    spoilt = value.copy()
    spoilt.flat[0] = np.nan
    return spoilt


def states(folder: Path, round: int) -> dict[int, Any]:
    return dict(checkpoint.load(folder / "checkpoints" / f"round-{round:05d}")[1])


@pytest.mark.parametrize("policy", ["fail", "drop"])
def test_a_learning_rate_that_explodes_ends_the_run_and_says_why(policy: str, tmp_path: Path) -> None:
    """Under ``drop``, too, after three rounds without any client's weights."""
    config = tiny("fedsimclr", train__optimizer__lr=1e30, on_client_error=policy)
    client, round = (0, 1) if policy == "fail" else (3, 3)
    summary = run_locally(config, tmp_path / "run")
    assert summary == json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("diverged", round - 1)
    told = summary["diverged"]
    assert (told["round"], told["client"], told["operation"]) == (round, client, "train")
    assert re.fullmatch(
        rf"diverged in round {round}: client {client}, operation 'train' replied with NaN or infinity in 'weights' "
        r"\(largest finite value \S+\); lower the learning rate \(train.optimizer.lr\) or the weight of the loss term",
        told["reason"],
    )
    assert told["largest"] is None or told["largest"] > 1e6
    assert summary["untrained"]  # what was measured before is kept
    assert not (tmp_path / "run/encoder").exists()


FEDBUFF = {"server": {"schedule": "fedbuff", "buffer": 2}, "system": {"seconds_per_image": 0.01}}


@pytest.mark.parametrize(("method", "more"), [("fedbyol", FEDBUFF), ("feddf", {})])
def test_weights_too_large_for_a_sum_of_the_servers_are_their_clients_failure(
    method: str, more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where clients' processes sum: the run diverged, or is without that client, whose state is as it was."""
    fit = EncoderClient.fit

    def exploding(self: EncoderClient, *args: Any, **options: Any) -> None:
        fit(self, *args, **options)
        if self.id == 1 and self.round >= 2:
            next(self.network.parameters()).data.fill_(3e6)
            self.state["exploded"] = True

    monkeypatch.setattr(EncoderClient, "fit", exploding)
    summary = run_locally(tiny(method, **more), tmp_path / "fail")
    assert summary["status"] == "diverged"
    assert (summary["diverged"]["client"], summary["diverged"]["largest"]) == (1, 3e6)
    assert "must be finite and below 2^21 in magnitude" in summary["diverged"]["reason"]

    summary = run_locally(tiny(method, **more, on_client_error="drop"), tmp_path / "drop")
    assert (summary["status"], summary["dropped"]["clients"]) == ("complete", 1)
    assert not any("exploded" in state for state in states(tmp_path / "drop", 3).values())


def test_weights_that_no_client_sends_are_looked_at_too(tmp_path: Path) -> None:
    """Clients that train alone reply nothing, and nothing is evaluated."""
    config = tiny("local", train__optimizer__lr=1e30, evaluation__protocols=[])
    summary = run_locally(config, tmp_path / "run")
    assert (summary["status"], summary["rounds"]) == ("diverged", 0)
    assert (
        "client 0, operation 'train' left the client with NaN or infinity in 'model'" in summary["diverged"]["reason"]
    )
    assert not (tmp_path / "run/encoder").exists()


@pytest.mark.parametrize("raised", [KeyError("no such field"), UserError("data.path: gone")])
def test_what_ends_a_run_under_way_stands_in_its_folder_until_it_goes_on(
    raised: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("fedbyol", checkpoint__every=1)
    with monkeypatch.context() as patch:
        patch.setattr(LocalCohort, "mean", mean_that_fails(2, raised))
        with pytest.raises(type(raised)):
            run_locally(config, tmp_path / "run")
    written = (tmp_path / "run/error.txt").read_text()
    assert written.startswith("Traceback")
    assert written.endswith(f"{type(raised).__name__}: {raised}\n")
    (listed,) = runs_in(tmp_path)
    assert listed.status == "failed"
    assert listed.problem == f"{tmp_path / 'run/error.txt'}: {written.splitlines()[-1]}"
    assert run_locally(config, tmp_path / "run", resume=True)["status"] == "complete"
    assert not (tmp_path / "run/error.txt").exists()


def test_a_run_that_diverges_as_its_server_starts_leaves_nothing(tmp_path: Path) -> None:
    """FedCA's server trains its alignment model before the first round."""
    config = tiny("fedca", train__optimizer__lr=1e30)
    with pytest.raises(UserError, match=r"^diverged in round 0: server work, .*lower the learning rate"):
        run_locally(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_diverges_at_the_servers_own_rate_names_it(tmp_path: Path) -> None:
    config = tiny("fedmkd", method__lr=1e30, train__rounds=1, evaluation__protocols=[])
    reason = run_locally(config, tmp_path / "run")["diverged"]["reason"]
    assert reason.startswith("diverged in round 1: server work, ")
    assert "lower the learning rate (train.optimizer.lr, or method.lr if the method has one) or the weight" in reason


def test_a_run_that_diverges_later_keeps_its_records_and_resumes_to_the_same_end(
    poison: Poison, tmp_path: Path
) -> None:
    poison(lambda client, round, operation: (client, round) == (2, 4))
    config = tiny("fedbyol", train__rounds=5, checkpoint__every=2)
    summary = run_locally(config, tmp_path / "run")
    assert (summary["status"], summary["rounds"]) == ("diverged", 3)
    before = measured(tmp_path / "run")
    assert {round for round, _, tag in before if tag == "train/loss"} == {1, 2, 3}
    assert {round for round, _, tag in before if tag == "eval/knn"} == {0, 1, 2, 3}
    again = run_locally(config, tmp_path / "run", resume=True)
    assert again["diverged"] == summary["diverged"]
    assert measured(tmp_path / "run") == before


def test_a_value_too_large_for_a_mean_is_named() -> None:
    with pytest.raises(NonFinite, match=r"below 2\^21 in magnitude \(largest finite value 3e\+06\)") as caught:
        FixedPointSum().add(0.5, {"x": np.array([1.0, -3e6, np.nan], np.float32)})
    assert caught.value.largest == 3e6
    with pytest.raises(NonFinite, match=r"in magnitude \(no value is finite\)"):
        FixedPointSum().add(0.5, {"x": np.array([np.nan, np.inf], np.float32)})


def test_an_encoder_whose_features_are_not_finite_has_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = EncoderClient.evaluate

    def broken(self: EncoderClient, encoder: str, weights: Weights | None) -> dict[str, float]:
        if self.round == 2:
            assert weights is not None
            weights = with_nan(weights)
        return evaluate(self, encoder, weights)

    monkeypatch.setattr(EncoderClient, "evaluate", broken)
    summary = run_locally(tiny("fedsimclr"), tmp_path / "run")
    assert (summary["status"], summary["rounds"]) == ("diverged", 2)
    assert summary["diverged"]["reason"].startswith("diverged in round 2: the encoder, features that are not finite")
    assert summary["diverged"]["largest"] is None
    assert summary["diverged"]["client"] is None


def test_divergence_keeps_its_kind_between_processes() -> None:
    error = pickle.loads(pickle.dumps(Diverged(3, 2, "train", "here", "operation 'train' replied with NaN", 5.0)))
    assert isinstance(error, Diverged)
    assert (error.client, error.round, error.largest, error.reason) == (3, 2, 5.0, "operation 'train' replied with NaN")
    assert str(error).startswith("diverged in round 2: client 3, operation 'train' replied with NaN; lower")


def test_the_command_says_in_one_line_that_a_run_diverged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    configfile.dump(tiny("fedsimclr", train__optimizer__lr=1e30), config)
    status, out, err = command(capsys, "run", config, "--executor", "local", "--out", tmp_path / "run")
    assert status == 1
    assert out.count("diverged in round 1: client 0") == 1
    assert "Traceback" not in out + err


@pytest.mark.long
def test_a_dropped_client_is_named_when_it_happens_and_counts_once(poison: Poison, tmp_path: Path) -> None:
    """FedSC asks twice in a round: for training, and for a correlation matrix."""
    poison(lambda client, round, operation: client == 1)
    config = tiny("fedsc", on_client_error="drop", participation__fraction=1.0, checkpoint__every=1)
    lines: list[str] = []
    interrupted = run_locally(config, tmp_path / "run", stopping=lambda: any("round 2/" in line for line in lines),
                              report=lambda p: lines.append(p.line))  # fmt: skip
    assert interrupted["rounds"] == 2
    summary = run_locally(config, tmp_path / "run", resume=True, report=lambda p: lines.append(p.line))
    rows = pq.read_table(tmp_path / "run/dropped.parquet").to_pylist()
    assert len({(row["round"], row["operation"]) for row in rows}) == len(rows)  # none twice, though resumed
    assert {row["round"] for row in rows} == {1, 2, 3}
    assert {row["client"] for row in rows} == {1}
    assert max(sum(row["round"] == t for row in rows) for t in (1, 2, 3)) > 1  # several operations of one round
    assert all(row["reason"].startswith(f"operation '{row['operation']}' replied with NaN") for row in rows)
    assert summary["dropped"] == {"clients": 1, "times": 3}
    assert {value for (_, _, tag), value in measured(tmp_path / "run").items() if tag == DROPPED} == {1.0}
    said = [line for line in lines if line.startswith("client 1 dropped in round 1 (train): operation 'train' replied")]
    assert len(said) == 1


def test_what_a_run_writes_can_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        run_locally(tiny("fedbyol", train__rounds=1), tmp_path / "run")
    finally:
        os.umask(before)
    modes = {path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.*")}
    assert {path for path in modes if path.endswith(".safetensors")} >= {"run/encoder/global.safetensors"}
    assert {path for path, mode in modes.items() if mode != 0o640 and (tmp_path / path).is_file()} == set()


def test_a_run_that_drops_nobody_has_no_such_table(tmp_path: Path) -> None:
    assert run_locally(tiny("fedsimclr", train__rounds=1), tmp_path / "run")["dropped"] == {"clients": 0, "times": 0}
    assert not (tmp_path / "run/dropped.parquet").exists()


def test_one_bad_update_ends_the_run_by_default(poison: Poison, tmp_path: Path) -> None:
    poison(lambda client, round, operation: (client, round) == (2, 2))
    summary = run_locally(tiny("fedbyol"), tmp_path / "run")
    assert summary["diverged"]["reason"].startswith(
        "diverged in round 2: client 2, operation 'train' replied with NaN or infinity in 'weights'"
    )
    assert 0 < summary["diverged"]["largest"] < 1e3
    assert [round for round, _ in checkpoint.complete(tmp_path / "run/checkpoints")] == [1]


def test_a_dropped_update_leaves_the_mean_of_the_others_and_its_clients_old_state(
    poison: Poison, tmp_path: Path
) -> None:
    replies = poison(lambda client, round, operation: (client, round) == (2, 2))
    config = tiny("fedbyol", train__rounds=2, on_client_error="drop")
    run_locally(config, tmp_path / "run")
    values = measured(tmp_path / "run")
    assert {round: value for (round, _, tag), value in values.items() if tag == DROPPED} == {2: 1.0}
    assert {client for round, client, tag in values if (round, tag) == (2, "client/loss")} == {0, 1, 3}

    good = [r for r in replies if r["round"] == 2 and r["client"] != 2]
    sizes = np.bincount([row["client"] for row in partition(tmp_path / "run")])
    mean = np.average([r["weights"].vector for r in good], axis=0, weights=[sizes[r["client"]] for r in good])
    tree, _ = checkpoint.load(tmp_path / "run/checkpoints/round-00002")
    np.testing.assert_allclose(tree["server"]["weights"].vector, mean, rtol=0, atol=1e-6)

    before, after = states(tmp_path / "run", 1), states(tmp_path / "run", 2)
    same = {c: np.array_equal(before[c]["target"].vector, after[c]["target"].vector) for c in before}
    assert same == {0: False, 1: False, 2: True, 3: False}


def partition(folder: Path) -> list[dict[str, Any]]:
    """The rows of partition.parquet that are training images."""
    rows: list[dict[str, Any]] = pq.read_table(folder / "partition.parquet").to_pylist()
    return [row for row in rows if row["split"] == "train"]


@pytest.mark.long
@pytest.mark.parametrize("method", ASKING)
def test_every_method_goes_on_without_a_client_that_replies_nonsense(
    method: str, poison: Poison, tmp_path: Path
) -> None:
    """Client 1 never sends anything usable, from whatever it is asked first to the end."""
    replies = poison(lambda client, round, operation: client == 1)
    rounds = min(2, tiny(method).train.rounds)
    config = tiny(method, on_client_error="drop", train__rounds=rounds, evaluation__protocols=[])
    summary = run_locally(config, tmp_path / "run")
    assert summary["status"] == "complete"
    spoilt = {r["round"] for r in replies if r["client"] == 1 and r["round"]}
    found = {round: value for (round, _, tag), value in measured(tmp_path / "run").items() if tag == DROPPED}
    assert spoilt
    assert set(found) == spoilt
    for name in encoders(tmp_path / "run"):
        arrays = safetensors.numpy.load_file(tmp_path / "run/encoder" / name)
        assert all(np.isfinite(array).all() for array in arrays.values())


@pytest.mark.long
@pytest.mark.parametrize("method", sorted(set(ASKING) - {"flesd_cc", "fedlinked"}))  # of one round; trains alone
def test_every_method_goes_on_after_a_round_in_which_every_client_failed(
    method: str, poison: Poison, tmp_path: Path
) -> None:
    poison(lambda client, round, operation: round == 2)
    config = tiny(method, on_client_error="drop", train__rounds=3, evaluation__protocols=[])
    heard, why = list[Progress](), "came to nothing: every client that was asked failed"
    summary = run_locally(config, tmp_path / "run", report=heard.append)
    assert (summary["status"], summary["rounds"]) == ("complete", 3)
    assert [(p.round, p.line, p.came_to_nothing) for p in heard if p.finishes_a_round] == [
        (1, "round 1/3", ""),
        (2, f"round 2/3 {why}", why),
        (3, "round 3/3", ""),
    ]
    assert {round for round, _, tag in measured(tmp_path / "run") if tag == DROPPED} == {2}


def test_a_reply_without_what_the_server_averages_names_both() -> None:
    check_replied({"weights": 1, "extra": 2}, ("weights",), "train")
    line = "operation 'train' replied with weigths; the server's mean needs weights, which the client's function has to"
    with pytest.raises(ValueError, match=line):
        check_replied({"weigths": 1}, ("weights",), "train")
    with pytest.raises(ValueError, match="replied with nothing; the server's mean needs a, b"):
        check_replied({}, ("a", "b"), "train")


@pytest.mark.parametrize("policy", ["fail", "drop"])
def test_what_only_the_user_can_mend_is_no_clients_failure(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another file on a client's machine, say: one line and exit status 2, though failed clients are dropped."""
    load = EncoderClient.load

    def refused(self: EncoderClient, *values: Any) -> None:
        if self.id == 1:
            raise UserError("model.start: found a file with another SHA-256")
        load(self, *values)

    monkeypatch.setattr(EncoderClient, "load", refused)
    config = tmp_path / "config.yaml"
    configfile.dump(tiny("fedsimclr", on_client_error=policy, evaluation__protocols=[]), config)
    status, out, err = command(capsys, "run", config, "--executor", "local", "--out", tmp_path / "run")
    assert status == 2
    assert "model.start: found a file with another SHA-256" in err
    assert "Traceback" not in out + err
    assert "dropped" not in out + err


def test_values_within_lists_and_mappings_are_looked_at_too() -> None:
    good, bad = np.ones(3, np.float32), np.array([1.0, np.inf], np.float16)
    check_finite({"a": [good, {"b": (good, "text", 3, None)}], "c": np.array([1, 2])}, "it replied with")
    for value in ([good, bad], {"b": bad}, (good, [bad]), [Weights("", np.array([np.nan], np.float32), 1)]):
        with pytest.raises(NonFinite, match=r"^it replied with NaN or infinity in 'a'"):
            check_finite({"c": good, "a": value}, "it replied with")
