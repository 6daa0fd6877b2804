"""Notes on images that affect how to read a run's numbers: copies, large, small or missing classes in the test set, and
folders that are no class by their name.

Shape legend: N training images, M test images.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.notes import Note, as_notes
from rayfed_ssl.base.text import plural, printable
from rayfed_ssl.data.holdout import SOME_UNTESTED
from rayfed_ssl.data.images import Dataset
from rayfed_ssl.data.readers.split_rows import NO_LABEL, SEVERAL

MOST_NAMED = 5  # small classes, and those without a test image
ABOVE_CHANCE = Fraction(1, 10)  # accuracy of always naming the largest class, before it is said
FEW = 5  # test images of a class, under which it is said
OVER_SHARE = 1.5  # times the share of evaluation.select, before it is said
ADVICE = "; balanced accuracy (evaluation.metrics=[accuracy,balanced_accuracy]) tells more"
NO_CLASS = {
    "unlabelled", "unlabeled", "nolabel", "notlabelled", "notlabeled", "unannotated", "unclassified", "unsorted",
    "unknown", "unspecified", "undetermined", "unassigned", "missing", "notavailable", "notapplicable",
    "tobedetermined",
}  # fmt: skip
"""Names, of letters alone, under which people put images that nobody labelled."""
NO_VALUE = {"na", "nan", "none", "null", "nil", "unk", "tbd", "tba"}
"""Words that stand for no label; with a digit, as "Na22", they are others."""
BETWEEN_LABELS = "|;,+"
"""What people write between several labels of one image; blanks and "/" stand within names, too."""
NO_WORD = re.compile(r"\?+|-{2,}|\.+")


def remarks(dataset: Dataset, metrics: Collection[str] = ()) -> tuple[Note, ...]:
    """All notes on images that no client holds; ``metrics`` as in ``of_classes``."""
    count = len(dataset.skipped)
    skipped = Note.shareable(f"{plural(count, 'broken image is', 'broken images are')} left out")
    return as_notes([
        *([skipped] if count else []), *dataset.notes, *copied(dataset, (), None), *of_classes(dataset, metrics),
    ])  # fmt: skip


def copied(dataset: Dataset, held: Sequence[NDArray[np.int64]], held_out: NDArray[np.int64] | None) -> Iterator[Note]:
    """Lines on images with the same pixels: test images that are also training images, held-out images (to choose by)
    that clients train on, and duplicate training images, with one client or with several. Each line says how many have
    another label than their copies.

    Args:
        held: each client's training images.
        held_out: training images that nobody holds, to choose by.
    """
    if dataset.copies is None or not len(dataset.copies):
        return
    trained = len(dataset.train)
    content = np.arange(trained + len(dataset.test))  # equal where the pixels are
    content[dataset.copies[:, 0]] = dataset.copies[:, 1]
    own, tested = content[:trained], content[trained:]
    labels = dataset.train.labels
    if known := int((tested < trained).sum()):
        found = plural(known, f"of {len(tested)} test images is", f"of {len(tested)} test images are")
        found += " also among the training images (the same pixels)"
        other = _under_other_labels((tested, dataset.test.labels), (own, labels))
        yield Note.shareable(found + _remembered(known, int(other.sum())))
    once_each = [np.empty(0, np.int64), *(np.unique(own[rows]) for rows in held)]
    holders = np.bincount(np.concatenate(once_each), minlength=len(content))  # clients that hold this content
    if held_out is not None and (known := int((holders[own[held_out]] > 0).sum())):
        theirs = np.concatenate([np.empty(0, np.int64), *held])
        other = _under_other_labels((own[held_out], labels[held_out]), (own[theirs], labels[theirs]))
        chosen_by = f"of {len(held_out)} images to choose by (evaluation.select)"
        found = plural(known, f"{chosen_by} is", f"{chosen_by} are") + " also among the clients' (the same pixels)"
        yield Note.shareable(found + _remembered(known, int(other.sum())))
    repeated = np.bincount(own, minlength=len(content))[own] > 1
    if repeated.any():
        several = int((repeated & (holders[own] > 1)).sum())
        where = f", {several} of them with several clients" if several else ""
        pairs = np.unique(np.stack([own, labels])[:, labels >= 0], axis=1)  # (content, label)
        differing = int((np.bincount(pairs[0], minlength=len(content))[own] > 1).sum())
        where += f", {differing} of them under several labels, which contradict each other" if differing else ""
        found = f"{int(repeated.sum())} of {trained} training images are there more than once (the same pixels)"
        yield Note.shareable(found + where)


Labelled = tuple[NDArray[np.int64], NDArray[np.int64]]
"""What images show, and their labels, -1 where unknown."""


def _under_other_labels(images: Labelled, trained: Labelled) -> NDArray[np.bool_]:
    """Which labelled images have labelled copies in ``trained``, but no copy with the image's own label."""
    (content, labels), (known, theirs) = images, trained
    most = int(max(labels.max(initial=0), theirs.max(initial=0))) + 1
    known, theirs = known[theirs >= 0], theirs[theirs >= 0]
    same = np.isin(content * most + labels, known * most + theirs)
    return (labels >= 0) & np.isin(content, known) & ~same


