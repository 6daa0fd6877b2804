"""Local (min-local, separate): every client trains alone from its initial values; nothing crosses the wire.

Any method that exchanges something has to beat it, on whatever objective is configured. A round is the run's local
epochs, so the two can be compared round for round. With ``data.tasks`` and the supervised objective it
is FedLinked's "separate": the same initial epochs, early stopping and roll-back.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.method import ClientFootprint, Info, Method, anything
from rayfed_ssl.federated.results import EvaluatedEncoder
from rayfed_ssl.federated.server import pretrain
from rayfed_ssl.federated.workload import Traffic, Workload
from rayfed_ssl.methods.parts import tasks
from rayfed_ssl.settings.blocks import refuse_unused
from rayfed_ssl.settings.run import RunSettings


class Config(tasks.TaskConfig):
    name: Literal["local"] = "local"


class Client(tasks.TaskClient[Config]):
    def train(self) -> dict[str, Any]:
        """Local epochs from this client's own model: of its task with early stopping, or of the objective."""
        self.load_own()
        if self.supervised:
            self.learn(None)
            self.keep_own_and_best()
        else:
            self.fit()
            self.keep_own()
        return {}


class Server(tasks.TaskServer[Config]):
    def round(self, t: int, cohort: Cohort) -> None:
        if self.supervised:
            pretrain(self, cohort)
        cohort.tell("train")

    def after_last_round(self, cohort: Cohort) -> None:
        if self.supervised:
            super().after_last_round(cohort)

    def evaluated_encoders(self) -> list[EvaluatedEncoder]:
        return super().evaluated_encoders() if self.supervised else self.own_encoders()

    @property
    def supervised(self) -> bool:
        """Whether clients learn tasks of their own."""
        return learns_tasks(self.config)

    # -- costs ---------------------------------------------------------------------------------------------------------

    def traffic(self, t: int, client: int, met: Collection[int]) -> Traffic | None:
        return Traffic(0, 0)

    def workload(self, operation: str, client: int) -> Workload | None:
        return None if self.supervised else self.fitting(client)  # early stopping decides how long tasks take


def learns_tasks(config: RunSettings) -> bool:
    """Whether each client learns a classification task of its own, by labels."""
    return config.data.tasks is not None and config.objective.name == "supervised"


def check(config: RunSettings) -> None:
    """Refuse keys that only tasks have a use for. Raises ValueError."""
    if not learns_tasks(config):
        keys = "initial_epochs", "patience", "rollback"
        refuse_unused(config.method, "method", *keys, needs="data.tasks and objective.name=supervised")


def footprint(config: RunSettings, images: int) -> ClientFootprint:
    """A client's own model, and with tasks its best one."""
    return tasks.footprint(config, images) if learns_tasks(config) else ClientFootprint(models=1)


def planned(config: RunSettings) -> str:
    """Why results depend on the number of rounds planned, so that a run cannot be extended; empty where they do not."""
    return tasks.planned(config) if learns_tasks(config) else ""


LOCAL = Method(
    Config,
    Client,
    Server,
    Info("every client alone", "nothing", stateful=True, heterogeneous=True, independent=True),
    objective="simclr",
    accepts=anything,
    sends_weights=lambda config: (),
    check=check,
    footprint=footprint,
    planned=planned,
)
