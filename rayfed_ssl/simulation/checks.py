"""Checks, before a run's first file is written, that the images suit the run: shards, labels, comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from rayfed_ssl import evaluation
from rayfed_ssl.base.notes import Note, as_notes
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import plural, printable
from rayfed_ssl.config import RunConfig, sends_weights
from rayfed_ssl.data.holdout import leaves_too_few, stratified_share
from rayfed_ssl.data.images import are_bands
from rayfed_ssl.data.partition_base import GivenClients
from rayfed_ssl.data.pixels.notes import all_grey
from rayfed_ssl.data.readers.folders.layouts import some
from rayfed_ssl.data.sources import OWN_IMAGES, SOURCES
from rayfed_ssl.evaluation.metrics import ACCURACY
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.measured_rows import check_drawn, train_rows
from rayfed_ssl.federated.remarks import FEW, MOST_NAMED, remarks
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.methods import METHODS
from rayfed_ssl.models import HEADS, ModelConfig, pinned
from rayfed_ssl.objectives import build as build_objective
from rayfed_ssl.records.tables import SKIPPED
from rayfed_ssl.records.trained_image_digests import of_start
from rayfed_ssl.settings.transport import DIRECTIONS, FULL

SHAPED = {  # keys of ``model`` -> the head that alone reads them
    "projector": "projector", "calibration": "projector", "predictor": "predictor", "prototypes": "prototypes",
    "head_dropout": "classifier", "patch_decoder": "patch_decoder",
}  # fmt: skip
ENOUGH_STEPS = 50  # one after the other in the whole run; the recipes of configs/ have 72 and more


def with_start(config: RunConfig) -> RunConfig:
    """The configuration with the digest of the file that ``model.start`` names; every process then compares it."""
    if config.model.start is None:
        return config
    model = config.model.model_copy(update={"start": pinned(config.model.start)})
    return config.model_copy(update={"model": model})


def check_run(config: RunConfig, federation: Federation) -> None:
    """Raise UserError if the images, as they are dealt, do not suit the run: a client has too few, needed labels are
    missing, encoders cannot be compared, or the method lacks something. Also refuses momentum targets that a server's
    optimiser would leave behind. Earlier versions have made such runs, which can still be read.
    """
    if config.averages_target and config.server.optimizer.name != "average":
        raise UserError(
            f"objective.target: found 'averaged'; server.optimizer.name={config.server.optimizer.name} steps with the "
            "model alone, and the mean of targets would run ahead of it; allowed: local, reset"
        )
    check_shards(config, federation)
    check_labels(config, federation)
    check_comparisons(config, federation)
    if (check := METHODS[config.method.name].check_federation) is not None:
        check(config, federation)


def check_shards(config: RunConfig, federation: Federation) -> None:
    """Refuse shards below what the objective or a plug-in needs; batches are min(batch_size, shard)."""
    split, needed = config.data.partition, max(least for _, least in config.least_batches)
    remedy = "fewer clients, more images, or another data.partition"
    if given := isinstance(split, GivenClients):
        remedy = f"data.partition.min_size={needed} leaves smaller clients out"
    smallest = min(federation.clients, key=lambda client: federation.sizes[client])
    size = int(federation.sizes[smallest])
    images = plural(size, "image", "images")
    for reason, least in config.least_batches:
        if size < least:
            few = f"{federation.called(smallest)} has {images}; {reason} needs batches of at least {least}"
            train, select, held_out = federation.dataset.train, config.evaluation.select, federation.held_out
            if select is not None and held_out is not None:
                undivided = size / (1 - len(held_out) / len(train))  # as many, dealt of all images
                clients = train.clients if split.natural else None
                fewest = stratified_share(train.labels, 0, config.seed, clients, train.groups)
                most = undivided * (1 - len(fewest) / len(train))
                if clients is not None:
                    undivided = int((clients == smallest).sum())
                    most = undivided - int((clients[fewest] == smallest).sum())
                if undivided >= least:
                    raise UserError(leaves_too_few(few, select.share, held_out, len(train), most >= least))
            raise UserError(f"{'data.partition' if given else 'clients.count'}: {few} ({remedy})")


def check_labels(config: RunConfig, federation: Federation) -> None:
    """Refuse an objective, or protocols, that need labels if images have none, before rounds are spent on them. There
    is a line for each and, if training images are of no class or a single one, lines on how the images were read:
    those that name the key of a column of labels come first.
    """
    lines: list[str] = []
    trained = np.concatenate([federation.dataset.train.labels[shard["train"]] for shard in federation.shards])
    if build_objective(config.objective).labelled and (unknown := int((trained < 0).sum())):
        lines.append(
            f"objective.name: found '{config.objective.name}', but {unknown} of {len(trained)} training images have no "
            "label; allowed without labels: a self-supervised objective"
        )
    train, test = federation.dataset.train, federation.dataset.test
    unnamed = "columns" in SOURCES[config.data.name].reads and config.data.columns.label is None
    unless = "data.columns.label" if unnamed else ""
    try:
        evaluation.check(config.evaluation, train.labels, test.labels, config.data.image_size, unless=unless)
        check_drawn(federation, config)
    except UserError as error:
        lines.append(str(error))
    if lines:
        told = () if len(np.unique(train.labels[train.labels >= 0])) > 1 else federation.dataset.notes
        of_labels = sorted(map(str, told), key=lambda note: "data.columns.label" not in note)
        raise UserError("\n".join([*lines, *(f"data: {note}" for note in of_labels)]))


def image_notes(config: RunConfig, federation: Federation) -> tuple[Note, ...]:
    """Lines on the run's images, on images of other sources that protocols use (after the key that names them), and on
    images that the encoder of ``model.start`` was trained on. Raises UserError if other sources' images are missing.
    """
    metrics = config.evaluation.metrics
    others = [
        note.of(key)
        for name, protocol in config.evaluation.rows.items()
        for key, found in protocol.images(config.evaluation.of(name), config.data.image_size).items()
        for note in remarks(found, metrics)
    ]
    labels = federation.dataset.train.labels[train_rows(federation, config)[0]]
    used = [
        line for name, row in config.evaluation.rows.items() for line in row.remarks(config.evaluation.of(name), labels)
    ]
    own = [*_of_one_class(config, federation), *_few_own(config, federation)]
    began = of_start(config.model.start, federation)
    channels = [*_all_grey(config, federation), *_bands_in_views(config)]
    return as_notes([*federation.notes(metrics), *channels, *own, *used, *others, *began])


def _bands_in_views(config: RunConfig) -> Iterator[Note]:
    """A line on the augmentations that have no effect on images of bands."""
    recipe, channels = config.augment.recipe(), config.data.channels
    _, _, saturation, hue = recipe.jitter if recipe.jitters else (0.0,) * 4
    strengths = {"saturation": saturation, "hue": hue, "grey": recipe.gray_p}
    if are_bands(channels) and (left_out := [name for name, strength in strengths.items() if strength]):
        said = f"views are made without {', '.join(left_out)}: images of {channels} bands have no colours"
        yield Note.shareable(said, " (augment.jitter, augment.gray_p)")


def _all_grey(config: RunConfig, federation: Federation) -> Iterator[Note]:
    """A line on the user's own grey images that are read with three channels, though the user did not ask for three."""
    data, dataset = config.data, federation.dataset
    free = config.model.start is None and "channels" not in data.model_fields_set and data.bands is None
    if dataset.grey and free and OWN_IMAGES & SOURCES[data.name].reads:
        yield all_grey(len(dataset.train) + len(dataset.test), "data")