def _remembered(known: int, other: int) -> str:
    """What accuracy means on ``known`` copies, ``other`` of which have another label than the images they copy."""
    if not other:
        return f": accuracy on {'it' if known == 1 else 'them'} is memory"
    if known == 1:
        return ", under another label, which contradicts its own"
    contradicted = f", {other if other < known else 'all'} of them under another label, which contradicts theirs"
    others = "the other" if known - other == 1 else "the others"
    return contradicted + (f": accuracy on {others} is memory" if other < known else "")


def over_share(labels: NDArray[np.int64], held_out: NDArray[np.int64], share: float, grouped: bool) -> Iterator[Note]:
    """A line if far more of the labelled training images (N,) are held out to choose by than their share, because
    classes are small and each gives one image. ``grouped``: whole groups are held out.
    """
    labelled = int((labels >= 0).sum())
    taken = int((labels[held_out] >= 0).sum())
    if labelled and taken > OVER_SHARE * share * labelled:
        yield Note.shareable(
            f"evaluation.select holds out {taken} of {labelled} labelled training images, {taken / labelled:.0%} for a "
            f"share of {share:.0%}: of each class at least one {'group' if grouped else 'image'}, where it has two"
        )


def not_chosen_by(labels: NDArray[np.int64], held_out: NDArray[np.int64], protocols: Collection[str]) -> Iterator[str]:
    """A line where no protocol measures on the images held out to choose by: none of them has a label, or none of the
    ``protocols`` needs one. ``labels`` (N,) of the training images.
    """
    labelled = bool((labels[held_out] >= 0).any())
    if labelled and protocols:
        return
    why = "evaluation.protocols names none that needs labels" if labelled else "they have no labels to choose by"
    yield (
        f"evaluation.select holds out {len(held_out)} of {len(labels)} training images for `rayfed-ssl leak` alone: "
        f"{why}; evaluation.select=null trains on them, too"
    )


def of_classes(dataset: Dataset, metrics: Collection[str] = ()) -> Iterator[Note | str]:
    """Lines on missing labels and on classes: one whose name says that it is no class, those that combine several
    labels of one image, those with almost the same name, those without a test image, the largest and the smallest. They
    recommend none of ``metrics``, which the run measures already.
    """
    yield from unlabelled_training(dataset)
    yield from unlabelled_tests(dataset)
    yield from no_class(dataset)
    yield from several_labels(dataset)
    yield from almost_one_name(dataset)
    yield from untested_classes(dataset)
    yield from one_class_tested(dataset)
    yield from of_largest_class(dataset, metrics)
    yield from smallest_classes(dataset)


