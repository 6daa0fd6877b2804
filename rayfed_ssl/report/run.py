"""The report of a run: from its folder to the sections of a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import yaml

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line, printable
from rayfed_ssl.records.comparison import ordered
from rayfed_ssl.records.environment import scalings
from rayfed_ssl.records.guarantee import guarantee
from rayfed_ssl.records.leaked import BY_CHANCE, ENOUGH, INTERVAL, read_leak
from rayfed_ssl.records.settings_table import flat
from rayfed_ssl.records.summary import UNUSED_REPLIES, replies_text
from rayfed_ssl.report import accuracy, costs, evaluated, features, holdings, maps, panels, projector
from rayfed_ssl.report.accuracy_table import accuracy_cell, accuracy_table
from rayfed_ssl.report.folder import UNFINISHED, RunFolder, read
from rayfed_ssl.report.formats import how_many, number, percent, size, span, upper, words
from rayfed_ssl.report.measures import features_name, protocol_name, shown, subject
from rayfed_ssl.report.page import Cell, HtmlTable, Page, Section, Text, Tile, write
from rayfed_ssl.report.representations import look
from rayfed_ssl.report.style import Studio
from rayfed_ssl.report.verdict import DAMAGED, best_below_last, clients_images, mean, verdict

CLIENTS = 200  # the most with a row in a table
SHOWN = (  # of the configuration: what a reader asks first
    "method", "plugins", "objective", "data.name", "data.path", "data.image_size", "data.partition",
    "data.public.source", "clients", "participation", "model.width", "train.rounds", "train.local_epochs",
    "train.local_steps", "train.batch_size", "train.optimizer", "system", "server", "seed",
)  # fmt: skip
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, IndexError)  # from records of another kind
Value = TypeVar("Value")
NO_IMAGES = "Not asked for: --no-images."


def report(
    folder: Path,
    *,
    images: bool = True,
    trust_imports: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Path:
    """Write ``report.html`` and ``figures/`` into the run folder, and the projector's files where images are at hand.

    Args:
        images: whether to look at the run's images: for the map, the neighbours and the projector.
        trust_imports: whether to run code that the run folder brings along.
        progress: told before each section how many there are, of how many.

    Raises:
        UserError: there is no run.
        OSError: the folder cannot be written to.
    """
    run, studio = read(folder), Studio(folder)
    makers: list[tuple[str, str, Callable[[], Section]]] = [
        ("accuracy", "Accuracy", lambda: _accuracy(run, studio)),
        ("evaluated", "Evaluated later", lambda: evaluated.section(run.path, run.evaluation)),
        ("clients", "Clients", lambda: _clients(run, studio)),
        ("representations", "Representations", lambda: _representations(run, studio, images, trust_imports)),
        ("method", f"Inside {printable(run.method, 60)}", lambda: _method(run, studio)),
        ("communication", "Communication", lambda: _communication(run, studio)),
        ("privacy", "Privacy", lambda: _privacy(run, studio)),
        ("leak", "What messages give away", lambda: _leak(run)),
        ("time", "Time", lambda: _time(run, studio)),
        ("configuration", "Configuration", lambda: _configuration(run)),
    ]
    sections = []
    for done, (id, title, make) in enumerate(makers):
        progress(done, len(makers))
        sections.append(_whole(id, title, make))
    facts: list[str] = _tried(lambda: _facts(run), list[str](), run.notes)
    tiles: list[Tile] = _tried(lambda: _tiles(run), list[Tile](), run.notes)
    sentence = _tried(lambda: verdict(run.summary), DAMAGED, run.notes)
    scaled = _tried(lambda: scalings(run.environment), list[str](), run.notes, "environment.json")
    told = _tried(lambda: [str(note) for note in run.environment.get("notes", ())], list[str](), run.notes)
    unsaid = [line for line in scaled if line.removeprefix("data: ") not in told and line not in told]
    run.notes.extend(f"{said}." for said in (*told, *unsaid))
    sections.append(Section("notes", "Notes", notes=list(dict.fromkeys(run.notes))))
    until = _tried(lambda: f"round {run.rounds}", "", run.notes)
    return write(Page("Federated run", run.name, facts, sentence, tiles, sections, until), folder)


def _tried(make: Callable[[], Value], otherwise: Value, notes: list[str], file: str = "summary.json") -> Value:
    """What ``make`` returns; ``otherwise``, with a note, where what was recorded is of another kind."""
    try:
        return make()
    except UNREADABLE as error:
        notes.append(f"{file} holds what a run does not write there ({printable(repr(error), 120)}).")
        return otherwise


def _whole(id: str, title: str, make: Callable[[], Section]) -> Section:
    """A section, or the line that says why there is none."""
    try:
        return make()
    except (*UNREADABLE, UserError) as error:
        return Section(id, title, absent=[f"The records are damaged: {printable(repr(error), 120)}"])


def _method(run: RunFolder, studio: Studio) -> Section:
    title, drawings = f"Inside {printable(run.method, 60)}", list(panels.figures(run, studio))
    return Section("method", title, "What the method recorded of its own.", drawings=drawings)


def _facts(run: RunFolder) -> list[str]:
    status = str(run.told("status") or UNFINISHED)
    facts = [run.method, run.dataset]
    if isinstance(run.told("clients"), int):
        facts.append(how_many(run.summary["clients"], "client"))
    wanted = run.configured("train", "rounds")
    facts.append(f"{run.rounds} of {wanted} rounds" if isinstance(wanted, int) else how_many(run.rounds, "round"))
    if run.told("seed") is not None:
        facts.append(f"seed {run.summary['seed']}")
    return [printable(fact, 80) for fact in [*facts, status]]


def _number(run: RunFolder, *keys: str, form: Any = number, of: Callable[[Any], Any] = lambda value: value) -> Cell:
    """A number of the summary, or what ``of`` makes of what stands there, as a cell."""
    value = of(run.told(*keys))
    known = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    return Cell(form(known), known, "/".join(keys))


def _began(run: RunFolder) -> str:
    """The head of the values before training."""
    return "started from" if "start" in run.summary else "untrained"


def _tiles(run: RunFolder) -> list[Tile]:
    found = verdict(run.summary)
    tiles = []
    if found.protocol is not None:
        before = mean(run.told("untrained", found.protocol))
        tiles.append(
            Tile(
                subject(found.protocol),
                accuracy_cell(run.summary, "accuracy", found.protocol),
                f"{_began(run)} {shown(found.protocol, before)}",
            )
        )
    if isinstance(run.told("communication"), Mapping):
        tiles.append(Tile("sent by clients", _number(run, "communication", "up_bytes", form=size)))
        tiles.append(Tile("received by clients", _number(run, "communication", "down_bytes", form=size)))
    tiles.append(Tile("wall clock", _number(run, "wall_s", form=span), "start-up not counted"))
    if run.told("virtual_s") is not None:
        tiles.append(Tile("virtual time", _number(run, "virtual_s", form=span)))
    if isinstance(replies := run.told("replies"), Mapping):
        tiles.append(
            Tile(
                "late or lost",
                Cell(number(sum(replies.get(kind, 0) for kind in UNUSED_REPLIES))),
                replies_text(replies),
            )
        )
    if isinstance(run.told("epsilon"), Mapping):
        spent = {c: v for c, v in run.summary["epsilon"].items() if isinstance(v, int | float)}
        if spent:
            largest = _number(run, "epsilon", max(spent, key=lambda c: spent[c]), form=upper)
            tiles.append(Tile("epsilon, largest of clients", largest, _scope(run)))
    elif run.told("epsilon") is not None:
        tiles.append(Tile("epsilon", _number(run, "epsilon", form=upper), _scope(run)))
    if run.told("train_images_per_s") is not None:
        tiles.append(Tile("trained on", _number(run, "train_images_per_s"), "images per second"))
    if run.told("void_rounds"):
        tiles.append(Tile("rounds that came to nothing", _number(run, "void_rounds"), f"of {run.rounds}"))
    if run.told("dropped", "times"):
        tiles.append(Tile("clients that failed", _number(run, "dropped", "times"), "times left out"))
    return tiles


def _scope(run: RunFolder) -> str:
    """What the run's epsilon covers."""
    found = guarantee(run.summary)
    return "not of every client" if found is None else found.scope


