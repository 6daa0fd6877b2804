"""What many clients change: each method's difference to the reference with few clients that all take part in every
round, and with many clients of which a few take part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from boards.agreement import kept_order
from boards.markdown import NAMES, NOT_RUN, head
from boards.pairing import Seeds, of_table, over_reference, placed
from boards.rows import MEASURES, ONE, REFERENCE, Record

FEW, MANY = "two_classes", "many_clients"  # partitions: of the leaderboard, and of the board of many clients


def beside(few: Sequence[Record], many: Sequence[Record], board: Mapping[str, Any]) -> str:
    """For each data set of ``board``, a row per method in the order with many clients: the mean paired difference to
    the reference and its 95% interval, by each protocol, with few clients and with many; below it, whether the methods'
    order is the same. The two have different splits, so runs of one are not paired with runs of the other.

    Args:
        few: the leaderboard's rows.
        many: the rows of ``board``, the board of many clients. Its ``stands_for`` maps a row to the leaderboard's row
            of another name with which it is compared.
    """
    parts = []
    for data in board["data"]:
        before, after = of_table(few, data, FEW, ONE), of_table(many, data, MANY, ONE)
        if REFERENCE in before and REFERENCE in after:
            parts.append(f"**{NAMES.get(data, data)}.** 5 clients -> 50, of whom 10 take part in a round.")
            parts += [_table(before, after, board), kept_order(before, after, board["references"])]
    return "\n\n".join(parts) or f"Many clients are {NOT_RUN}."


def _table(before: Mapping[str, Seeds], after: Mapping[str, Seeds], board: Mapping[str, Any]) -> str:
    """The rows of one data set."""
    heads = ["method", *(f"{words} over {REFERENCE}" for words in MEASURES.values())]
    lines = head(heads)
    for name in placed(after, board, REFERENCE):
        known = before.get(board.get("stands_for", {}).get(name, name))
        if name != REFERENCE and known is not None:
            seeds = ((known, before[REFERENCE]), (after[name], after[REFERENCE]))
            pairs = [[over_reference(*each, m) for each in seeds] for m in MEASURES]
            lines.append(f"| `{name}` | {' | '.join(' -> '.join(pair) for pair in pairs)} |")
    return "\n".join(lines)