def unlabelled_training(dataset: Dataset) -> Iterator[Note]:
    """A line if some training images have a label and some have none, such as those in a client's folder without class
    folders; no line if a table or a column says so already.
    """
    labels = dataset.train.labels
    known = int((labels >= 0).sum())
    if 0 < known < len(labels) and not any(NO_LABEL in note.text for note in dataset.notes):
        missing = len(labels) - known
        yield Note.shareable(
            f"{missing} of {len(labels)} training images {'has' if missing == 1 else 'have'} no label",
            ": clients train on them, and protocols take labels from the others alone",
        )


def unlabelled_tests(dataset: Dataset) -> Iterator[Note]:
    """A line where some test images have a label and some have none."""
    labels = dataset.test.labels
    known = int((labels >= 0).sum())
    if 0 < known < len(labels):
        missing = len(labels) - known
        have = "has" if missing == 1 else "have"
        found = f"{missing} of {len(labels)} test images {have} no label: accuracies are over the other {known}"
        yield Note.shareable(found)


def no_class(dataset: Dataset) -> Iterator[Note]:
    """A line for each class whose name says that nobody labelled its images: it is measured like any other class."""
    for label, name in enumerate(dataset.train.class_names):
        if _means_none(name):
            count = sum(int((images.labels == label).sum()) for images in (dataset.train, dataset.test))
            of_images = plural(count, "image", "images")
            yield Note(
                f"{printable(name, 80)} is taken for a class, of {of_images}; images that nobody labelled lie in no "
                "class folder, or have an empty label",
                f"a class of {of_images} is called as if nobody had labelled them",
            )


def _means_none(name: str) -> bool:
    letters = "".join(letter for letter in name.lower() if letter.isalpha()).removesuffix("images")
    value = letters in NO_VALUE and not any(letter.isdigit() for letter in name)
    return letters in NO_CLASS or value or NO_WORD.fullmatch(name.strip()) is not None


def several_labels(dataset: Dataset) -> Iterator[Note]:
    """A line if a class's name combines the names of others, such as ``Effusion|Mass`` beside ``Effusion`` and
    ``Mass``: then images have several labels each, and every combination is read as a class. No line if the source has
    said so, as it does for columns that are a class each.
    """
    if any(SEVERAL in note.text for note in dataset.notes):
        return
    classes = {" ".join(name.split()) for name in dataset.train.class_names}
    for mark in BETWEEN_LABELS:
        parts = {name: [part.strip() for part in name.split(mark)] for name in sorted(classes) if mark in name}
        joined = [name for name, labels in parts.items() if len({*labels}) > 1 and classes.issuperset(labels)]
        if joined:
            are = "is" if len(joined) == 1 else "are"
            found = f"{len(joined)} of {len(classes)} classes {are} called as several others together"
            told = ": several labels of an image are read as a class of its own, and naming one of them counts as wrong"
            yield Note(f"{found}, such as '{printable(joined[0], 80)}'{told}", f"{found}{told}")
            return


def almost_one_name(dataset: Dataset) -> Iterator[Note]:
    """A line on classes, and on clients, whose names differ only in capitals and blanks, as names typed into tables
    do.
    """
    for what, given in (("classes", dataset.train.class_names), ("clients", dataset.train.client_names)):
        alike: dict[str, list[str]] = {}
        for name in given:
            alike.setdefault(" ".join(name.casefold().split()), []).append(name)
        for names in alike.values():
            if len(names) > 1:
                shown = ", ".join(f"'{printable(name, 80)}'" for name in names[:MOST_NAMED])
                yield Note(
                    f"{what} {shown} differ by capitals or blanks alone, and are read as {len(names)} {what}",
                    f"{len(names)} {what} have names that differ by capitals or blanks alone",
                )


