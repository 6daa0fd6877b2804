"""``outcomes.parquet``: how often each score of a run's last evaluation was right about each test image.

A row is a test image and an encoder: ``client`` (null: the global encoder), ``index`` of the image in the test split
(as in ``images.parquet``), its ``label``, and a column per score, which counts right answers or, for an area under the
ROC curve, holds what the image contributes to the area. The file's metadata holds the round, and of each score how many
``draws`` there were: a column divided by its draws has the recorded value as mean. A balanced accuracy has no column of
its own: it follows from the accuracy's and the labels.

Shapes: M labelled test images, E encoders.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayfed_ssl.base.files import replace_file
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line
from rayfed_ssl.evaluation.outcomes import ROUNDING, Counts, Outcomes, compact, is_area
from rayfed_ssl.records.image_intervals import base, image_mean
from rayfed_ssl.records.tables import with_names

FILE = "outcomes.parquet"
UNTRAINED_FILE, PIXELS_FILE = "outcomes_untrained.parquet", "outcomes_pixels.parquet"  # the same of before training
ALL = (FILE, UNTRAINED_FILE, PIXELS_FILE)
FIXED = ("client", "index", "label", "client_name")  # columns that are no scores
ROUND, DRAWS = b"round", b"draws"  # keys of the metadata


def write_outcomes(
    folder: Path,
    round: int,
    by_client: Mapping[int | None, Outcomes],
    labels: NDArray[np.int64],
    names: Sequence[str] | None = None,
    within: Path | None = None,
    file: str = FILE,
) -> None:
    """Write ``outcomes.parquet``, or another ``file``, with the scores that all encoders have; remove the file if there
    is none.

    Args:
        round: which was evaluated.
        by_client: client (None: the global encoder) -> its outcomes on the labelled test images.
        labels: of all test images, negative where there is none.
        names: of the clients, where they have any.
        within: the folder, where it is not to be made again if it is gone.
    """
    clients = sorted(by_client, key=lambda client: -1 if client is None else client)
    rows = np.flatnonzero(labels >= 0)
    first = by_client[clients[0]].draws if clients else {}
    scores = [name for name in first if name not in FIXED and all(name in by_client[c].draws for c in clients)]
    if not scores:
        (folder / file).unlink(missing_ok=True)
        return
    each = np.repeat(np.arange(len(clients)), len(rows))
    columns = {
        "client": pa.array(clients, pa.int32()).take(pa.array(each)),
        "index": pa.array(np.tile(rows, len(clients)), pa.int64()),
        "label": pa.array(np.tile(labels[rows], len(clients)), pa.int64()),
        **{name: pa.array(np.concatenate([by_client[c].right[name] for c in clients])) for name in scores},
    }
    told = {ROUND: str(round), DRAWS: json.dumps({name: first[name] for name in scores})}
    table = with_names(pa.table(columns), names).replace_schema_metadata(told)
    encodings = {"index": "DELTA_BINARY_PACKED"}
    plain = {*encodings, *(name for name in scores if is_area(by_client[clients[0]].right[name]))}
    replace_file(
        folder / file,
        lambda path: pq.write_table(
            table, path, compression="zstd", column_encoding=encodings,
            use_dictionary=[name for name in table.column_names if name not in plain],
        ),
        within,
    )  # fmt: skip


@dataclass(frozen=True)
class ImageShares:
    """What a run's encoders had right in the last evaluated ``round``: ``index`` and ``labels`` of the test images
    (M,), and ``shares``: score -> (M,) the share of classifiers that were right about each, or what each contributes to
    an area; of clients' encoders the mean, and beside a global encoder the global one's, as in ``summary.json``.
    """

    round: int
    index: NDArray[np.int64]
    labels: NDArray[np.int64]
    shares: Mapping[str, NDArray[np.float64]]

    def same_images(self, other: ImageShares) -> bool:
        """Whether they are of the same places in a test split, with the same labels."""
        return np.array_equal(self.index, other.index) and np.array_equal(self.labels, other.labels)

    def has(self, score: str) -> bool:
        """Whether there is what a score is a mean of; a balanced accuracy is one of the shares of its accuracy."""
        return base(score) in self.shares

    def of(self, score: str, accuracy: float) -> NDArray[np.float64] | None:
        """(M,) the shares of a score that was recorded as ``accuracy``, of a balanced accuracy those of its accuracy;
        None where they are not of that number.
        """
        shares = self.shares.get(base(score))
        if shares is None:
            return None
        same = math.isclose(image_mean(score, shares, self.labels), accuracy, rel_tol=0, abs_tol=ROUNDING)
        return shares if same else None


def read_outcomes(folder: Path, file: str = FILE) -> ImageShares | None:
    """Read what ``write_outcomes`` wrote; None for a folder without the file. Raises UserError for a damaged file."""
    if (found := _read(folder / file)) is None:
        return None
    counted = [found.clients.index(None)] if None in found.clients else range(len(found.clients))
    shares = {name: found.columns[name][counted].mean(axis=0) / count for name, count in found.draws.items()}
    index, labels = (np.asarray(found.columns[name][0], np.int64) for name in ("index", "label"))
    return ImageShares(found.round, index, labels, shares)


def outcomes_by_client(folder: Path) -> dict[int | None, Outcomes]:
    """Read back the outcomes that ``write_outcomes`` was given; empty for a folder without the file. Raises UserError
    for a damaged file.
    """
    if (found := _read(folder / FILE)) is None:
        return {}
    return {
        client: Outcomes(
            {name: compact(found.columns[name][row], count) for name, count in found.draws.items()}, found.draws
        )
        for row, client in enumerate(found.clients)
    }


class _Read(NamedTuple):
    """A file as it lies there: every column but the client's as (E, M), encoders being one after the other."""

    round: int
    draws: dict[str, int]
    clients: list[int | None]
    columns: dict[str, Counts]


def _numbers(column: pa.ChunkedArray) -> Counts:
    """Contributions to an area as float64, all else as int64."""
    if pa.types.is_floating(column.type):
        return np.asarray(column.to_numpy(), np.float64)
    return np.asarray(column.to_numpy(), np.int64)


def _read(path: Path) -> _Read | None:
    """The file; None where there is none. Raises UserError for a damaged one."""
    if not path.exists():
        return None
    try:
        table = pq.ParquetFile(path).read()
        metadata = table.schema.metadata
        draws = {str(name): int(count) for name, count in json.loads(metadata[DRAWS]).items()}
        clients = pc.unique(table["client"]).to_pylist()
        columns = {name: _numbers(table[name]).reshape(len(clients), -1) for name in ("index", "label", *draws)}
        for name in ("index", "label"):
            if (columns[name] != columns[name][0]).any():
                raise ValueError(f"column {name} is not the same for every encoder")
        return _Read(int(metadata[ROUND]), draws, clients, columns)
    except (OSError, pa.ArrowException, LookupError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: cannot be read ({in_one_line(error)}); move it away to go on without it") from None
