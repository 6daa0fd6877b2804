"""Figures of what a run cost: bytes by message field, privacy spent, seconds by phase."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from matplotlib.figure import Figure

from rayfed_ssl.base.text import UNITS
from rayfed_ssl.report.folder import RunFolder
from rayfed_ssl.report.formats import size, span, upper
from rayfed_ssl.report.style import MUTED, SERIES, Drawing, Studio, legend_below, lines, rules, whole_numbers

LONGEST = 30  # the most characters of a bar's name
BARS = 10  # the most message fields with a bar of their own
ARROWS = {"up": "↑", "down": "↓"}


@dataclass(frozen=True)
class Field:
    """All bytes of one field of one operation's messages in one direction; ``share``: of all bytes."""

    direction: str
    operation: str
    name: str
    bytes: int
    share: float


def fields(run: RunFolder) -> list[Field]:
    """The bytes sent, by direction, operation and message field, the largest first."""
    if not run.bookings.num_rows:
        return []
    sums = run.bookings.group_by(["direction", "operation", "field"]).aggregate([("bytes", "sum")]).to_pylist()
    total = sum(row["bytes_sum"] for row in sums) or 1
    rows = [
        Field(row["direction"], row["operation"], row["field"], row["bytes_sum"], row["bytes_sum"] / total)
        for row in sums
    ]
    return sorted(rows, key=lambda row: (-row.bytes, row.direction, row.operation, row.name))


def communication(run: RunFolder, studio: Studio) -> Iterator[Drawing]:
    """A figure of the bytes by message field."""
    largest = fields(run)
    if not largest:
        return
    listing = ", ".join(f"{row.name} {row.direction} ({row.operation}) {size(row.bytes)}" for row in largest[:BARS])
    yield studio.draw(
        "communication", "Bytes by message field", lambda f: _field_bars(f, largest[:BARS]),
        alt=f"Bytes of all clients over the whole run by message field: {listing}.",
        caption="↑ sent by clients, ↓ received by clients; all rounds.", height=0.75 + 0.24 * min(len(largest), BARS),
    )  # fmt: skip


def _field_bars(figure: Figure, rows: list[Field]) -> None:
    axes = figure.add_subplot()
    largest = max(row.bytes for row in rows)
    unit, unit_name = next(((u, n) for u, n in UNITS if largest >= u), (1.0, "bytes"))
    for place, row in enumerate(rows):
        axes.barh(place, row.bytes / unit, height=0.62, color=SERIES[0 if row.direction == "up" else 4], linewidth=0)
        axes.annotate(size(row.bytes), (row.bytes / unit, place), (3, 0), textcoords="offset points", va="center",
                      fontsize=6.5)  # fmt: skip
    names = [f"{ARROWS.get(row.direction, '')} {row.name} ({row.operation})" for row in rows]
    names = [name if len(name) <= LONGEST else f"{name[: LONGEST - 2]}.." for name in names]
    axes.set_yticks(range(len(rows)), names, fontsize=6.5)
    axes.set(xlabel=unit_name, ylim=(len(rows) - 0.4, -0.6), xlim=(0, largest / unit * 1.35))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


# -- privacy -----------------------------------------------------------------------------------------------------------

EPSILONS = {"privacy/epsilon": "accountant", "privacy/epsilon_closed_form": "closed form"}


def privacy(run: RunFolder, studio: Studio) -> Iterator[Drawing]:
    """A figure of epsilon over rounds, for the client that has spent most."""
    curves = {name: _globally(run, tag) for tag, name in EPSILONS.items() if tag in run.series}
    curves = {name: points for name, points in curves.items() if points}
    if not curves:
        return
    last = next(iter(curves.values()))
    delta = run.told("privacy", "delta")
    yield studio.draw(
        "privacy", "Privacy spent", lambda f: _from_zero(f, curves),
        alt=f"Epsilon over rounds of the client that has spent most, up to {upper(last[max(last)])}.",
        caption="The client that has spent most" + ("." if delta is None else f"; delta = {delta:g}."),
    )  # fmt: skip