# -- accuracy ----------------------------------------------------------------------------------------------------------


def _accuracy(run: RunFolder, studio: Studio) -> Section:
    section = Section("accuracy", "Accuracy", drawings=list(accuracy.figures(run, studio)))
    caption = "Frozen features on test images; differences of shares in points"
    if (table := accuracy_table(run.summary, caption, _began(run))) is not None:
        section.tables.append(table)
        section.intro = _tried(lambda: best_below_last(run.summary), "", run.notes)
    elif not section.drawings:
        described = run.told("features")
        section.absent.append(
            "No accuracy was measured; what describes the features is under Representations."
            if described
            else "Nothing was evaluated."
        )
    return section


def _clients(run: RunFolder, studio: Studio) -> Section:
    drawings = [
        *holdings.figures(run, studio),
        *accuracy.per_client(run, studio),
        *panels.figures(run, studio, panels.OF_CLIENTS),
    ]
    section = Section("clients", "Clients", drawings=drawings)
    blocks = {name: run.told("accuracy", name) for name in ordered(list(run.told("accuracy") or {}))}
    by_client = {name: value for name, value in blocks.items() if isinstance(value, Mapping)}
    clients = sorted({int(client) for value in by_client.values() for client in value if str(client).isdecimal()})
    if clients:
        rows = [[Cell(run.client(c)), *_of_client(run, c, list(by_client))] for c in clients[:CLIENTS]]
        caption = f"Accuracy by client, last round{', the first 200' if len(clients) > CLIENTS else ''}"
        if any(clients_images(run.summary, name) for name in by_client):
            caption += "; below it, on how many of the client's own test images"
        head = ["", *(protocol_name(name) for name in by_client)]
        section.tables.append(HtmlTable(caption, head, rows, folded="Values by client"))
    if run.partition is None:
        section.absent.append("There is no partition.parquet, so who holds what is not known.")
    return section


