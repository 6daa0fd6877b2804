"""Figures of a method's own records: a small figure for each tag, and matrices over pairs of clients.

A tag that is not in ``WORDS`` gets a figure under its own name, so plug-in methods have figures, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import fmean

import numpy as np
import pyarrow.compute as pc
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rayfed_ssl.base.text import printable
from rayfed_ssl.report.folder import RunFolder
from rayfed_ssl.report.formats import number, short
from rayfed_ssl.report.style import Drawing, Studio, lines, matrix

WORDS = {  # tag -> title, label of the axis, caption
    "train/loss": ("Training loss", "loss", "Mean over the round's images."),
    "client/loss": ("Loss by client", "loss", ""),
    "train/alpha": ("Weight of own correlations", "alpha", "Mean over clients; below 1, others' correlations count."),
    "fedfoa/distance": ("Distance of correlations", "distance", "Mean over pairs of clients; it falls as they agree."),
    "fedfoa/trace": ("Trace of correlations", "trace of R", "Mean over the memory bank."),
    "client/trace": ("Trace by client", "trace of R", "Of the batch means that clients send."),
    "client/admitted": ("Peers admitted", "peers per batch", "Others' matrices whose trace exceeds the batch's."),
    "flesd/break_even_ratio": ("Bytes against weights", "ratio", "Representations over weights; below 1, cheaper."),
    "server/kl_first_epoch": ("Distillation, first epoch", "KL", "Student against the ensemble's similarities."),
    "server/kl_last_epoch": ("Distillation, last epoch", "KL", "Student against the ensemble's similarities."),
    "fedca/union": ("Dictionary entries at the server", "entries", "All clients' last uploads together."),
    "fedlinked/targets": ("Clients with a target", "clients", "Those for whom others' representations are of use."),
    "client/distillation": ("Distillation by client", "loss", "Towards the target that others' maps make."),
    "client/rb_accuracy": ("Accuracy on own held-out images", "accuracy", "What the best round is chosen by."),
    "client/es_loss": ("Early-stopping loss", "loss", ""),
    "client/epochs": ("Local epochs", "epochs", "Until early stopping."),
    "client/best_round": ("Round rolled back to", "round", ""),
    "fedu2/step": ("Length of the server's step", "step", ""),
    "fedu2/active": ("Clients that bound the step", "clients", "With a positive weight in the common direction."),
    "fedu2/agreement": ("Least agreeing client", "cosine", "Least cosine of a client's update to the server's step."),
    "orchestra/clusters": (
        "Global clusters in use", "clusters", "exp of the entropy of their shares of clients' centroids; 1: collapse.",
    ),
    "orchestra/cosine": ("Fit of the global clusters", "cosine", "Of clients' centroids to the nearest global one."),
    "ldawa/cosine": ("Cosine to the starting model", "cosine", "Mean over tensors and clients."),
    "client/divergence": ("Divergence from the global model", "divergence", ""),
    "client/kept_share": ("Share kept of the own model", "share", ""),
    "client/takes_predictor": ("Takes the global predictor", "0 or 1", ""),
    "server/step": ("Length of the server's step", "step", "Of its optimiser, towards the clients' mean."),
    "fedbuff/staleness": ("Staleness of updates", "versions", "Mean over the buffer."),
    "fedbuff/version": ("Version of the model", "version", ""),
    "system/clients": ("Clients in the round", "clients", ""),
    "system/asked": ("Clients asked", "clients", "On the virtual clock."),
    "system/late": ("Late replies", "clients", "After the deadline, or after those that were wanted; not used."),
    "system/dropped_out": ("Lost in mid-round", "clients", "By system.drop_out."),
    "system/gone": ("Gone before their reply", "clients", "As the trace has it."),
    "system/lost": ("Replies lost or late", "clients", "FedBuff."),
    "system/stale": ("Replies too stale", "clients", "Older than server.staleness_max; not used."),
    "system/dropped_clients": ("Clients that failed", "clients", "Left out: on_client_error is drop."),
}  # fmt: skip
ELSEWHERE = re.compile(
    r"eval/|select/|features/|privacy/|communication/|time/|system/(round_s|images_per_s)|train/(images|lr)|"
    r"client/seconds|server/(seconds|images|lr|loss)$|fedfoa/distance_|fedlinked/(A|likeness)_"
)
PAIR = re.compile(r"(\d+)_(\d+)")
MATRICES = {  # prefix of the tags -> title, rows, columns, label, whether the matrix is symmetric
    "fedfoa/distance_": ("Distance between clients", "client", "client", "distance", True),
    "fedlinked/likeness_": ("Likeness after a map", "client", "client", "likeness", True),
    "fedlinked/A_": ("Utility", "source", "target", "A", False),
}
OF_CLIENTS = ("client/loss", *(tag for tag in WORDS if tag.startswith("system/")))  # shown beside what clients hold
CURVES = 8  # the most clients with a line of their own
PAIRED = 500  # the most clients in a matrix
MOST = 24  # the most figures


def figures(run: RunFolder, studio: Studio, tags: Sequence[str] | None = None) -> Iterator[Drawing]:
    """The figures of ``tags``. Without ``tags``, those of the method: its matrices, then curves in the order of
    ``WORDS``, then the other tags that were recorded.
    """
    if tags is None:
        for prefix in MATRICES:
            yield from _matrices(run, studio, prefix)
        yield from _dictionary_age(run, studio)
        known = [tag for tag in WORDS if tag not in OF_CLIENTS]
        tags = [*known, *(tag for tag in run.series if tag not in WORDS and not ELSEWHERE.match(tag))]
    for tag in [tag for tag in tags if tag in run.series][:MOST]:
        yield from _curves(run, studio, tag)


def _curves(run: RunFolder, studio: Studio, tag: str) -> Iterator[Drawing]:
    """A tag over rounds: the federation's value, or a line per client; for many clients their mean and extremes."""
    rounds = {t: {c: v for c, v in values.items() if np.isfinite(v)} for t, values in run.series[tag].items()}
    rounds = {t: values for t, values in rounds.items() if values}
    steady = len({value for values in rounds.values() for value in values.values()}) < 2
    if steady and tag.startswith("system/"):  # a tile shows the value
        return
    if not rounds:
        return
    title, label, caption = WORDS.get(tag, (printable(tag, 60), printable(tag.rpartition("/")[2], 30), ""))
    shown = _lines(rounds, run)
    last = max(rounds)
    yield studio.draw(
        f"tag_{tag}", title,
        lambda f: _paint(f, shown, label),
        alt=f"{title} over rounds: {number(fmean(rounds[last].values()))} in round {last}"
        + (", mean of clients." if None not in rounds[last] else "."),
        caption=caption, height=1.9 + 0.14 * (len(shown) // 3 if len(shown) > 1 else 0),
    )  # fmt: skip


def _paint(figure: Figure, shown: dict[str, dict[float, float]], label: str) -> None:
    """Lines over rounds."""
    lines(figure, shown, xlabel="round", ylabel=label)


def _lines(rounds: dict[int, dict[int | None, float]], run: RunFolder) -> dict[str, dict[float, float]]:
    """Name -> round -> value: a line per client, or mean and extremes if there are more than ``CURVES`` clients."""
    clients = sorted({c for values in rounds.values() for c in values if c is not None})
    if not clients:
        return {"value": {float(t): values[None] for t, values in rounds.items()}}
    if len(clients) <= CURVES:
        names = [short(run.client(c)) for c in clients]
        distinct = (
            names if len(set(names)) == len(names) else [f"{n} ({c})" for n, c in zip(names, clients, strict=True)]
        )
        return {
            name: {float(t): v[c] for t, v in rounds.items() if c in v}
            for name, c in zip(distinct, clients, strict=True)
        }
    each = {float(t): list(values.values()) for t, values in rounds.items()}
    return {
        "mean": {t: fmean(values) for t, values in each.items()},
        "largest": {t: max(values) for t, values in each.items()},
        "smallest": {t: min(values) for t, values in each.items()},
    }


# -- pairs of clients --------------------------------------------------------------------------------------------------


def pairs(run: RunFolder, prefix: str, *, mirrored: bool) -> dict[int, NDArray[np.float64]]:
    """Round -> the matrix (N, N) of the values of the tags ``<prefix>i_j``; NaN where nothing was recorded. Empty if it
    would have more than ``PAIRED`` rows.
    """
    recorded: dict[int, dict[tuple[int, int], float]] = {}
    for tag, rounds in run.series.items():
        match = PAIR.fullmatch(tag.removeprefix(prefix)) if tag.startswith(prefix) else None
        for t, values in rounds.items() if match else ():
            assert match is not None
            if None in values:
                recorded.setdefault(t, {})[int(match[1]), int(match[2])] = values[None]
    side = 1 + max((max(pair) for values in recorded.values() for pair in values), default=-1)
    if side > PAIRED:
        return {}
    matrices = {}
    for t, entries in sorted(recorded.items()):
        square = np.full((side, side), np.nan)
        for (i, j), value in entries.items():
            square[i, j] = value
            if mirrored:
                square[j, i] = value
        matrices[t] = square
    return matrices


def _matrices(run: RunFolder, studio: Studio, prefix: str) -> Iterator[Drawing]:
    """The matrices of the first and the last round that have one, in the same colours."""
    title, rows, columns, label, mirrored = MATRICES[prefix]
    by_round = pairs(run, prefix, mirrored=mirrored)
    shown = list(dict.fromkeys((min(by_round), max(by_round)))) if by_round else []
    limits = (
        min((float(np.nanmin(by_round[t])) for t in shown), default=0.0),
        max((float(np.nanmax(by_round[t])) for t in shown), default=1.0),
    )
    for t in shown:
        values = by_round[t]
        names = [short(run.client_names.get(c, str(c)), 10) for c in range(len(values))]
        name = re.sub(r"[^A-Za-z]+", "_", prefix).strip("_")
        yield studio.draw(
            f"{name}_round_{t}", f"{title}, round {t}",
            lambda f, v=values, n=names: matrix(f, v, limits, rows, columns, label, n),  # type: ignore[misc]
            alt=f"{title} in round {t}: {len(values)} by {len(values)} clients, from "
            f"{number(float(np.nanmin(values)))} to {number(float(np.nanmax(values)))}.",
            height=2.6,
        )  # fmt: skip


# -- FedCA's dictionary ------------------------------------------------------------------------------------------------


def dictionary_ages(run: RunFolder) -> dict[int, dict[int, int]]:
    """Round -> client -> the age, in rounds, of the entries that the server has of it after that round: 0 if it
    uploaded them in that round.

    They follow from the bookings: a client's entries are replaced whenever it uploads the field ``dictionary``.
    """
    rows = run.bookings
    rows = rows.filter(
        pc.and_(pc.equal(rows["field"].cast("string"), "dictionary"), pc.equal(rows["direction"].cast("string"), "up"))
    )
    uploads: dict[int, set[int]] = {}
    for t, client in zip(rows["round"].to_pylist(), rows["client"].to_pylist(), strict=True):
        uploads.setdefault(t, set()).add(client)
    newest: dict[int, int] = {}
    ages = {}
    for t in range(min(uploads, default=1), run.rounds + 1):
        newest |= dict.fromkeys(uploads.get(t, ()), t)
        ages[t] = {client: t - sent for client, sent in sorted(newest.items())}
    return {t: of_clients for t, of_clients in ages.items() if of_clients}


def _dictionary_age(run: RunFolder, studio: Studio) -> Iterator[Drawing]:
    """The mean and the largest age of the dictionary's entries over rounds."""
    ages = dictionary_ages(run)
    if not ages:
        return
    shown = {
        "mean": {float(t): fmean(of.values()) for t, of in ages.items()},
        "oldest": {float(t): float(max(of.values())) for t, of in ages.items()},
    }
    yield studio.draw(
        "dictionary_age", "Age of the dictionary", lambda f: _paint(f, shown, "rounds"),
        alt=f"Rounds since clients uploaded their dictionary entries, over rounds; at most "
        f"{max(max(of.values()) for of in ages.values())}.",
        caption="Rounds since a client sent the entries that others contrast with; 0: in the same round.", height=2.0,
    )  # fmt: skip
