"""Saves and loads checkpoints: folders with safetensors files for arrays, JSON for the rest, and a marker written last.

    checkpoints/round-00010/
      server.json, server.safetensors      the state of the server and the plug-ins, and the ledger's totals
      clients-00000.json/.safetensors ...   the clients' states, in groups of about 64 MB
      complete.json                        size and digest of every file above; without it the folder is ignored

Everything is written into a temporary folder, which is renamed when it is complete, so a kill at any moment leaves the
previous checkpoint intact. If a round is saved again, the earlier folder is called ``round-00010.replaced`` until the
new one has its place; until then it is the checkpoint of that round. Folders of any other name, such as a user's copy,
are neither read nor removed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from rayfed_ssl.base.files import readable_as_usual, sync_folder
from rayfed_ssl.base.text import first_line
from rayfed_ssl.base.weights import Weights

GROUP_BYTES = 64 << 20
MARKER = "complete.json"
SUFFIXES = (".json", ".safetensors")
NAME = re.compile(r"round-(\d{5,})")
REPLACED = ".replaced"
NO_NUMBERS = "OSUMm"  # kinds of arrays that safetensors does not store: objects, text and times
SET_ASIDE = re.compile(r"round-(\d{5,})\.damaged")


class Damaged(Exception):
    """The files of a checkpoint are not those that its marker describes, or cannot be read."""


def flatten(tree: Any, arrays: dict[str, np.ndarray], whose: str = "the state") -> Any:
    """The skeleton, for JSON, of a tree of dicts, lists, scalars, arrays and Weights. Arrays are added to ``arrays``
    under a number, and so are numpy's scalars, as arrays without dimensions. An object that stands in several places is
    added once.

    Raises:
        TypeError: the tree contains something else; the text begins with ``whose`` and says where.
    """
    known: dict[int, tuple[object, str]] = {}  # id -> what is in the tree, which so keeps its id, and its key

    def put(item: object, array: np.ndarray, at: tuple[object, ...]) -> str:
        if array.dtype.kind in NO_NUMBERS:
            raise _unstorable(f"an array of {array.dtype}", whose, at)
        if id(item) not in known:
            key = f"{len(arrays):06d}"
            known[id(item)] = item, key
            arrays[key] = np.asarray(array, order="C")  # ascontiguousarray would add a dimension to a single number
        return known[id(item)][1]

    def skeleton(tree: Any, at: tuple[object, ...]) -> Any:
        match tree:
            case Weights():
                return {"$weights": put(tree, tree.vector, at), "layout": tree.layout, "parameters": tree.parameters}
            case np.ndarray() if tree.flags.c_contiguous:
                return {"$array": put(tree, tree, at)}
            case np.ndarray():
                axes = np.argsort([-abs(stride) for stride in tree.strides], kind="stable")
                return {"$transposed": put(tree, tree.transpose(axes), at), "axes": axes.tolist()}
            case np.str_():
                return str(tree)
            case np.generic():
                return {"$scalar": put(tree, np.asarray(tree), at)}
            case Mapping():
                for key in tree:
                    if not isinstance(key, str | int | float):
                        raise _unstorable(f"the key {key!r} of type {type(key).__name__}", whose, at)
                return {"$map": [[key, skeleton(value, (*at, key))] for key, value in tree.items()]}
            case list() | tuple():
                return [skeleton(value, (*at, k)) for k, value in enumerate(tree)]
            case None | bool() | int() | float() | str():
                return tree
        raise _unstorable(type(tree).__name__, whose, at)

    return skeleton(tree, ())


def _unstorable(found: str, whose: str, at: Iterable[object]) -> TypeError:
    place = whose + "".join(f"[{key!r}]" for key in at)
    return TypeError(
        f"{place}: found {found}; a checkpoint holds arrays of numbers, Weights, numbers, text, None, lists and dicts "
        "whose keys are text or numbers"
    )


def refuse_unstorable(state: Mapping[str, Any], whose: str) -> None:
    """Raise TypeError, as :func:`flatten` does, for a state that no checkpoint could hold."""
    flatten(state, {}, whose)


def unflatten(skeleton: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The inverse of :func:`flatten`, except that tuples become lists. Arrays have the order in memory that they had,
    because it decides the bits of sums, and one object is one again, because the ledger goes by identity.

    Raises:
        ValueError: an array is missing, or :func:`flatten` does not make such a skeleton.
    """
    made: dict[str, Any] = {}  # arrays and Weights, by key

    def array(key: Any) -> np.ndarray:
        if not isinstance(key, str) or key not in arrays:
            raise ValueError(f"array {key!r} is missing")
        return arrays[key]

    def tree(skeleton: Any) -> Any:
        match skeleton:
            case {"$weights": key, "layout": layout, "parameters": parameters}:
                vector = array(key)
                if vector.ndim != 1 or not isinstance(layout, str) or not isinstance(parameters, int):
                    raise ValueError(f"array {key!r} and its layout are no weights")
                return made.setdefault(key, Weights(layout, vector, parameters))
            case {"$transposed": key, "axes": list(axes)}:
                return made.setdefault(key, array(key).transpose(np.argsort(axes)))
            case {"$array": key}:
                return array(key)
            case {"$scalar": key}:
                return array(key)[()]
            case {"$map": list(items)}:
                return {key: tree(value) for key, value in items}
            case list():
                return [tree(value) for value in skeleton]
            case dict():
                raise ValueError(
                    f"found an object with {', '.join(skeleton) or 'no keys'}, which a checkpoint does not write"
                )
        return skeleton

    return tree(skeleton)


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Turns the exception that safetensors raises for errors of the disk back into the OSError that caused it."""
    try:
        yield
    except SafetensorError as error:
        if "I/O error" not in str(error):
            raise
        code = re.search(r"os error (\d+)", str(error))
        number = int(code[1]) if code else errno.EIO
        raise OSError(number, os.strerror(number)) from error


def _write_tree(folder: Path, name: str, tree: Any) -> None:
    arrays: dict[str, np.ndarray] = {}
    skeleton = flatten(tree, arrays)
    with disk_errors():
        readable_as_usual(folder / f"{name}.safetensors", partial(save_file, arrays))
    (folder / f"{name}.json").write_text(json.dumps(skeleton))


def _read_tree(folder: Path, name: str) -> Any:
    """The tree that :func:`_write_tree` wrote. Raises Damaged, naming the file."""
    skeleton = folder / f"{name}.json"
    try:
        return unflatten(json.loads(skeleton.read_text()), load_file(folder / f"{name}.safetensors"))
    except (OSError, SafetensorError, ValueError, TypeError, RecursionError) as error:
        raise Damaged(f"{skeleton}: not what a checkpoint holds ({first_line(error)})") from None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def save(root: Path, round: int, server: Any, clients: Iterable[tuple[int, Any]]) -> Path:
    """Write the checkpoint of a finished round, and return its folder.

    Args:
        root: the run's ``checkpoints`` folder.
        server: the tree of the server's state.
        clients: pairs (client, state), which are consumed one at a time.
    Raises:
        OSError: the disk is full, or nothing may be written there. Earlier checkpoints are kept.
    """
    final, temporary = root / f"round-{round:05d}", root / f".writing-{round:05d}-{os.getpid()}"
    root.mkdir(parents=True, exist_ok=True)
    _remove_replaced(root)
    for stale in root.glob(".writing-*"):  # left by a killed process: incomplete, and never read
        shutil.rmtree(stale, ignore_errors=True)
    temporary.mkdir()
    try:
        _write_tree(temporary, "server", server)
        for number, group in enumerate(_groups(clients)):
            _write_tree(temporary, f"clients-{number:05d}", group)
        files = {p.name: {"bytes": p.stat().st_size, "blake2b": _digest(p)} for p in sorted(temporary.iterdir())}
        for path in temporary.iterdir():
            _sync(path)
        (temporary / MARKER).write_text(json.dumps({"round": round, "files": files}, indent=1))
        _sync(temporary / MARKER)
        sync_folder(temporary)
        _put_in_place(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _remove_replaced(root)
    return final


def _put_in_place(temporary: Path, final: Path) -> None:
    """Rename the folder ``temporary`` to ``final``, after moving an earlier ``final`` aside. Raises OSError, and then
    ``final`` is as it was.
    """
    earlier = final.with_name(f"{final.name}{REPLACED}")
    if moved := final.exists():
        shutil.rmtree(earlier, ignore_errors=True)
        os.rename(final, earlier)
    try:
        os.replace(temporary, final)
    except OSError:
        if moved:
            os.rename(earlier, final)
        raise
    sync_folder(final.parent)


def _remove_replaced(root: Path) -> None:
    """Remove the folders that were moved aside and that a complete checkpoint has replaced."""
    for earlier in root.glob(f"round-*{REPLACED}"):
        name = earlier.name.removesuffix(REPLACED)
        if NAME.fullmatch(name) and (root / name / MARKER).exists():
            shutil.rmtree(earlier, ignore_errors=True)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _groups(clients: Iterable[tuple[int, Any]]) -> Iterator[dict[int, Any]]:
    """The clients' states in groups of at least ``GROUP_BYTES``, the last of which may have fewer."""
    group: dict[int, Any] = {}
    size = 0
    for client, state in clients:
        group[client] = state
        size += _bytes(state)
        if size >= GROUP_BYTES:
            yield group
            group, size = {}, 0
    if group:
        yield group


