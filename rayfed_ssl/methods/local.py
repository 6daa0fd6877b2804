"""Local (min-local, separate): every client trains alone from its initial values; nothing crosses the wire.

It is what a method that exchanges something has to beat, on whatever objective is configured. A round is the run's
local epochs, so that it compares round for round with such methods. With ``data.tasks`` and the supervised objective it
is FedLinked's "separate": the same initial epochs, early stopping and roll-back.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.method import ClientFootprint, Info, Method, anything
from rayfed_ssl.federated.results import Subject
from rayfed_ssl.federated.server import pretrain
from rayfed_ssl.federated.workload import Traffic, Workload
from rayfed_ssl.methods.tasks import TaskClient, TaskConfig, TaskServer, planned
from rayfed_ssl.settings.run import RunSettings


class Config(TaskConfig):
    name: Literal["local"] = "local"


class Client(TaskClient[Config]):
    def train(self) -> dict[str, Any]:
        self.load_own()
        if self.supervised:
            self.learn(None)
            self.keep_own_and_best()
        else:
            self.fit()
            self.keep_own()
        return {}


class Server(TaskServer[Config]):
    def traffic(self, t: int, client: int, met: Collection[int]) -> Traffic | None:
        return Traffic(0, 0)

    def workload(self, operation: str, client: int) -> Workload | None:
        return None if self.supervised else self.fitting(client)  # early stopping decides how long tasks take

    def round(self, t: int, cohort: Cohort) -> None:
        if self.supervised:
            pretrain(self, cohort)
        cohort.tell("train")

    def after_last_round(self, cohort: Cohort) -> None:
        if self.supervised:
            super().after_last_round(cohort)

    def subjects(self) -> list[Subject]:
        return super().subjects() if self.supervised else self.own_subjects()

    @property
    def supervised(self) -> bool:
        """Whether clients learn tasks of their own."""
        return self.config.data.tasks is not None and self.config.objective.name == "supervised"


def check(config: RunSettings) -> None:
    """Raises ValueError: a key that only tasks have a use for."""
    if config.data.tasks is None or config.objective.name != "supervised":
        for key in ("initial_epochs", "patience", "rollback"):
            if (found := getattr(config.method, key)) != Config.model_fields[key].default:
                raise ValueError(f"method.{key}: found {found}; it needs data.tasks and objective.name=supervised")


def kept(config: RunSettings, images: int) -> ClientFootprint:
    supervised = config.data.tasks is not None and config.objective.name == "supervised"
    return ClientFootprint(models=2 if supervised and config.method_as(Config).rollback else 1)


LOCAL = Method(
    Config,
    Client,
    Server,
    Info("every client alone", "nothing", stateful=True, heterogeneous=True, independent=True),
    objective="simclr",
    accepts=anything,
    check=check,
    footprint=kept,
    planned=lambda config: planned(config) if config.data.tasks and config.objective.name == "supervised" else "",
)
