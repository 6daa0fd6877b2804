"""The sections of a run's report on its costs: bytes, privacy, what messages give away, and time."""

from __future__ import annotations

from collections.abc import Mapping

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.records.leaked import BY_CHANCE, ENOUGH, INTERVAL, read_leak
from rayfed_ssl.report import costs
from rayfed_ssl.report.folder import RunFolder
from rayfed_ssl.report.formats import number, percent, size, span, upper, words
from rayfed_ssl.report.number_cell import CLIENTS, number_cell
from rayfed_ssl.report.page import Cell, HtmlTable, Section
from rayfed_ssl.report.style import Studio


def communication(run: RunFolder, studio: Studio) -> Section:
    """The bytes by message field."""
    section = Section("communication", "Communication", drawings=list(costs.communication(run, studio)))
    fields = costs.fields(run)
    rows = [
        [Cell(f"{field.name} ({field.operation})"), Cell(field.direction), Cell(size(field.bytes), field.bytes),
         Cell(percent(field.share))]
        for field in fields
    ]  # fmt: skip
    if rows:
        total_bytes = sum(field.bytes for field in fields)
        total = [Cell("all"), Cell("up, down"), Cell(size(total_bytes)), Cell(percent(1.0))]
        caption = "Bytes of all clients and rounds by message field"
        head = ["field (operation)", "direction", "bytes", "share"]
        section.tables.append(HtmlTable(caption, head, [*rows, total], beside=True))
    return section


def privacy(run: RunFolder, studio: Studio) -> Section:
    """The privacy that each client has spent, and what it covers."""
    section = Section("privacy", "Privacy", drawings=list(costs.privacy(run, studio)))
    spent = run.told("privacy")
    if isinstance(spent, Mapping):
        covered = printable(spent.get("covers", ""))
        section.intro = (
            f"Covered: {covered}; neighbours: {printable(spent.get('neighbours', ''))}; not covered: "
            f"{printable(spent.get('not_covered', ''))}."
        )
        clients = sorted(spent["epsilon"], key=int) if isinstance(spent.get("epsilon"), Mapping) else []
        rows = [
            [
                Cell(run.client(int(c))),
                number_cell(run, "epsilon", c, form=upper),
                number_cell(run, "privacy", "epsilon_closed_form", c, form=upper),
                number_cell(run, "privacy", "sigma", c),
                number_cell(run, "privacy", "releases", c),
            ]
            for c in clients[:CLIENTS]
        ]
        head = ["", "epsilon", "closed form", "sigma", "releases"]
        if rows:
            section.tables.append(HtmlTable(f"Privacy spent by client, delta {words(spent.get('delta'))}", head, rows))
    return section


def leak(run: RunFolder) -> Section:
    """What ``rayfed-ssl leak`` found, if it was run."""
    section = Section("leak", "What messages give away")
    try:
        audit = read_leak(run.path)
    except UserError as error:
        section.absent.append(printable(str(error), 1000))
        return section
    if audit is None:
        return section
    rounds = sorted({area.round for area in audit.areas})
    rows = [
        [
            Cell(run.client(area.client) + (f", round {area.round}" if len(rounds) > 1 else "")),
            Cell(printable(area.field, 60)),
            Cell(printable(area.score, 60)),
            Cell(number(area.members)),
            Cell(f"{area.auc:.3f}", area.auc, note=f"[{area.low:.3f}, {area.high:.3f}]"),
            Cell(f"{area.tpr:.3f}" if area.members >= ENOUGH else "–"),
        ]
        for area in audit.areas[:CLIENTS]
    ]
    head = ["", "field", "score", "members", "AUC [95 %]", "TPR at 1 % FPR"]
    of = ", ".join(map(str, rounds))
    section.tables.append(HtmlTable(f"Members told from as many others, by messages of round {of}", head, rows))
    section.intro = (
        "If an interval contains 0.5, this score did not tell that client's members from others; another may. "
        f"An interval is {INTERVAL}; {BY_CHANCE}."
    )
    if audit.null_deviation is not None:
        section.intro += f" A score that knows nothing spreads by {audit.null_deviation:.3f} around 0.5."
    if audit.unaudited:
        section.notes.append(f"Crossed, but no attack reads it: {printable(', '.join(audit.unaudited))}.")
    return section


def time(run: RunFolder, studio: Studio) -> Section:
    """The seconds by phase."""
    rows = [
        [Cell(phase.name), Cell(span(phase.seconds), phase.seconds), Cell(phase.note)] for phase in costs.phases(run)
    ]
    section = Section("time", "Time", drawings=list(costs.time(run, studio)))
    if rows:
        section.tables.append(HtmlTable("Time by phase", ["phase", "time", ""], rows, folded="Seconds by phase"))
    return section
