"""Writes and reads ``trained.parquet``: digests of the images that a run trained on, to recognise them among other
images.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayfed_ssl.base.files import replace_file
from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.pixels.digests import pixel_digests
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.models import StartConfig

FILE = "trained.parquet"
ENCODERS = "encoder"  # the folder of a run's exported encoders


def trained_digests(federation: Federation, uses_public: bool) -> NDArray[np.uint64]:
    """The digests, ascending, of the images that clients hold and of the public ones that the method uses, as they were
    decoded: before a partition's corruptions.
    """
    train, public = federation.dataset.train_digests(), federation.public
    pieces = [train[shard["train"]] for shard in federation.shards]
    if uses_public and federation.public_indices is not None:
        pieces.append(train[federation.public_indices])
    elif uses_public and public is not None:
        pieces.append(pixel_digests(public.pixels))
    return np.unique(np.concatenate([np.empty(0, np.uint64), *pieces]))


def write_trained(folder: Path, digests: NDArray[np.uint64]) -> None:
    """Write ``trained.parquet``: the column ``digest`` (n,), ascending. The images are the run's own, and those that
    the run behind its ``model.start`` trained on.
    """
    rows = pa.table({"digest": pa.array(digests, pa.uint64())})
    replace_file(folder / FILE, lambda path: pq.write_table(rows, path, compression="none", use_dictionary=False))


def read_trained(folder: Path) -> NDArray[np.uint64] | None:
    """Read what ``write_trained`` wrote; None if the folder has no such file. Raises UserError for a damaged file."""
    if not (folder / FILE).exists():
        return None
    try:
        return np.asarray(pq.read_table(folder / FILE)["digest"].to_numpy(), np.uint64)
    except (OSError, pa.ArrowException, LookupError, ValueError, TypeError) as error:
        raise UserError(f"{folder / FILE}: cannot be read ({error}); move it away to evaluate without it") from None


def among_trained(pixels: NDArray[np.uint8], trained: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """(M, S, S, C) -> (M,) whether each image is one that the run trained on."""
    return np.isin(pixel_digests(pixels), trained)


def trained_before(start: StartConfig | None) -> NDArray[np.uint64] | None:
    """What the run behind ``model.start`` trained on: that of the run folder, or of the folder that a file lies in as
    ``encoder/FILE``. None where the values are no run's, or where its folder does not say. Raises UserError for a
    damaged file.
    """
    run = None if start is None else run_behind(start)
    return None if run is None else read_trained(run)


def run_behind(start: StartConfig) -> Path | None:
    """The run folder whose encoder ``model.start`` names; None where it is no run's."""
    path = start.path.absolute()
    if path.is_dir():
        return path
    return path.parent.parent if path.parent.name == ENCODERS else None


def of_start(start: StartConfig | None, federation: Federation) -> Iterator[Note]:
    """Lines on test images, and on images to choose by, that the run behind ``model.start`` trained on.

    Images are recognised by their decoded pixels, so only where both runs have the same size and form of images.
    """
    if start is None or (run := run_behind(start)) is None:
        return
    if (known := read_trained(run)) is None:
        unknown = "model.start: whether its run trained on test images of this run is not known"
        yield Note(f"{unknown}: {run} has no {FILE}", unknown)
        return
    dataset, held_out = federation.dataset, federation.held_out
    counted = [("test images", among_trained(dataset.test.pixels, known))]
    if held_out is not None:
        counted.append(("images to choose by (evaluation.select)", np.isin(dataset.train_digests()[held_out], known)))
    for which, seen in counted:
        if count := int(seen.sum()):
            yield Note.shareable(
                f"model.start: its run trained on {count} of {len(seen)} {which} (the same pixels): accuracy on "
                f"{'it' if count == 1 else 'them'} is memory"
            )