def _bytes(tree: Any) -> int:
    arrays: dict[str, np.ndarray] = {}
    flatten(tree, arrays)
    return sum(array.nbytes for array in arrays.values())


def complete(root: Path) -> list[tuple[int, Path]]:
    """(round, folder) of the checkpoints that have their marker, oldest first."""
    folders: dict[int, Path] = {}
    for folder in sorted(path.parent for path in root.glob(f"round-*/{MARKER}")):  # a replaced one sorts second
        if match := NAME.fullmatch(folder.name.removesuffix(REPLACED)):
            folders.setdefault(int(match[1]), folder)
    return sorted(folders.items())


def verify(folder: Path) -> None:
    """Raise Damaged if a file's size or digest is not what the marker says, if the file or the marker cannot be read,
    or if the marker does not list every file that :func:`load` reads.
    """
    try:
        listed = [(n, f["bytes"], f["blake2b"]) for n, f in json.loads((folder / MARKER).read_text())["files"].items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{folder / MARKER}: not readable ({first_line(error)})") from None
    listed_names = {name for name, _, _ in listed}
    needed = {f"server{suffix}" for suffix in SUFFIXES} | {path.name for path in folder.glob("clients-*.json")}
    needed |= {f"{name.removesuffix('.json')}.safetensors" for name in needed if name.startswith("clients-")}
    if missing := sorted(needed - listed_names):
        raise Damaged(f"{folder / MARKER}: does not list {', '.join(missing[:3])}")
    for name, size, digest in listed:
        path = folder / name
        try:
            intact = path.exists() and path.stat().st_size == size and _digest(path) == digest
        except OSError as error:
            raise Damaged(f"{path}: not readable ({error})") from None
        if not intact:
            raise Damaged(f"{path}: size or digest differs from {MARKER}")


def newest(root: Path) -> tuple[tuple[int, Path] | None, list[str]]:
    """The newest intact checkpoint as (round, folder), or None, and a line for each newer one, which is damaged."""
    damaged = []
    for round, folder in reversed(complete(root)):
        try:
            verify(folder)
        except Damaged as error:
            damaged.append(str(error))
        else:
            return (round, folder), damaged
    return None, damaged


def load(folder: Path) -> tuple[Any, Iterator[tuple[int, Any]]]:
    """The server's tree, and an iterator over (client, state) that reads the clients' states group by group. Both raise
    Damaged, naming the file.
    """

    def clients() -> Iterator[tuple[int, Any]]:
        for path in sorted(folder.glob("clients-*.json")):
            group = _read_tree(folder, path.stem)
            if not isinstance(group, dict) or not all(isinstance(client, int) for client in group):
                raise Damaged(f"{path}: holds no clients' states")
            yield from group.items()

    return _read_tree(folder, "server"), clients()


def set_aside(root: Path, after: int) -> list[str]:
    """Rename the checkpoints after round ``after``, which :func:`newest` passed over as damaged, so that they no longer
    count as checkpoints. Returns their new names, ``round-NNNNN.damaged``. :func:`prune` removes them when the run has
    saved a checkpoint of that round or a later one.

    Raises:
        OSError: the folder cannot be changed.
    """
    renamed = []
    for round, folder in complete(root):
        if round > after:
            target = root / f"round-{round:05d}.damaged"
            shutil.rmtree(target, ignore_errors=True)
            os.replace(folder, target)
            renamed.append(target.name)
    return renamed


def prune(root: Path, keep: int, keep_every: int) -> None:
    """Delete all checkpoints but the newest ``keep`` and those of every ``keep_every``-th round (0: none). Delete also
    those that were set aside and are not newer than the newest, which must be intact: see :func:`set_aside`.
    """
    checkpoints = complete(root)
    for round, folder in checkpoints[:-keep]:
        if not keep_every or round % keep_every:
            shutil.rmtree(folder, ignore_errors=True)
    last_round = checkpoints[-1][0] if checkpoints else -1
    for path in root.glob("round-*.damaged"):
        if (match := SET_ASIDE.fullmatch(path.name)) and int(match[1]) <= last_round:
            shutil.rmtree(path, ignore_errors=True)