def _of_one_class(config: RunConfig, federation: Federation) -> Iterator[Note]:
    """A line if clients' own test images are all of one class, on which metrics other than accuracy are undefined."""
    metrics = [metric for metric in config.evaluation.metrics if metric != ACCURACY]
    classifies = any(protocol.classifies for protocol in config.evaluation.rows.values())
    if federation.own_tests is None or not metrics or not classifies:
        return
    labels = [federation.dataset.test.labels[federation.own_tests[client]] for client in federation.clients]
    classes = [len(np.unique(mine[mine >= 0])) for mine in labels]
    if alone := classes.count(1):
        yield Note.shareable(
            f"{alone} of {len(classes) - classes.count(0)} clients with own test images have those of one class alone",
            f": they have no own {' or '.join(metrics)}, and a mean over clients is without them",
        )


def _few_own(config: RunConfig, federation: Federation) -> Iterator[Note]:
    """A line if clients have few own test images: a mean over clients gives them the same weight as any other
    client.
    """
    if federation.own_tests is None or not any(protocol.classifies for protocol in config.evaluation.rows.values()):
        return
    labels = federation.dataset.test.labels
    counts = {client: int((labels[federation.own_tests[client]] >= 0).sum()) for client in federation.clients}
    tested = [client for client, count in counts.items() if count]
    few = [client for client in tested if counts[client] < FEW]
    if few:
        named = ", ".join(f"{federation.called(client)}: {counts[client]}" for client in few[:MOST_NAMED])
        more = f", and {len(few) - MOST_NAMED} more" if len(few) > MOST_NAMED else ""
        yield Note.shareable(
            f"{len(few)} of {len(tested)} clients with own test images have fewer than {FEW}",
            f" ({named}{more}): a mean over clients (own_..) counts each as much as any other",
        )


