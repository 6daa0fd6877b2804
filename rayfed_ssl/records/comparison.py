"""Runs compared: a measure's mean and spread over seeds, paired differences to the first row, bytes, hours, epsilon.

A row is one set of settings; its runs differ in the seed alone. Values are those of the last round, so nothing is
chosen by test labels. Shapes: n seeds that two rows have in common.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayfed_ssl.base.late import Late
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import load_untrusted
from rayfed_ssl.evaluation import OWN
from rayfed_ssl.records.environment import recorded
from rayfed_ssl.records.guarantee import Guarantee, guarantee
from rayfed_ssl.records.judged import MARGIN, Judgement, judged
from rayfed_ssl.records.leaked import Audited, read_leak
from rayfed_ssl.records.same_images import have_other_images
from rayfed_ssl.records.summary import PIXELS, history, rounds_s, virtual_seconds
from rayfed_ssl.records.tables import read_communication, read_metrics
from rayfed_ssl.settings import files as configfile

_stats = Late("scipy.stats")
LEVEL = 0.95  # of confidence
REACHED = 0.9  # of the way from the untrained encoder's accuracy to a run's own final one
PREFERRED = ("linear", "knn", "fewshot", "task")  # of several scores, the first of these is the main one
HOUR_S = 3600.0
UNTRAINED, RAW_PIXELS = "untrained encoder", "raw pixels"
Curve = dict[int, float]  # round -> value, of clients' values the mean


@dataclass(frozen=True)
class OneRun:
    """What a run folder says. Measures are named by their tags, ``eval/`` left out: ``knn``, ``select/knn``, ..

    ``curves``: accuracies over rounds. ``sent``: bytes up and down until the end of each round. ``virtual_s``: seconds
    of the clients' clock until then, empty without one. ``wall_s``: seconds of the whole run, ``rounds_s``: of its
    rounds. ``split``: a digest of who holds which images. ``of_clients``: whether values are means over clients with
    encoders of their own. ``test_images``: what accuracies were measured on, of own tasks those of all clients; None
    where the run did not say. ``images``: the digest of the data set, likewise. ``audited``: what ``leak`` found.
    ``noted``: what it said before its first round.
    """

    folder: Path
    seed: int
    settings: dict[str, Any]
    status: str
    rounds: int
    values: dict[str, float]
    curves: dict[str, Curve]
    untrained: dict[str, float]
    pixels: dict[str, float]
    up_bytes: int
    down_bytes: int
    sent: dict[int, int]
    virtual_s: Curve
    guarantee: Guarantee | None
    wall_s: float
    rounds_s: float
    split: str | None
    of_clients: bool
    test_images: int | None = None
    task_test_images: int | None = None
    images: str | None = None
    audited: Audited | None = None
    noted: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        return str(self.settings["method"]["name"])

    @property
    def total_bytes(self) -> int:
        return self.up_bytes + self.down_bytes

    def has_other_images(self, other: OneRun) -> bool:
        """Whether the data set is another one than the other run's."""
        a, b = (run.settings.get("data") or {} for run in (self, other))
        return have_other_images((self.images, a), (other.images, b))

    def bytes_until(self, round: int) -> int:
        """Bytes up and down until the end of ``round``."""
        return max((count for t, count in self.sent.items() if t <= round), default=0)

    def hours_until(self, round: int) -> float | None:
        """Hours of the virtual clock until the end of ``round``; None without a clock."""
        known = [seconds for t, seconds in self.virtual_s.items() if t <= round]
        return max(known) / HOUR_S if known else None


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n - 1 in the denominator; None of one value) of ``count`` values."""

    mean: float
    deviation: float | None
    count: int


@dataclass(frozen=True)
class Difference:
    """The mean of n paired differences and its 95% confidence interval; None where n is 1."""

    mean: float
    low: float | None
    high: float | None
    count: int

    def judged(self, margin: float = MARGIN) -> Judgement | None:
        """What it is called (see :mod:`rayfed_ssl.records.judged`); None without an interval."""
        return None if self.low is None or self.high is None else judged(self.low, self.high, margin)


@dataclass(frozen=True)
class Row:
    """One row: ``values`` by measure and seed. ``runs`` are the complete ones; ``unfinished`` says what became of the
    others. ``differing``: settings beyond the method that are not the first row's: key -> (the first row's, its own).
    """

    name: str
    values: dict[str, dict[int, float]]
    runs: dict[int, OneRun] = field(default_factory=dict)
    unfinished: dict[str, str] = field(default_factory=dict)
    differing: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def trained(self) -> bool:
        """Whether it stands for runs, and not for what they began with."""
        return bool(self.runs or self.unfinished)

    def spread(self, measure: str) -> Spread | None:
        return spread(list(self.values.get(measure, {}).values()))

    def difference(self, first: Row, measure: str) -> Difference | None:
        """To the first row, over the seeds that both have, on the same images; None where there are none, or this is
        the first row.
        """
        if self is first:
            return None
        own, theirs = self.values.get(measure, {}), first.values.get(measure, {})
        seeds = sorted((own.keys() & theirs.keys()) - set(self.on_other_images(first)))
        return difference([own[seed] - theirs[seed] for seed in seeds])

    def on_other_images(self, first: Row) -> list[int]:
        """The seeds whose runs have other images than the first row's: nothing can be paired there."""
        common = sorted(self.runs.keys() & first.runs.keys())
        return [seed for seed in common if self.runs[seed].has_other_images(first.runs[seed])]

    def mean(self, of: Sequence[float | None]) -> float | None:
        """The mean of numbers, one per run; None where one of them is missing."""
        known = [number for number in of if number is not None]
        return fmean(known) if known and len(known) == len(of) else None

    @property
    def bytes_total(self) -> float | None:
        return self.mean([run.total_bytes for run in self.runs.values()])

    @property
    def bytes_per_round(self) -> float | None:
        return self.mean([run.total_bytes / run.rounds if run.rounds else None for run in self.runs.values()])

    def bytes_to(self, measure: str) -> float | None:
        """Mean bytes until a run had first made 90% of its own gain in accuracy: see :func:`reached`."""
        return self.mean([None if t is None else run.bytes_until(t) for run, t in self._reached(measure)])

    def hours_to(self, measure: str) -> float | None:
        """Mean virtual hours until then; None without a clock."""
        return self.mean([None if t is None else run.hours_until(t) for run, t in self._reached(measure)])

    @property
    def virtual_hours(self) -> float | None:
        return self.mean([run.hours_until(run.rounds) for run in self.runs.values()])

    @property
    def guarantee(self) -> Guarantee | None:
        """That of the largest epsilon of its runs; None where one has none."""
        known = [run.guarantee for run in self.runs.values() if run.guarantee is not None]
        return max(known, key=lambda of: of.epsilon) if known and len(known) == len(self.runs) else None

    @property
    def epsilon(self) -> float | None:
        return None if self.guarantee is None else self.guarantee.epsilon

    @property
    def wall_s(self) -> float | None:
        return self.mean([run.wall_s for run in self.runs.values()])

    @property
    def rounds_s(self) -> float | None:
        return self.mean([run.rounds_s for run in self.runs.values()])

    def _reached(self, measure: str) -> Iterator[tuple[OneRun, int | None]]:
        for run in self.runs.values():
            yield run, reached(run.curves.get(measure, {}))


