"""Reads from a run folder what a comparison needs to know about the run."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line, printable
from rayfed_ssl.config import load_untrusted
from rayfed_ssl.evaluation import OWN
from rayfed_ssl.evaluation.material import SELECT
from rayfed_ssl.records.environment import recorded
from rayfed_ssl.records.guarantee import Guarantee, guarantee
from rayfed_ssl.records.leaked import Audited, read_leak
from rayfed_ssl.records.outcomes import ImageShares, read_outcomes
from rayfed_ssl.records.same_images import have_other_images
from rayfed_ssl.records.summary import PIXELS, history, rounds_s, virtual_seconds, void_rounds
from rayfed_ssl.records.summary_file import SUMMARY, read_summary
from rayfed_ssl.records.tables import bytes_until, last_until, read_communication, read_metrics
from rayfed_ssl.settings import files as configfile

HOUR_S = 3600.0
Curve = dict[int, float]  # round -> value, of clients' values the mean: rounded once, so of equal values that value


class HeldOutImages(NamedTuple):
    """Identifies the images that were held out to choose by: their number, and a digest of their positions in the
    source and of their labels.
    """

    images: int
    digest: str


@dataclass(frozen=True)
class OneRun:
    """The facts in a run folder. Measures are named by their tags without ``eval/``: ``knn``, ``select/knn``, .."""

    folder: Path
    seed: int
    settings: dict[str, Any]
    status: str
    rounds: int
    values: dict[str, float]  # at the end; those that are not finite are missing, here and before training
    curves: dict[str, Curve]  # accuracies over rounds
    untrained: dict[str, float]
    pixels: dict[str, float]
    up_bytes: int
    down_bytes: int
    sent: dict[int, int]  # bytes up and down until the end of each round, ascending as all here that is by round
    virtual_s: Curve  # seconds of the clients' clock until the end of each round; empty without one
    guarantee: Guarantee | None
    wall_s: float  # of the whole run
    rounds_s: float  # of its rounds
    split: str | None  # a digest of who holds which images; None where the run did not say
    of_clients: bool  # whether values are means over clients with encoders of their own
    test_images: int | None = None  # what accuracies were measured on; None where the run did not say
    task_test_images: int | None = None  # the same of own tasks, those of all clients
    images: str | None = None  # the digest of the data set; None where the run did not say
    audited: Audited | None = None  # what ``leak`` found
    noted: tuple[str, ...] = ()  # what it said before its first round
    outcomes: ImageShares | None = None  # what its encoders had right, image by image; None where it did not keep it
    held_out: HeldOutImages | None = None  # images to choose by; None where the run did not say
    void_rounds: int = 0  # rounds that came to nothing
    by_client: Mapping[str, Mapping[int, float]] = field(default_factory=dict)  # each client's, of means over clients

    @property
    def method(self) -> str:
        return str(self.settings["method"]["name"])

    @property
    def started(self) -> bool:
        """Whether its encoders began with values of ``model.start``."""
        return (self.settings.get("model") or {}).get("start") is not None

    @property
    def total_bytes(self) -> int:
        return self.up_bytes + self.down_bytes

    def has_other_images(self, other: OneRun) -> bool:
        """Whether the data set is another one than the other run's."""
        a, b = (run.settings.get("data") or {} for run in (self, other))
        return have_other_images((self.images, a), (other.images, b))

    def measures_alike(self, other: OneRun, measure: str) -> bool:
        """Whether a measure is of the same images in the other run: of a data set's test images, of the same ones that
        were held out to choose by, and, where clients test on own images, of the same split.
        """
        if self.has_other_images(other):
            return False
        same_split = self.split is not None and self.split == other.split
        if measure.startswith(SELECT):
            return same_split or (self.held_out is not None and self.held_out == other.held_out)
        return same_split or not measure.startswith((OWN, "task"))

    def bytes_until(self, round: int) -> int:
        """Bytes up and down until the end of ``round``."""
        return last_until(self.sent, round) or 0

    def hours_until(self, round: int) -> float | None:
        """Hours of the virtual clock until the end of ``round``; None without a clock."""
        seconds = last_until(self.virtual_s, round)
        return None if seconds is None else seconds / HOUR_S


