"""Fills in defaults that depend on the method and the objective, before a run's configuration is validated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayfed_ssl.methods import METHODS
from rayfed_ssl.models.heads import ModelConfig
from rayfed_ssl.objectives import OBJECTIVES


def with_defaults(document: Any) -> Any:
    """What the document leaves to the method: its objective, that one's heads, and whose values clients begin with."""
    return _with_initial(_with_heads(_with_objective(document)))


def _with_objective(document: Any) -> Any:
    """A run that names no objective gets its method's default one."""
    if not isinstance(document, dict) or not isinstance(document.get("method"), dict):
        return document
    objective = document.get("objective", {})
    method = METHODS.get(str(document["method"].get("name")))
    if method is None or not isinstance(objective, dict) or "name" in objective:
        return document
    return {**document, "objective": {"name": method.objective, **objective}}


def _with_heads(document: Any) -> Any:
    """BatchNorm in the heads as the objective wants it, where the document does not say. A paper's heads, by name, stay
    as they are.
    """
    if not isinstance(document, dict) or not isinstance(document.get("objective"), dict):
        return document
    objective, model = OBJECTIVES.get(str(document["objective"].get("name"))), document.get("model", {})
    if objective is None or objective.batch_norm == "none" or not isinstance(model, dict):
        return document
    projector = model.get("projector", ModelConfig().projector.model_dump(exclude={"batch_norm"}))
    if not isinstance(projector, dict) or "batch_norm" in projector:
        return document
    return {**document, "model": {**model, "projector": {**projector, "batch_norm": objective.batch_norm}}}


def _with_initial(document: Any) -> Any:
    """Clients that were designed independently begin with values of their own, where the document does not say."""
    if not isinstance(document, dict) or not isinstance(document.get("method"), dict):
        return document
    method, model = METHODS.get(str(document["method"].get("name"))), document.get("model", {})
    if method is None or not method.info.independent or not isinstance(model, dict) or "initial" in model:
        return document
    data, clients = document.get("data"), document.get("clients")
    tasks = data.get("tasks") if isinstance(data, dict) else None
    encoders = clients.get("encoders") if isinstance(clients, dict) else None
    mixed = isinstance(encoders, list | tuple) and len({str(encoder) for encoder in encoders}) > 1
    return {**document, "model": {"initial": "own", **model}} if tasks or mixed else document


def replace_objective(document: dict[str, Any], changes: Mapping[str, object]) -> None:
    """A method chosen on the command line brings its own objective where the file's is not allowed."""
    method = METHODS.get(str(changes["method.name"]))
    objective = document.get("objective")
    if (
        method
        and isinstance(objective, dict)
        and "objective.name" not in changes
        and objective.get("name") not in method.objectives
    ):
        given = {key.removeprefix("objective."): v for key, v in changes.items() if key.startswith("objective.")}
        document["objective"] = {"name": method.objective, **given}


def as_made(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    """The ``config.yaml`` of a run folder with what has another default since the run was made: without
    ``model.initial``, its clients had one set of values.
    """
    model = document.get("model")
    if not is_of_a_run(path) or not isinstance(model, dict):
        return document
    return {**document, "model": {"initial": "common", **model}}


def is_of_a_run(path: Path) -> bool:
    """Whether a run has written this file into its folder: what the run was, every key of it."""
    return path.name == "config.yaml" and (path.parent / "environment.json").is_file()
