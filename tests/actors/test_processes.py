"""Client actors that start beside their driver: what they import, and what is left where a run is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from actors import client_process, driver_process
from actors.client_process import ClientActorProcess
from actors.driver_process import DriverProcess
from actors.follow import run_on_ray
from actors.shares import Plan, environment
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.messages import OperationResult, State
from rayfed_ssl.simulation.worker import Worker
from tests.cluster.processes import orphans, stat, until
from tests.tiny import tiny
from tune import trial
from tune.trial import Trial

ON_RAY = {"resources__actors": 2, "resources__cpus_per_client": 0.5, "resources__device": "cpu"}
UNUSED = {"tensorboard", "matplotlib", "sklearn", "pandas", "torchvision", "ray.data", "ray.tune", "torch._dynamo"}
REFUSED = """
import os, sys
from rayfed_ssl.cli import main
try:
    main(["run", "configs/demo.yaml", "--out", sys.argv[1], "trainn.rounds=3"])
except SystemExit as end:
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    print(end.code, "ray" in sys.modules, children)
"""


@dataclass
class Noting:
    """Makes workers that note what their process has imported when they are asked something."""

    folder: Path

    def __call__(self, config: RunConfig, federation: Federation) -> Worker:
        folder = self.folder

        class Notes(Worker):
            def execute(
                self,
                operation: str,
                client: int,
                round: int,
                message: Mapping[str, Any],
                state: State | None,
                visit: int = 0,
            ) -> tuple[OperationResult, State]:
                done = super().execute(operation, client, round, message, state, visit)
                (folder / str(client)).write_text(" ".join(sys.modules))
                return done

        return Notes(config, federation)


def groups_left(ray: ModuleType) -> set[str]:
    return {id for id, one in ray.util.placement_group_table().items() if one["state"] != "REMOVED"}


@pytest.mark.long
def test_a_client_actor_imports_nothing_that_only_the_driver_needs(ray_session: ModuleType, tmp_path: Path) -> None:
    ray_session.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    (notes := tmp_path / "notes").mkdir()
    config = tiny("fedsimclr", train__rounds=1, evaluation__protocols=[], **ON_RAY)
    before = groups_left(ray_session)
    assert run_on_ray(config, tmp_path / "run", factory=Noting(notes))["status"] == "complete"
    imported = [set(path.read_text().split()) for path in notes.iterdir()]
    assert imported
    for modules in imported:
        assert "torch" in modules
        assert not modules & UNUSED
    assert until(lambda: groups_left(ray_session) <= before, 30)


@pytest.mark.long
def test_a_run_that_its_driver_refuses_gives_back_the_actors_that_had_begun(
    ray_session: ModuleType, tmp_path: Path
) -> None:
    before = groups_left(ray_session)
    (tmp_path / "config.yaml").write_text("name: mine\n")
    with pytest.raises(UserError, match="already holds a run"):
        run_on_ray(tiny("fedsimclr", **ON_RAY), tmp_path)
    assert until(lambda: groups_left(ray_session) <= before, 30)


def dying(config: RunConfig, federation: Federation) -> Worker:
    """As where there is too little memory for what an actor keeps."""
    os._exit(1)


@pytest.mark.long
def test_actors_that_die_while_they_start_end_the_run_in_one_line(ray_session: ModuleType, tmp_path: Path) -> None:
    ray_session.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    before = groups_left(ray_session)
    with pytest.raises(UserError, match=r"^resources\.actors: .* died while starting \(3 times\): .*; fewer") as error:
        run_on_ray(tiny("fedsimclr", **ON_RAY), tmp_path / "run", factory=dying)
    assert "\n" not in str(error.value)
    assert until(lambda: groups_left(ray_session) <= before, 30)


class Held(ClientActorProcess):
    """A client's actor that can be kept in the callback of a weak reference."""

    def pid(self) -> int:
        return os.getpid()

    def hold(self, begun: Path) -> None:
        class Thing:
            pass

        def callback(_: object) -> None:
            begun.touch()
            time.sleep(60)

        thing = Thing()
        kept = weakref.ref(thing, callback)
        del thing  # calls it, here
        assert kept() is None


@pytest.mark.long
def test_an_actor_that_is_ended_in_a_callback_ends_without_a_word(ray_session: ModuleType, tmp_path: Path) -> None:
    """Ray sends SIGTERM to the actors of a placement group that is removed. Python prints what a callback raises, and
    goes on."""
    ray_session.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    actor = ray_session.remote(Held).options(num_cpus=0.1, max_restarts=0).remote(0, {})
    pid = ray_session.get(actor.pid.remote())
    found = stat(pid)
    assert found is not None
    actor.hold.remote(tmp_path / "begun")
    assert until((tmp_path / "begun").exists, 60)
    os.kill(pid, signal.SIGTERM)
    assert not orphans([(pid, found[2])], 20)
    logs = Path(ray_session._private.worker._global_node.get_logs_dir_path())
    (errors,) = logs.glob(f"worker-*-{pid}.err")
    assert "ignored" not in errors.read_text()


class Called(Exception):
    pass


def test_every_actor_of_ours_ends_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def called() -> None:
        raise Called

    for module in (client_process, driver_process, trial):
        monkeypatch.setattr(module, "end_at_sigterm", called)
    with pytest.raises(Called):
        ClientActorProcess(0, {})
    with pytest.raises(Called):
        DriverProcess({}, None, b"")
    with pytest.raises(Called):
        Trial.setup(object.__new__(Trial), {}, None)  # type: ignore[arg-type]


@pytest.mark.long
def test_a_mistake_in_a_configuration_is_answered_before_ray_starts(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", REFUSED, str(tmp_path / "run")], capture_output=True, text=True, timeout=120
    )
    assert "trainn" in found.stderr
    assert found.stdout.strip() == "2 False []"
    assert not (tmp_path / "run").exists()


def test_processes_that_have_their_environment_are_given_none() -> None:
    variables = environment(2, 0.0)
    plan = Plan(2, 1.0, 0.0, 2, "PACK")
    assert plan.runtime_env(variables) == {"runtime_env": {"env_vars": variables}}
    assert Plan(2, 1.0, 0.0, 2, "PACK", prepared=True).runtime_env(variables) == {}
