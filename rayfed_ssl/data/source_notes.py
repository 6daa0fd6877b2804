"""Notes on how a source was read. One of them counts images before it is known which of them can be decoded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rayfed_ssl.base.notes import Note, as_notes


@dataclass(frozen=True)
class HeldOut:
    """A note on images that became test images. It says that they are ``test`` of ``images``, between the words
    ``before`` and ``after``. ``grouped``: whole groups were held out.
    """

    before: str
    test: int
    images: int
    after: str
    grouped: bool

    def note(self, listed: tuple[int, int], left: tuple[int, int]) -> Note:
        """The note once it is known that ``left`` (test images, all images) of the ``listed`` ones can be decoded. It
        counts those that can, unless it is about images before a limit.
        """
        test, images = left if (self.test, self.images) == listed else (self.test, self.images)
        whole = " and whole groups at a time" if self.grouped else ""
        return Note(
            f"{self.before}, {test} of {images} images, is held out as test images{self.after}",
            f"{test} of {images} images, about a fifth of each class{whole}, were held out as test images",
        )


Line = Note | HeldOut | str  # of a source, on how it was read


def recounted(lines: Iterable[Line], listed: tuple[int, int], left: tuple[int, int]) -> tuple[Note, ...]:
    """The lines as notes, once it is known which images can be decoded; see ``HeldOut.note``."""
    return as_notes(line.note(listed, left) if isinstance(line, HeldOut) else line for line in lines)