def read_run(folder: Path) -> OneRun:
    """Read the run in ``folder``, without running code of its ``imports``.

    Raises:
        UserError: there is no run that has ended, or its records are damaged.
    """
    settings = _settings(folder)
    summary = read_summary(folder)
    if summary is None:
        raise UserError(f"{folder}: found no {SUMMARY}, so the run has not ended; --resume finishes it")
    told = _told(folder / SUMMARY, summary)
    metrics, known = read_metrics(folder), recorded(folder)
    split, held_out = _partition(folder)
    values, curves, of_clients = {}, {}, False
    by_client: dict[str, dict[int, float]] = {}
    for group in ("eval", "select", "features"):
        for name, rounds in sorted(history(metrics, group).items()):
            if not name.startswith(OWN):  # on clients' own test images, of the global encoder or their own
                of_clients |= any(None not in values_of for t, values_of in rounds.items() if t)
            curve = {t: mean(values_of.values()) for t, values_of in sorted(rounds.items())}
            tag = name if group == "eval" else f"{group}/{name}"
            curves[tag] = curve
            by_client[tag] = {client: v for client, v in rounds[max(rounds)].items() if client is not None}
    pixels = {name.removeprefix(PIXELS): curve[0] for name, curve in curves.items() if name.startswith(PIXELS)}
    curves = {name: curve for name, curve in curves.items() if not name.startswith(PIXELS)}
    values = {name: curve[max(curve)] for name, curve in curves.items() if max(curve) > 0}
    untrained = {name: curve[0] for name, curve in curves.items() if 0 in curve}
    return OneRun(
        folder=folder,
        seed=int(settings["seed"]),
        settings=settings,
        values=_finite(values),
        curves={name: curve for name, curve in curves.items() if "/" not in name},
        untrained=_finite(untrained),
        pixels=_finite(pixels),
        sent=bytes_until(read_communication(folder)),
        virtual_s=virtual_seconds(metrics),
        rounds_s=rounds_s(metrics),
        split=split,
        of_clients=of_clients,
        test_images=_images(summary, "test_images"),
        task_test_images=_images(summary, "task_test_images"),
        images=known.images,
        audited=read_leak(folder),
        noted=known.notes,
        outcomes=read_outcomes(folder),
        held_out=held_out,
        void_rounds=void_rounds(metrics),
        by_client={tag: of for tag, of in by_client.items() if of},
        **told,
    )


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    """The values that are numbers: an area under the curve on test images of one class is NaN, as if not measured."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _told(path: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a summary has of a :class:`OneRun`, by its fields. Raises UserError for what a run does not write there."""
    try:
        return {
            "status": str(summary["status"]),
            "rounds": int(summary["rounds"]),
            "wall_s": float(summary["wall_s"]),
            "guarantee": None if summary["epsilon"] is None else guarantee(summary),
            **{key: int(summary["communication"][key]) for key in ("up_bytes", "down_bytes")},
        }
    except KeyError as error:
        raise UserError(f"{path}: found no {error}; the file is damaged") from None
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({printable(error)}); the file is damaged") from None


def _images(summary: Mapping[str, Any], key: str) -> int | None:
    """A number of images in the summary."""
    found = block.get(key) if isinstance(block := summary.get("evaluation"), Mapping) else None
    return found if isinstance(found, int) and found > 0 else None


def _settings(folder: Path) -> dict[str, Any]:
    """The run's configuration; as it was written where it needs code that this process does not have."""
    path = configfile.of_run(folder)
    written = configfile.read(path)
    try:
        return load_untrusted(path).model_dump(mode="json")
    except UserError:
        if isinstance(written.get("method"), Mapping) and isinstance(written.get("seed"), int):
            return written
        raise


def held_out_images(folder: Path) -> int | None:
    """How many images the run in ``folder`` held out to choose by; None where it says of none. Raises UserError for a
    damaged file.
    """
    found = _partition(folder)[1]
    return None if found is None else found.images


def _partition(folder: Path) -> tuple[str | None, HeldOutImages | None]:
    """A digest of who holds which images: client, split and index of every row of ``partition.parquet``; and which of
    them are held out to choose by. Raises UserError for a damaged file.
    """
    path = folder / "partition.parquet"
    if not path.is_file():
        return None, None
    try:
        rows = pq.read_table(path, columns=["client", "split", "index", "label"])
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path}: cannot be read ({in_one_line(error)}); the run's records are damaged there") from None
    rows = rows.sort_by([(name, "ascending") for name in ("client", "index")])
    digest = hashlib.sha256()
    digest.update(np.asarray(pc.fill_null(rows["client"], -1), np.int32).tobytes())
    digest.update("\n".join(rows["split"].cast(pa.string()).to_pylist()).encode())
    digest.update(np.asarray(rows["index"], np.int64).tobytes())
    chosen = rows.filter(pc.equal(rows["split"].cast(pa.string()), "select"))
    columns = [np.asarray(pc.fill_null(chosen[name], -1), np.int64).tobytes() for name in ("index", "label")]
    if not chosen.num_rows:
        return digest.hexdigest(), None
    return digest.hexdigest(), HeldOutImages(chosen.num_rows, hashlib.sha256(b"".join(columns)).hexdigest())
