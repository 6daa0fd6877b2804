"""Records each round: metrics, bookings, the summary. It stands between the loop and ``records``, which knows only
tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import yaml

from rayfed_ssl.base.files import replace_file
from rayfed_ssl.base.notes import Note, texts
from rayfed_ssl.base.numbers import numbers
from rayfed_ssl.base.text import printable
from rayfed_ssl.config import RunConfig
from rayfed_ssl.data.partition import label_histogram
from rayfed_ssl.evaluation import by_client, recorded, settings
from rayfed_ssl.extensions import digests
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.measured_rows import clients_tested_images, tested_images, train_rows
from rayfed_ssl.federated.messages import SERVER, Diverged
from rayfed_ssl.federated.plugin import ServerPlugin
from rayfed_ssl.federated.remarks import largest_class
from rayfed_ssl.federated.results import ClientMatrix
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.records.environment import RunFacts, write_environment
from rayfed_ssl.records.journal import Journal
from rayfed_ssl.records.one_class import of_one_class
from rayfed_ssl.records.paired import paired
from rayfed_ssl.records.settings_table import markdown
from rayfed_ssl.records.summary import (
    VOID,
    rounds_to,
    summarise,
    virtual_seconds,
)
from rayfed_ssl.records.summary_file import write_summary
from rayfed_ssl.records.tables import SKIPPED, Drop, PartitionRows, read_metrics, write_images, write_partition
from rayfed_ssl.records.trained_image_digests import trained_before, trained_digests, write_trained
from rayfed_ssl.simulation.last_outcomes import LastOutcomes
from rayfed_ssl.simulation.resuming import CURVE


class Recorder:
    """The records of one run folder.

    Args:
        device: the hardware that clients train on, in words.
        resumed_from: the round of the checkpoint that the run goes on from; None for a new run.
        files: digests of the other files that the run read, by key.
        outcomes: the outcomes of the last evaluation so far.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        federation: Federation,
        device: str,
        *,
        resumed_from: int | None,
        files: Mapping[str, str],
        notes: Sequence[Note],
        outcomes: LastOutcomes,
    ) -> None:
        self.config, self.folder, self.federation, self.outcomes = config, folder, federation, outcomes
        self.journal = Journal(
            folder, resume_round=resumed_from, clients=config.clients.count, names=federation.given_names
        )
        self.drawn: dict[str, int] = {}  # matrices over pairs of clients: the round that TensorBoard has seen last
        facts = RunFacts(
            device=device,
            threads=config.resources.threads,
            images=federation.dataset.digest,
            public_images=federation.public_digest,
            imports=digests(config.extensions),
            files=files,
            scaled=federation.scaled,
            notes=notes,
        )
        write_environment(folder, facts, resumed=resumed_from is not None)
        self.undrawn = resumed_from is None and config.figures
        if resumed_from is None:
            self._first_page()

    def _first_page(self) -> None:
        """Record what is known before the first round: which clients hold which images, and the configuration."""
        federation, labels = self.federation, self.federation.dataset.train.labels
        (self.folder / SKIPPED).unlink(missing_ok=True)  # of an earlier attempt, whose images may have been mended
        if skipped := federation.dataset.skipped:
            text = "".join(f"{printable(name)}\n" for name in skipped)
            replace_file(self.folder / SKIPPED, lambda draft: draft.write_text(text, encoding="utf-8"))
        if names := federation.dataset.names:
            write_images(self.folder, names)
        trained, before = trained_digests(federation, self.config.uses_public), trained_before(self.config.model.start)
        write_trained(self.folder, trained if before is None else np.union1d(trained, before))
        public = federation.public_indices
        rows = PartitionRows(
            shards=dict(enumerate(federation.shards)),
            labels=labels,
            public=public,
            public_labels=None if public is None else labels[public],
            held_out=federation.held_out,
            names=federation.given_names,
            class_names=federation.dataset.train.class_names,
            origin=federation.origin,
        )
        write_partition(self.folder, rows)
        self.configured(0)
        self.journal.text("evaluation", f"```yaml\n{yaml.safe_dump(settings(self.config.evaluation))}\n```")

    def draw(self) -> None:
        """Draw which clients hold which images, once: after the first round, so that no client waits for matplotlib."""
        labels = self.federation.dataset.train.labels
        if self.undrawn and (labels >= 0).any():
            from rayfed_ssl.records import figures  # matplotlib, loaded only to draw

            counts = label_histogram(
                [shard["train"] for shard in self.federation.shards], labels, self.federation.classes
            )
            names = self.federation.given_names
            figure = figures.label_histogram(counts, self.federation.dataset.train.class_names, names)
            self.journal.image("data/partition", figures.save_figure(self.folder, "partition", figure))
        self.undrawn = False

    def configured(self, t: int) -> None:
        """Record the configuration that holds from round ``t`` on."""
        self.journal.text("config", markdown(self.config.model_dump(mode="json")), t)

    def notes(self, notes: Sequence[Note]) -> None:
        """Record the notes from before the first round."""
        if notes:
            self.journal.text("notes", "\n\n".join(texts(notes)))

    def round(
        self, t: int, cohort: Cohort, server: MethodServer[Any], seconds: float, *, void: bool
    ) -> dict[str, float]:
        """Record one finished round, ``void`` if it came to nothing; returns its global values."""
        self.journal.spill(t - 1)
        values = _round_values(cohort, seconds)
        if void:
            values[VOID] = 1.0
        self.journal.dropped(Drop(t, error.client, error.operation, error.reason) for error in cohort.dropped)
        values |= self.compared(cohort)
        sources: list[MethodServer[Any] | ServerPlugin[Any]] = [server, *cohort.plugins.values()]
        for source in sources:
            values |= numbers(source.metrics, f"{type(source).__name__}: self.metrics")
            source.metrics = {}
        for tag, value in values.items():
            self.journal.metric(t, tag, value)
        self.measured(t, cohort)
        self.communication(cohort.ledger)
        return values

    def compared(self, cohort: Cohort) -> dict[str, float]:
        """The comparison of the encoders that the round's clients ended with."""
        config, values = self.config.evaluation, dict[str, float]()
        for name, row in config.comparisons.items():
            block = config.of(name)
            chosen = sorted(cohort.compared_features)[: row.clients(block)]
            by_client = {client: np.array(cohort.compared_features[client][name]) for client in chosen}
            features = {str(client): torch.from_numpy(rows) for client, rows in by_client.items()}
            values |= {tag: value for tag, value in row.compare(features, block).items() if tag == row.tag}
        return values

    def measured(self, t: int, cohort: Cohort) -> None:
        """Record what clients and server work measured in round t."""
        for client, measured in cohort.metrics.items():
            for name, value in measured.items():
                if client == SERVER:
                    self.journal.metric(t, f"server/{name}", value)
                elif name not in ("lr", "images"):
                    self.journal.metric(t, f"client/{name}", value, client)

    def communication(self, ledger: Ledger) -> None:
        """Record the bytes booked since the last call."""
        self.journal.communication(ledger.drain())

    def evaluation(self, t: int, client: int | None, values: dict[str, float]) -> dict[int | None, dict[str, float]]:
        """Record what an evaluation of round t measured of a client's encoder (None: the global one); returns the
        values by client.
        """
        self.outcomes.take(t, client, values)
        parts = by_client(client, values)
        for whom, part in parts.items():
            for tag, value in part.items():
                self.journal.metric(t, recorded(tag), value, whom)
        return parts

    def commit(self, t: int) -> None:
        """Commit the records up to round t: a resumed run begins with them."""
        self.draw()
        self.journal.commit(t)

    def client_matrices(self, t: int, matrices: dict[str, ClientMatrix], *, last: bool) -> None:
        """Draw matrices over pairs of clients as they are after round t: once a round for TensorBoard, and after the
        ``last`` round also as figures.
        """
        if not (matrices and self.config.figures):
            return
        from rayfed_ssl.records import figures

        for name, matrix in matrices.items():
            new = self.drawn.get(name) != t
            if not (last or new):
                continue
            figure = figures.client_matrix(*matrix, names=self.federation.given_names)
            drawn = figures.save_figure(self.folder, name, figure) if last else figures.pixels(figure)
            if new:
                self.journal.image(f"clients/{name}", drawn, t)
                self.drawn[name] = t

    def summary(
        self, t: int, status: str, privacy: dict[str, Any] | None, diverged: Diverged | None = None
    ) -> dict[str, Any]:
        """Write and return summary.json, after the outcomes behind its accuracies and before figures of them.

        Args:
            t: completed rounds.
            diverged: the error that ended the run, if it diverged.
        """
        summary = summarise(
            self.folder,
            method=self.config.method.name,
            dataset=self.federation.dataset.name,
            seed=self.config.seed,
            rounds=t,
            clients=len(self.federation.clients),
            status=status,
            epsilon=None if privacy is None else privacy["epsilon"],
        )
        known = len(train_rows(self.federation, self.config)[0])
        summary["evaluation"] = {
            **settings(self.config.evaluation, known),
            **tested_images(self.federation, self.config),
        }
        if of_clients := clients_tested_images(self.federation, self.config):
            summary["evaluation"]["clients_test_images"] = {
                kind: {str(client): count for client, count in of.items()} for kind, of in of_clients.items()
            }
        if (largest := largest_class(self.federation.dataset)) is not None:
            summary["largest_class"] = {"name": largest.name, "share": largest.share}
        if (start := self.config.model.start) is not None:
            summary["start"] = {"path": str(start.path), "digest": start.sha256}
        if names := self._names(summary["accuracy"]):
            summary["client_names"] = names
        if diverged is not None:
            summary["diverged"] = {
                "round": diverged.round,
                "client": None if diverged.client == SERVER else diverged.client,
                "operation": diverged.operation,
                "largest": diverged.largest if math.isfinite(diverged.largest) else None,
                "reason": str(diverged),
            }
        if privacy is not None:
            summary["privacy"] = privacy
            self.journal.text("privacy", f"```yaml\n{yaml.safe_dump(privacy, sort_keys=False)}\n```", t)
        metrics = read_metrics(self.folder)
        if self.config.evaluation.targets:
            summary["rounds_to"] = rounds_to(metrics, self.config.evaluation.targets)
        passed = virtual_seconds(metrics)
        if passed:
            summary["virtual_s"] = passed[max(passed)]
        self.outcomes.write(self.folder, self.federation.dataset.test.labels, self.federation.given_names)
        if pairs := paired(self.folder, summary):
            summary["paired"] = pairs
        if alone := of_one_class(self.folder, self.federation.dataset.test.class_names):
            summary["one_class"] = alone
        write_summary(self.folder, summary)
        if summary["accuracy"] and self.config.figures:
            self._curves(metrics, passed)
        return summary

    def _curves(self, metrics: pa.Table, passed: Mapping[int, float]) -> None:
        """Draw accuracy over virtual hours, against what a method traces, and, last of all (``CURVE``), over rounds.

        Args:
            passed: round -> virtual seconds until its end.
        """
        from rayfed_ssl.records import figures

        if passed:
            hours = {round: seconds / 3600 for round, seconds in passed.items()}
            figures.save_figure(self.folder, "accuracy_vs_hours", figures.accuracy_curve(metrics, hours))
        figure = figures.accuracy_against_trace(metrics, self.federation.given_names)
        if figure is not None:
            figures.save_figure(self.folder, "accuracy_vs_trace", figure)
        figures.save_figure(self.folder, CURVE.stem, figures.accuracy_curve(metrics))

    def _names(self, accuracy: Mapping[str, Any]) -> dict[str, str]:
        """The names of the clients whose numbers are in ``accuracy``, if they have names."""
        names = self.federation.given_names
        mentioned = {int(client) for values in accuracy.values() if isinstance(values, dict) for client in values}
        return {} if names is None else {str(client): names[client] for client in sorted(mentioned)}

    def close(self) -> None:
        self.journal.close()