def _from_zero(figure: Figure, curves: dict[str, dict[float, float]]) -> None:
    axes = lines(figure, curves, xlabel="round", ylabel="epsilon")
    axes.set_ylim(bottom=0)


def _globally(run: RunFolder, tag: str) -> dict[float, float]:
    """Round -> the value of a tag that is recorded for the whole federation."""
    return {float(t): values[None] for t, values in run.series.get(tag, {}).items() if None in values}


# -- time --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Phase:
    """Seconds of one kind of work over the whole run."""

    name: str
    seconds: float
    note: str = ""


def phases(run: RunFolder) -> list[Phase]:
    """Where the time went. Clients' seconds are summed over clients, which may work at the same time."""
    rounds = sum(_globally(run, "system/round_s").values())
    wall = run.told("wall_s")
    clients = _summed(run, "client/seconds")
    server = _summed(run, "server/seconds")
    spent = [Phase("rounds", rounds, "training and aggregation, by the clock")] if rounds else []
    if isinstance(wall, int | float) and wall > rounds > 0:
        spent.append(Phase("outside rounds", wall - rounds, "evaluations that were waited for, records; no start-up"))
    if clients:
        spent.append(Phase("clients' work", clients, "summed over clients"))
    if server:
        spent.append(Phase("server's work", server, "distillation, alignment and the like"))
    return spent


def _summed(run: RunFolder, tag: str) -> float:
    """The sum of a tag's values over rounds and clients."""
    return sum(sum(values.values()) for values in run.series.get(tag, {}).values())


def time(run: RunFolder, studio: Studio) -> Iterator[Drawing]:
    """Figures of the seconds by phase, and of each round."""
    shown = phases(run)
    if not shown:
        return
    listing = ", ".join(f"{phase.name} {span(phase.seconds)}" for phase in shown)
    yield studio.draw(
        "time", "Time by phase", lambda f: _phase_bars(f, shown), alt=f"Time by phase: {listing}.",
        caption="Clients' work is summed over clients, who may work at the same time.",
        height=0.75 + 0.26 * len(shown),
    )  # fmt: skip
    each = _globally(run, "system/round_s")
    if len(each) > 1:
        yield studio.draw(
            "round_seconds", "Seconds per round", lambda f: _rounds(f, each, _slowest(run)),
            alt=f"Seconds of each round, on average {fmean(each.values()):.3g}.",
            caption="Dashed: the client that worked longest." if _slowest(run) else "",
        )  # fmt: skip


def _slowest(run: RunFolder) -> dict[float, float]:
    """Round -> the seconds of the client that worked longest."""
    return {float(t): max(values.values()) for t, values in run.series.get("client/seconds", {}).items() if t}


def _phase_bars(figure: Figure, shown: list[Phase]) -> None:
    axes = figure.add_subplot()
    largest = max(phase.seconds for phase in shown)
    for place, phase in enumerate(shown):
        axes.barh(place, phase.seconds, height=0.62, color=SERIES[2], linewidth=0)
        axes.annotate(span(phase.seconds), (phase.seconds, place), (3, 0), textcoords="offset points", va="center",
                      fontsize=6.5)  # fmt: skip
    axes.set_yticks(range(len(shown)), [phase.name for phase in shown])
    axes.set(xlabel="seconds", ylim=(len(shown) - 0.4, -0.6), xlim=(0, largest * 1.45))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _rounds(figure: Figure, each: dict[float, float], slowest: dict[float, float]) -> None:
    axes = figure.add_subplot()
    axes.plot(list(each), list(each.values()), color=SERIES[2], label="round")
    if slowest:
        axes.plot(
            list(slowest), list(slowest.values()), color=MUTED, linestyle="--", linewidth=1, label="slowest client"
        )
    axes.set(xlabel="round", ylabel="seconds", ylim=(0, None))
    whole_numbers(axes)
    rules(axes)
    legend_below(axes)
