"""Run folders at a URI that pyarrow can write to (s3://, gs://, abfs://, hdfs://, file://).

A run always works in a local folder. After every checkpoint, and at the end, new and changed files are copied to the
URI. Object stores have no rename, so the order of copying makes it safe: first tables and the files of a checkpoint,
then the checkpoint's marker, and last summary.json, which says that the run is over. A checkpoint without its marker is
never read. Resuming first fetches the run from the URI. In a file system, a file is copied to a temporary name beside
its place and then renamed.

The local folder is removed when its run is over, but kept if copying failed. A folder that a killed process left is
removed at the start of the next run. Nothing prevents two runs from copying to one URI.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
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
from rayfed_ssl.storage.remote_files import download, files_below, has_credentials, upload

CHECKPOINT = re.compile(rf"checkpoints/round-(\d+)/{re.escape(MARKER)}")
REPLACED = re.compile(  # files that a run may delete
    r"(checkpoints|metrics\.parquet|communication\.parquet|dropped\.parquet)/.*|events\.out\.tfevents\.[^/]*|"
    rf"outcomes(_untrained|_pixels)?\.parquet|{re.escape(SUMMARY)}|{re.escape(ERROR)}"
)
KEPT = re.compile(r"evaluation_round_.*\.json")  # evaluations of a run before it was extended
FORGOTTEN = re.compile(  # final results, which a run that is extended deletes
    rf"encoder/.*|{re.escape(EVALUATION)}|{re.escape(SKIPPED)}"
)
WORK = re.compile(r"(rayfed-ssl-[0-9a-f]{32})\.lock")  # beside a working folder; locked while its run lives
FETCHING, COPYING = ".fetching", ".copying"


def place(out: str | Path) -> tuple[Path, str | None]:
    """(folder to work in, URI to copy it to, or None) for the value of ``--out``. Nothing is created yet."""
    if "://" not in str(out):
        return Path(out).expanduser(), None
    return Path(tempfile.gettempdir()) / f"rayfed-ssl-{uuid.uuid4().hex}", str(out)


@contextmanager
def mirrored(folder: Path, uri: str | None, *, resume: bool) -> Iterator[Callable[[], None]]:
    """Yields a function to call after every checkpoint, which copies ``folder`` to the URI.

    At the end, ``folder`` is copied once more and then removed. If the run failed, only ``error.txt`` is copied,
    because the last checkpoint is at the URI already; all files are copied if the URI has none of the run. If copying
    failed, ``folder`` is kept, and the error, or a note on the run's own error, says so.

    Without a URI the function does nothing, and ``folder`` is kept.

    Raises:
        UserError: the URI cannot be written to, or it is not empty and ``resume`` is not set.
    """
    if uri is None:
        yield lambda: None
        return
    mirror = Mirror(folder, uri)
    remove_left_over(folder.parent)
    lock = lock_of(folder, folder.with_name(f"{folder.name}.lock"))
    try:
        mirror.open(resume=resume)
        folder.mkdir(mode=0o700, exist_ok=True)  # other users can list the temporary directory
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
        lock.release()  # ``remove_left_over`` removes only folders with a lock file, so a kept folder stays


def remove_left_over(parent: Path) -> None:
    """Remove the working folders in ``parent`` that killed processes of this user and host left.

    The folder of a living run is locked, and a folder that was kept because copying failed has no lock file.
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
    """A local folder and the URI that it is copied to.

    Raises:
        UserError: pyarrow does not know ``uri``, or it contains credentials.
    """

    def __init__(self, folder: Path, uri: str) -> None:
        if has_credentials(uri):
            raise UserError(
                "--out: found a URI with credentials, and a run records its command line; they belong in the "
                "environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        self.folder, self.uri = folder, uri
        self.copied: dict[str, tuple[int, int]] = {}  # path -> size and time of the file that was copied
        self.failed = False
        try:
            self.remote, root = fs.FileSystem.from_uri(uri)
        except (OSError, pa.ArrowException) as error:
            raise UserError(
                f"--out: found {uri}; allowed: a folder, or a URI that pyarrow writes to, such as s3://bucket/path, "
                f"gs://bucket/path or file:///path ({first_line(error)})"
            ) from None
        self.root = root.rstrip("/")
        self.moves = self.remote.type_name == "local"  # object stores replace a file only when it is complete

    def open(self, *, resume: bool) -> None:
        """Check that the URI can be written to, and fetch the run to resume. Leaves nothing behind if it raises.

        If the folder exists, this process replaces one that died on this machine, and the URI has nothing newer.
        """
        if self.folder.exists():
            return
        files = self.examine(resume=resume)
        if "config.yaml" in files:
            self._fetch(files)

    def examine(self, *, resume: bool) -> set[str]:
        """The files at the URI. Raises UserError if it cannot be written to, or if it is not empty and ``resume`` is
        not set. Leaves nothing behind.
        """
        try:
            files = files_below(self.remote, self.root)
            if files and not resume:
                run = "already holds a run; add --resume to continue it" if "config.yaml" in files else "is not empty"
                raise UserError(f"--out: {self.uri} {run}, or name another place")
            self._probe()
        except (OSError, pa.ArrowException) as error:
            raise UserError(
                f"--out: cannot write to {self.uri} ({first_line(error)}); name a place you may write to"
            ) from None
        return files

    def push(self) -> None:
        """Copy what the folder holds to the URI, and delete there what the run has deleted.

        Raises:
            UserError: the URI cannot be reached; the folder is then kept.
        """
        try:
            local = _local_files(self.folder)
            self._copy_changed(local)
            self._delete_gone(local)
        except (OSError, pa.ArrowException) as error:
            self.failed = True
            raise UserError(
                f"--out: could not copy to {self.uri} ({first_line(error)}); the run is in {self.folder}: copy it "
                "there, or --resume from the last checkpoint that was copied"
            ) from None
        self.copied = local

    def _copy_changed(self, local: Mapping[str, tuple[int, int]]) -> None:
        """Copy the local files that are new or have changed. If the run is extended, its old results go first."""
        changed = [path for path, signature in local.items() if self.copied.get(path) != signature]
        if SUMMARY in self.copied and SUMMARY not in local:
            for path in filter(KEPT.fullmatch, changed):  # their names have the round of the old summary
                self.copy(path)
            changed = [path for path in changed if not KEPT.fullmatch(path)]
            for path in (EVALUATION, SUMMARY):
                if path in self.copied and path not in local:
                    self.remote.delete_file(f"{self.root}/{path}")
        for path in sorted(changed, key=_rank):
            self.copy(path)

    def _delete_gone(self, local: Mapping[str, tuple[int, int]]) -> None:
        """Delete the files at the URI that the run has deleted, and what was copied only in part."""
        remote = files_below(self.remote, self.root)
        gone = [
            path
            for path in remote - local.keys()
            if REPLACED.fullmatch(path) or _in_part(path) or (path in self.copied and FORGOTTEN.fullmatch(path))
        ]
        for path in sorted(gone, key=_rank, reverse=True):  # a marker before the files that it describes
            self.remote.delete_file(f"{self.root}/{path}")
        for folder in {os.path.dirname(path) for path in gone} - {""}:
            if not any(path.startswith(f"{folder}/") for path in remote - set(gone)):
                self.remote.delete_dir(f"{self.root}/{folder}")

    def push_error(self, error: Exception) -> None:
        """Copy ``error.txt`` to the URI, or all files if the URI has none of the run. If copying fails, the folder is
        kept, and a note is added to ``error``.
        """
        if self.failed or not (self.folder / "config.yaml").exists():  # copying had failed, or the run had not begun
            return
        try:
            begun = "config.yaml" in files_below(self.remote, self.root)
            for path in sorted(_local_files(self.folder), key=_rank):
                if path == ERROR or not begun:
                    self.copy(path)
        except (OSError, pa.ArrowException) as refused:
            self.failed = True
            error.add_note(f"--out: could not copy to {self.uri} ({first_line(refused)}); the run is in {self.folder}")

    def copy(self, path: str) -> None:
        target = f"{self.root}/{path}"
        parent, name = os.path.split(target)
        draft = f"{parent}/.{name}{COPYING}" if self.moves else target
        self.remote.create_dir(parent, recursive=True)
        upload(self.remote, self.folder / path, draft)
        if draft != target:
            self.remote.move(draft, target)

    def _probe(self) -> None:
        """Write an empty file at the URI and remove it. Raises OSError or ArrowException if that fails."""
        absent = self.remote.get_file_info(self.root).type == fs.FileType.NotFound
        probe = f"{self.root}/probe-{uuid.uuid4().hex}"
        self.remote.create_dir(self.root, recursive=True)
        with self.remote.open_output_stream(probe):
            pass
        self.remote.delete_file(probe)
        if absent:
            self.remote.delete_dir(self.root)

    def _fetch(self, files: set[str]) -> None:
        """Copy those of the run's files that resuming needs (:func:`wanted`) from the URI into the folder.

        Raises:
            UserError: the run cannot be read, or the local disk has no room; nothing is left of it here.
        """
        draft = self.folder.with_name(f"{self.folder.name}{FETCHING}")
        shutil.rmtree(draft, ignore_errors=True)
        try:
            draft.mkdir(mode=0o700)
            for path in sorted(wanted(files)):
                download(self.remote, f"{self.root}/{path}", draft / path)
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
    """Path -> size and time of every file that is not hidden. Hidden files are locks and files being written."""
    files = {}
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            stat = path.stat()
            files[relative.as_posix()] = (stat.st_size, stat.st_mtime_ns)
    return files


def wanted(files: set[str]) -> set[str]:
    """Those of a run's files that resuming needs: all but checkpoints without their marker, what was copied only in
    part, and parts of tables that are newer than the newest checkpoint; of a run that has ended, those of its own round
    that came after it are needed.
    """
    complete = {int(match[1]): os.path.dirname(path) for path in files if (match := CHECKPOINT.fullmatch(path))}
    newest = Commit(max(complete, default=-1), 0)
    ended = SUMMARY in files

    def needed(path: str) -> bool:
        if _in_part(path):
            return False
        if path.startswith("checkpoints/"):
            return os.path.dirname(path) in complete.values()
        part = PART.fullmatch(os.path.basename(path))
        if part is None:
            return True
        at = Commit(int(part[1]), int(part[2] or 0))
        return at <= newest or (ended and at.round == newest.round)

    return {path for path in files if needed(path)}


def _in_part(path: str) -> bool:
    """Whether this file was left by a copy that was cut off."""
    return os.path.basename(path).startswith(".") and path.endswith(COPYING)


def _rank(path: str) -> tuple[int, str]:
    """The order of copying: a marker after the files that it describes, and the summary last."""
    return (2 if path == SUMMARY else 1 if CHECKPOINT.fullmatch(path) else 0), path
