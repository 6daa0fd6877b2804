"""The report of a run: makes the sections of a page from the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import yaml

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line, printable
from rayfed_ssl.records.comparison import ordered
from rayfed_ssl.records.environment import scalings
from rayfed_ssl.records.guarantee import guarantee
from rayfed_ssl.records.settings_table import flat
from rayfed_ssl.records.summary import UNUSED_REPLIES, replies_text
from rayfed_ssl.report import accuracy, evaluated, features, holdings, maps, panels, projector, run_costs
from rayfed_ssl.report.accuracy_table import accuracy_cell, accuracy_table
from rayfed_ssl.report.folder import UNFINISHED, RunFolder, read
from rayfed_ssl.report.formats import how_many, number, percent, size, span, upper, words
from rayfed_ssl.report.measures import features_name, protocol_name, shown, subject
from rayfed_ssl.report.number_cell import CLIENTS, number_cell
from rayfed_ssl.report.page import Cell, HtmlTable, Page, Section, Text, Tile, write
from rayfed_ssl.report.representations import look
from rayfed_ssl.report.style import Studio
from rayfed_ssl.report.verdict import DAMAGED, best_below_last, clients_images, mean, unmeasured, verdict

SHOWN = (  # the keys of the configuration that the page shows by themselves
    "method", "plugins", "objective", "data.name", "data.path", "data.image_size", "data.partition",
    "data.public.source", "clients", "participation", "model.width", "train.rounds", "train.local_epochs",
    "train.local_steps", "train.batch_size", "train.optimizer", "system", "server", "seed",
)  # fmt: skip
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, IndexError)  # raised by records of another form
Value = TypeVar("Value")
NO_IMAGES = "Not asked for: --no-images."


def report(
    folder: Path,
    *,
    images: bool = True,
    trust_imports: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Path:
    """Write ``report.html`` and ``figures/`` into the run folder, and the projector's files if the images can be read.

    Args:
        images: whether to load the run's images: for the map, the neighbours and the projector.
        trust_imports: whether to run code that the run folder brings along.
        progress: called before each section with the number of sections done and the number of all.

    Raises:
        UserError: there is no run in the folder.
        OSError: the folder cannot be written to.
    """
    run, studio = read(folder), Studio(folder)
    makers: list[tuple[str, str, Callable[[], Section]]] = [
        ("accuracy", "Accuracy", lambda: accuracy_section(run, studio)),
        ("evaluated", "Evaluated later", lambda: evaluated.section(run.path, run.evaluation)),
        ("clients", "Clients", lambda: _clients(run, studio)),
        ("representations", "Representations", lambda: _representations(run, studio, images, trust_imports)),
        ("method", f"Inside {printable(run.method, 60)}", lambda: _method(run, studio)),
        ("communication", "Communication", lambda: run_costs.communication(run, studio)),
        ("privacy", "Privacy", lambda: run_costs.privacy(run, studio)),
        ("leak", "What messages give away", lambda: run_costs.leak(run)),
        ("time", "Time", lambda: run_costs.time(run, studio)),
        ("configuration", "Configuration", lambda: configuration_section(run)),
    ]
    sections = []
    for done, (id, title, make) in enumerate(makers):
        progress(done, len(makers))
        sections.append(_whole(id, title, make))
    facts: list[str] = _tried(lambda: _facts(run), list[str](), run.notes)
    tiles: list[Tile] = _tried(lambda: _tiles(run), list[Tile](), run.notes)
    sentence = _tried(lambda: verdict(run.summary), DAMAGED, run.notes)
    run.notes.extend(f"{note}." for note in _environment_notes(run))
    sections.append(Section("notes", "Notes", notes=list(dict.fromkeys(run.notes))))
    until = _tried(lambda: f"round {run.rounds}", "", run.notes)
    return write(Page("Federated run", run.name, facts, sentence, tiles, sections, until), folder)


def _environment_notes(run: RunFolder) -> list[str]:
    """The notes that the run printed, and how its images were scaled if no note says so."""
    file = "environment.json"
    printed = _tried(lambda: [str(note) for note in run.environment.get("notes", ())], list[str](), run.notes, file)
    scaled = _tried(lambda: scalings(run.environment), list[str](), run.notes, file)
    return [*printed, *(line for line in scaled if line.removeprefix("data: ") not in printed and line not in printed)]


def _tried(make: Callable[[], Value], otherwise: Value, notes: list[str], file: str = "summary.json") -> Value:
    """What ``make`` returns; ``otherwise``, with a note, if the records have another form than a run writes."""
    try:
        return make()
    except UNREADABLE as error:
        notes.append(f"{file} holds what a run does not write there ({printable(repr(error), 120)}).")
        return otherwise


def _whole(id: str, title: str, make: Callable[[], Section]) -> Section:
    """A section, or a section with a line that says why it could not be made."""
    try:
        return make()
    except (*UNREADABLE, UserError) as error:
        return Section(id, title, absent=[f"The records are damaged: {printable(repr(error), 120)}"])


def _method(run: RunFolder, studio: Studio) -> Section:
    """What the method recorded in addition to losses and scores."""
    title, drawings = f"Inside {printable(run.method, 60)}", list(panels.figures(run, studio))
    return Section("method", title, "What the method recorded of its own.", drawings=drawings)


def _facts(run: RunFolder) -> list[str]:
    """The facts under the page's title: method, data set, clients, rounds, seed and status."""
    status = str(run.told("status") or UNFINISHED)
    facts = [run.method, run.dataset]
    if isinstance(run.told("clients"), int):
        facts.append(how_many(run.summary["clients"], "client"))
    wanted = run.configured("train", "rounds")
    facts.append(f"{run.rounds} of {wanted} rounds" if isinstance(wanted, int) else how_many(run.rounds, "round"))
    if run.told("seed") is not None:
        facts.append(f"seed {run.summary['seed']}")
    return [printable(fact, 80) for fact in [*facts, status]]


