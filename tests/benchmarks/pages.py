"""Pages whose sentences are tested against rows, and the words that these use for an interval."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.places import ROOT

RESULTS, LEADERBOARD, README = "docs/results.md", "docs/leaderboard.md", "README.md"
ABOVE, BELOW, LEVEL, OPEN = "above", "below", "level", "not told apart"


def stands(page: str, sentence: str) -> bool:
    """Whether a sentence is in a page, however it is folded and whatever is bold or a link."""

    def plain(text: str) -> str:
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text.replace("**", "").replace("`", ""))
        return re.sub(r"\s+", " ", text)

    return plain(sentence) in plain((ROOT / page).read_text(encoding="utf-8"))


def between(low: float, values: Sequence[float], high: float) -> bool:
    return all(low <= value <= high for value in values)
