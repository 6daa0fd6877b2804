"""Notes that a run prints before its first round, and what model cards show of them, without names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NOTES = ("notes", "card_notes")
"""Keys in a run's files: the notes as printed for the user, and the parts that a model card shows."""


@dataclass(frozen=True)
class Note:
    """A line for the user of a run. It may name files, folders, classes, clients or groups, which may be patients.

    ``public`` is the part that a model card shows, which has words and numbers but none of these names. None: a card
    shows nothing.
    """

    text: str
    public: str | None = None

    @classmethod
    def shareable(cls, said: str, more: str = "") -> Note:
        """A note that begins with ``said``, which a model card shows, and ends with ``more``, which it does not."""
        return cls(said + more, said)

    def of(self, key: str) -> Note:
        """The same note about the images of the configuration block ``key``, instead of the run's own."""
        return Note(f"{key}: {self.text}", None if self.public is None else f"{key}: {self.public}")

    def __str__(self) -> str:
        return self.text


def as_notes(lines: Iterable[Note | str]) -> tuple[Note, ...]:
    """The lines as notes. A model card shows nothing of a line that is plain text."""
    return tuple(Note(line) if isinstance(line, str) else line for line in lines)


def texts(notes: Iterable[Note | str]) -> tuple[str, ...]:
    """The notes as the user of a run sees them."""
    return tuple(map(str, notes))


def public_lines(notes: Iterable[Note]) -> tuple[str, ...]:
    """What a model card shows of the notes, without repeated lines."""
    return tuple(dict.fromkeys(note.public for note in notes if note.public is not None))


def recorded_notes(notes: Sequence[Note]) -> dict[str, list[str]]:
    """The notes under the keys ``NOTES``, as a run's files store them. A key without lines is left out."""
    return {key: list(lines) for key, lines in zip(NOTES, (texts(notes), public_lines(notes)), strict=True) if lines}
