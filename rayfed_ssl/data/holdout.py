"""Holds images out before any are dealt to clients: a fifth of each class if the data come without a test split, and
the share of ``evaluation.select``.

Shape legend: n images.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.source_notes import HeldOut

Indices = NDArray[np.int64]
TEST_SHARE = 0.2
FAR_FROM_SHARE = 0.05  # of a class's images: a note mentions rounding if it changes the share by more
MOST_NAMED = 20  # classes without a test image that a note names
SOME_UNTESTED = "some classes were too small to hold a test image out: accuracies are over the others alone"


def stratified_halves(
    labels: NDArray[np.int64], share: float, clients: Indices | None = None, groups: Indices | None = None
) -> tuple[Indices, Indices]:
    """The row numbers (rest, held out), each sorted. The held-out rows are a share of every class, rounded, and the
    same in every run.

    Rows without a label (negative) are in the rest: nothing could be measured on them. ``clients`` as in
    ``first_drawn``. With ``groups``, ``whole_groups`` chooses, and rows without a label are held out with their group.
    """
    draw = numpy_generator(0, "source", "test split")
    if groups is not None:
        together = whole_groups(labels, share, groups, draw, clients)
        return np.delete(np.arange(len(labels)), together), together
    drawn = []
    for label in np.unique(labels[labels >= 0]):
        rows = draw.permutation(np.flatnonzero(labels == label))
        drawn.append((rows, round(share * len(rows))))
    held_out = first_drawn(drawn, clients)
    return np.delete(np.arange(len(labels)), held_out), held_out


def stratified_share(
    labels: NDArray[np.int64],
    share: float,
    seed: int,
    clients: Indices | None = None,
    groups: Indices | None = None,
) -> Indices:
    """Rows, ascending, of a random ``share`` of each class (rounded), that no client is to hold.

    At least one image of a class is taken and at least one left; a class with a single image keeps it. ``labels`` (n,),
    negative where unknown: such images are not taken, unless no image has a label; then all count as one class.
    ``clients`` as in ``first_drawn``; with ``groups``, ``whole_groups`` chooses. A share of 0 takes the fewest images
    that any share takes. Raises UserError if no image can be taken.
    """
    if unlabelled := not (labels >= 0).any():
        labels = np.zeros_like(labels)
    if groups is not None:
        draw = numpy_generator(seed, "select", "subjects")  # the address that measured runs drew from
        if not len(together := whole_groups(labels, share, groups, draw, clients, every_class=True)):
            raise UserError(
                f"evaluation.select: found a share of {share}, but no group (data.columns.group, data.group) can be "
                "held out and leave images of each class and client; allowed: null"
            )
        return together
    order = numpy_generator(seed, "select").permutation(np.flatnonzero(labels >= 0))
    drawn = []
    for label in np.unique(labels[order]):
        members = order[labels[order] == label]
        drawn.append((members, min(max(1, round(share * len(members))), len(members) - 1)))
    if not sum(count for _, count in drawn):
        reason = "there are no two training images" if unlabelled else "no class has two labelled training images"
        raise UserError(f"evaluation.select: found a share of {share}, but {reason}; allowed: null")
    if not len(held_out := first_drawn(drawn, clients)):
        raise UserError(
            f"evaluation.select: found a share of {share}, but no client has an image to spare; allowed: null"
        )
    return held_out


def leaves_too_few(reason: str, share: float, held_out: Indices, images: int, smaller: bool) -> str:
    """The message for a share of ``evaluation.select`` that leaves too few training ``images``, for this ``reason``.
    ``smaller``: whether the smallest share would leave enough.
    """
    first, also = ("a smaller share, or ", "") if smaller else ("", " (the smallest share leaves too few, too)")
    return (
        f"evaluation.select.share: found {share:g}, which holds out {len(held_out)} of {images} training images and "
        f"leaves too few ({reason}); allowed: {first}evaluation.select=null{also}"
    )


def first_drawn(drawn: Sequence[tuple[Indices, int]], clients: Indices | None = None) -> Indices:
    """The first ``count`` drawn rows of each class, ascending.

    If a client would lose all its images, its last-drawn image is given back. The next image of that class is taken
    instead, from a client with more than one left or from an image without a client. ``clients`` (n,): who holds each
    row, -1 for no client; None: clients may lose all their images.
    """
    taken = [rows[:count] for rows, count in drawn]
    if clients is None or not taken:
        return np.sort(np.concatenate([np.empty(0, np.int64), *taken]))
    held_out, place = np.zeros(len(clients), np.bool_), np.full(len(clients), -1)
    for position, (rows, count) in enumerate(drawn):
        held_out[rows[:count]] = True
        place[rows] = position
    have = np.bincount(clients[clients >= 0])
    left = have - np.bincount(clients[held_out & (clients >= 0)], minlength=len(have))
    sequence = np.concatenate(taken)
    for client in np.flatnonzero((have > 0) & (left == 0)):
        kept = sequence[clients[sequence] == client][-1]
        held_out[kept], left[client] = False, 1
        rows = drawn[place[kept]][0]
        spare = rows[~held_out[rows] & ((clients[rows] < 0) | (left[clients[rows]] > 1))]
        for instead in spare[:1]:
            held_out[instead] = True
            if clients[instead] >= 0:
                left[clients[instead]] -= 1
    return np.flatnonzero(held_out)


def whole_groups(
    labels: NDArray[np.int64],
    share: float,
    groups: Indices,
    draw: np.random.Generator,
    clients: Indices | None = None,
    every_class: bool = False,
) -> Indices:
    """The rows, ascending, of a random share of the groups: for each class as near to ``share`` as whole groups allow.

    Class by class, the rarest first, the undecided groups with images of the class are drawn in turn. A group is held
    out if this brings the class's share nearer (the idea of Sechidis et al. 2011, Iterative stratification). A group is
    never held out if that would leave a class, or a client that has several groups, without images. A row of an unknown
    group is a group of its own. Groups without a label are not held out.

    Args:
        groups: (n,) a number for whom or what each row shows, -1 for unknown.
        clients: (n,) as in ``first_drawn``.
        every_class: whether at least one group is held out of every class that has several, however far that is from
            the share.
    """
    alone = groups.max(initial=-1) + 1 + np.arange(len(groups))
    unit = np.unique(np.where(groups < 0, alone, groups), return_inverse=True)[1].reshape(-1)
    members = np.split(np.argsort(unit, kind="stable"), np.cumsum(np.bincount(unit))[:-1])
    kinds = _to_be_left(labels, unit, clients)
    left = np.bincount(kinds[kinds >= 0])
    totals = left[: labels.max(initial=-1) + 1].copy()
    taken, decided = np.zeros(len(members), np.bool_), np.zeros(len(members), np.bool_)

    def take(group: int) -> bool:
        """Hold the group out, unless nothing of some kind would be left; return whether it was held out."""
        kinds_held, counts = np.unique(kinds[members[group]], return_counts=True)
        kinds_held, counts = kinds_held[kinds_held >= 0], counts[kinds_held >= 0]
        if (left[kinds_held] > counts).all():
            left[kinds_held] -= counts
            taken[group] = True
        return bool(taken[group])

    for label in np.argsort(totals, kind="stable"):
        class_groups, counts = np.unique(unit[labels == label], return_counts=True)
        order = draw.permutation(np.flatnonzero(~decided[class_groups]))
        for group, count in zip(class_groups[order], counts[order], strict=True):
            if totals[label] - left[label] + count / 2 <= share * totals[label]:
                take(group)
        if every_class and not taken[class_groups].any():
            smallest_first = order[np.argsort(counts[order], kind="stable")]
            for group in class_groups[smallest_first]:
                if take(group):
                    break
        decided[class_groups] = True
    return np.flatnonzero(taken[unit])


def _to_be_left(labels: Indices, unit: Indices, clients: Indices | None) -> Indices:
    """(n, 1 or 2) the kinds that each row belongs to and that may not be held out completely, -1 for none: its class,
    and its client, if the client has more than one unit.
    """
    if clients is None or not (clients >= 0).any():
        return labels[:, None]
    units = np.unique(np.stack([clients, unit])[:, clients >= 0], axis=1)[0]
    several = (clients >= 0) & (np.bincount(units)[clients] > 1)
    return np.stack([labels, np.where(several, clients + labels.max() + 1, -1)], axis=1)


def untested(
    labels: NDArray[np.int64],
    held_out: NDArray[np.int64],
    class_names: Sequence[str],
    share: float,
    groups: NDArray[np.int64] | None = None,
) -> tuple[Note, ...]:
    """A line on the classes of which no row is held out, because they are too small or have too few ``groups``. There
    is no line if every class has a held-out row.
    """
    missing = [class_names[label] for label in np.setdiff1d(labels[labels >= 0], labels[held_out])]
    if not missing:
        return ()
    more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
    names = ", ".join(printable(name, 80) for name in missing[:MOST_NAMED]) + more
    classes = f"class {names} has" if len(missing) == 1 else f"classes {names} have"
    whole = "" if groups is None else ", whole groups at a time"
    text = f"{classes} no test image: too few images to hold a share of {share:g} out{whole}"
    return (Note(text, SOME_UNTESTED),)


def rounded(labels: NDArray[np.int64], held_out: Indices, groups: NDArray[np.int64] | None = None) -> str:
    """What to say after "a fifth of each class" if the share is far from that for some small class, such as one image
    of three. Empty if whole ``groups`` are held out, because other words say so then.
    """
    if groups is not None:
        return ""
    have = np.bincount(labels[labels >= 0])
    taken = np.bincount(labels[held_out], minlength=len(have))
    far_off = np.abs(taken - TEST_SHARE * have) > FAR_FROM_SHARE * have
    return ", rounded to whole images" if far_off.any() else ""


def held_out_notes(
    labels: NDArray[np.int64],
    held_out: NDArray[np.int64],
    names: tuple[str, ...],
    groups: NDArray[np.int64] | None,
    called: str,
    counted: str = "",
) -> tuple[Note | HeldOut, ...]:
    """Lines on what was held out of images without a test split. The images are ``called`` "one Parquet file" or the
    like, without a name, because the lines are kept with the images. ``counted`` says which images these are.
    """
    if not len(held_out):
        return ()
    whole = "" if groups is None else ", as near as whole groups of data.columns.group allow"
    before = f"{called} without a test split: a fifth of each class{rounded(labels, held_out, groups)}"
    held = HeldOut(before, len(held_out), len(labels), f"{counted}{whole}", groups is not None)
    return (held, *untested(labels, held_out, names, TEST_SHARE, groups))
