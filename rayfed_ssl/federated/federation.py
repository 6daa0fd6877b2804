"""A federation: a data set dealt to clients, after the public images were taken out.

It is a pure function of the configuration and the images, so a driver, an actor and a resumed run all see the same
shards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rayfed_ssl import evaluation
from rayfed_ssl.base.notes import Note, as_notes
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.base.text import composed
from rayfed_ssl.data import loading
from rayfed_ssl.data import partition as partitions
from rayfed_ssl.data.feature_skew import skew_features
from rayfed_ssl.data.holdout import leaves_too_few, stratified_share
from rayfed_ssl.data.images import Dataset, Images, Scaling, are_bands
from rayfed_ssl.data.partition_base import NaturalClients, Partition
from rayfed_ssl.data.partition_file import CLIENT_0, NONE, SHARE, Origin
from rayfed_ssl.data.sources import SourceConfig, in_channels
from rayfed_ssl.data.tasks import split_tasks
from rayfed_ssl.federated.remarks import copied, not_chosen_by, of_classes, over_share
from rayfed_ssl.settings.run import RunSettings

PUBLIC = "data.public.images"
Shard = Mapping[str, np.ndarray]  # split -> indices into the training images; "train" always, es/rb/test with tasks


@dataclass(frozen=True)
class Federation:
    """The images of a run, and which clients hold them. Clients with an empty training shard (client 0 as the public
    set, those below ``data.partition.min_size``) take no part.
    """

    dataset: Dataset
    shards: tuple[Shard, ...]
    public: Images | None
    public_indices: np.ndarray | None  # into dataset.train, where the public images came out of it
    names: tuple[str, ...]  # of the clients: folder, value of the client column, or "client 3"
    tasks: tuple[tuple[int, ...], ...] | None = None  # class ids of each client's own task
    own_tests: tuple[np.ndarray, ...] | None = None  # rows of dataset.test that are each client's own; None: none are
    held_out: np.ndarray | None = None  # training images that nobody holds, to choose by (evaluation.select)
    public_scaling: Scaling | None = None  # of public images of another source
    public_digest: str | None = None  # of all of them, of another source
    public_notes: tuple[Note, ...] = ()  # on how they were read
    partition_notes: tuple[Note, ...] = ()  # on images and clients that the partition left out
    given_away: bool = False  # whether the public images are client 0's

    @property
    def origin(self) -> Origin:
        """How many clients there are, and where the public images among the training images came from."""
        if self.public_indices is None:
            return Origin(len(self.shards), NONE)
        return Origin(len(self.shards), CLIENT_0 if self.given_away else SHARE)

    @property
    def scaled(self) -> dict[str, Scaling]:
        """How images of more than 8 bits were scaled, by configuration block; empty if there are none."""
        found = {"data": self.dataset.scaling, PUBLIC: self.public_scaling}
        return {key: scaling for key, scaling in found.items() if scaling is not None}

    def notes(self, metrics: Collection[str] = ()) -> tuple[Note, ...]:
        """Lines on how the images were read (including public images of another source), on what the partition left
        out, on duplicate images, and on a test set with a large class. They recommend none of ``metrics``, which are
        measured already.
        """
        held = [shard["train"] for shard in self.shards]
        return as_notes([
            *self.dataset.notes,
            *(note.of(PUBLIC) for note in self.public_notes),
            *self.partition_notes,
            *copied(self.dataset, held, self.held_out),
            *of_classes(self.dataset, metrics),
        ])  # fmt: skip

    @property
    def public_images(self) -> Images:
        """The public images, for a method that needs them. Raises ValueError if there are none."""
        if self.public is None:
            raise ValueError("this run has no public images; a method that uses them says so (Config.needs_public)")
        return self.public

    @cached_property
    def clients(self) -> tuple[int, ...]:
        """The clients that take part, ascending: those with training images."""
        return tuple(c for c, shard in enumerate(self.shards) if len(shard["train"]))

    @cached_property
    def given_names(self) -> tuple[str, ...] | None:
        """``names`` if the images or a file gave them; None if they are only ``client 0`` and so on."""
        given = any(name != f"client {client}" for client, name in enumerate(self.names))
        return self.names if given else None

    def called(self, client: int) -> str:
        """``client 3``, with the name it was given, if any, in parentheses."""
        name = "" if self.given_names is None else f" ({self.given_names[client]})"
        return f"client {client}{name}"

    def task_classes(self, client: int) -> int | None:
        """The number of classes of this client's own task; None without tasks."""
        return None if self.tasks is None else len(self.tasks[client])

    def task_test(self, client: int) -> np.ndarray:
        """The rows of ``dataset.test`` that show classes of this client's own task."""
        assert self.tasks is not None
        return np.flatnonzero(np.isin(self.dataset.test.labels, self.tasks[client]))

    @cached_property
    def sizes(self) -> np.ndarray:
        """(N,) n_j, the number of training images of each client. Read-only."""
        sizes = np.array([len(shard["train"]) for shard in self.shards], np.int64)
        sizes.flags.writeable = False
        return sizes

    @cached_property
    def shares(self) -> np.ndarray:
        """(N,) q_j = n_j / sum n. Read-only."""
        shares = np.asarray(self.sizes / self.sizes.sum())
        shares.flags.writeable = False
        return shares

    @property
    def classes(self) -> int:
        """The number of classes that the data set names, or that its training labels need."""
        known = self.dataset.train.labels
        return max(len(self.dataset.train.class_names), int(known.max(initial=-1)) + 1)


