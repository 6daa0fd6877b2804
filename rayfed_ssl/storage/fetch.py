"""Reads runs at a URI: copies their files to this machine, without those that only a resume needs."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import first_line
from rayfed_ssl.storage.mirror import COPIED_BYTES, has_credentials

_LEFT = re.compile(r"checkpoints/.*|(.*/)?events\.out\.tfevents\.[^/]*|(.*/)?\.[^/]*")  # nobody reads these elsewhere
_RECORDS = re.compile(r"(metrics|communication|dropped)\.parquet/.*|figures/.*")


def is_uri(where: str | os.PathLike[str]) -> bool:
    return "://" in os.fspath(where)


def is_kept(path: str) -> bool:
    """Whether a file of a run folder tells what the run came to: all but checkpoints and event files."""
    return _LEFT.fullmatch(path) is None


def is_about_encoders(path: str) -> bool:
    """Whether a file is needed to use, or to evaluate, a run's encoders."""
    return is_kept(path) and _RECORDS.fullmatch(path) is None


class Remote:
    """A run folder at a URI that pyarrow can read (s3://, gs://, abfs://, hdfs://, file://).

    Raises:
        UserError: ``uri`` is none that pyarrow knows, or it holds credentials.
    """

    def __init__(self, uri: str) -> None:
        if has_credentials(uri):
            raise UserError(
                "URI: found one with credentials; they belong in the environment, such as AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY"
            )
        self.uri = uri
        try:
            self.system, root = fs.FileSystem.from_uri(uri)
        except (OSError, pa.ArrowException) as error:
            raise UserError(
                f"{uri}: found no URI that pyarrow reads, such as s3://bucket/path or file:///path "
                f"({first_line(error)})"
            ) from None
        self.root = root.rstrip("/")

    def fetch(self, folder: Path, wanted: Callable[[str], bool] = is_kept) -> None:
        """Copy the files that are ``wanted`` into ``folder``. Raises UserError where there is no run to be read."""
        try:
            infos = self.system.get_file_info(fs.FileSelector(self.root, allow_not_found=True, recursive=True))
            found = {info.path[len(self.root) + 1 :] for info in infos if info.type == fs.FileType.File}
            if "config.yaml" not in found:
                raise UserError(f"{self.uri}: found no config.yaml; must be a run folder")
            for path in sorted(filter(wanted, found)):
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with self.system.open_input_stream(f"{self.root}/{path}") as source, target.open("wb") as sink:
                    shutil.copyfileobj(source, sink, COPIED_BYTES)
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"{self.uri}: cannot be fetched ({first_line(error)})") from None

    def renew(self, folder: Path, name: str) -> None:
        """Make one file of ``folder``, a copy of the run, what it is there now: another command may have written it
        since. Raises UserError where it cannot be read.
        """
        draft = folder / f".{name}.fetching"
        try:
            if self.system.get_file_info(f"{self.root}/{name}").type == fs.FileType.NotFound:
                (folder / name).unlink(missing_ok=True)
                return
            with self.system.open_input_stream(f"{self.root}/{name}") as source, draft.open("wb") as sink:
                shutil.copyfileobj(source, sink, COPIED_BYTES)
            draft.replace(folder / name)
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"{self.uri}: {name} cannot be fetched ({first_line(error)})") from None

    def put(self, file: Path, name: str) -> None:
        """Copy one file there, under ``name``. What another command has written there since :meth:`renew` is replaced:
        pyarrow's file systems have no write on a condition. Raises UserError where it cannot be written, or the run is
        gone.
        """
        try:
            if self.system.get_file_info(f"{self.root}/config.yaml").type == fs.FileType.NotFound:
                raise UserError(
                    f"{self.uri}: found no run any more; it was removed meanwhile, and {name} was not written"
                )
            with file.open("rb") as source, self.system.open_output_stream(f"{self.root}/{name}") as sink:
                shutil.copyfileobj(source, sink, COPIED_BYTES)
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"{self.uri}: cannot write {name} ({first_line(error)})") from None


def renewing(where: str | None, folder: Path, name: str) -> Callable[[], None]:
    """What makes a file of ``folder`` the one that the run at the URI ``where`` has; nothing where it is no URI."""
    if where is None or not is_uri(where):
        return lambda: None
    remote = Remote(where)
    return lambda: remote.renew(folder, name)


@contextmanager
def at_hand(where: str, wanted: Callable[[str], bool] = is_kept, put_back: tuple[str, ...] = ()) -> Iterator[Path]:
    """The run folder at ``where``, or, of a URI, a copy that lives as long as the context; those files of it
    that ``put_back`` names are copied to the URI in the end, unless something was raised.
    """
    if not is_uri(where):
        yield Path(where).expanduser()
        return
    remote = Remote(where)
    with tempfile.TemporaryDirectory(prefix="rayfed-ssl-read-") as name:
        folder = Path(name)
        remote.fetch(folder, wanted)
        yield folder
        for file in put_back:
            if (folder / file).exists():
                remote.put(folder / file, file)