def _round_values(cohort: Cohort, seconds: float) -> dict[str, float]:
    """The values that every method's round has: its seconds, the clients that took part, training's means, virtual
    time.
    """
    trained = {client: values for client, values in cohort.metrics.items() if client != SERVER and "loss" in values}
    images = [values.get("images", 0.0) for values in trained.values()]
    values: dict[str, float] = {"system/round_s": seconds, "system/clients": float(len(cohort.clients))}
    if trained:
        losses = [measured["loss"] for measured in trained.values()]
        values["train/loss"] = float(np.average(losses, weights=images if any(images) else None))
    if rates := {client: measured["lr"] for client, measured in trained.items() if "lr" in measured}:
        values["train/lr"] = _rate(rates, {client: trained[client].get("images", 0.0) for client in rates})
    if any(images):
        values["train/images"] = sum(images)
        values["system/images_per_s"] = values["train/images"] / seconds
    if cohort.clock is not None:
        values["time/virtual_s"] = cohort.clock.now
        if cohort.clock.system.server_seconds_per_image:
            values["time/server_s"] = cohort.clock.server_s
        values |= {f"system/{kind}": float(count) for kind, count in cohort.clock.reply_counts.items()}
    if cohort.dropped:
        values["system/dropped_clients"] = float(len({error.client for error in cohort.dropped}))
    return values


def _rate(rates: Mapping[int, float], images: Mapping[int, float]) -> float:
    """The clients' learning rate. If they have several, like the clients of a FedBuff update that started in different
    rounds, it is their mean, weighted by images as the loss is.
    """
    first, *others = rates.values()
    if all(rate == first for rate in others):
        return first
    weights = list(images.values())
    return float(np.average([first, *others], weights=weights if any(weights) else None))