def untested_classes(dataset: Dataset) -> Iterator[Note]:
    """A line on classes of the training images that no test image shows, unless the source has said why. The source
    says so before images that cannot be decoded are left out.
    """
    trained, tested = (np.unique(images.labels[images.labels >= 0]) for images in (dataset.train, dataset.test))
    missing = np.setdiff1d(trained, tested)
    said = not dataset.skipped and any(note.public == SOME_UNTESTED for note in dataset.notes)
    if not len(missing) or not len(tested) or said:
        return
    have = "has" if len(missing) == 1 else "have"
    found = f"{len(missing)} of {len(trained)} classes of the training images {have} no test image"
    yield Note(
        f"{found} ({_named(dataset, missing)}): accuracies are over the other {len(trained) - len(missing)} alone",
        f"{found}: accuracies are over the others alone",
    )


def one_class_tested(dataset: Dataset) -> Iterator[Note]:
    """A line if all labelled test images are of one class, and training images are of others, too."""
    if (found := largest_class(dataset)) is not None and found.share == 1:
        told = "always naming it is right for all of them, and an accuracy says little"
        few = "labelled test images are of fewer than two classes"
        yield Note(f"{few}, all of {printable(found.name, 80)}: {told}", f"{few}: {told}")


def _named(dataset: Dataset, labels: NDArray[np.int64]) -> str:
    names = dataset.train.class_names
    shown = ", ".join(printable(names[label], 80) if names else str(label) for label in labels[:MOST_NAMED])
    return shown + (f" and {len(labels) - MOST_NAMED} more" if len(labels) > MOST_NAMED else "")


def smallest_classes(dataset: Dataset) -> Iterator[Note]:
    """A line on classes with fewer than ``FEW`` test images, of more than one class."""
    counts = np.bincount(dataset.test.labels[dataset.test.labels >= 0])
    small = np.flatnonzero((counts > 0) & (counts < FEW))
    if not len(small) or (counts > 0).sum() < 2:
        return
    classes = f"class {_named(dataset, small)} has" if len(small) == 1 else f"classes {_named(dataset, small)} have"
    fewest = int(counts[small].min())
    total = int(counts.sum())
    found = (
        f"fewer than {FEW} {f'of {total} ' if total >= FEW else ''}test images (the fewest: {fewest}): one image is up "
        f"to {100 / fewest:.0f} points of a class's accuracy"
    )
    yield Note(
        f"{classes} {found}, and balanced accuracy and AUC weigh it as the largest class", f"some classes have {found}"
    )


@dataclass(frozen=True)
class LargestClass:
    """The most frequent class of the test images: its ``name``, its ``share`` of them, and ``chance``, 1 / (number of
    their classes).
    """

    name: str
    share: float
    chance: float


def largest_class(dataset: Dataset) -> LargestClass | None:
    """The class for which always naming it would be right for a share of the labelled test images that is more than
    ``ABOVE_CHANCE`` above chance, or for all of them if training images are of other classes, too; None if there is no
    such class.
    """
    labels = dataset.test.labels[dataset.test.labels >= 0]
    counts = np.bincount(labels) if len(labels) else np.zeros(1, np.int64)
    classes, most = int((counts > 0).sum()), int(counts.max())
    trained = len(np.unique(dataset.train.labels[dataset.train.labels >= 0]))
    if not classes or trained < 2:
        return None
    if classes > 1 and Fraction(most, len(labels)) - Fraction(1, classes) <= ABOVE_CHANCE:
        return None
    names, label = dataset.train.class_names, int(counts.argmax())
    return LargestClass(names[label] if names else str(label), most / len(labels), 1 / classes)


def of_largest_class(dataset: Dataset, metrics: Collection[str] = ()) -> Iterator[str]:
    """A line on the largest of several classes if always naming it scores high; a model card has it for every run."""
    advice = "" if "balanced_accuracy" in metrics else ADVICE
    found = largest_class(dataset)
    if found is not None and found.share < 1:
        yield (
            f"{found.share:.0%} of the test images are of class {printable(found.name)}: always naming it is as "
            f"accurate (chance: {found.chance:.0%}), and an accuracy below that says little{advice}"
        )
