"""The results of tuning: the grids of the leaderboard's methods with their winners, and what these gained."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from boards.markdown import NAMES, NOT_RUN, SPLITS, head, number
from boards.pairing import COMPARED, Seeds, complete, footnote, marked, of_table, over_reference, placed
from boards.rows import MEASURES, ONE, TUNED, Record


def tuning(lines: Sequence[Mapping[str, Any]], chosen: Callable[[str, str], Mapping[str, Any]]) -> str:
    """The grids and their winners. ``chosen``: (data set, method) -> winning keys."""
    if not lines:
        return f"The grids of `benchmarks/leaderboard.yaml` are {NOT_RUN}."
    rows = ["| data | method | key | values: accuracy on held-out images | winner |", "|---|---|---|---|---|"]
    methods = list(dict.fromkeys((line["data"], line["method"]) for line in lines))
    grids = dict.fromkeys((line["data"], line["method"], line["key"]) for line in lines)
    for data, method, key in sorted(grids, key=lambda grid: methods.index(grid[:2])):
        own = [line for line in lines if (line["data"], line["method"], line["key"]) == (data, method, key)]
        own.sort(key=lambda line: (0, line["value"]) if isinstance(line["value"], int | float) else (1, 0))
        scores = [
            f"{json.dumps(x['value'])}: {'diverged' if x['score'] is None else format(x['score'], '.3f')}" for x in own
        ]
        winner = chosen(data, method).get(key)
        won = "not run to its end" if winner is None else json.dumps(winner)
        won += " (edge)" if at_edge(winner, [line["value"] for line in own]) else ""
        cells = (NAMES.get(data, data), f"`{method}`", f"`{key}`", ", ".join(scores), won)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def at_edge(winner: object, values: Sequence[object]) -> bool:
    """Whether numbers beyond the grid may be better still: the smallest or largest of at least three won."""
    numbers = [value for value in values if isinstance(value, int | float)]
    return len(numbers) > 2 and winner in (min(numbers), max(numbers))


def gained(rows: Sequence[Record], board: Mapping[str, Any]) -> str:
    """What tuning changed on the tables' seeds, none of which it used: the paired difference to the same method's
    defaults.
    """
    heads = ("table", "method", "chosen", "seeds", "kNN", *(f"{words} over defaults" for words in MEASURES.values()))
    lines = head(heads)
    for data in board["data"]:
        for partition in board["partitions"]:
            plain, tuned = (of_table(rows, data, partition, kind) for kind in (ONE, TUNED))
            for method in placed(tuned, board, COMPARED[TUNED]):
                now, before = ({row["seed"]: row for row in complete(t.get(method, {}))} for t in (tuned, plain))
                if not now:
                    continue
                chosen = _changed(next(iter(now.values())), before)
                same = all({**before.get(seed, {}), "table": TUNED, "tuned": True} == row for seed, row in now.items())
                gains = ["the same run" if same else over_reference(now, before, m) for m in MEASURES]
                title = f"{NAMES.get(data, data)}, {SPLITS.get(partition, partition)}"
                knn = number([row["knn"] for row in now.values()])
                cells = (title, marked(method, now, before), chosen or "its defaults", str(len(now)), knn, *gains)
                lines.append(f"| {' | '.join(cells)} |")
    if len(lines) == 2:
        return f"Tuned methods are {NOT_RUN}."
    return "\n".join([*lines, *footnote(lines, "runs at defaults")])


def _changed(row: Record, before: Seeds) -> str:
    """The keys of a tuned row whose values differ from those in the same method's row at its defaults, or are missing
    there.
    """
    keys, own = (json.loads(each["keys"]) for each in (row, before.get(row["seed"], row)))
    return ", ".join(f"`{key}={json.dumps(value)}`" for key, value in keys.items() if own.get(key) != value)