@dataclass(frozen=True)
class Comparison:
    """Rows, the first being what the others are compared with; the untrained encoder and raw pixels come last.

    ``left_out``: variants that did not fit the base configuration, and why.
    """

    rows: tuple[Row, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def first(self) -> Row:
        return self.rows[0]

    @property
    def trained(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.trained)

    @property
    def measures(self) -> list[str]:
        """What some method was measured by: scores, those on held-out images, features' descriptions. What only raw
        pixels or an untrained encoder have compares nothing.
        """
        names = dict.fromkeys(name for row in self.trained for name in row.values)
        return sorted(names, key=lambda name: ("features/" in name, "select/" in name))

    @property
    def scores(self) -> list[str]:
        """The accuracies among them, measured on test images."""
        return [name for name in self.measures if "/" not in name]

    @property
    def main(self) -> str | None:
        """The accuracy that costs are counted by."""
        return next(iter(ordered(self.scores)), None)

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for row in self.trained for seed in row.runs})

    @property
    def other_splits(self) -> dict[str, list[int]]:
        """Row -> the seeds in which its clients hold other images than the first row's, or none has said which."""
        found = {}
        for row in self.trained[1:]:
            common = row.runs.keys() & self.first.runs.keys()
            elsewhere = row.on_other_images(self.first)
            splits = {seed: (row.runs[seed].split, self.first.runs[seed].split) for seed in sorted(common)}
            other = [seed for seed, (a, b) in splits.items() if seed in elsewhere or a is None or a != b]
            if other:
                found[row.name] = other
        return found

    @property
    def other_images(self) -> dict[str, list[int]]:
        """Row -> the seeds in which its runs have another data set than the first row's."""
        found = {row.name: row.on_other_images(self.first) for row in self.trained[1:]}
        return {name: seeds for name, seeds in found.items() if seeds}


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and spread; None of no values."""
    if not values:
        return None
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(float(np.mean(values)), deviation, len(values))


def difference(pairs: Sequence[float]) -> Difference | None:
    """The mean of paired differences (n,) with its interval by Student's t with n - 1 degrees of freedom."""
    found = spread(pairs)
    if found is None or found.deviation is None:
        return None if found is None else Difference(found.mean, None, None, 1)
    quantile = float(_stats.t.ppf((1 + LEVEL) / 2, found.count - 1))
    half = quantile * found.deviation / math.sqrt(found.count)
    return Difference(found.mean, found.mean - half, found.mean + half, found.count)