def _of_client(run: RunFolder, client: int, names: Sequence[str]) -> Iterator[Cell]:
    """What a client is worth by each of these measures, and on how many images of its own."""
    for name in names:
        cell, images = _number(run, "accuracy", name, str(client), form=partial(shown, name)), None
        if cell.raw is not None:
            images = clients_images(run.summary, name).get(client)
        yield cell if images is None else replace(cell, note=f"of {how_many(images, 'image')}")


def _representations(run: RunFolder, studio: Studio, images: bool, trust_imports: bool) -> Section:
    section = Section("representations", "Representations", drawings=list(features.figures(run, studio)))
    if described := run.told("features"):
        rows = [
            [
                Cell(features_name(name)),
                _number(run, "untrained_features", name, of=mean),
                _number(run, "features", name, of=mean),
            ]
            for name in described
        ]
        head = ["", _began(run), "last round"]
        section.tables.append(HtmlTable("What describes the features", head, rows, beside=True))
    if not images:
        section.absent.append(NO_IMAGES)
        return section
    try:
        seen = look(run.path, trust_imports=trust_imports)
    except (UserError, OSError, ValueError, KeyError, pa.ArrowException) as error:
        reason = in_one_line(error)
        section.absent.append(f"No map and no neighbours: the images or the encoder could not be had. {reason}")
        return section
    section.drawings = [*maps.figures(seen, studio), *section.drawings]
    section.strips = maps.strips(seen)
    share = maps.agreement(seen)
    section.intro = f"Features of {how_many(len(seen.labels), f'{seen.split} image')} by {maps.whose(seen)}."
    if share is not None:
        section.intro += f" Of the five nearest neighbours of an image, {percent(share)} are of its class."
    section.intro += maps.shown_bands(seen.pixels.shape[3])
    projector.write(seen, run.path)
    return section


# -- cost --------------------------------------------------------------------------------------------------------------