def settings_notes(
    config: RunConfig, federation: Federation, server: MethodServer[Any], device: str | None = None
) -> list[Note | str]:
    """Lines on settings that do not suit the images, have no effect, or change what is sent.

    Args:
        device: the cohort's, if it is known.
    """
    notes = [*ownership_notes(config, federation), *few_steps(config, server), *coded_weights(config)]
    return [*notes, *([] if device is None else no_bfloat16(config, device)), *without_effect(config)]


def ownership_notes(config: RunConfig, federation: Federation) -> list[Note | str]:
    """Lines on images that belong together and are dealt to several clients (those of one client folder, or of one
    patient), and on images that all have one owner.
    """
    return [*one_owner(config, federation), *ignored_clients(config, federation), *split_groups(config, federation)]


def one_owner(config: RunConfig, federation: Federation) -> list[Note]:
    """A line if all images are in one client folder, such as a camera's DCIM, or have the same value as their
    client.
    """
    train = federation.dataset.train
    if train.clients is None or len(train.client_names) != 1:
        return []
    column, count = config.data.columns.client, int((train.clients >= 0).sum())
    which = "" if count == len(train) else " that have a client"
    where = "in one client folder" if column is None else f"of one value of data.columns.client={printable(column, 80)}"
    place = "; data.path names the folder that holds a folder per client" if column is None else ""
    name = printable(train.client_names[0], 80)
    return [
        Note(
            f"all {count} training images{which} are {where}, {name}: they belong to one owner{place}",
            f"all {count} training images with an owner belong to one",
        )
    ]


def ignored_clients(config: RunConfig, federation: Federation) -> list[str]:
    """A line if the images come with clients (client folders or a client column) and the partition ignores these."""
    names = federation.dataset.train.client_names
    if federation.dataset.train.clients is None or len(names) == 1 or config.data.partition.by_client:
        return []
    return [
        f"data.partition.name: {config.data.partition.name} deals the images of {len(names)} client folders or values "
        f"anew; data.partition.name=natural with clients.count={len(names)} gives each client its own"
    ]


def split_groups(config: RunConfig, federation: Federation) -> list[Note]:
    """A line if images of one group, such as a patient, are dealt to several clients: groups are kept together when
    images are held out, not when they are dealt.
    """
    data, train = config.data, federation.dataset.train
    if train.groups is None:
        return []
    shards = [train.groups[shard["train"]] for shard in federation.shards]
    counts = np.bincount(np.concatenate([mine[mine >= 0] for mine in shards]))
    holders = np.bincount(np.concatenate([np.unique(mine[mine >= 0]) for mine in shards]), minlength=len(counts))
    if not (split := int((holders > 1).sum())):
        return []
    known = train.clients is not None and not data.partition.natural and not _spans_clients(train.groups, train.clients)
    rule = f"data.partition.name=natural with clients.count={len(train.client_names)}"
    if not known:
        column = data.columns.group is not None
        given = "a column data.columns.client" if column else "client folders (data.layout=clients)"
        by_owner = f"data.partition.name=natural, of {given}"
        if data.partition.natural:
            by_owner = "another column data.columns.client" if column else "other client folders"
        rule = f"{by_owner} whose clients have whole groups, or data.partition.name=file"
    key = "data.group" if data.columns.group is None else "data.columns.group"
    by = "gives them so" if data.partition.by_client else "deals image by image"
    said = (
        f"{split} of {int((counts > 1).sum())} groups ({key}) with several images to train on have them with several "
        "clients"
    )
    own = "must find the client, too" if key == "data.group" else "needs the client in its cells, too"
    own = f"; if every client has its own P1, P2, .., {key} {own}" if data.partition.natural else ""
    return [Note.shareable(said, f": data.partition.name={data.partition.name} {by}; {rule} keeps them together{own}")]


