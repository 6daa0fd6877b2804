"""The encoder that a command takes out of a run: the global one, or one client's, with its transform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig, load_untrusted
from rayfed_ssl.models.base import Encoder
from rayfed_ssl.models.exported import descriptions, load_exported, read_description
from rayfed_ssl.models.transform import Transform
from rayfed_ssl.settings.files import of_run

GLOBAL, CLIENT = "global", "client-"


@dataclass(frozen=True)
class RunEncoder:
    """One exported encoder of a run folder, on the CPU and in eval mode, and what belongs to it.

    ``name`` is ``global`` or ``client-00003``; ``values`` the file that its values lie in; ``description`` what the
    json beside that says.
    """

    run: Path
    name: str
    module: Encoder
    transform: Transform
    description: Mapping[str, Any]
    values: Path
    config: RunConfig

    @property
    def client(self) -> int | None:
        return None if self.name == GLOBAL else int(self.name.removeprefix(CLIENT))

    @property
    def architecture(self) -> str:
        return str(self.description["encoder"])

    def example(self, count: int) -> Tensor:
        """(count, S, S, C) uint8 images of noise, the same in every process."""
        form = self.transform.form
        drawn = torch.Generator().manual_seed(0)
        return torch.randint(0, 256, (count, form.size, form.size, form.channels), generator=drawn, dtype=torch.uint8)


def run_encoder(run: Path, client: int | None = None, *, trust_imports: bool = False) -> RunEncoder:
    """The global encoder of the run folder ``run``, or that of ``client``.

    Without ``client``, a run that has no global encoder has to have one client.

    Raises:
        UserError: no finished run, no such client, several encoders and none asked for, files that are damaged.
    """
    path = of_run(run)
    found = {path.stem: path for path in descriptions(run / "encoder")}
    if not found:
        raise UserError(f"{run}: found no encoder in {run / 'encoder'}; the run has not finished")
    name = _chosen(run, list(found), client)
    config = load_untrusted(path, trust_imports=trust_imports)
    values, description = read_description(found[name])
    transform = Transform.described(description, range=config.data.range, max_pixels=config.data.max_pixels)
    return RunEncoder(run, name, load_exported(run, name), transform, description, values, config)


def _chosen(run: Path, names: list[str], client: int | None) -> str:
    clients = sorted(
        int(name.removeprefix(CLIENT)) for name in names if name.startswith(CLIENT) and name[len(CLIENT) :].isdecimal()
    )
    shown = ", ".join(str(number) for number in clients[:20]) + (", .." if len(clients) > 20 else "")
    if client is not None:
        if client in clients:
            return f"{CLIENT}{client:05d}"
        allowed = shown or "nothing: the run has one encoder, the global one"
        raise UserError(f"--client: found {client}, of which {run} has no encoder; allowed: {allowed}")
    if GLOBAL in names:
        return GLOBAL
    if len(clients) == 1:
        return f"{CLIENT}{clients[0]:05d}"
    raise UserError(f"--client: not given, and {run} has an encoder per client and no global one; allowed: {shown}")
