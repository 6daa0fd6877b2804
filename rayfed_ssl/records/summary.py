"""``summary.json``: a run's results, from its committed tables, so that a resumed run gives the same summary.

Accuracies are fractions. Tags: ``eval/<protocol>`` with client null is the global encoder; where only clients are
evaluated, the value is ``{client: value}``. Round 0 is before training, ``eval/pixels_<protocol>`` a baseline on
raw pixels. ``select/<protocol>`` is measured on training images that nobody trained on, ``features/<name>`` describes
features without labels, ``untrained_features`` being those of round 0; a run without them has none of these keys.
Likewise ``replies``, where a virtual clock ran: who was asked, late or lost there. ``dropped`` has nothing to do with
the clock: it counts clients whose call failed.
``wall_s`` is the time from the first record to the last, each part of a resumed run by itself: imports, Ray's start and
the reading of images come before the first record.
Values that are not finite become null, because JSON has neither NaN nor infinity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rayfed_ssl.records.tables import EVALUATED, communication_parts, communication_totals, dropped_parts, read_metrics

PIXELS = "pixels_"
VOID = "system/void_round"  # 1 in a round that came to nothing; no other round has it
UNUSED_REPLIES = {  # on a virtual clock, why a reply was not used; FedBuff has the last two, and no other
    "late": "late", "dropped_out": "lost in mid-round", "gone": "gone before their reply", "lost": "lost or late",
    "stale": "too stale",
}  # fmt: skip
TEST_LABELS, HELD_OUT_LABELS, NO_LABELS = "test labels", "held-out labels", "no labels"  # what chose a round or trial
Accuracy = float | dict[str, float | None] | None
History = dict[str, dict[int, dict[int | None, float]]]  # protocol -> round -> client (None: global) -> value


def history(metrics: pa.Table, group: str = "eval") -> History:
    """The rows ``<group>/<name>`` by name, round and client; a global value hides its clients' values."""
    tags = metrics["tag"].cast(pa.string())
    found: History = {}
    for row in metrics.filter(pc.match_substring_regex(tags, f"^{group}/[^/]+$")).to_pylist():
        rounds = found.setdefault(row["tag"].removeprefix(f"{group}/"), {})
        rounds.setdefault(row["round"], {})[row["client"]] = row["value"]
    for rounds in found.values():
        for round, values in rounds.items():
            if None in values:
                rounds[round] = {None: values[None]}
    return found


def evaluated_rounds(metrics: pa.Table, besides: Sequence[str] = ()) -> set[int]:
    """The rounds in which anything was evaluated ``besides`` these tags."""
    tags = metrics["tag"].cast(pa.string())
    evaluated = pc.match_substring_regex(tags, f"^({'|'.join(EVALUATED)})")
    others = pc.is_in(tags, pa.array(besides, pa.string()))
    return set(metrics.filter(pc.and_(evaluated, pc.invert(others)))["round"].to_pylist())


def best_and_last(metrics: pa.Table) -> tuple[dict[str, dict[str, Any]], dict[str, Accuracy]]:
    """``({protocol: {"value", "round", "by"}}, {protocol: value or {client: value}})``: the best and the last one.

    The best round is that with the highest value on held-out images, ``select/<protocol>``, given as ``select``, where
    there is one (``by``: "held-out labels"), else the one with the highest value itself (``by``: "test labels"). It is
    one of the trained rounds; of clients' values the mean counts; of equal rounds the earlier is the best, and one
    whose mean is not finite never is. A run without a trained round answers with round 0.
    """
    from_round = _first_trained(metrics)
    chosen_by = history(metrics, "select")
    best: dict[str, dict[str, Any]] = {}
    last: dict[str, Accuracy] = {}
    for protocol, rounds in sorted(history(metrics).items()):
        trained = sorted(round for round in rounds if round >= from_round)
        if protocol.startswith(PIXELS) or not trained:
            continue
        last[protocol] = _accuracy(rounds[trained[-1]])
        means = {round: fmean(rounds[round].values()) for round in trained}
        select = {round: fmean(values.values()) for round, values in chosen_by.get(protocol, {}).items()}
        by = {round: select[round] for round in trained if round in select} or means
        finite = [round for round in by if math.isfinite(by[round]) and math.isfinite(means[round])]
        if finite:
            at = max(finite, key=lambda round: (by[round], -round))
            found = {"value": means[at], "round": at}
            if by is means:
                best[protocol] = {**found, "by": TEST_LABELS}
            else:
                best[protocol] = {**found, "by": HELD_OUT_LABELS, "select": by[at]}
    return best, last


def last_of(metrics: pa.Table, group: str) -> dict[str, Accuracy]:
    """``{name: value or {client: value}}`` of ``<group>/<name>`` in the last trained round that has it; a run without a
    trained round answers with round 0.
    """
    named = sorted(history(metrics, group).items())
    return {name: _accuracy(at[max(at)]) for name, at in named if max(at) >= _first_trained(metrics)}


def _first_trained(metrics: pa.Table) -> int:
    """1, but 0 where nothing of a later round is recorded."""
    return 1 if metrics.num_rows and pc.max(metrics["round"]).as_py() >= 1 else 0


def rounds_to(metrics: pa.Table, targets: Sequence[float]) -> dict[str, dict[str, int | None]]:
    """``{protocol: {target: round}}``: the first evaluated round with at least that accuracy, of clients' values their
    mean; None where no round has it. Round 0, the untrained encoder, does not count.
    """
    found: dict[str, dict[str, int | None]] = {}
    for protocol, rounds in sorted(history(metrics).items()):
        if not protocol.startswith(PIXELS):
            means = {round: fmean(rounds[round].values()) for round in sorted(rounds) if round}
            first = {target: next((t for t, mean in means.items() if mean >= target), None) for target in targets}
            found[protocol] = {f"{target:g}": round for target, round in first.items()}
    return found


