"""``trained.parquet``: digests of the images that a run trained on, to recognise them among other images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayfed_ssl.base.files import replace_file
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.pixels.digests import pixel_digests
from rayfed_ssl.federated.federation import Federation

FILE = "trained.parquet"


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
    """Write ``trained.parquet``: the column ``digest`` (n,), ascending."""
    rows = pa.table({"digest": pa.array(digests, pa.uint64())})
    replace_file(folder / FILE, lambda path: pq.write_table(rows, path, compression="none", use_dictionary=False))


def read_trained(folder: Path) -> NDArray[np.uint64] | None:
    """What ``write_trained`` wrote; None in the folder of a run that did not. Raises UserError for a damaged file."""
    if not (folder / FILE).exists():
        return None
    try:
        return np.asarray(pq.read_table(folder / FILE)["digest"].to_numpy(), np.uint64)
    except (OSError, pa.ArrowException, LookupError, ValueError, TypeError) as error:
        raise UserError(f"{folder / FILE}: cannot be read ({error}); move it away to evaluate without it") from None


def among_trained(pixels: NDArray[np.uint8], trained: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """(M, S, S, C) -> (M,) whether each image is one that the run trained on."""
    return np.isin(pixel_digests(pixels), trained)
