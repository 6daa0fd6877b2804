"""A paper's claim as the pages speak of it: what one variant is over another, by the committed runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from typing import Any

import claims
import claims_tables as tables
import json_lines

from rayfed_ssl.records.comparison import Difference

CLAIMS, LINES = claims.load()["claims"], json_lines.read(claims.RESULTS)
PROTOCOLS = ("knn", "fewshot", "linear")
Variants = str | Sequence[str]  # one of them, or those of which held-out kNN chooses the best


class Claim:
    """A claim's settings and its runs. ``words`` and ``points`` are of the first variant over the second."""

    def __init__(self, name: str) -> None:
        self.settings: dict[str, Any] = CLAIMS[name]
        self.base, self.variants = self.settings["base"], self.settings["variants"]
        self.runs = tables.runs_of(LINES, name, self.settings)

    def on(self, seeds: Collection[int]) -> Claim:
        """The same of these seeds alone."""
        some = copy(self)
        some.runs = {
            name: {seed: run for seed, run in runs.items() if seed in seeds} for name, runs in self.runs.items()
        }
        return some

    def rate(self, variant: str) -> float:
        """A variant's learning rate."""
        return float(self.variants[variant].get("train.optimizer.lr", self.base["train"]["optimizer"]["lr"]))

    def chosen(self, variants: Variants) -> str:
        best = tables.chosen(self.runs, variants, "select/knn")
        assert best is not None
        return best

    def difference(self, first: Variants, second: Variants, measure: str) -> Difference:
        paired = tables.apart(self.runs, self.chosen(first), self.chosen(second), measure)
        assert paired is not None
        return paired

    def word(self, first: Variants, second: Variants, measure: str) -> str:
        return tables.verdict(self.difference(first, second, measure))

    def words(self, first: Variants, second: Variants) -> list[str]:
        """By kNN, few-shot and linear probe."""
        return [self.word(first, second, measure) for measure in PROTOCOLS]

    def held_out(self, first: Variants, second: Variants) -> str:
        """By held-out kNN."""
        return self.word(first, second, "select/knn")

    def points(self, first: Variants, second: Variants, measure: str) -> list[float]:
        """The mean in points, and the bounds of its interval."""
        paired = self.difference(first, second, measure)
        assert paired.interval is not None
        return [round(100 * value, 1) for value in (paired.mean, *paired.interval)]

    def collapsed(self, variant: str) -> list[int]:
        """The seeds whose run ends below its untrained encoder by every protocol."""
        runs = self.runs[variant].items()
        return [seed for seed, run in runs if all(run["measured"][m] < run["untrained"][m] for m in run["untrained"])]