def require_public(federation: Federation, least: int, whose: str, otherwise: str = "") -> None:
    """Refuse fewer than ``least`` public images.

    Args:
        whose: what needs them: a method, or a key with its value.
        otherwise: what could be done instead.
    Raises:
        UserError: it says how many there are and how many there must be.
    """
    found = 0 if federation.public is None else len(federation.public)
    if found < least:
        more = f", or {otherwise}" if otherwise else ""
        raise UserError(
            f"data.public: found {found} public images; {whose} needs at least {least} (more of them{more})"
        )


def load_federation(config: RunSettings, cache: Path | None = None) -> Federation:
    """Load the images, decoded into the folder ``cache`` (None: the default one), and share them out to the clients.
    Raises UserError if the images do not allow what the configuration asks for.
    """
    dataset = loading.load(config.data, cache)
    if config.data.tasks is not None:
        return _task_federation(config, dataset)
    _check_measurable(config, dataset)
    train, split, select = dataset.train, config.data.partition, config.evaluation.select
    rest, held_out, public_indices = np.arange(len(train.labels)), None, None
    if select is not None:
        spared = train.clients if split.natural else None
        held_out = stratified_share(train.labels, select.share, config.seed, spared, train.groups)
        rest = np.delete(rest, held_out)
    if config.data.public.source == "share":
        share = config.data.public.share
        public_indices, rest = partitions.take_public(split, train.labels, share, config.seed, rest)
    shards = _shards(config, dataset, rest, held_out)
    partition_notes = as_notes([*_held_out_notes(config, train, held_out), *split.notes(train, rest, shards)])
    if any(split.corruption(client) is not None for client in range(len(shards))):
        dataset = skew_features(dataset, split, shards, config.seed, cache)
        train = dataset.train
    given_away = config.data.public.source == "client 0" and config.uses_public  # else that client trains as any other
    if given_away:
        public_indices, shards = _give_away(shards)
    public = _public(config, train, public_indices, cache)
    return Federation(
        dataset=dataset,
        shards=tuple({"train": shard} for shard in shards),
        public=public.images,
        public_indices=public_indices,
        names=partitions.client_names(split, train, config.clients.count),
        own_tests=_own_tests(split, dataset, len(shards)),
        held_out=held_out,
        public_scaling=public.scaling,
        public_digest=public.digest,
        public_notes=public.notes,
        partition_notes=partition_notes,
        given_away=given_away,
    )


def _held_out_notes(config: RunSettings, train: Images, held_out: np.ndarray | None) -> Iterator[Note | str]:
    """Lines on the training images that nobody holds (``evaluation.select``)."""
    select = config.evaluation.select
    if select is not None and held_out is not None:
        yield from over_share(train.labels, held_out, select.share, train.groups is not None)
        yield from not_chosen_by(train.labels, held_out, config.evaluation.selecting)


def _shards(config: RunSettings, dataset: Dataset, rest: np.ndarray, held_out: np.ndarray | None) -> list[np.ndarray]:
    """``rest``, shared out by the partition. Raises UserError if that is impossible. The message names
    ``evaluation.select`` if it would be possible with the held-out images. If the images have no label, or no client,
    that the partition goes by, it also says how they were read, since a column may hold them.
    """
    train, split = dataset.train, config.data.partition

    def partitioned(rows: np.ndarray) -> list[np.ndarray]:
        natural = NaturalClients(train.clients, train.client_names)
        return partitions.partition(split, train.labels, config.clients.count, config.seed, natural, rows)

    try:
        return partitioned(rest)
    except UserError as error:
        if (split.by_label and not (train.labels >= 0).any()) or (split.natural and train.clients is None):
            raise _as_read(error, dataset) from None
        if held_out is None or config.evaluation.select is None:
            raise
        everything, share = np.union1d(rest, held_out), config.evaluation.select.share
        if not _possible(partitioned, everything):
            raise error from None
        fewest = stratified_share(train.labels, 0, config.seed, train.clients if split.natural else None, train.groups)
        smaller = _possible(partitioned, np.setdiff1d(everything, fewest))
        raise UserError(leaves_too_few(str(error), share, held_out, len(train), smaller)) from error


def _possible(partitioned: Callable[[np.ndarray], list[np.ndarray]], rows: np.ndarray) -> bool:
    """Whether ``rows`` can be shared out."""
    try:
        partitioned(rows)
    except UserError:
        return False
    return True


class _Public(NamedTuple):
    """The public images and, if they are of another source, how they were read."""

    images: Images | None = None
    scaling: Scaling | None = None
    digest: str | None = None
    notes: tuple[Note, ...] = ()


