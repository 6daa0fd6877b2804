"""Loads an encoder of a run, the global one or one client's, with its transform."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import torch
from torch import Tensor

from rayfed_ssl.base.text import printable
from rayfed_ssl.config import RunConfig, load_untrusted
from rayfed_ssl.models.base import Encoder
from rayfed_ssl.models.exported import ExportedFile, find
from rayfed_ssl.models.transform import Transform
from rayfed_ssl.settings.files import of_run
from rayfed_ssl.storage.missing_encoder_error import naming_checkpoint


@dataclass(frozen=True)
class RunEncoder:
    """An exported encoder of a run folder, on the CPU and in eval mode, with its file, its transform and the config."""

    run: Path
    file: ExportedFile
    module: Encoder
    transform: Transform
    config: RunConfig
    uri: str | None = None  # where the run is, if the folder is a copy

    @property
    def title(self) -> str:
        """The run's name outside of its folder: the folder's name; a trial's has that of its sweep or comparison
        before.
        """
        folder = self.run.resolve() if self.uri is None else PurePosixPath(urlsplit(self.uri).path)
        words = [folder.parent.name] if folder.name.startswith("trial-") else []
        return printable(" ".join([*words, folder.name or self.config.name]), 80)

    @property
    def client(self) -> int | None:
        """The client whose encoder it is; None for the global one."""
        return self.file.client

    @property
    def architecture(self) -> str:
        return self.file.architecture

    def example(self, count: int) -> Tensor:
        """(count, S, S, C) uint8 images of noise, the same in every process."""
        form = self.transform.form
        drawn = torch.Generator().manual_seed(0)
        return torch.randint(0, 256, (count, form.size, form.size, form.channels), generator=drawn, dtype=torch.uint8)


def run_encoder(
    run: Path, client: int | str | None = None, *, trust_imports: bool = False, uri: str | None = None
) -> RunEncoder:
    """The global encoder of the run folder ``run``, or that of ``client``, a number or a name.

    Without ``client``, a run that has no global encoder has to have exactly one client. If the folder is a copy of a
    run elsewhere, ``uri`` says where that is; tables and model cards name the run after it.

    Raises:
        UserError: the run has not finished, has no such client, or has several encoders and ``client`` is None; or
            files are damaged.
    """
    path = of_run(run)
    with naming_checkpoint(run):
        file = find(run, client)
    config = load_untrusted(path, trust_imports=trust_imports)
    transform = Transform.of_run(file.description, config.data)
    return RunEncoder(run, file, file.load(), transform, config, uri)
