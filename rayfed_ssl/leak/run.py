"""Audits a run folder: repeats a round, scores the messages of clients, and writes ``leak.json``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import nearest, printable
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.leak.auc import null_deviation
from rayfed_ssl.leak.audit import Audit, unaudited
from rayfed_ssl.leak.findings import Finding, as_rows
from rayfed_ssl.leak.members import TooFew, draw_sets
from rayfed_ssl.leak.replay import RecordingWorker, replayed
from rayfed_ssl.records.guarantee import Guarantee, guarantee
from rayfed_ssl.records.leaked import FILE, read_leak
from rayfed_ssl.records.summary_file import known_summary, read_summary
from rayfed_ssl.settings.files import of_run
from rayfed_ssl.simulation.resuming import load_moved
from rayfed_ssl.storage import checkpoint
from rayfed_ssl.storage.claim import rewriting

MOST_NAMED = 10  # clients that a message names


@dataclass(frozen=True)
class Leak:
    """The result of an audit."""

    findings: list[Finding]
    unaudited: list[str]  # fields of replies that no attack reads
    null_deviation: float  # for the client with the fewest members, for which it is largest
    guarantee: Guarantee | None  # what the run's epsilon promises, if it has one

    @property
    def document(self) -> dict[str, Any]:
        """The result as ``leak.json`` has it after a first audit."""
        return {
            "findings": as_rows(self.findings),
            "unaudited": self.unaudited,
            "null_deviation": self.null_deviation if self.findings else None,
            "privacy": None if self.guarantee is None else asdict(self.guarantee),
        }


def leak(
    run: Path,
    round: int | None = None,
    clients: Sequence[int | str] = (),
    images: int = 1000,
    *,
    changes: Sequence[str] = (),
    trust_imports: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Leak:
    """Membership inference on the messages of one round of a run. The findings are added to ``leak.json``.

    Args:
        round: the round; by default the last finished one.
        clients: whom to audit, by number or by name (of its folder, or its value of a client column); by default the
            first client that took part in the round and has enough images.
        images: the number of members per client at most, and of as many others.
        changes: ``data.path=..`` if the run's images have moved, and the like for its other files.
        trust_imports: whether to run code that the run folder contains.
    Raises:
        UserError: there is no run, or its records are damaged; another key is changed; the images are not the run's;
            the round is not finished, or nobody took part in it; there is no such client, or it took no part; no images
            were held out, or too few.
    """
    of_run(run)
    _earlier(run)  # a damaged leak.json is reported before any round is repeated
    config = load_moved(run, changes, trust_imports=trust_imports)
    last = _finished_round(run, round)
    worker, recorded = replayed(config, run, last, partial(_whom, clients, images, config.seed), say)
    chosen = _audited(clients, images, worker, last)
    findings: list[Finding] = []
    for client in chosen:
        sets = draw_sets(worker.federation, client, images, config.seed)
        exchanges = [one for one in recorded if one.client == client]
        findings += Audit(worker, client, last, sets).findings(exchanges)
        say(f"{worker.federation.called(client)}: {len(sets.members)} members, {len(sets.others)} others")
    if not clients and (others := len(worker.present) - len(chosen)):
        more = f"{others} other client{'s' * (others > 1)} not audited"
        say(f"{more}: --client NUMBER or NAME, which may be repeated, chooses")
    missed = unaudited([one for one in recorded if one.client in chosen], findings)
    fewest = min((one.members for one in findings), default=0)
    null = null_deviation(fewest, fewest) if findings else float("nan")
    found = Leak(findings, missed, null, _guarantee(run))
    with rewriting(run / FILE) as write:  # another command may have added to the file since
        write(added(_earlier(run), found.document))
    return found


def _audited(given: Sequence[int | str], images: int, worker: RecordingWorker, round: int) -> list[int]:
    """The clients to audit: those ``given``, or the first that took part in ``round`` and has enough images. If none
    has enough, it is the first that took part, for which ``draw_sets`` then says what is missing.

    Raises:
        UserError: nobody took part in the round, or a given client did not.
    """
    present = sorted(worker.present)
    if not present:
        raise UserError(
            f"--round: found {round}, in which no client took part, so nothing was sent; name one in which some did, "
            "as communication.parquet says"
        )
    wanted = list(dict.fromkeys(numbered(given, worker.federation)))
    if absent := sorted(set(wanted) - worker.present):
        raise UserError(
            f"--client: {worker.federation.called(absent[0])} took no part in round {round}; who did: "
            f"{', '.join(map(str, present))}"
        )
    return wanted or [*islice(_enough(present, images, worker.config.seed, worker.federation), 1)] or present[:1]


def _earlier(run: Path) -> dict[str, Any]:
    """The content of ``leak.json``; empty if there is no such file. Raises UserError if it is damaged."""
    return {} if read_leak(run) is None else dict(json.loads((run / FILE).read_text(encoding="utf-8")))


def added(known: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """``known``, the content of ``leak.json``, with the new document in it, sorted by round and client. If a client's
    messages of a round were audited again, the earlier findings on them are dropped, because they may come from other
    images or another version.
    """
    again = {(row["round"], row["client"]) for row in new["findings"]}
    kept = [row for row in known.get("findings", ()) if (row["round"], row["client"]) not in again]
    rows = sorted([*kept, *new["findings"]], key=lambda row: (row["round"], row["client"]))
    missed = {*new["unaudited"], *(known["unaudited"] if kept else ())} - {row["field"] for row in rows}
    fewest = min((row["members"] for row in rows), default=0)
    null = null_deviation(fewest, fewest) if rows else None
    return {**new, "findings": rows, "unaudited": sorted(missed), "null_deviation": null}


def numbered(clients: Sequence[int | str], federation: Federation) -> list[int]:
    """The numbers of clients that were given by number or by name. Digits are a number, even if they are the name of a
    client. Raises UserError for an unknown name.
    """
    names = list(federation.given_names or ())
    numbers: list[int] = []
    for client in clients:
        if isinstance(client, int) or client.isdecimal():
            numbers.append(int(client))
        elif client in names:
            numbers.append(names.index(client))
        else:
            known = f"; names: {', '.join(map(printable, names[:MOST_NAMED]))}" if names else ", which have no names"
            raise UserError(
                f"--client: found '{printable(client)}'; this run has {len(federation.sizes)} clients{known}"
                f"{nearest(client, names)}"
            )
    return numbers


def _whom(given: Sequence[int | str], images: int, seed: int, federation: Federation) -> Sequence[int]:
    """The clients whose exchanges to record: those ``given``, or all. Raises UserError if a given client, or no client,
    can be audited; this is checked before any round is repeated.
    """
    known, clients = federation.clients, numbered(given, federation)
    for client in clients:
        if client not in known:
            gaps = len(known) <= known[-1] - known[0]
            but = ", but for those who have no image to train on" if gaps else ""
            raise UserError(f"--client: found {client}; this run has clients {known[0]} to {known[-1]}{but}")
    lacking = [error for client in clients if (error := _lacking(client, images, seed, federation)) is not None]
    if clients and not lacking:
        return clients
    able = ", ".join(map(str, islice(_enough(known, images, seed, federation), MOST_NAMED if clients else 1)))
    if lacking and able:
        raise UserError(f"{lacking[0]}, or choose another --client; clients that have enough: {able}")
    if not able:
        errors = lacking or [error for client in known if (error := _lacking(client, images, seed, federation))]
        alone = "" if len(known) == 1 else "; no client has enough" + ("" if lacking else ", this one has most")
        raise UserError(f"{max(errors, key=lambda error: error.pairs)}{alone}")
    return known


def _enough(clients: Sequence[int], images: int, seed: int, federation: Federation) -> Iterator[int]:
    """Those of the clients that have enough images to be audited."""
    return (client for client in clients if _lacking(client, images, seed, federation) is None)


def _lacking(client: int, images: int, seed: int, federation: Federation) -> TooFew | None:
    """The error for a client that has too few images to be audited; None if it has enough."""
    try:
        draw_sets(federation, client, images, seed)
    except TooFew as error:
        return error
    return None


def _finished_round(run: Path, wanted: int | None) -> int:
    """The ``wanted`` round, or the last one that the run has finished, according to its summary, or to its newest
    checkpoint if it has no summary. Raises UserError if the wanted round is not finished, or if no round is.
    """
    if (summary := read_summary(run)) is None:
        done = max((t for t, _ in checkpoint.complete(run / "checkpoints")), default=0)
    else:
        done = summary["rounds"] if isinstance(summary.get("rounds"), int) else 0
    if done < 1:
        raise UserError(f"{run}: found no finished round, so no message to audit")
    if wanted is not None and not 1 <= wanted <= done:
        raise UserError(f"--round: found {wanted}; allowed: 1 to {done}, the rounds that the run has finished")
    return done if wanted is None else wanted


def _guarantee(run: Path) -> Guarantee | None:
    """The privacy guarantee in the summary; None if there is none that can be read."""
    try:
        return guarantee(known_summary(run))
    except (TypeError, ValueError):
        return None
