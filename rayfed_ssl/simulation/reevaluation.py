"""Evaluates the exported encoder(s) of a run again, without training: by other protocols, or on other images than the
run's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rayfed_ssl import evaluation
from rayfed_ssl.base.notes import NOTES, Note, recorded_notes
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.base.weights import pack
from rayfed_ssl.config import RunConfig, load_untrusted
from rayfed_ssl.data import loading
from rayfed_ssl.data.decoding.bit_depth import PERCENTILES
from rayfed_ssl.data.images import Dataset
from rayfed_ssl.data.pixels.copies import without_test
from rayfed_ssl.data.sources import SOURCES, SourceConfig, in_channels, with_bands
from rayfed_ssl.evaluation import PROTOCOLS, EvaluationConfig, Outcomes
from rayfed_ssl.evaluation.cache import digest
from rayfed_ssl.federated.federation import Federation, load_federation
from rayfed_ssl.federated.measured_rows import check_drawn, tested_images, train_rows
from rayfed_ssl.federated.process_context import ProcessContext
from rayfed_ssl.federated.remarks import largest_class, remarks
from rayfed_ssl.models.exported import ExportedFile, exported_by
from rayfed_ssl.models.network import Network
from rayfed_ssl.models.transform import Transform
from rayfed_ssl.models.values import load_values, read_safetensors
from rayfed_ssl.records.paired import MEAN, OVER, paired_scores
from rayfed_ssl.records.summary_file import refuse_gone_on, summary_bytes
from rayfed_ssl.records.tables import EVALUATION, OTHERS
from rayfed_ssl.records.trained_image_digests import FILE as TRAINED
from rayfed_ssl.records.trained_image_digests import among_trained, read_trained
from rayfed_ssl.settings.data_argument import (
    columns_in_block,
    in_block,
    layout_in_block,
    parse_data_argument_of_run,
    title,
)
from rayfed_ssl.settings.files import flat, of_run, parse_overrides
from rayfed_ssl.simulation.evaluation_file import (
    BETWEEN,
    PIXELS,
    UNTRAINED,
    added,
    earlier,
    with_untrained,
)
from rayfed_ssl.simulation.recomputed_outcomes import add_outcomes, as_in_the_run
from rayfed_ssl.simulation.resuming import began_earlier, check_same_files, check_same_images, places
from rayfed_ssl.simulation.shared_encoders import shareable
from rayfed_ssl.storage.claim import rewriting
from rayfed_ssl.storage.missing_encoder_error import naming_checkpoint

CHANGEABLE = ("metrics", "train_images", "batch_size", "options")  # keys of ``evaluation`` beside the protocols'


def reevaluate(
    run: Path,
    protocols: Sequence[str] = (),
    changes: Sequence[str] = (),
    *,
    data: SourceConfig | str | None = None,
    exclude_trained: bool = False,
    trust_imports: bool = False,
    renew: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Measure each exported encoder, the untrained ones and the raw pixels, and add the results to ``evaluation.json``.
    Results of other protocols and on other images stay there. ``outcomes.parquet`` gets scores that it lacks.

    Args:
        protocols: their names; by default the run's own, comparisons of encoders only if there are several encoders.
        changes: ``key=value`` for settings of ``evaluation`` other than the run's, and ``data.path=..`` if the run's
            images have moved, ``data.public.images.path=..`` if its public ones have.
        data: images other than the run's, resized to the run's size and channels. Protocols use their training and
            test images like the run's own. Text is parsed by :func:`parse_data_argument_of_run`.
        exclude_trained: whether to leave out test images of ``data`` that the run trained on; else a note counts them.
        trust_imports: whether to run code that the run folder brings along.
        renew: brings ``evaluation.json`` up to date if ``run`` is a copy; called before results are added.
    Returns:
        The new content of ``evaluation.json``: ``accuracy``, ``select`` and ``features`` are ``{encoder: {tag:
        value}}``, ``untrained`` is ``{architecture: {tag: value}}`` (``{encoder: ..}`` if clients began with their own
        values), ``pixels`` is ``{tag: value}``, and ``evaluation`` the settings behind each protocol's results, with
        ``test_images`` (labelled ones). ``own`` is ``{encoder: {tag: {client: value}}}`` on clients' own test images.
        In ``own`` and ``features``, untrained encoders are named ``untrained NAME``, comparisons of encoders
        ``between encoders``. ``over untrained`` and ``over pixels`` are the 95% intervals of accuracies over these,
        paired image by image. ``other data`` holds the same for images other than the run's, by their title, the newest
        last, with ``images``: their source, digest, numbers, notes, and largest class if naming it scores high.
    Raises:
        UserError: no encoder there, an unknown protocol or change, images that are gone, a run that went on meanwhile.
    """
    own = load_untrusted(of_run(run), trust_imports=trust_imports)  # protocols may be among its imports
    if unknown := [name for name in protocols if name not in PROTOCOLS]:
        raise UserError(PROTOCOLS.unknown("--protocol", unknown[0]))
    summary = summary_bytes(run)
    with naming_checkpoint(run):
        encoders = exported_by(run)
    _check_asked(run, other=data is not None, exclude_trained=exclude_trained)
    config = _configured(run, protocols, changes, trust_imports, several=len(encoders) > 1)
    earlier(run / EVALUATION)  # what cannot be read is said before anything is measured
    data = parse_data_argument_of_run(data, config.data, "--data") if isinstance(data, str) else data
    if data is None:
        federation, images = _own_images(run, config), None
    else:
        federation, images = _other_images(run, config, data, exclude_trained, chosen=bool(protocols))
    measured = measure(config, federation, encoders, data)
    found = measured.document if images is None else {"images": images, **measured.document}
    protocols = config.evaluation.protocols
    with rewriting(run / EVALUATION) as write:  # another command may have added to it since
        renew()
        refuse_gone_on(run, summary, summary_bytes(run))
        known = with_untrained(earlier(run / EVALUATION), _began(config, encoders))
        found = added(known, found, protocols) if data is None else _beside(known, _name(data, found), found, protocols)
        write(found)
        if data is None:
            add_outcomes(run, measured.outcomes, as_in_the_run(own, config), federation)
    return found


