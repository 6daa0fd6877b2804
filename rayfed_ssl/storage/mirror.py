"""Run folders at a URI that pyarrow can write to (s3://, gs://, abfs://, hdfs://, file://).

A run always works in a folder of its own machine; after every checkpoint, and at its end, what is new there is copied.
Object stores have no rename, so the order of copying is what makes it safe: tables and a checkpoint's files, then the
checkpoint's marker, and summary.json, which says that the run is over, last. A checkpoint without its marker is never
read; resuming fetches the folder first. In a file system a file is copied beside its place and moved there.

A working folder is removed when its run is over, one that a killed process left at the start of the next run; it is
kept where copying failed. Nothing keeps two runs from copying to one URI.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from rayfed_ssl.base.lock import left_behind
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import first_line
from rayfed_ssl.records.summary_file import SUMMARY
from rayfed_ssl.records.tables import EVALUATION, PART, SKIPPED, Commit
from rayfed_ssl.storage.checkpoint import MARKER
from rayfed_ssl.storage.claim import lock_of
from rayfed_ssl.storage.failure import ERROR

CHECKPOINT = re.compile(rf"checkpoints/round-(\d+)/{re.escape(MARKER)}")
REPLACED = re.compile(  # where a run also deletes
    r"(checkpoints|metrics\.parquet|communication\.parquet|dropped\.parquet)/.*|events\.out\.tfevents\.[^/]*|"
    rf"outcomes(_untrained|_pixels)?\.parquet|{re.escape(SUMMARY)}|{re.escape(ERROR)}"
)
KEPT = re.compile(r"evaluation_round_.*\.json")  # what was measured of an earlier end
FORGOTTEN = re.compile(  # where a run that goes on deletes what it had ended with
    rf"encoder/.*|{re.escape(EVALUATION)}|{re.escape(SKIPPED)}"
)
WORK = re.compile(r"(rayfed-ssl-[0-9a-f]{32})\.lock")  # beside a working folder, held while its run lives
FETCHING, COPYING = ".fetching", ".copying"
COPIED_BYTES = 1 << 20  # at a time


def place(out: str | Path) -> tuple[Path, str | None]:
    """(folder to work in, URI to copy it to or None) for what ``--out`` says; nothing is made yet."""
    if "://" not in str(out):
        return Path(out).expanduser(), None
    return Path(tempfile.gettempdir()) / f"rayfed-ssl-{uuid.uuid4().hex}", str(out)


@contextmanager
def mirrored(folder: Path, uri: str | None, *, resume: bool) -> Iterator[Callable[[], None]]:
    """Gives what to call after every checkpoint; without a URI that does nothing, and ``folder`` is what stays.

    With one, ``folder`` is copied at the end, too, and then removed; it is kept where copying failed, and a note of the
    exception says so. If the run failed, ``error.txt`` is copied: the last checkpoint is at the URI already. If the URI
    holds nothing of the run yet, all of the folder is copied.

    Raises:
        UserError: the URI cannot be written to, or holds something already and ``resume`` is not set.
    """
    if uri is None:
        yield lambda: None
        return
    mirror = Mirror(folder, uri)
    remove_left_over(folder.parent)
    lock = lock_of(folder, folder.with_name(f"{folder.name}.lock"))
    try:
        mirror.open(resume=resume)
        folder.mkdir(mode=0o700, exist_ok=True)  # in a place that others can list
        try:
            try:
                yield mirror.push
            except Exception as error:
                mirror.push_error(error)
                raise
            mirror.push()
        finally:
            if not mirror.failed:
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        lock.release()  # without its lock a folder that was kept is nobody's to remove


def remove_left_over(parent: Path) -> None:
    """Remove the working folders in ``parent`` whose processes, of this user and host, were killed.

    What a living run works in is locked, and what was kept because copying failed has no lock file.
    """
    for path in parent.glob("rayfed-ssl-*.lock"):
        if (work := WORK.fullmatch(path.name)) is None:
            continue
        with left_behind(path) as ours:
            if ours:
                for folder in (parent / work[1], parent / f"{work[1]}{FETCHING}"):
                    shutil.rmtree(folder, ignore_errors=True)
                with suppress(OSError):
                    path.unlink()


class Mirror:
    """A folder of this machine, and the URI that it is copied to.

    Raises:
        UserError: ``uri`` is none that pyarrow knows, or it holds credentials.
    """

    def __init__(self, folder: Path, uri: str) -> None:
        if has_credentials(uri):
            raise UserError(
                "--out: found a URI with credentials, and a run records its command line; they belong in the "
                "environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        self.folder, self.uri = folder, uri
        self.copied: dict[str, tuple[int, int]] = {}  # path -> size and time of what the URI has
        self.failed = False
        try:
            self.remote, root = fs.FileSystem.from_uri(uri)
        except (OSError, pa.ArrowException) as error:
            raise UserError(
                f"--out: found {uri}; allowed: a folder, or a URI that pyarrow writes to, such as s3://bucket/path, "
                f"gs://bucket/path or file:///path ({first_line(error)})"
            ) from None
        self.root = root.rstrip("/")
        self.moves = self.remote.type_name == "local"  # else a file is replaced when it is whole

    def open(self, *, resume: bool) -> None:
        """See that the URI can be written to, and fetch the run to be resumed. Leaves nothing behind if it raises.

        Where the folder exists this process follows another that died here, and nothing at the URI is newer.
        """
        if self.folder.exists():
            return
        found = self.examine(resume=resume)
        if "config.yaml" in found:
            self._fetch(found)

    def examine(self, *, resume: bool) -> set[str]:
        """The files at the URI. Raises UserError where it cannot be written to, or a run is there that is not to be
        resumed; leaves nothing behind.
        """
        try:
            found = self._remote_files()
            if found and not resume:
                run = "already holds a run; add --resume to continue it" if "config.yaml" in found else "is not empty"
                raise UserError(f"--out: {self.uri} {run}, or name another place")
            self._probe()
        except (OSError, pa.ArrowException) as error:
            raise UserError(
                f"--out: cannot write to {self.uri} ({first_line(error)}); name a place you may write to"
            ) from None
        return found

    def push(self) -> None:
        """Make the URI hold what the folder holds. Raises UserError where it cannot be reached; the folder is kept."""
        try:
            here = _local_files(self.folder)
            new = [path for path, signature in here.items() if self.copied.get(path) != signature]
            if SUMMARY in self.copied and SUMMARY not in here:  # before anything that is newer than it
                for path in filter(KEPT.fullmatch, new):  # named by the summary's round
                    self._copy(path)
                new = [path for path in new if not KEPT.fullmatch(path)]
                for path in (EVALUATION, SUMMARY):
                    if path in self.copied and path not in here:
                        self.remote.delete_file(f"{self.root}/{path}")
            for path in sorted(new, key=_rank):
                self._copy(path)
            there = self._remote_files()
            gone = [
                path
                for path in there - here.keys()
                if REPLACED.fullmatch(path) or _in_part(path) or (path in self.copied and FORGOTTEN.fullmatch(path))
            ]
            for path in sorted(gone, key=_rank, reverse=True):  # a marker before the files it stands for
                self.remote.delete_file(f"{self.root}/{path}")
            for folder in {os.path.dirname(path) for path in gone} - {""}:
                if not any(path.startswith(f"{folder}/") for path in there - set(gone)):
                    self.remote.delete_dir(f"{self.root}/{folder}")
        except (OSError, pa.ArrowException) as error:
            self.failed = True
            raise UserError(
                f"--out: could not copy to {self.uri} ({first_line(error)}); the run is in {self.folder}: copy it "
                "there, or --resume from the last checkpoint that was copied"
            ) from None
        self.copied = here

    def push_error(self, error: Exception) -> None:
        """Make the URI say why the run failed, where the folder does. If the URI holds nothing of the run, all of the
        folder is copied. Where copying fails the folder is kept, and a note is added to ``error``.
        """
        if self.failed or not (self.folder / "config.yaml").exists():  # the error itself, or it was no run yet
            return
        try:
            begun = "config.yaml" in self._remote_files()
            for path in sorted(_local_files(self.folder), key=_rank):
                if path == ERROR or not begun:
                    self._copy(path)
        except (OSError, pa.ArrowException) as refused:
            self.failed = True
            error.add_note(f"--out: could not copy to {self.uri} ({first_line(refused)}); the run is in {self.folder}")

    def _copy(self, path: str) -> None:
        target = f"{self.root}/{path}"
        parent, name = os.path.split(target)
        draft = f"{parent}/.{name}{COPYING}" if self.moves else target
        self.remote.create_dir(parent, recursive=True)
        with (self.folder / path).open("rb") as source, self.remote.open_output_stream(draft) as sink:
            shutil.copyfileobj(source, sink, COPIED_BYTES)
        if draft != target:
            self.remote.move(draft, target)

    def _remote_files(self) -> set[str]:
        infos = self.remote.get_file_info(fs.FileSelector(self.root, allow_not_found=True, recursive=True))
        return {info.path[len(self.root) + 1 :] for info in infos if info.type == fs.FileType.File}

    def _probe(self) -> None:
        absent = self.remote.get_file_info(self.root).type == fs.FileType.NotFound
        probe = f"{self.root}/probe-{uuid.uuid4().hex}"
        self.remote.create_dir(self.root, recursive=True)
        with self.remote.open_output_stream(probe):
            pass
        self.remote.delete_file(probe)
        if absent:
            self.remote.delete_dir(self.root)

    def _fetch(self, found: set[str]) -> None:
        """Copy a run here, less what a resumed run would remove: checkpoints in the making, and tables past them.

        Raises:
            UserError: the run cannot be read, or there is no room for it here; nothing is left of it here.
        """
        draft = self.folder.with_name(f"{self.folder.name}{FETCHING}")
        shutil.rmtree(draft, ignore_errors=True)
        try:
            draft.mkdir(mode=0o700)
            for path in sorted(wanted(found)):
                target = draft / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with self.remote.open_input_stream(f"{self.root}/{path}") as source, target.open("wb") as sink:
                    shutil.copyfileobj(source, sink, COPIED_BYTES)
            copied = _local_files(draft)
            draft.rename(self.folder)
        except (OSError, pa.ArrowException) as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise UserError(
                f"--out: cannot fetch {self.uri} to resume it in {self.folder} ({first_line(error)}); make room, or "
                "name a working folder elsewhere by TMPDIR"
            ) from None
        self.copied = copied


def _local_files(folder: Path) -> dict[str, tuple[int, int]]:
    """Path -> size and time of every file, but for those (``.name``) that are still being written."""
    found = {}
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            stat = path.stat()
            found[relative.as_posix()] = (stat.st_size, stat.st_mtime_ns)
    return found


def has_credentials(uri: str) -> bool:
    """Whether the URI names a user or a password. Azure's ``abfs://container@account..`` names neither; with a colon
    before the @ it does.
    """
    found = re.match(r"([^/:]*)://([^/]*)@", uri)
    if found is None:
        return False
    return found[1].lower() not in ("abfs", "abfss") or ":" in found[2]


def wanted(found: set[str]) -> set[str]:
    """Those of a run's files that resuming needs: complete checkpoints, and tables up to the newest of them."""
    complete = {int(match[1]): os.path.dirname(path) for path in found if (match := CHECKPOINT.fullmatch(path))}
    newest = Commit(max(complete, default=-1), 0)

    def needed(path: str) -> bool:
        if _in_part(path):
            return False
        if path.startswith("checkpoints/"):
            return os.path.dirname(path) in complete.values()
        part = PART.fullmatch(os.path.basename(path))
        return part is None or Commit(int(part[1]), int(part[2] or 0)) <= newest

    return {path for path in found if needed(path)}


def _in_part(path: str) -> bool:
    """Whether this is what a copying left that was cut off."""
    return os.path.basename(path).startswith(".") and path.endswith(COPYING)


def _rank(path: str) -> tuple[int, str]:
    """The order of copying: a marker after the files it stands for."""
    return (2 if path == SUMMARY else 1 if CHECKPOINT.fullmatch(path) else 0), path
