"""Another board's rows as the pages speak of them: a method's differences, and what they are called."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from boards import overall, rows
from boards.clusters import OverSets, over_board


@cache
def differences(path: Path, reference: str, data: str | None) -> dict[str, dict[str, OverSets]]:
    """Measure -> method -> its difference, of the board at ``path``."""
    board, made = rows.load_board(path), rows.read(rows.results_of(path))
    board = board if data is None else {**board, "data": {data: None}}
    return {measure: dict(over_board(made, board, measure, reference)) for measure in rows.MEASURES}


class OfBoard:
    """The differences of a board's methods, by default to FedSimCLR, over all its data sets or of one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.board = rows.load_board(path)
        self.rows = rows.read(rows.results_of(path))
        self.ranked = [
            name for name in self.board["methods"] if name not in (*self.board["references"], rows.REFERENCE)
        ]

    def found(self, reference: str = rows.REFERENCE, data: str | None = None) -> dict[str, dict[str, OverSets]]:
        """Measure -> method -> its difference."""
        return differences(self.path, reference, data)

    def words(self, method: str, reference: str = rows.REFERENCE, data: str | None = None) -> list[str]:
        """What it is called by kNN, linear probe and few-shot."""
        return [overall.verdict(each[method]) for each in self.found(reference, data).values()]

    def points(
        self, method: str, measure: str, reference: str = rows.REFERENCE, data: str | None = None
    ) -> list[float]:
        """The mean difference and the ends of its interval, to a tenth of a point."""
        one = self.found(reference, data)[measure][method]
        assert one.low is not None
        assert one.high is not None
        return [round(100 * value, 1) for value in (one.mean, one.low, one.high)]