def reached(curve: Curve, share: float = REACHED) -> int | None:
    """The first evaluated round with at least ``share`` of the way from round 0, the untrained encoder, to the last
    value. None where round 0 was not evaluated, or where nothing was gained.
    """
    rounds = sorted(t for t in curve if t)
    if not rounds or 0 not in curve or not math.isfinite(gain := curve[rounds[-1]] - curve[0]) or gain <= 0:
        return None
    return next(t for t in rounds if t == rounds[-1] or curve[t] >= curve[0] + share * gain)


def ordered(scores: Sequence[str]) -> list[str]:
    """The scores, the main one first: linear probe, kNN, few-shot, own task, then the others by name."""
    return sorted(scores, key=lambda name: (PREFERRED.index(name) if name in PREFERRED else len(PREFERRED), name))


# -- run folders -------------------------------------------------------------------------------------------------------


def read_run(folder: Path) -> OneRun:
    """What the run in ``folder`` came to. Runs no code of its ``imports``.

    Raises:
        UserError: there is no run that has ended, or its records are damaged.
    """
    settings = _settings(folder)
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        told = {key: summary[key] for key in ("status", "rounds", "communication", "epsilon", "wall_s")}
    except FileNotFoundError:
        raise UserError(f"{folder}: found no summary.json, so the run has not ended; --resume finishes it") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder / 'summary.json'}: cannot be read ({error!r}); the run's records are damaged"
        ) from None
    metrics, known = read_metrics(folder), recorded(folder)
    values, curves, of_clients = {}, {}, False
    for group in ("eval", "select", "features"):
        for name, rounds in sorted(history(metrics, group).items()):
            if not name.startswith(OWN):  # on clients' own test images, whoever's encoder it is
                of_clients |= any(None not in values_of for t, values_of in rounds.items() if t)
            curve = {t: fmean(values_of.values()) for t, values_of in sorted(rounds.items())}
            curves[name if group == "eval" else f"{group}/{name}"] = curve
    pixels = {name.removeprefix(PIXELS): curve[0] for name, curve in curves.items() if name.startswith(PIXELS)}
    curves = {name: curve for name, curve in curves.items() if not name.startswith(PIXELS)}
    values = {name: curve[max(curve)] for name, curve in curves.items() if max(curve) > 0}
    return OneRun(
        folder=folder,
        seed=int(settings["seed"]),
        settings=settings,
        status=str(told["status"]),
        rounds=int(told["rounds"]),
        values=values,
        curves={name: curve for name, curve in curves.items() if "/" not in name},
        untrained={name: curve[0] for name, curve in curves.items() if 0 in curve},
        pixels=pixels,
        up_bytes=int(told["communication"]["up_bytes"]),
        down_bytes=int(told["communication"]["down_bytes"]),
        sent=_sent(folder),
        virtual_s=virtual_seconds(metrics),
        guarantee=guarantee(summary),
        wall_s=float(told["wall_s"]),
        rounds_s=rounds_s(metrics),
        split=_split(folder),
        of_clients=of_clients,
        test_images=_images(summary, "test_images"),
        task_test_images=_images(summary, "task_test_images"),
        images=known.images,
        audited=read_leak(folder),
        noted=known.notes,
    )


def _images(summary: Mapping[str, Any], key: str) -> int | None:
    """A number of images that the summary names."""
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


def _sent(folder: Path) -> dict[int, int]:
    """Bytes up and down until the end of each round that has any."""
    sums = read_communication(folder).select(["round", "bytes"]).group_by("round").aggregate([("bytes", "sum")])
    by_round = sorted(zip(sums["round"].to_pylist(), sums["bytes_sum"].to_pylist(), strict=True))
    totals = np.cumsum([count for _, count in by_round], dtype=np.int64)
    return {t: int(total) for (t, _), total in zip(by_round, totals, strict=True)}


def _split(folder: Path) -> str | None:
    """A digest of who holds which images: client, split and index of every row of ``partition.parquet``."""
    path = folder / "partition.parquet"
    if not path.is_file():
        return None
    rows = pq.read_table(path, columns=["client", "split", "index"]).sort_by(
        [(n, "ascending") for n in ("client", "index")]
    )
    digest = hashlib.sha256()
    digest.update(np.asarray(pc.fill_null(rows["client"], -1), np.int32).tobytes())
    digest.update("\n".join(rows["split"].cast(pa.string()).to_pylist()).encode())
    digest.update(np.asarray(rows["index"], np.int64).tobytes())
    return digest.hexdigest()
