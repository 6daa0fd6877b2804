"""Which of a run's notes belong on a model card, and in which words: those that qualify its numbers.

A note is recorded as a line for whoever ran it, and may name files, folders, classes, clients or groups; these may be
patients. So no note is copied. Each kind that a card has is listed here, as what its line always says: of a note only
fixed words and numbers get through. What is of no such kind stays in the run folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

ELSEWHERE = r"(?P<of>(?:evaluation\.\w+\.data|data\.public\.images): )?"  # of which other images a note is
GROUP = r"data\.(?:columns\.)?group"
NUMBER = r"\d[\d.e+-]*\d|\d"

AS_NOTED = (
    # -- images that are there more than once
    r"\d+ of \d+ test images are also among the training images \(the same pixels\): accuracy on them is memory",
    r"\d+ of \d+ images to choose by \(evaluation\.select\) are also among the clients' \(the same pixels\): accuracy "
    r"on them is memory",
    r"\d+ of \d+ training images are there more than once \(the same pixels\)(?:, \d+ of them with several clients)?",
    # -- groups, such as patients
    rf"\d+ of \d+ test images are of a group \({GROUP}\) with training images",
    rf"no test image has a group \({GROUP}\): how many show one with training images is not known",
    rf"\d+ of \d+ groups \({GROUP}\) with several images to train on have them with several clients",
    rf"{GROUP} finds nothing in (?:the path of )?\d+ images: each is one of its own",
    # -- labels and classes
    r"\d+ of \d+ test images ha(?:s|ve) no label: accuracies are over the other \d+",
    r"\d+ images have an empty (?:label: unlabelled|client: nobody's|group: each is one of its own)",
    r"labels are \d+ of the numbers 0 to \d+",
    r"(?:test_)?limit: \d+ of \d+ (?:training|test) images are taken, which show \d+ of \d+ classes",
    r"evaluation\.select holds out \d+ of \d+ labelled training images, \d+% for a share of \d+%: of each class at "
    r"least one (?:group|image), where it has two",
    r"\d+ of \d+ clients with own test images have those of one class alone",
    rf"evaluation\.knn\.k: found \d+, of which \d+ are used, but the median class has (?:{NUMBER}) of the \d+ labelled "
    r"train images, so most neighbours that vote are of other classes",
    # -- what became of images
    r"\d+ images are of one single colour throughout",
    r"\d+ images lose more than half of their area: of each the central square is taken",
    rf"\d+ images are enlarged (?:{NUMBER}) times or more",
    r"\d+ images have transparent pixels, which are laid on (?:black|white|grey)",
    r"\d+ images have several frames: the first is read",
    r"\d+ images have bands \(TIFF\) beside their colours and transparency, which are not read",
    r"\d+ images are scaled by a window of their own \(DICOM\)",
    r"\d+ broken images? (?:is|are) left out",
    # -- clients, and methods that are not quite themselves
    r"\d+ of \d+ training images have no client \(folder or value\): nobody trains on them",
    r"below data\.partition\.min_size=\d+ images to train on: \d+ of \d+ clients take no part",
    r"every client takes one local step a round, at which fedprox's penalty has no gradient: this run is FedAvg's",
    r"no round applies fedfoa's term",
    r"every round takes FedAvg's mean",
    rf"method\.privacy\.delta: found (?:{NUMBER}), but clients have up to \d+ images: a delta of 1/\d+ or more allows "
    r"a mechanism that publishes one of them",
)
"""How a note begins that is said as far as it fits."""

REWORDED = {
    r"is taken for a class, of (\d+) images; images that nobody labelled": (
        r"a class of \1 images is called as if nobody had labelled them"
    ),
    r"differ by capitals or blanks alone, and are read as (\d+) classes": (
        r"\1 classes have names that differ by capitals or blanks alone"
    ),
    r"(\d+) of (\d+) classes of the training images (has|have) no test image": (
        r"\1 of \2 classes of the training images \3 no test image: accuracies are over the others alone"
    ),
    r"no test image: too few images to hold a share of [\d.]+ out": (
        r"some classes were too small to hold a test image out: accuracies are over the others alone"
    ),
    r"fewer than (\d+) of (\d+) test images \(the fewest: (\d+)\): one image is up to (\d+) points": (
        r"some classes have fewer than \1 of \2 test images (the fewest: \3): one image is up to \4 points of a "
        r"class's accuracy"
    ),
    r"(\d+) of them have over (\d+)% of their pixels outside .*, and these are clipped": (
        r"of \1 images more than \2% of the pixels lie outside the range that is read, and are clipped"
    ),
    r"(\d+) of them take up less than a sixteenth of .*, and keep 16 of 256 grey levels or fewer": (
        r"\1 images take up less than a sixteenth of the range that is read, and keep 16 of 256 grey levels or fewer"
    ),
    r"is not read as a group: (images of one may train and test|evaluation\.select may hold out images of one who "
    r"trains);": (r"what seems to say whom an image shows was not read: \1"),
    r"all (\d+) training images.*: they belong to one owner": r"all \1 training images with an owner belong to one",
    r", (\d+) of (\d+) images, is held out as test images.*, as near as whole groups of": (
        r"\1 of \2 images, about a fifth of each class and whole groups at a time, were held out as test images"
    ),
    r", (\d+) of (\d+) images, is held out as test images": (
        r"\1 of \2 images, about a fifth of each class, were held out as test images"
    ),
}
"""What a note with names says somewhere -> the same without them."""


def qualifying(notes: Iterable[str]) -> list[str]:
    """Of a run's notes those that a card has, without a name."""
    found = (_qualified(note) for note in notes)
    return list(dict.fromkeys(line for line in found if line is not None))


def _qualified(note: str) -> str | None:
    for pattern in AS_NOTED:
        if (match := re.match(ELSEWHERE + pattern, note)) is not None:
            return match[0]
    for pattern, words in REWORDED.items():
        if (match := re.search(pattern, note)) is not None:
            of = re.match(ELSEWHERE, note)
            return ((of and of["of"]) or "") + match.expand(words)
    return None