def _began(run: RunFolder) -> str:
    """The heading of values from before training."""
    return "started from" if "start" in run.summary else "untrained"


def _tiles(run: RunFolder) -> list[Tile]:
    """The tiles on top of the page: the main accuracy, bytes, time, replies, privacy."""
    result = verdict(run.summary)
    tiles = []
    if result.protocol is not None:
        before = mean(run.told("untrained", result.protocol))
        tiles.append(
            Tile(
                subject(result.protocol),
                accuracy_cell(run.summary, "accuracy", result.protocol),
                f"{_began(run)} {shown(result.protocol, before)}",
            )
        )
    if isinstance(run.told("communication"), Mapping):
        tiles.append(Tile("sent by clients", number_cell(run, "communication", "up_bytes", form=size)))
        tiles.append(Tile("received by clients", number_cell(run, "communication", "down_bytes", form=size)))
    tiles.append(Tile("wall clock", number_cell(run, "wall_s", form=span), "start-up not counted"))
    if run.told("virtual_s") is not None:
        tiles.append(Tile("virtual time", number_cell(run, "virtual_s", form=span)))
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
            largest = number_cell(run, "epsilon", max(spent, key=lambda c: spent[c]), form=upper)
            tiles.append(Tile("epsilon, largest of clients", largest, _scope(run)))
    elif run.told("epsilon") is not None:
        tiles.append(Tile("epsilon", number_cell(run, "epsilon", form=upper), _scope(run)))
    if run.told("train_images_per_s") is not None:
        tiles.append(Tile("trained on", number_cell(run, "train_images_per_s"), "images per second"))
    if run.told("void_rounds"):
        tiles.append(Tile("rounds that came to nothing", number_cell(run, "void_rounds"), f"of {run.rounds}"))
    if run.told("dropped", "times"):
        tiles.append(Tile("clients that failed", number_cell(run, "dropped", "times"), "times left out"))
    return tiles


def _scope(run: RunFolder) -> str:
    """Whose epsilon it is, or that not every client has one."""
    promise = guarantee(run.summary)
    return "not of every client" if promise is None else promise.scope


# -- accuracy ----------------------------------------------------------------------------------------------------------


def accuracy_section(run: RunFolder, studio: Studio) -> Section:
    """The accuracies over rounds, and their table."""
    section = Section("accuracy", "Accuracy", drawings=list(accuracy.figures(run, studio)))
    caption = "Frozen features on test images; differences of shares in points"
    if (table := accuracy_table(run.summary, caption, _began(run))) is not None:
        section.tables.append(table)
        section.intro = _tried(lambda: best_below_last(run.summary), "", run.notes)
    else:
        section.absent += _without_accuracy(run, drawn=bool(section.drawings))
    return section


def _without_accuracy(run: RunFolder, drawn: bool) -> Iterator[str]:
    """Lines on a run without an accuracy. ``drawn``: whether a figure shows those from before training."""
    why, how = unmeasured(run.summary, "FOLDER")
    ended = run.told("status") in ("complete", "stopped")
    if run.told("features"):
        yield "No accuracy was measured; what describes the features is under Representations."
    elif not drawn:
        yield "Nothing was evaluated."
    elif ended:
        yield f"Accuracy was {why}."
    if ended and how and not run.evaluation:
        yield f"{how[0].upper()}{how[1:]}, where FOLDER is this folder."


def _clients(run: RunFolder, studio: Studio) -> Section:
    """Which client holds what, and each client's accuracy."""
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
    """A client's value of each measure, with the number of its own images on which it was measured."""
    for name in names:
        cell, images = number_cell(run, "accuracy", name, str(client), form=partial(shown, name)), None
        if cell.raw is not None:
            images = clients_images(run.summary, name).get(client)
        yield cell if images is None else replace(cell, note=f"of {how_many(images, 'image')}")


def _representations(run: RunFolder, studio: Studio, images: bool, trust_imports: bool) -> Section:
    """Figures of the features; and, with ``images``, the map and the nearest neighbours."""
    section = Section("representations", "Representations", drawings=list(features.figures(run, studio)))
    if described := run.told("features"):
        rows = [
            [
                Cell(features_name(name)),
                number_cell(run, "untrained_features", name, of=mean),
                number_cell(run, "features", name, of=mean),
            ]
            for name in described
        ]
        head = ["", _began(run), "last round"]
        section.tables.append(HtmlTable("What describes the features", head, rows, beside=True))
    if not images:
        section.absent.append(NO_IMAGES)
        return section
    try:
        sample = look(run.path, trust_imports=trust_imports)
    except (UserError, OSError, ValueError, KeyError, pa.ArrowException) as error:
        reason = in_one_line(error)
        section.absent.append(f"No map and no neighbours: the images or the encoder could not be had. {reason}")
        return section
    section.drawings = [*maps.figures(sample, studio), *section.drawings]
    section.strips = maps.strips(sample)
    share = maps.agreement(sample)
    section.intro = f"Features of {how_many(len(sample.labels), f'{sample.split} image')} by {maps.whose(sample)}."
    if share is not None:
        section.intro += f" Of the five nearest neighbours of an image, {percent(share)} are of its class."
    section.intro += maps.shown_bands(sample.pixels.shape[3])
    projector.write(sample, run.path)
    return section


# -- configuration -----------------------------------------------------------------------------------------------------


def configuration_section(run: RunFolder) -> Section:
    """The main settings, and the run's files in full."""
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
    """Whether a dotted key is ``block`` or lies in it."""
    return key == block or key.startswith(f"{block}.")
