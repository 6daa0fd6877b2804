"""Processes are killed: client actors, the driver. Bits stay, work is repeated, what cannot be helped is named."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from actors.cohort import RayCohort
from actors.failures import StateLost
from actors.follow import find, follow, run_on_ray, start
from actors.pool import Pool
from actors.session import connect
from actors.wire import ChunkResult, StateReturn
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import Federation, load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.messages import Chunk, ClientError, OperationResult, State
from rayfed_ssl.federated.results import EvaluatedEncoder
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.simulation.worker import Worker
from tests.actor_pools import two_actors
from tests.cluster.processes import descendants, title, until
from tests.tiny import booked, encoders, measured, run_locally, tiny

pytestmark = pytest.mark.cluster
CONFIG = tiny("fedbyol", clients__count=6)
Made = Callable[..., RayCohort]


def lines(path: Path) -> list[tuple[str, str]]:
    """(who, pid) of everything that was begun, in order of beginning."""
    return (
        [(who, pid) for who, pid in (line.split() for line in path.read_text().splitlines())] if path.exists() else []
    )


def note(log: Path, who: object) -> None:
    with log.open("a") as file:
        file.write(f"{who} {os.getpid()}\n")


def awaited(path: Path, limit_s: float = 120.0) -> None:
    """Until this file exists."""
    assert until(path.exists, limit_s, 0.02), f"nobody made {path}"


class ExtendedWorker(Worker):
    """Operations that end their process, the first ``times`` times a victim is asked."""

    def execute(
        self, operation: str, client: int, round: int, message: Mapping[str, Any], state: State | None, visit: int = 0
    ) -> tuple[OperationResult, State]:
        if operation not in ("work", "linger", "big"):
            message = dict(message)
            if (hit := message.pop("hit", None)) is not None and client == message.pop("victim"):
                note(Path(hit) / "log", client)
                awaited(Path(hit) / "killed")  # the first time it does not live to see it
            return super().execute(operation, client, round, message, state, visit)
        kept = dict(state or {})
        reply: dict[str, Any] = {}
        if operation == "linger":
            time.sleep(600 if client in message["victims"] else 0)
        elif operation == "big":
            kept["big"] = np.full(100_000, client, np.float64)
        else:
            who = message.get("who", client)  # a piece of server work
            self.perish(str(who), **{key: message[key] for key in ("log", "victims", "times")})
            kept["seen"] = kept.get("seen", 0) + 1
            reply = {
                "weights": np.full(3, 0.1 * who * kept["seen"], np.float32),
                "published": sorted(self.published),
            }
        return OperationResult(client, reply, {"seconds": 0.0} if operation == "linger" else {}), kept

    def perish(self, who: str, log: str, victims: list[int], times: int = 1) -> None:
        note(Path(log), who)
        if int(who) in victims and sum(name == who for name, _ in lines(Path(log))) <= times:
            os.kill(os.getpid(), signal.SIGKILL)

    def assess(self, round: int, encoder: EvaluatedEncoder, state: State | None) -> dict[str, float]:
        if encoder.architecture.startswith("/"):
            self.perish("0", encoder.architecture, [0])
            return {"knn": 0.5}
        if encoder.architecture.startswith("frozen "):  # that often
            _, times, log = encoder.architecture.split()
            note(Path(log), "assess")
            if len(lines(Path(log))) <= int(times):
                time.sleep(1.0)  # until what was replied before is on its way
                os.kill(os.getpid(), signal.SIGSTOP)
            return {"knn": 0.5}
        return super().assess(round, encoder, state)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return load_federation(CONFIG)


@pytest.fixture(scope="module")
def pool(ray_session: ModuleType) -> Iterator[Pool]:
    with two_actors(sys.modules[__name__]) as pool:
        yield pool


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def made(pool: Pool, federation: Federation, said: list[str]) -> Iterator[Made]:
    cohorts: list[RayCohort] = []

    def make(config: RunConfig = CONFIG) -> RayCohort:
        pool.replaced = 0
        cohorts.append(
            RayCohort(config, federation, Ledger(), pool, keep=True, factory=ExtendedWorker, say=said.append)
        )
        return cohorts[-1]

    yield make
    for cohort in cohorts:
        cohort.close()


@pytest.mark.parametrize("verb", ["ask", "mean"])
def test_a_call_that_dies_is_repeated_with_the_same_result(
    verb: str, made: Made, federation: Federation, tmp_path: Path, said: list[str]
) -> None:
    local = LocalCohort(CONFIG, federation, Ledger())
    local.worker, cohort = ExtendedWorker(CONFIG, federation), made()
    results = []
    for where, victims in ((local, []), (cohort, [2])):
        log = tmp_path / f"log-{len(victims)}"
        where.publish("images", np.arange(3))
        for t in (1, 2):  # states of round 1 come from an actor that dies in round 2
            where.begin_round(t, federation.clients)
            message = {"log": str(log), "victims": victims if t == 2 else [], "times": t}
            if verb == "mean":
                result = where.mean("work", **message)
                replies, value = list(result.replies), result["weights"]
            else:
                replies = list(where.ask("work", **message))
                value = np.stack([reply["weights"] for reply in replies])
            assert all(reply["published"] == ["images"] for reply in replies)  # the replacement knows it, too
            where.end_round()
        results.append((value, [reply.client for reply in replies], dict(where.states()), sorted(where.ledger.drain())))
    (a, *expected), (b, *found) = results
    np.testing.assert_array_equal(a, b, strict=True)
    assert expected == found
    assert cohort.replaced == 1
    assert len([line for line in said if "died; replaced" in line]) == 1
    attempts = [pid for who, pid in lines(tmp_path / "log-1") if who == "2"]
    assert len(attempts) == 3  # round 1, round 2, round 2 again


def test_a_piece_of_server_work_that_dies_is_repeated_with_the_same_result(made: Made, tmp_path: Path) -> None:
    cohort, log = made(), tmp_path / "log"
    cohort.begin_round(1, (0,))
    message: dict[str, Any] = {"log": str(log), "victims": [2], "times": 1}
    replies = cohort.serve_all("work", range(1, 5), lambda who: {"who": who}, **message)
    assert list(replies) == [1, 2, 3, 4]
    for who, reply in replies.items():
        np.testing.assert_array_equal(reply["weights"], np.full(3, 0.1 * who, np.float32))
    assert cohort.replaced == 1
    assert [who for who, _ in lines(log)].count("2") == 2


def test_an_actor_killed_from_outside_in_real_training_changes_no_bit(
    made: Made, federation: Federation, tmp_path: Path
) -> None:
    weights, log = InitialWeights(CONFIG, federation)("small_cnn_bn"), tmp_path / "log"

    def trained(cohort: Any, **trap: Any) -> list[np.ndarray]:
        out = []
        for t in (1, 2):
            cohort.begin_round(t, federation.clients)
            for reply in cohort.ask("train", weights=weights, **(trap if t == 2 else {})):
                out.append(reply["weights"].vector)
                if trap and (t, reply.client) == (2, 0):  # client 1 was sent to the other actor before this reply came
                    assert until(lambda: lines(log), 120)
                    os.kill(int(lines(log)[0][1]), signal.SIGKILL)
                    (tmp_path / "killed").touch()
            cohort.end_round()
        return out + [state["target"].vector for _, state in cohort.states()]

    cohort = made()
    expected = trained(LocalCohort(CONFIG, federation, Ledger()))
    found = trained(cohort, hit=str(tmp_path), victim=1)
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
    assert cohort.replaced == 1
    attempts = lines(log)
    assert [who for who, _ in attempts] == ["1", "1"]  # it was lost, and repeated
    assert attempts[0] != attempts[1]


def test_a_call_that_always_dies_is_named_and_its_neighbours_are_not(made: Made, tmp_path: Path) -> None:
    message: dict[str, Any] = {"log": str(tmp_path / "log"), "victims": [3], "times": 99}
    cohort = made()
    cohort.begin_round(4, (0, 1, 2, 3, 4, 5))
    with pytest.raises(ClientError, match=r"client 3 failed in round 4, operation 'work', actor \d") as caught:
        list(cohort.ask("work", **message))
    assert "its actor died 3 times in a row" in str(caught.value)
    (tmp_path / "log").unlink()
    cohort = made(CONFIG.model_copy(update={"on_client_error": "drop"}))
    cohort.begin_round(5, (0, 1, 2, 3, 4, 5))
    assert [reply.client for reply in cohort.ask("work", **message)] == [0, 1, 2, 4, 5]
    assert [error.client for error in cohort.dropped] == [3]
    assert cohort.replaced == 3 == [who for who, _ in lines(tmp_path / "log")].count("3")


def test_of_several_clients_in_one_call_only_the_one_to_blame_is_dropped(pool: Pool, tmp_path: Path) -> None:
    """With 18 clients and two actors a call of a mean has three clients."""
    config = tiny("fedbyol", clients__count=18, data__limit=240, on_client_error="drop")
    federation = load_federation(config)
    cohort = RayCohort(config, federation, Ledger(), pool, keep=True, factory=ExtendedWorker)
    try:
        cohort.begin_round(1, federation.clients)
        message: dict[str, Any] = {"log": str(tmp_path / "log"), "victims": [7], "times": 99}
        found = cohort.mean("work", each=lambda client: {"own": np.zeros(2, np.float32)}, **message)
        others = [client for client in federation.clients if client != 7]
        assert [reply.client for reply in found.replies] == others
        assert [error.client for error in cohort.dropped] == [7]
        expected = np.average([0.1 * client for client in others], weights=federation.shares[others])
        np.testing.assert_allclose(found["weights"], np.full(3, expected), rtol=1e-6)
        down = [row.client for row in cohort.ledger.drain() if row.direction == "down"]
        assert sorted(down) == list(federation.clients)  # sent once each, however often the simulator had to
        cohort.end_round()
        assert [client for client, _ in cohort.states()] == others
        pool.replaced = 0
        (tmp_path / "log").unlink()
        cohort.begin_round(2, federation.clients)
        found = cohort.mean("work", **message)
        assert [reply.client for reply in found.replies] == others
        assert pool.replaced == 1
        assert [who for who, _ in lines(tmp_path / "log")].count("7") == 1  # its call was its own, and not repeated
    finally:
        cohort.close()


@pytest.mark.parametrize("verb", ["ask", pytest.param("mean", marks=pytest.mark.long)])
def test_who_crashed_a_worker_once_is_given_one_try_from_then_on(verb: str, made: Made, tmp_path: Path) -> None:
    cohort = made(CONFIG.model_copy(update={"on_client_error": "drop"}))
    message: dict[str, Any] = {"log": str(tmp_path / "log"), "times": 99}
    deaths, replied, reasons = [], [], []
    for t, victims in enumerate(([0], [0], [0], [0], [], [0]), 1):
        before = cohort.replaced
        cohort.begin_round(t, (0, 1, 2, 3, 4, 5))
        replies = getattr(cohort, verb)("work", victims=victims, **message)
        replied.append([reply.client for reply in (replies.replies if verb == "mean" else replies)])
        reasons += [error.reason for error in cohort.dropped]
        cohort.end_round()
        deaths.append(cohort.replaced - before)
    assert deaths == [3, 1, 1, 1, 0, 1]
    assert replied == [[1, 2, 3, 4, 5]] * 4 + [[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]  # it can recover
    assert reasons[0] == "its actor died 3 times in a row (a signal, or the machine is out of memory)"
    assert reasons[1:] == ["its actor died again: one try, because it died 3 times in a row before"] * 4


def test_quick_clients_that_shared_a_call_reply_in_order_though_one_is_dropped(pool: Pool) -> None:
    """With 18 clients and two actors up to three share a call, once it is known how quick they are."""
    config = tiny(
        "fedbyol", clients__count=18, data__limit=240, on_client_error="drop", resources__client_timeout_s=4.0
    )
    federation = load_federation(config)
    cohort = RayCohort(config, federation, Ledger(), pool, keep=True, factory=ExtendedWorker)
    try:
        cohort.begin_round(1, federation.clients)
        assert len(list(cohort.ask("linger", victims=[]))) == 18
        others = [client for client in federation.clients if client != 7]
        assert [reply.client for reply in cohort.ask("linger", victims=[7])] == others
        assert [error.client for error in cohort.dropped] == [7]
    finally:
        cohort.close()


def test_a_client_that_is_too_late_follows_the_policy(made: Made) -> None:
    resources = CONFIG.resources.model_copy(update={"client_timeout_s": 10.0})
    config = CONFIG.model_copy(update={"resources": resources})
    cohort = made(config.model_copy(update={"on_client_error": "drop"}))
    cohort.begin_round(1, (0, 1, 2, 3, 4))
    began = time.monotonic()
    assert [reply.client for reply in cohort.ask("linger", victims=[1])] == [0, 2, 3, 4]
    assert time.monotonic() - began < 300  # half of what it would have taken
    assert [error.client for error in cohort.dropped] == [1]
    assert cohort.replaced == 1
    cohort = made(config)
    cohort.begin_round(1, (0, 1))
    with pytest.raises(
        ClientError, match=r"client 1 failed in round 1.*\n.*no reply within 10 s \(resources\.client_timeout_s\)"
    ):
        list(cohort.ask("linger", victims=[1]))


def test_an_evaluation_that_dies_is_repeated(made: Made, tmp_path: Path) -> None:
    cohort = made()
    cohort.evaluate(3, [EvaluatedEncoder(None, str(tmp_path / "log"))])
    assert cohort.evaluations(wait=True) == [(3, None, {"knn": 0.5})]
    assert cohort.replaced == 1


def test_an_evaluation_that_freezes_is_repeated_elsewhere_once(made: Made, tmp_path: Path, said: list[str]) -> None:
    resources = CONFIG.resources.model_copy(update={"evaluation_timeout_s": 4.0})
    cohort = made(CONFIG.model_copy(update={"resources": resources}))
    cohort.evaluate(3, [EvaluatedEncoder(None, f"frozen 1 {tmp_path / 'once'}")])
    assert cohort.evaluations(wait=True) == [(3, None, {"knn": 0.5})]
    assert cohort.replaced == 1
    assert any("gave no reply within 4 s; replaced, and its call repeated" in line for line in said)
    cohort.evaluate(4, [EvaluatedEncoder(None, f"frozen 2 {tmp_path / 'twice'}")])
    with pytest.raises(ClientError, match=r"'evaluate'.*\n.*no reply within 4 s \(resources\.evaluation_timeout_s\)"):
        cohort.evaluations(wait=True)


class Owner:
    def own(self) -> list[Any]:
        import ray

        return [ray.put({"big": np.zeros(100_000)})]


def test_lost_state_is_known_for_what_it_is(made: Made, ray_session: ModuleType) -> None:
    """What is lost with a node raises ObjectLostError; so does, without a second node, what is lost with its owner."""
    cohort = made()

    def gone() -> bool:
        try:
            ray_session.get(lost, timeout=5)
        except ray_session.exceptions.ObjectLostError:
            return True
        except ray_session.exceptions.GetTimeoutError:
            pass
        return False

    owner = ray_session.remote(Owner).options(num_cpus=0).remote()
    (lost,) = ray_session.get(owner.own.remote())
    ray_session.kill(owner)
    assert until(gone, 60)
    for look in (lambda: list(cohort.states()), lambda: list(cohort.ask("big"))):
        cohort.begin_round(1, (0, 1))
        list(cohort.ask("big"))
        cohort.end_round()
        assert [client for client, _ in cohort.states()] == [0, 1]
        cohort.client_states.take((1,), ChunkResult(Chunk(), [True], StateReturn.APART, [], None), [lost])
        cohort.commit()
        with pytest.raises(StateLost, match="lost"):
            look()
        cohort.restore([])
    assert cohort.replaced == 0


# -- the driver ------------------------------------------------------------------------------------------------------

DRIVEN = tiny("fedbyol", resources__actors=1, resources__cpus_per_client=0.5, resources__device="cpu")


@dataclass(frozen=True)
class Trapped:
    """Makes workers whose clients note that they begin; in round 3 they wait until a process was killed."""

    folder: Path

    def __call__(self, config: RunConfig, federation: Federation) -> Worker:
        folder = self.folder

        class Trap(Worker):
            def execute(self, operation: str, client: int, round: int, *rest: Any) -> tuple[OperationResult, State]:
                note(folder / "log", f"{round}/{client}")
                if round == 3:
                    awaited(folder / "killed")
                return super().execute(operation, client, round, *rest)

        return Trap(config, federation)


def killing(folder: Path, before: Callable[[], None] = lambda: None) -> Callable[[], bool]:
    """A function that kills the driver once, after ``before``, when round 3 has begun; it never wishes to stop."""

    def kill() -> bool:
        if not (folder / "killed").exists() and ("3/0" in dict(lines(folder / "log"))):
            before()
            pid = next(pid for pid in descendants(os.getpid()) if title(pid).startswith("ray::Driver"))
            os.kill(pid, signal.SIGKILL)
            (folder / "killed").touch()
        return False

    return kill


def test_a_stop_outlives_the_driver_that_was_asked(ray_session: ModuleType, tmp_path: Path) -> None:
    ray_session.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with connect() as session:
        driver, _ = start(DRIVEN, tmp_path / "ray", session, detached="stopped", factory=Trapped(tmp_path))
        ended = follow(driver, lambda progress: None, killing(tmp_path, lambda: ray_session.get(driver.stop.remote())))
        ray_session.kill(driver)
        assert (ended.result["status"], ended.result["rounds"]) == ("stopped", 2)  # at its newest checkpoint
        driver, _ = start(DRIVEN, tmp_path / "ray", session, resume=True, detached="resumed")
        assert follow(driver, lambda progress: None).result["status"] == "complete"  # nobody has asked this one
        ray_session.kill(driver)


@pytest.mark.parametrize("detached", [None, "a-run"])
def test_a_driver_that_is_killed_goes_on_from_its_checkpoint(
    detached: str | None, ray_session: ModuleType, tmp_path: Path
) -> None:
    ray_session.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    seen: list[Progress] = []
    made, kill = {"factory": Trapped(tmp_path)}, killing(tmp_path)
    if detached is None:
        summary = run_on_ray(DRIVEN, tmp_path / "ray", report=seen.append, stopping=kill, **made)
    else:
        with connect() as session:
            start(DRIVEN, tmp_path / "ray", session, detached=detached, **made)
            summary = follow(find(detached), seen.append, kill).result
            ray_session.kill(find(detached))
    attempts = [who for who, _ in lines(tmp_path / "log")]
    assert attempts.count("3/0") == 2  # it was lost, and repeated
    assert attempts.count("2/0") == 1  # its round was saved
    assert summary["status"] == "complete"
    assert any("the driver's process died" in p.line for p in seen)
    assert any("resumed from round 2" in p.line for p in seen)
    run_locally(tiny("fedbyol"), tmp_path / "local")
    for read in (encoders, measured, booked):
        assert read(tmp_path / "ray") == read(tmp_path / "local")  # type: ignore[operator]