def _communication(run: RunFolder, studio: Studio) -> Section:
    section = Section("communication", "Communication", drawings=list(costs.communication(run, studio)))
    rows = [
        [Cell(f"{field.name} ({field.operation})"), Cell(field.direction), Cell(size(field.bytes), field.bytes),
         Cell(percent(field.share))]
        for field in costs.fields(run)
    ]  # fmt: skip
    if rows:
        total = [
            Cell("all"),
            Cell("up, down"),
            Cell(size(sum(field.bytes for field in costs.fields(run)))),
            Cell(percent(1.0)),
        ]
        caption = "Bytes of all clients and rounds by message field"
        head = ["field (operation)", "direction", "bytes", "share"]
        section.tables.append(HtmlTable(caption, head, [*rows, total], beside=True))
    return section


def _privacy(run: RunFolder, studio: Studio) -> Section:
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
                _number(run, "epsilon", c, form=upper),
                _number(run, "privacy", "epsilon_closed_form", c, form=upper),
                _number(run, "privacy", "sigma", c),
                _number(run, "privacy", "releases", c),
            ]
            for c in clients[:CLIENTS]
        ]
        head = ["", "epsilon", "closed form", "sigma", "releases"]
        if rows:
            section.tables.append(HtmlTable(f"Privacy spent by client, delta {words(spent.get('delta'))}", head, rows))
    return section


def _leak(run: RunFolder) -> Section:
    """What ``rayfed-ssl leak`` found, if it was asked."""
    section = Section("leak", "What messages give away")
    try:
        found = read_leak(run.path)
    except UserError as error:
        section.absent.append(printable(str(error), 1000))
        return section
    if found is None:
        return section
    rounds = sorted({area.round for area in found.areas})
    rows = [
        [
            Cell(run.client(area.client) + (f", round {area.round}" if len(rounds) > 1 else "")),
            Cell(printable(area.field, 60)),
            Cell(printable(area.score, 60)),
            Cell(number(area.members)),
            Cell(f"{area.auc:.3f}", area.auc, note=f"[{area.low:.3f}, {area.high:.3f}]"),
            Cell(f"{area.tpr:.3f}" if area.members >= ENOUGH else "–"),
        ]
        for area in found.areas[:CLIENTS]
    ]
    head = ["", "field", "score", "members", "AUC [95 %]", "TPR at 1 % FPR"]
    of = ", ".join(map(str, rounds))
    section.tables.append(HtmlTable(f"Members told from as many others, by messages of round {of}", head, rows))
    section.intro = (
        "If an interval contains 0.5, this score did not tell that client's members from others; another may. "
        f"An interval is {INTERVAL}; {BY_CHANCE}."
    )
    if found.null_deviation is not None:
        section.intro += f" A score that knows nothing spreads by {found.null_deviation:.3f} around 0.5."
    if found.unaudited:
        section.notes.append(f"Crossed, but no attack reads it: {printable(', '.join(found.unaudited))}.")
    return section


def _time(run: RunFolder, studio: Studio) -> Section:
    rows = [
        [Cell(phase.name), Cell(span(phase.seconds), phase.seconds), Cell(phase.note)] for phase in costs.phases(run)
    ]
    section = Section("time", "Time", drawings=list(costs.time(run, studio)))
    if rows:
        section.tables.append(HtmlTable("Time by phase", ["phase", "time", ""], rows, folded="Seconds by phase"))
    return section


# -- configuration -----------------------------------------------------------------------------------------------------


def _configuration(run: RunFolder) -> Section:
    section = Section("configuration", "Configuration")
    keys = [(key, value) for key, value in flat(run.config) if any(_under(key, block) for block in SHOWN)]
    if keys:
        section.settings = [(printable(key, 80), words(value)) for key, value in keys if value not in (None, [], {})]
        section.texts.append(Text("All settings: config.yaml", yaml.safe_dump(run.config, sort_keys=False)))
    if run.environment:
        section.texts.append(Text("Where it ran: environment.json", yaml.safe_dump(run.environment, sort_keys=False)))
    if run.evaluation:
        section.texts.append(Text("Evaluated again: evaluation.json", yaml.safe_dump(run.evaluation, sort_keys=False)))
    return section


def _under(key: str, block: str) -> bool:
    return key == block or key.startswith(f"{block}.")