def few_steps(config: RunConfig, server: MethodServer[Any]) -> list[str]:
    """A line if a model that the median client trained in every round would take so few successive local steps that
    next to nothing is learned. If a round asks only some of the clients, each takes fewer steps still.
    """
    if not server.reaches_clients:
        return []
    sizes, train = server.setup.federation.sizes, config.train
    in_order = sorted(server.setup.clients, key=lambda client: int(sizes[client]))
    client = in_order[len(in_order) // 2]
    made = server.fit_batches(client)
    if made.steps * train.rounds >= ENOUGH_STEPS:
        return []
    more = "train.local_steps" if train.local_steps else "train.local_epochs, or a smaller train.batch_size"
    steps, rounds = plural(made.steps, "local step", "local steps"), plural(train.rounds, "round", "rounds")
    return [
        f"a client with {int(sizes[client])} images, as the median client, takes {steps} on {made.size} images in a "
        f"round, {made.steps * train.rounds} one after the other in {rounds}: too few for an encoder to learn much; "
        f"more train.rounds or {more} give more"
    ]


def no_bfloat16(config: RunConfig, device: str) -> list[str]:
    """A line if ``train.precision`` has no effect on the cohort's ``device``."""
    if config.train.precision == "float32" or "cpu" not in device.split(", "):
        return []
    return [f"train.precision: {config.train.precision} has no effect on a CPU, where forward passes are float32"]


def without_effect(config: RunConfig) -> list[str]:
    """A line for each key that the run has no use for, though a file may have it for other runs."""
    lines, server = without_head(config), config.server
    if config.data.public.images is not None and not config.uses_public:
        lines.append(f"data.public.images has no effect: {config.method.name} uses no public images")
    if server.schedule == "fedbuff" and server.concurrency is not None and config.participation.fraction != 1:
        lines.append("participation.fraction has no effect: server.concurrency says how many clients train at a time")
    return lines


def without_head(config: RunConfig) -> list[str]:
    """A line for each key of ``model`` that is not at its default and shapes a head that the run's network lacks; none
    where it has one of another package, which may read any.
    """
    heads = build_objective(config.objective).heads | config.method.heads
    if any(HEADS.origin(head) is not None for head in heads):
        return []
    plain, objective, method = ModelConfig(), config.objective.name, config.method.name
    return [
        f"model.{key} has no effect: with objective.name={objective} {method} has no {head.replace('_', ' ')}"
        for key, head in SHAPED.items()
        if head not in heads and getattr(config.model, key) != getattr(plain, key)
    ]


def coded_weights(config: RunConfig) -> list[Note]:
    """A line if weights are sent in fewer bytes than float32."""
    transport, sent = config.transport, sends_weights(config)
    coded = [way for way in reversed(DIRECTIONS) if way in sent and transport.code(way) != FULL]
    if not coded:
        return []
    said = f"weights go {', '.join(f'{way} as {transport.code(way).title}' for way in coded)} (transport)"
    return [Note.shareable(said, ": receivers compute with what arrives")]


def _spans_clients(groups: np.ndarray, clients: np.ndarray) -> bool:
    """Whether images of one group belong to several clients. Both are numbers (M,), -1 for none."""
    pairs = np.unique(np.stack([groups, clients])[:, (groups >= 0) & (clients >= 0)], axis=1)
    return bool(len(np.unique(pairs[0])) < pairs.shape[1])


def check_comparisons(config: RunConfig, federation: Federation) -> None:
    """Refuse to compare the encoders of a round's clients if no round can have two that are comparable."""
    if not config.evaluation.comparisons:
        return
    names, clients = ", ".join(config.evaluation.comparisons), len(federation.clients)
    found = f"evaluation.protocols: found {names}, which compares the encoders of a round's clients;"
    at_once = config.server.buffer if config.server.schedule == "fedbuff" else config.participants(clients)
    if not METHODS[config.method.name].server.reaches_clients:
        raise UserError(f"{found} {config.method.name} trains one; allowed: the other protocols")
    if min(at_once, clients) < 2:
        raise UserError(f"{found} a round has {min(at_once, clients)} of {clients}; must be at least 2")
    initial = InitialWeights(config, federation)
    dims: Counter[int] = Counter()
    encoders = Counter(config.clients.encoder(client) for client in federation.clients)
    for encoder, having in encoders.items():
        dims[initial.network(encoder).dim] += having
    if max(dims.values()) < 2:
        raise UserError(f"{found} of {', '.join(encoders)} no two have features of one dimension; must be two at least")


def describe(config: RunConfig, federation: Federation) -> str:
    """The run in one line: method, data set, clients and the sizes of their shards, and the images that are left
    out.
    """
    sizes = federation.sizes[list(federation.clients)]
    spread = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    line = f"{config.method.name} on {federation.dataset.name}: {len(federation.clients)} clients x {spread} images"
    if sizes.min() < config.train.batch_size:
        line += f"; batches of {config.train.batch_size}, or of all images of a client that has fewer"
    if federation.held_out is not None:
        labelled = (federation.dataset.train.labels[federation.held_out] >= 0).any()
        use = "to choose by" if labelled and config.evaluation.selecting else "for `rayfed-ssl leak` alone"
        line += f"; {len(federation.held_out)} training images held out {use}"
    if skipped := federation.dataset.skipped:
        left = plural(len(skipped), "broken image", "broken images")
        line += f"; {left} left out ({some(skipped, 3)}), which {SKIPPED} in the run folder names"
    return line
