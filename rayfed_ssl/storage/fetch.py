"""Reads runs at a URI: copies their files to this machine, without those that only a resume needs."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import first_line
from rayfed_ssl.records.summary_file import SUMMARY, TRY_AGAIN, refuse_gone_on, summary_bytes
from rayfed_ssl.storage.remote_files import download, files_below, has_credentials, upload

_LEFT = re.compile(
    r"checkpoints/.*|(.*/)?events\.out\.tfevents\.[^/]*|(.*/)?\.[^/]*"
)  # only the run itself needs these
_RECORDS = re.compile(r"(metrics|communication|dropped)\.parquet/.*|figures/.*")


def is_uri(where: str | os.PathLike[str]) -> bool:
    return "://" in os.fspath(where)


def is_kept(path: str) -> bool:
    """Whether a file of a run folder is a result or a record: all are but checkpoints, event files and hidden files."""
    return _LEFT.fullmatch(path) is None


def is_about_encoders(path: str) -> bool:
    """Whether a file is needed to use or to evaluate a run's encoders."""
    return is_kept(path) and _RECORDS.fullmatch(path) is None


class Remote:
    """A run folder at a URI that pyarrow can read (s3://, gs://, abfs://, hdfs://, file://).

    Raises:
        UserError: pyarrow does not know ``uri``, or it contains credentials.
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
        """Copy the files that are ``wanted`` into ``folder``. Raises UserError if there is no run, or if it cannot be
        read.
        """
        try:
            files = files_below(self.system, self.root)
            if "config.yaml" not in files:
                raise UserError(f"{self.uri}: found no config.yaml; must be a run folder")
            for path in sorted(filter(wanted, files)):
                download(self.system, f"{self.root}/{path}", folder / path)
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"{self.uri}: cannot be fetched ({first_line(error)})") from None

    def renew(self, folder: Path, name: str) -> None:
        """Copy one file of the run again into ``folder``, because another command may have written it at the URI since.
        It is removed from ``folder`` if the URI no longer has it. Raises UserError if it cannot be read.
        """
        draft = folder / f".{name}.fetching"
        try:
            if self.system.get_file_info(f"{self.root}/{name}").type == fs.FileType.NotFound:
                (folder / name).unlink(missing_ok=True)
                return
            download(self.system, f"{self.root}/{name}", draft)
            draft.replace(folder / name)
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"{self.uri}: {name} cannot be fetched ({first_line(error)})") from None

    def refuse_gone_on(self, folder: Path, remedy: str = TRY_AGAIN) -> None:
        """Raise UserError, with ``remedy``, if the run has gone on since ``folder`` was fetched: then it has another
        summary, or none. If the run was removed, :meth:`put` says so.
        """
        found = None
        config, there = (f"{self.root}/{name}" for name in ("config.yaml", SUMMARY))
        try:
            missing = [info.type == fs.FileType.NotFound for info in self.system.get_file_info([config, there])]
            if missing[0]:
                return
            if not missing[1]:
                with self.system.open_input_stream(there) as file:
                    found = file.read()
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"{self.uri}: {SUMMARY} cannot be fetched ({first_line(error)})") from None
        refuse_gone_on(self.uri, summary_bytes(folder), found, remedy)

    def put(self, file: Path, name: str) -> None:
        """Copy ``file`` to the URI under ``name``. It replaces what another command has written there since
        :meth:`renew`, because pyarrow's file systems have no conditional write. Raises UserError if it cannot be
        written, or if the run is gone.
        """
        try:
            if self.system.get_file_info(f"{self.root}/config.yaml").type == fs.FileType.NotFound:
                raise UserError(
                    f"{self.uri}: found no run any more; it was removed meanwhile, and {name} was not written"
                )
            upload(self.system, file, f"{self.root}/{name}")
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"{self.uri}: cannot write {name} ({first_line(error)})") from None


def renewing(where: str | None, folder: Path, name: str, remedy: str = TRY_AGAIN) -> Callable[[], None]:
    """A function that copies a file of the run at the URI ``where`` into ``folder`` again (:meth:`Remote.renew`), and
    raises UserError, with ``remedy``, if the run has gone on. If ``where`` is no URI, the function does nothing.
    """
    if where is None or not is_uri(where):
        return lambda: None
    remote = Remote(where)

    def renew() -> None:
        remote.refuse_gone_on(folder, remedy)
        remote.renew(folder, name)

    return renew


@contextmanager
def at_hand(where: str, wanted: Callable[[str], bool] = is_kept, put_back: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yields the run folder at ``where``. For a URI it is a temporary copy, which is removed at the end of the context.
    Before that, its files that ``put_back`` names are copied to the URI, unless an exception was raised. The line of a
    UserError names the URI in place of the copy.
    """
    if not is_uri(where):
        yield Path(where).expanduser()
        return
    remote = Remote(where)
    with tempfile.TemporaryDirectory(prefix="rayfed-ssl-read-") as name:
        folder = Path(name)
        remote.fetch(folder, wanted)
        try:
            yield folder
        except UserError as error:
            error.args = (str(error).replace(name, where.rstrip("/")),)
            raise
        for file in put_back:
            if (folder / file).exists():
                remote.put(folder / file, file)
