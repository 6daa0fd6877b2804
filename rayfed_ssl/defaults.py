"""Fills in defaults that depend on the method and the objective, before a run's configuration is validated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayfed_ssl.methods import METHODS
from rayfed_ssl.models.heads import ModelConfig
from rayfed_ssl.objectives import OBJECTIVES


def with_defaults(document: Any) -> Any:
    """The document with the defaults that depend on the method: its objective, the objective's BatchNorm in heads, and
    whether clients begin with values of their own. What is no mapping is returned unchanged.
    """
    return _with_initial(_with_heads(_with_objective(document)))


def _with_objective(document: Any) -> Any:
    """The document with the method's default objective, if it names none."""
    if not isinstance(document, dict) or not isinstance(document.get("method"), dict):
        return document
    objective = document.get("objective", {})
    method = METHODS.get(str(document["method"].get("name")))
    if method is None or not isinstance(objective, dict) or "name" in objective:
        return document
    return {**document, "objective": {"name": method.objective, **objective}}


def _with_heads(document: Any) -> Any:
    """The document with BatchNorm in the heads as the objective needs it, if it says nothing on BatchNorm. Heads that
    are named after a paper are not changed.
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
    """The document with ``model.initial: own`` if it does not say, the method is for independently designed models, and
    clients have tasks or different encoders.
    """
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
    """If ``changes`` choose a method that does not allow the document's objective, replace it in place by the method's
    default one, with the keys of ``objective`` in ``changes``. Nothing is changed if these name an objective.
    """
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
    """``document``, read from ``path``. If it is the ``config.yaml`` of a run folder, keys whose defaults have changed
    get their old ones: a run without ``model.initial`` had common initial values.
    """
    model = document.get("model")
    if not is_of_a_run(path) or not isinstance(model, dict):
        return document
    return {**document, "model": {"initial": "common", **model}}


def is_of_a_run(path: Path) -> bool:
    """Whether a run has written this file into its folder. It then has every key."""
    return path.name == "config.yaml" and (path.parent / "environment.json").is_file()
