"""``rayfed-ssl new``: the start of something of one's own, and of its test."""

from __future__ import annotations

import importlib.util
import re
from enum import StrEnum
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from rayfed_ssl.base.schema import UserError

NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")

METHOD = Template('''"""$title: what it does, in one sentence (paper, equation).

    rayfed-ssl run CONFIG.yaml 'imports=[$name.py]' method.name=$name

It begins as FedAvg (McMahan et al. 2017) whose server goes `step` of the way to the clients' mean: 1 is FedAvg.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.method import Info, Method, unlabelled
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.settings.blocks import MethodConfig


class Config(MethodConfig):
    name: Literal["$name"] = "$name"
    step: Annotated[float, Field(gt=0, le=1)] = 1.0  # method.step=0.5 in a run


class Client(EncoderClient[Config]):
    def train(self, weights: Weights) -> dict[str, Any]:
        self.load(weights)
        self.fit()  # local epochs of the run's objective
        return {"weights": self.weights}


class Server(MethodServer[Config]):
    def start(self, cohort: Cohort) -> None:
        self.weights = self.initial_weights()

    def round(self, t: int, cohort: Cohort) -> None:
        mean = cohort.mean("train", weights=self.weights)["weights"]
        change = self.method.step * (mean.vector - self.weights.vector)
        self.weights = self.weights.with_vector(self.weights.vector + change)


METHODS = {
    "$name": Method(Config, Client, Server, Info("its paper", "weights"), objective="simclr", accepts=unlabelled)
}
''')

TEST = Template('''"""What every method promises, of $name: finite, deterministic, resumable, the same bits on Ray."""

from pathlib import Path

from rayfed_ssl.testing import contract

Test$title = contract("$name", {"imports": ["$name.py"], "method.step": 0.5}, beside=Path(__file__).parent)
''')


class Kind(StrEnum):
    """What can be begun."""

    method = "method"


def new(
    kind: Annotated[Kind, typer.Argument(help="What to begin: method.")],
    name: Annotated[str, typer.Argument(help="Its name in configurations: letters, digits and _.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the files go.")] = Path(),
) -> None:
    """Write NAME.py, a whole method to change, and test_NAME.py, its test. Files that exist are never written over."""
    file, test = begin_method(name, out)
    print(f"method  {file}")
    print(f"test    {test}")
    print(f"run it  rayfed-ssl run CONFIG.yaml 'imports=[{file.absolute()}]' method.name={name}")
    print(f"test it pytest {test}")


def begin_method(name: str, folder: Path) -> tuple[Path, Path]:
    """Write ``NAME.py`` and ``test_NAME.py`` into ``folder``, which is made if it is missing; returns both paths.

    Raises:
        UserError: a name that is none or is taken, a file that exists, a folder that cannot be written to.
    """
    from rayfed_ssl.methods import METHODS

    if not NAME.fullmatch(name):
        raise UserError(f"NAME: found {name!r}; must be lower-case letters, digits and _, a letter first, at most 60")
    if name in METHODS:
        raise UserError(f"NAME: found {name!r}, which is a method already; must be a new name")
    title = "".join(part.capitalize() for part in name.split("_"))
    texts = {folder / f"{name}.py": METHOD, folder / f"test_{name}.py": TEST}
    for path in texts:
        if path.exists() or path.is_symlink():
            raise UserError(f"{path}: found a file, which is not written over; name another method, or another --out")
    if importlib.util.find_spec(name) is not None:
        raise UserError(f"NAME: found {name!r}, a Python module that {name}.py would hide; must be another name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(text.substitute(name=name, title=title))
    except OSError as error:
        raise UserError(f"--out: cannot write to {folder} ({error.strerror}); name a folder you may write to") from None
    first, second = texts
    return first, second