def _public(config: RunSettings, train: Images, indices: np.ndarray | None, cache: Path | None) -> _Public:
    """The images of ``data.public.images``, or those at ``indices`` of the training images, or none."""
    source, sample = config.data.public.images, config.data.public.sample
    if source is None:
        return _Public() if indices is None else _Public(train.rows(indices))
    found = _of_another_source(source, config, train, cache)
    images = found.train if sample is None else _sample(found.train, sample, config.seed)
    return _Public(images, found.scaling, found.digest, found.notes)


def _of_another_source(source: SourceConfig, config: RunSettings, train: Images, cache: Path | None) -> Dataset:
    """Public images of another source, in the size and channels of the run's own."""
    if are_bands(config.data.channels) or source.bands is not None:
        source = in_channels(source, config.data.channels, PUBLIC)
    found = loading.load(source, cache, PUBLIC, ("train",))
    if found.train.pixels.shape[1:] == train.pixels.shape[1:]:
        return found
    form = {"image_size": config.data.image_size, "channels": config.data.channels}
    return loading.load(source.model_copy(update=form), cache, PUBLIC, ("train",))


def _check_measurable(config: RunSettings, dataset: Dataset) -> None:
    """Refuse protocols that need labels if training images have some and no test image has. The message says how the
    images were read, and so which other split has labels. Raises UserError.
    """
    train, test = dataset.train.labels, dataset.test.labels
    if (test >= 0).any() or not (train >= 0).any():
        return
    try:
        evaluation.check(config.evaluation, train, test, config.data.image_size)
    except UserError as error:
        raise _as_read(error, dataset) from None


def _as_read(error: UserError, dataset: Dataset) -> UserError:
    """``error``, with a line for each note on how the images were read."""
    return UserError("\n".join([str(error), *(f"data: {note}" for note in dataset.notes)]))


def _give_away(shards: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Client 0's images as the public ones, and the shards without them. Raises UserError if client 0 has no images, or
    no other client has any.
    """
    given = "data.public.source: 'client 0' gives that client's images away"
    if len(shards) < 2:
        raise UserError(f"{given}; clients.count must be at least 2")
    if not len(shards[0]):
        raise UserError(f"{given}, but data.partition.min_size leaves it out")
    if not any(len(shard) for shard in shards[1:]):
        raise UserError(f"{given}, and data.partition.min_size leaves all others out")
    return shards[0], [shards[0][:0], *shards[1:]]


def _own_tests(split: Partition, dataset: Dataset, clients: int) -> tuple[np.ndarray, ...] | None:
    """The rows of each client's own test images: those in its folder, or with its value in the client column."""
    whose = dataset.test.clients
    if whose is None or not split.natural:
        return None
    return tuple(np.flatnonzero(whose == client) for client in range(clients))


def _task_federation(config: RunSettings, dataset: Dataset) -> Federation:
    """FedLinked's setting (Table 4.1): each client has its own classes and four disjoint private splits;
    ``data.public.share`` of every client's images are pooled as the public set. Raises UserError.
    """
    assert config.data.tasks is not None
    if (found := config.data.public.source) not in ("none", "share"):
        raise UserError(
            f"data.public.source: found '{found}'; with data.tasks the public images are a share of every task's; "
            "allowed: share"
        )
    if len(config.data.tasks) != config.clients.count:
        raise UserError(
            f"data.tasks: found {len(config.data.tasks)} tasks; clients.count={config.clients.count} needs one each"
        )
    names = dataset.train.class_names
    tasks = tuple(tuple(_class_id(name, names, dataset) for name in task) for task in config.data.tasks)
    lists, data = [list(task) for task in tasks], config.data
    seed = data.partition.split_seed(config.seed)
    splits, public = split_tasks(dataset.train.labels, lists, data.public.share, seed, data.task_images)
    client_names = partitions.client_names(data.partition, dataset.train, len(lists))
    made = Federation(dataset, tuple(splits), dataset.train.rows(public), public, client_names, tasks)
    if config.evaluation.tasks_on == "test":
        for client in range(len(tasks)):
            if not len(made.task_test(client)):
                raise UserError(
                    f"evaluation.tasks_on: found test; {dataset.name} has no test image of client {client}'s classes; "
                    "allowed then: own"
                )
    return made


def _class_id(name: str | int, names: tuple[str, ...], dataset: Dataset) -> int:
    if isinstance(name, str) and composed(name) in names:
        return names.index(composed(name))
    if isinstance(name, int) and (dataset.train.labels == name).any():
        return name
    raise UserError(f"data.tasks: found class '{name}'; {dataset.name} has {', '.join(names) or 'unnamed classes'}")


def _sample(images: Images, count: int, seed: int) -> Images:
    """``count`` of the images, drawn uniformly without replacement and kept in their order. Raises UserError for too
    many.
    """
    if count > len(images):
        raise UserError(
            f"data.public.sample: found {count}; data.public.images holds {len(images)}; allowed: 1 to {len(images)}"
        )
    drawn = numpy_generator(seed, "public", "sample").choice(len(images), count, replace=False)
    return images.rows(np.sort(drawn))
