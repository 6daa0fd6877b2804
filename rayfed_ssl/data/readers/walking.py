"""The image files below a folder, and how many other files are not read. Links are followed; hidden entries and files
whose suffix is no image's are not read. DICOM files without a suffix are recognised by their first bytes, and so are
DICOM files without an image, such as reports and DICOMDIR.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.decoding.dicom_heads import NO_IMAGE, kind_of
from rayfed_ssl.data.decoding.formats import ABSENT, DICOM, HEIC, HEIC_HERE, HEIC_NEEDED, SUFFIXES

BESIDE_IMAGES = {
    ".csv", ".tsv", ".xls", ".xlsx", ".ods", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".toml", ".ini", ".txt", ".md",
    ".rst", ".log", ".html", ".pdf", ".py", ".ipynb", ".sh", ".db", ".md5", ".sha256",
}  # fmt: skip
"""Suffixes of files that usually lie beside images (``.db``: Windows' thumbnails); no note counts them as not read."""
NAMES_BESIDE_IMAGES = {"readme", "license", "licence", "changelog", "authors", "makefile"}
NIFTI = {".nii", ".nii.gz"}
IMAGE = "image"
CSV = {".csv", ".tsv"}
READ_TABLES = {*CSV, ".jsonl"}
TABLES = {*READ_TABLES, ".xlsx", ".json"}
AS_TABLE = "name=table reads it, and the images that it names"
FROM_TABLE = "docs/python.md makes one Parquet file of a table and the images beside it"
ARCHIVES = {".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".7z", ".rar"}
ARRAYS = {".npz", ".npy"}
CONTAINERS = {  # what to do with files of images that no source reads -> their suffixes
    "HDF5 is not read: write its arrays as .npz or .npy": {".h5", ".hdf5", ".hdf"},
    "MATLAB's files are not read: write their arrays as .npz or .npy": {".mat"},
    "LMDB is not read: write its images as files, or as Parquet": {".mdb", ".lmdb"},
    "Arrow is not read: write it as Parquet, of datasets' save_to_disk by to_parquet": {".arrow", ".feather"},
    "TFRecord is not read: write its images as files, or as Parquet": {".tfrecord", ".tfrecords"},
    "pickle is not read: write its arrays as .npz or .npy": {".pkl", ".pickle"},
}
MOST_KINDS = 8  # suffixes of files that are not read, which a line names with their number
MOST_NAMED = 5  # links that lead nowhere, which a line names
MOST_WAYS = 1000  # paths that may lead to one folder by links


def read_by(file: Path, key: str) -> str:
    """The end of a message on a file that its source does not read: which source reads it; "" if none does."""
    suffix = file.suffix.lower()
    if suffix in READ_TABLES:
        return f"; {key}.{AS_TABLE}"
    name = "parquet" if suffix == ".parquet" else "arrays" if suffix in ARRAYS else None
    return "" if name is None else f"; {key}.name={name} reads it"


def images_below(root: Path, key: str) -> list[Path]:
    """All image files below a folder, sorted by path. Raises UserError for links in a circle and unreadable folders."""
    found: list[Path] = []
    ways: Counter[tuple[int, int]] = Counter()
    waiting: list[tuple[Path, frozenset[tuple[int, int]]]] = [(root, frozenset())]
    while waiting:
        folder, above = waiting.pop()
        files, folders, identity = entries(folder, key)
        ways[identity] += 1
        if identity in above:
            raise UserError(
                f"{key}.path: {printable(folder)} is a link back to a folder that contains it; remove the link"
            )
        if ways[identity] > MOST_WAYS:
            raise UserError(
                f"{key}.path: {printable(folder)} is reached by links in over {MOST_WAYS} ways; remove some"
            )
        found += files
        waiting += [(inner, above | {identity}) for inner in folders]
    return sorted(found)


def entries(folder: Path, key: str) -> tuple[list[Path], list[Path], tuple[int, int]]:
    """The images in a folder, the folders in it, and its own identity (device, inode). Images that cannot be read are
    among them. Raises UserError for a folder that cannot be read.
    """
    files, folders = [], []
    try:
        own = os.stat(folder)
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        raise UserError(f"{key}.path: {printable(folder)} cannot be read ({error.strerror})") from error
    for name in names:
        entry = folder / name
        stats = _stats(entry)
        if stats is not None and stat.S_ISDIR(stats.st_mode):
            folders.append(entry)
        elif _kind(str(entry), stats) == IMAGE:
            files.append(entry)
    return files, folders, (own.st_dev, own.st_ino)


def _stats(path: Path | str) -> os.stat_result | None:
    """A file's status; None if there is none, as for a link that leads nowhere."""
    try:
        return os.stat(path)
    except OSError:
        return None


def _kind(path: str, stats: os.stat_result | None) -> str:
    """``IMAGE``, or what a file is counted as: its suffix, or ``NO_IMAGE``. ``stats`` is None if nothing is there.

    The first bytes of regular files that may be DICOM are read.
    """
    suffix = _suffix(os.path.basename(path))
    if suffix and suffix not in DICOM:
        return IMAGE if suffix in SUFFIXES else suffix
    kind = "other" if stats is None or not stat.S_ISREG(stats.st_mode) else kind_of(path, stats)
    if kind == "no image":
        return NO_IMAGE
    return IMAGE if suffix or kind == "image" else ""


def images_beside(root: Path, read: Iterable[Path], key: str) -> list[tuple[str, int]]:
    """The folders in ``root`` with images that are not below one of ``read``, as (folder, number of these images), then
    ("", number) for images that lie in ``root`` itself. Raises UserError if ``root`` cannot be read.

    A folder that cannot be walked counts as empty, because none of its images are to be read.
    """
    files, folders, _ = entries(root, key)
    known = [folder.resolve() for folder in read]
    found = []
    for folder in folders:
        own = folder.resolve()
        if any(own.is_relative_to(place) for place in known):
            continue  # another way to what is read
        try:
            images = images_below(folder, key)
        except UserError:
            continue
        if any(place.is_relative_to(own) for place in known):
            images = [file for file in images if not any(_real(file).is_relative_to(place) for place in known)]
        if images:
            found.append((folder.name, len(images)))
    return found + ([("", len(files))] if files else [])


def _real(file: Path) -> Path:
    """The path of a file with all links resolved. For links in a circle, ``Path.resolve`` would raise."""
    return Path(os.path.realpath(file))


def unread_below(*roots: Path) -> str:
    """A line on files below the folders ``roots`` that are neither images nor usual beside images, counted by suffix,
    and on links that lead nowhere, such as those to a disk that is not there; "" if there are none.

    The folders were walked for images before, so no links lead in a circle.
    """
    found, lost = Counter[str](), list[str]()
    for root in roots:
        for folder, folders, names in os.walk(root, followlinks=True):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                if name.startswith(".") or _suffix(name) in BESIDE_IMAGES:
                    continue
                path = os.path.join(folder, name)
                stats = _stats(path)
                if (kind := _kind(path, stats)) == IMAGE:
                    continue
                if stats is not None:
                    found[kind] += 1
                else:
                    lost.append(os.path.relpath(path, root))
    return "; ".join(filter(None, [_links_nowhere(lost), _of_kinds(found)]))


def _links_nowhere(lost: list[str]) -> str:
    if not lost:
        return ""
    more = f" and {len(lost) - MOST_NAMED} more" if len(lost) > MOST_NAMED else ""
    named = ", ".join(printable(name, 80) for name in sorted(lost)[:MOST_NAMED]) + more
    return f"{named} {'leads' if len(lost) == 1 else 'lead'} nowhere: no image is read there"


def _of_kinds(found: Counter[str]) -> str:
    """How many files of each suffix are not read, and what to do with some of them; "" if there are none."""
    if not found:
        return ""
    kinds = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{count} {suffix or 'without suffix'}" for suffix, count in kinds[:MOST_KINDS])
    more = f" and {found.total() - sum(count for _, count in kinds[:MOST_KINDS])} others"
    files = "1 file is" if found.total() == 1 else f"{found.total()} files are"
    kinds_of = {
        "NIfTI is to be converted: its slices as PNG or TIFF of 16 bits, or as DICOM": NIFTI,
        "Parquet files are read with name=parquet": {".parquet"},
        "NumPy's arrays are read with name=arrays": ARRAYS,
        f"HEIC takes {HEIC_NEEDED}": set() if HEIC_HERE else HEIC,
        **{f"{name} is not decoded by the installed Pillow": suffixes for name, suffixes in ABSENT.items()},
        **CONTAINERS,
        "archives are to be unpacked (those of WebDataset are not read)": ARCHIVES,
    }
    advice = "".join(f"; {what}" for what, suffixes in kinds_of.items() if suffixes & set(found))
    return f"{files} not read: {printable(listed)}{more if len(kinds) > MOST_KINDS else ''}{advice}"


def of_container(path: Path) -> str:
    """The end of a message: what to do with a file of images that no source reads; "" for any other file."""
    return next((f"; {advice}" for advice, kinds in CONTAINERS.items() if path.suffix.lower() in kinds), "")


def _suffix(name: str) -> str:
    """The suffix of a file's name in small letters, such as ``.png`` or ``.nii.gz``; "" if it has none, or one of
    digits alone, as in DICOM's ids. A name like README counts as text.
    """
    if name.lower() in NAMES_BESIDE_IMAGES:
        return ".txt"
    *before, last = [suffix.lower() for suffix in Path(name).suffixes] or [""]
    if last in (".gz", ".bz2", ".xz") and before:
        last = before[-1] + last
    return "" if last[1:].isdigit() else last