def _own_images(run: Path, config: RunConfig) -> Federation:
    """The run's own images, dealt as they were in the run. Raises UserError if they are no longer the same."""
    with began_earlier(config):
        federation = load_federation(config)
    check_same_images(run, federation)
    check_same_files(config, run)
    return federation


def _check_asked(run: Path, *, other: bool, exclude_trained: bool) -> None:
    """Refuse a folder that cannot be written to, and a request to leave out the run's own test images. Raises
    UserError.
    """
    if not os.access(run, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise UserError(f"{run}: cannot be written to, and {EVALUATION} belongs there; copy the run elsewhere")
    if exclude_trained and not other:
        raise UserError("--exclude-trained: found no --data; it leaves out test images of another data set")


def _other_images(
    run: Path, config: RunConfig, data: SourceConfig, exclude_trained: bool, *, chosen: bool
) -> tuple[Federation, dict[str, Any]]:
    """A data set that no client holds, in the run's size and channels and, unless its block sets its own, with the
    run's fit, background, range and bands; and notes on it. ``chosen``: whether protocols were named for it.
    """
    form: dict[str, Any] = {"image_size": config.data.image_size, "channels": config.data.channels}
    free = ("fit", "background", "range")
    form |= {key: getattr(config.data, key) for key in free if key not in data.model_fields_set}
    if form.get("range") == PERCENTILES:  # of the run's own training images
        form["range"] = Transform.of_run(exported_by(run)[0].description, config.data).range
    source = data.model_dump(mode="json", exclude_defaults=True, exclude=set(form)) | {"name": data.name}
    for key in data.model_fields_set.intersection((*free, "bands", "nodata")):
        source[key] = getattr(data, key)  # also where it is the default, which the run's may not be
    skip = {"name": data.name, **source, "on_bad_image": "skip"}
    with columns_in_block({"name": data.name, **source}, "--data "):
        asked = with_bands(data, config.data)
        asked = in_channels(asked, config.data.channels, "--data").model_copy(update=form)
        hint = f"give --data {in_block(skip)}"
        dataset = loading.load(asked, skipping=hint, range_may_be_unused="range" not in data.model_fields_set)
    whole = len(dataset.test)
    dataset, trained = _seen(run, dataset, exclude_trained)
    largest = largest_class(dataset)
    said = {
        "source": source,
        "digest": dataset.digest,
        "train": len(dataset.train),
        "test": len(dataset.test),
        **({"without": "images that the run trained on"} if len(dataset.test) < whole else {}),
        **({"largest_class": {"name": largest.name, "share": largest.share}} if largest is not None else {}),
    }
    found = remarks(dataset, config.evaluation.metrics)
    notes = [
        *trained,
        *(Note(layout_in_block(note.text, {"name": data.name, **source}, "--data "), note.public) for note in found),
    ]
    images: dict[str, Any] = {**said, "notes": [], **recorded_notes(notes)}
    if not (chosen or config.evaluation.labelled) and (dataset.test.labels >= 0).any():
        images["notes"].append("these images have labels: --protocol knn, linear or fewshot measures by them")
    return Federation(dataset, (), None, None, ()), images


def _seen(run: Path, dataset: Dataset, exclude: bool) -> tuple[Dataset, list[Note]]:
    """The data set, and a line if the run trained on some of its test images; with ``exclude`` they are left out.
    Raises UserError if all would be left out, or if it is not known what the run trained on.
    """
    known = read_trained(run)
    if known is None:
        if exclude:
            raise UserError(f"--exclude-trained: found no {TRAINED} in {run}, which an earlier version made")
        unknown = "whether the run trained on some of these images is not known"
        return dataset, [Note(f"the run has no {TRAINED}: {unknown.replace('the run', 'it')}", unknown)]
    test = dataset.test
    seen = among_trained(test.pixels, known)
    count, there = int(seen.sum()), len(test)
    if not count:
        return dataset, []
    said = f"the run trained on {count} of {there} test images (the same pixels)"
    if not exclude:
        memory = f"{said}: what is measured on {'it' if count == 1 else 'them'} is memory"
        return dataset, [Note.shareable(memory, f"; --exclude-trained leaves {'it' if count == 1 else 'them'} out")]
    if count == there:
        raise UserError(f"--exclude-trained: {said}, and so none is left to measure on")
    return without_test(dataset, seen), [Note.shareable(f"{said}: {'it is' if count == 1 else 'they are'} left out")]


def _beside(known: Mapping[str, Any], name: str, now: Mapping[str, Any], measured: Sequence[str]) -> dict[str, Any]:
    """``known`` with the results found ``now`` on the data set of this name, which comes last. Earlier results on it
    stay if its images are the same; else a note says what is removed.
    """
    others = dict(known.get(OTHERS, {}))
    before = others.pop(name, {})
    if before and _which(before.get("images", {})) != _which(now["images"]):
        gone = ", ".join(before.get("evaluation", {})) or "all of it"
        note = f"what {EVALUATION} held of {name} was of other images, or of another form of them, and has gone: {gone}"
        now = {**now, "images": {**now["images"], "notes": [*now["images"]["notes"], note]}}
        before = {}
    return {**known, OTHERS: {**others, name: added(before, now, measured)}}


def _name(data: SourceConfig, found: Mapping[str, Any]) -> str:
    """The name of a data set in ``evaluation.json``; with images left out it has another name than the whole one."""
    without = found["images"].get("without")
    return title(data) if without is None else f"{title(data)} without {without}"


def _which(images: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that identify the images, without the notes on them."""
    return {key: value for key, value in images.items() if key not in (*NOTES, "largest_class")}


def measure(
    config: RunConfig, federation: Federation, encoders: Sequence[ExportedFile], data: SourceConfig | None
) -> Found:
    """The configured protocols on these images, which are those of ``data``, or the run's own."""
    other = None if data is None else printable(data.name if data.path is None else data.path)
    train, test = federation.dataset.train, federation.dataset.test
    has_columns = data is not None and "columns" in SOURCES[data.name].reads
    unless = "columns.label of --data" if has_columns else ""
    evaluation.check(config.evaluation, train.labels, test.labels, config.data.image_size, other, unless)
    check_drawn(federation, config)
    context = ProcessContext(config, federation)
    found = Found()
    before = dict[str, Mapping[str, float]]()
    for name, (architecture, client) in _began(config, encoders).items() if config.evaluation.rows else ():
        before[name] = context.evaluate(architecture, None, client=client)
        found.note(UNTRAINED, name, f"{UNTRAINED} {name}", before[name])
    known = dict[object, dict[str, float]]()
    for one in encoders if config.evaluation.rows else []:
        weights, client = pack(_loaded(context, one)), one.client
        if client is None or not shareable(config.evaluation, one.architecture):
            found.exported(one, context.evaluate(one.architecture, weights, client=client))
            continue
        key = one.architecture, digest(weights.layout, weights.vector)
        if key not in known:
            known[key] = context.evaluate(one.architecture, weights)
        found.exported(one, evaluation.of_client(known[key], client))
    pixels = context.evaluate_pixels() if config.evaluation.on_pixels else None
    if pixels is not None:
        found.document[PIXELS] = pixels
    if config.evaluation.rows:
        of_clients = [one for one in encoders if one.client is not None]
        together = {one.stem: [one] for one in encoders} | ({MEAN: of_clients} if len(of_clients) > 1 else {})
        for name, some in together.items():
            began = [before[one.before_training(config.model.initial == "own")] for one in some]
            found.pair(
                name, some, {UNTRAINED: began, PIXELS: [pixels or {}] * len(some)}, test.labels[test.labels >= 0]
            )
    if config.evaluation.comparisons:
        features = {one.stem: context.features_to_compare(_loaded(context, one)) for one in encoders}
        found.note("accuracy", BETWEEN, BETWEEN, _compared(features, config.evaluation))
    labelled, counts = len(train_rows(federation, config)[0]), tested_images(federation, config)
    found.document["evaluation"] = {
        name: evaluation.settings_of(config.evaluation, name, labelled)
        | (counts if name in config.evaluation.labelled else {})
        for name in config.evaluation.protocols
    }
    return found


def _began(config: RunConfig, encoders: Sequence[ExportedFile]) -> dict[str, tuple[str, int | None]]:
    """The encoders before training, by name: the architecture, and the client if clients began with their own
    values.
    """
    own = config.model.initial == "own"
    began = {one.before_training(own): (one.architecture, one.client if own else None) for one in encoders}
    return dict(sorted(began.items()))


def _compared(features: Mapping[str, Mapping[str, NDArray[Any]]], config: EvaluationConfig) -> dict[str, float]:
    """The comparison of all exported encoders. Raises UserError if no two can be compared."""
    values: dict[str, float] = {}
    for name, row in config.comparisons.items():
        seen = {encoder: torch.from_numpy(of[name]) for encoder, of in features.items()}
        if not (found := row.compare(seen, config.of(name))):
            dims = ", ".join(f"{encoder} ({rows.shape[-1]} dimensions)" for encoder, rows in seen.items())
            raise UserError(
                f"evaluation.protocols: found {name} with encoders {dims}; it needs at least two of one dimension"
            )
        values |= found
    return values


class Found:
    """Values sorted by kind: scores, values on held-out images, descriptions of features. ``outcomes`` are those of
    exported encoders, by client.
    """

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}
        self.outcomes: dict[int | None, Outcomes] = {}

    def exported(self, one: ExportedFile, values: Mapping[str, float]) -> None:
        """Add what was measured of an exported encoder."""
        self.note("accuracy", one.stem, one.stem, values)
        self.outcomes[one.client] = evaluation.outcomes_of(values) or Outcomes({}, {})

    def pair(
        self,
        name: str,
        encoders: Sequence[ExportedFile],
        others: Mapping[str, Sequence[Mapping[str, float]]],
        labels: NDArray[np.int64],
    ) -> None:
        """The intervals of the differences between encoders' mean accuracies and those of the blocks ``others``, paired
        image by image. ``labels``: the labels of the labelled test images.
        """
        scores = list(self.document.get("accuracy", {}).get(encoders[0].stem, {}))
        for block, values in others.items():
            ours = [self.outcomes[one.client] for one in encoders]
            if pairs := paired_scores(ours, [evaluation.outcomes_of(each) for each in values], scores, labels):
                self.document.setdefault(OVER.format(block), {})[name] = pairs

    def note(self, block: str, name: str, described: str, values: Mapping[str, float]) -> None:
        """Sort values: scores go to ``block`` under ``name``, all others to the block that their tag begins with, under
        ``described``.
        """
        parts = evaluation.by_client(None, values)
        for tag, value in parts.pop(None).items():
            group, slash, rest = tag.partition("/")
            where, who, what = (group, described, rest) if slash else (block, name, tag)
            self.document.setdefault(where, {}).setdefault(who, {})[what] = value
        for client, own in parts.items():
            for tag, value in own.items():
                by_tag = self.document.setdefault("own", {}).setdefault(described, {})
                by_tag.setdefault(tag.removeprefix(evaluation.OWN), {})[str(client)] = value


def _configured(
    run: Path, protocols: Sequence[str], changes: Sequence[str], trust_imports: bool, several: bool
) -> RunConfig:
    """The run's settings with the protocols to measure; by default those of the run's own that suit ``several``
    encoders or a single one.

    Every network is loaded from the folder or untrained, so the file that the run began with need not be here.
    """
    own = load_untrusted(run / "config.yaml", trust_imports=trust_imports)
    here, measured = places(own), protocols or own.evaluation.protocols
    allowed_names = (*CHANGEABLE, *(name for name in PROTOCOLS if name in EvaluationConfig.model_fields))
    for key in flat(parse_overrides(changes)):
        if key in here:
            continue
        block, name, below = (*key.split("."), "", "")[:3]
        protocol = below if name == "options" else name  # others' keys are in evaluation.options
        if block == "evaluation" and protocol in PROTOCOLS and name in allowed_names and protocol not in measured:
            raise UserError(f"{key}: found without the protocol {protocol}; allowed with --protocol {protocol}")
        if block != "evaluation" or name not in (*allowed_names, *PROTOCOLS):
            allowed = ", ".join([*(f"evaluation.{name}" for name in allowed_names), *here])
            raise UserError(f"{key}: found a change of what the run was; allowed here: {allowed}")
    chosen = [f"evaluation.protocols=[{','.join(dict.fromkeys(protocols))}]"] if protocols else []
    config = load_untrusted(run / "config.yaml", [*changes, *chosen], trust_imports=trust_imports)
    if not protocols and not several:
        alone = config.evaluation.model_copy(update={"protocols": tuple(config.evaluation.rows)})
        config = config.model_copy(update={"evaluation": alone})
    if not config.evaluation.protocols:
        allowed = ", ".join(PROTOCOLS)
        raise UserError(f"--protocol: found none, in the run's configuration neither; must be one of {allowed}")
    return config.model_copy(update={"model": config.model.model_copy(update={"start": None})})


def _loaded(context: ProcessContext, one: ExportedFile) -> Network:
    """A network with the exported values. Its heads are untrained, since protocols use the encoder only."""
    network = context.network(one.architecture)
    load_values(network.encoder, read_safetensors(one.values), f"encoder {one.architecture!r}", str(one.values))
    return network