def rounds_s(metrics: pa.Table) -> float:
    """Seconds of all rounds, without the start and without what the first of several runs measures for all of them."""
    seconds = pc.sum(metrics.filter(pc.equal(metrics["tag"], "system/round_s"))["value"]).as_py()
    return float(seconds or 0.0)


def virtual_seconds(metrics: pa.Table) -> dict[int, float]:
    """Round -> virtual seconds since the start when it was over; round 0 began the run. Empty without a clock."""
    rows = metrics.filter(pc.equal(metrics["tag"].cast(pa.string()), "time/virtual_s"))
    found = dict(sorted(zip(rows["round"].to_pylist(), rows["value"].to_pylist(), strict=True)))
    return {0: 0.0, **found} if found else {}


def summarise(
    folder: Path,
    *,
    method: str,
    dataset: str,
    seed: int,
    rounds: int,
    clients: int,
    status: str,
    epsilon: float | Mapping[int, float] | None = None,
) -> dict[str, Any]:
    """The summary of the run in ``folder``, from its committed metrics and bookings.

    Args:
        rounds: completed rounds.
        epsilon: the privacy spent: None without a guarantee, one value, or one per client.
        status: e.g. "complete".
    """
    metrics = read_metrics(folder)
    best, last = best_and_last(metrics)
    evaluated = history(metrics)
    untrained = {name: _accuracy(at[0]) for name, at in sorted(evaluated.items()) if 0 in at}
    wall_s = pc.max(metrics["wall_s"]).as_py()
    before = {name: _accuracy(at[0]) for name, at in sorted(history(metrics, "features").items()) if 0 in at}
    more = {
        "select": last_of(metrics, "select"),
        "features": last_of(metrics, "features"),
        "untrained_features": before,
    }
    return {
        "method": method,
        "dataset": dataset,
        "seed": seed,
        "rounds": rounds,
        "clients": clients,
        "accuracy": last,
        "best": best,
        "untrained": {name: value for name, value in untrained.items() if not name.startswith(PIXELS)},
        "pixels": {name.removeprefix(PIXELS): value for name, value in untrained.items() if name.startswith(PIXELS)},
        "dropped": dropped(folder),
        "void_rounds": void_rounds(metrics),
        "communication": communication_totals(communication_parts(folder).read(["direction", "bytes"])),
        "epsilon": _epsilon(epsilon),
        "wall_s": 0.0 if wall_s is None else wall_s,
        "train_images_per_s": _images_per_s(metrics),
        "status": status,
        **({"replies": found} if (found := replies(metrics)) else {}),
        **{name: values for name, values in more.items() if values},
    }


def replies(metrics: pa.Table) -> dict[str, int]:
    """On a virtual clock, over all rounds: how many clients were ``asked``, and how many of their replies were not
    used, by the keys of ``UNUSED_REPLIES``. Empty without a clock.
    """
    tags = metrics["tag"].cast(pa.string())
    found = {kind: metrics.filter(pc.equal(tags, f"system/{kind}"))["value"] for kind in ("asked", *UNUSED_REPLIES)}
    return {kind: round(sum(values.to_pylist())) for kind, values in found.items() if len(values)}


def replies_text(replies: Mapping[str, int]) -> str:
    """``52 asked for; 3 late, 5 lost in mid-round``."""
    of = ", ".join(f"{replies[kind]:,} {told}" for kind, told in UNUSED_REPLIES.items() if replies.get(kind))
    return f"{replies.get('asked', 0):,} asked for; {of or 'none late or lost'}"


def dropped(folder: Path) -> dict[str, int]:
    """How many clients were left out because their call failed (``on_client_error: drop``), and how often, each client
    counted once per round.
    """
    rows = dropped_parts(folder).read(["round", "client"]).to_pylist()
    return {
        "clients": len({row["client"] for row in rows}),
        "times": len({(row["round"], row["client"]) for row in rows}),
    }


def void_rounds(metrics: pa.Table) -> int:
    """How many rounds came to nothing."""
    return len(metrics.filter(pc.equal(metrics["tag"].cast(pa.string()), VOID)))


def _images_per_s(metrics: pa.Table) -> float | None:
    """``train/images`` over ``system/round_s``, both summed over trained rounds; None before the first."""
    trained = metrics.filter(pc.greater_equal(metrics["round"], 1))
    tags = trained["tag"].cast(pa.string())
    images = trained.filter(pc.equal(tags, "train/images"))
    of_all = images.filter(pc.is_null(images["client"]))
    count = pc.sum((of_all if of_all.num_rows else images)["value"]).as_py()
    seconds = pc.sum(trained.filter(pc.equal(tags, "system/round_s"))["value"]).as_py()
    return _finite(count / seconds) if count is not None and seconds else None


def _accuracy(values: Mapping[int | None, float]) -> Accuracy:
    if None in values:
        return _finite(values[None])
    return {str(client): _finite(values[client]) for client in sorted(c for c in values if c is not None)}


def _epsilon(epsilon: float | Mapping[int, float] | None) -> Accuracy:
    if isinstance(epsilon, Mapping):
        return {str(client): _finite(value) for client, value in sorted(epsilon.items())}
    return None if epsilon is None else _finite(epsilon)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
