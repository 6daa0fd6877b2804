"""The leaderboard in Markdown, made only from its rows: values that no row has are shown as not run yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from boards.markdown import NAMES, NOT_RUN, SPLITS, head, number
from boards.pairing import (
    COMPARED,
    Seeds,
    complete,
    footnote,
    marked,
    of_table,
    over,
    over_reference,
    placed,
    ranks,
    stability,
)
from boards.rows import MEASURE, MEASURES, MIXED, ONE, REFERENCE, TUNED, Record

COLUMNS = (
    "method", "seeds", "kNN", "linear", "few-shot", "1% labels", "effective rank", "MB per round", "MB to 90%",
    "virtual s to 90%", "epsilon", "kNN over {}", "linear over {}", "few-shot over {}", "rank", "minutes",
)  # fmt: skip
NOTHING = ("", "-", NOT_RUN)  # cells without a value
LABELS = "semi_1"  # a column that is shown if every run of a table has it


def megabytes(runs: Sequence[Record]) -> str:
    """MB per round, as the mean only, because seeds hardly differ."""
    known = [row["bytes_per_round"] for row in runs]
    return "-" if None in known else f"{1e-6 * fmean(known):.2f}"


def _cells(method: str, seeds: Seeds, reference: Seeds, rank: float | None) -> list[str]:
    """The row of one method."""
    runs = complete(seeds)
    if not runs:
        status = ", ".join(sorted({row["status"] for row in seeds.values()})) or NOT_RUN
        return [f"`{method}`", str(len(seeds)), status, *[""] * (len(COLUMNS) - 3)]

    def of(name: str, digits: int = 3, none: str = "-", scale: float = 1.0) -> str:
        return number([None if row[name] is None else scale * row[name] for row in runs], digits, none)

    beside = [over_reference(seeds, reference, m) if seeds is not reference else "-" for m in MEASURES]
    count = str(len(runs)) if len(runs) == len(seeds) else f"{len(runs)} of {len(seeds)}"
    return [
        marked(method, seeds, reference), count, of("knn"), of("linear"), of("fewshot"), of(LABELS, none=NOT_RUN),
        of("effective_rank", 1), megabytes(runs), of("bytes_to_90", 1, scale=1e-6),
        of("hours_to_90", 0, scale=3600.0), of("epsilon", 2), *beside, "-" if rank is None else f"{rank:g}",
        of("minutes", 1),
    ]  # fmt: skip


def _before(methods: Mapping[str, Seeds], compared: str) -> list[str]:
    """The row of the untrained encoder. For every seed it is as measured in the run of the method with which others are
    compared, or else in the first run of that seed.
    """
    first: Seeds = {}
    for method in sorted(methods, key=lambda name: name != compared):
        for row in complete(methods[method]):
            first.setdefault(row["seed"], row)
    runs = list(first.values())

    def of(name: str, digits: int = 3, none: str = "-") -> str:
        return number([row[f"untrained_{name}"] for row in runs], digits, none)

    scores = [of("knn"), of("linear"), of("fewshot"), of("semi_1", none=NOT_RUN), of("effective_rank", 1)]
    return ["untrained", str(len(runs)), *scores, *[""] * (len(COLUMNS) - 7)]


def table(rows: Sequence[Record], board: Mapping[str, Any], data: str, partition: str, kind: str) -> str:
    """One table: methods by their kNN relative to the reference, the best first; then references; then what has not
    run.
    """
    methods = of_table(rows, data, partition, kind)
    named = board["mixed"]["methods"] if kind == MIXED else board["methods"]
    compared = COMPARED[kind]
    rank = ranks({m: value for m, value in over(methods, compared).items() if m not in board["references"]})
    body = [_before(methods, compared)]
    reference = methods.get(compared, {})
    body += [_cells(m, methods[m], reference, rank.get(m)) for m in placed(methods, board, compared)]
    if absent := [f"`{method}`" for method in named if method not in methods]:
        body.append([", ".join(absent), "0", NOT_RUN, *[""] * (len(COLUMNS) - 3)])
    shown = _with_values(body)
    heads = [COLUMNS[at].format(compared) for at in shown]
    lines = head(heads)
    lines += [f"| {' | '.join(cells[at] for at in shown)} |" for cells in body]
    return "\n".join([*lines, *footnote(lines, f"runs of `{compared}`")])


def _with_values(body: Sequence[Sequence[str]]) -> list[int]:
    """The columns to show: the first three, which say what has not run; and those others in which some row has a value
    and no value is still to be measured.
    """
    columns = {at: [row[at] for row in body] for at in range(len(COLUMNS))}
    return [
        at
        for at, cells in columns.items()
        if at < 3 or (any(cell not in NOTHING for cell in cells) and NOT_RUN not in cells)
    ]


# -- the page ----------------------------------------------------------------------------------------------------------


def made_at(methods: Mapping[str, Seeds]) -> str:
    """The number of a table's runs, and their commits."""
    runs = [row for seeds in methods.values() for row in seeds.values()]
    commits, dirty = sorted({row["commit"] for row in runs}), sum(row["changed"] for row in runs)
    text = f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}, made at {', '.join(commits)}"
    return text + (f", {dirty} of them with changes that were not committed." if dirty else ".")


def caption(rows: Sequence[Record], board: Mapping[str, Any], data: str, partition: str, kind: str) -> str:
    """What a reader of one table has to know: runs, commits, how settings were chosen, what ranks mean."""
    methods = of_table(rows, data, partition, kind)
    parts = [made_at(methods)]
    if kind == TUNED:
        source = board["tuning"]["chosen_on"][data]
        where = "another split" if source == data else f"images of {NAMES.get(source, source)}"
        parts.append(f"Each method as its grid chose on {where}, see [below](#tuning).")
    ranked = {method: seeds for method, seeds in methods.items() if method not in board["references"]}
    by, tau = f"Ranks by kNN over `{COMPARED[kind]}`", stability(ranked)
    if tau is None:
        one = len({seed for seeds in ranked.values() for seed in seeds}) == 1
        of = "one seed" if one else "seeds that share fewer than three methods"
        told = f", of {of}: how stable they are is not known."
    else:
        told = f"; Kendall's tau between two seeds, over the methods both have, is {tau:.2f} in the mean."
    parts.append(by + told)
    return " ".join(parts)


def kinds(board: Mapping[str, Any]) -> list[str]:
    """The kinds of tables that a board can have."""
    return [ONE, *([TUNED] if "tuning" in board else []), *([MIXED] if board["mixed"]["methods"] else [])]


def page(rows: Sequence[Record], board: Mapping[str, Any]) -> str:
    """All tables that have a row, and the names of those that have none."""
    parts, absent = [board["untuned"].strip()] if rows else [], []
    for data in board["data"]:
        for partition in board["partitions"]:
            for kind in kinds(board):
                title = f"{NAMES.get(data, data)}, {SPLITS.get(partition, partition)}, {kind}"
                if not of_table(rows, data, partition, kind):
                    absent.append(title)
                    continue
                body = table(rows, board, data, partition, kind)
                parts.append(f"**{title}.** {caption(rows, board, data, partition, kind)}\n\n{body}")
    if absent:
        parts.append(f"Tables without a row, {NOT_RUN}: {'; '.join(absent)}.")
    return "\n\n".join(parts)


def short(rows: Sequence[Record], board: Mapping[str, Any]) -> str:
    """README's table: one data set and partition, some methods, the best by kNN first, references last."""
    shown = board["short"]
    methods = of_table(rows, shown["data"], shown["partition"], ONE)
    reference = methods.get(REFERENCE, {})
    ended = {name: runs for name in shown["methods"] if (runs := complete(methods.get(name, {})))}
    body = [["untrained encoder", *_before(methods, REFERENCE)[1:4], "", "", ""]]
    for name in [name for name in placed(methods, board, REFERENCE) if name in ended]:
        runs = ended[name]
        beside = over_reference(methods[name], reference, MEASURE) if name != REFERENCE else "-"
        sent = megabytes(runs)
        until = number([None if row["hours_to_90"] is None else 3600 * row["hours_to_90"] for row in runs], 0)
        scores = [number([row[measure] for row in runs]) for measure in ("knn", "linear")]
        body.append([marked(name, methods[name], reference), str(len(runs)), *scores, beside, sent, until])
    heads = ["method", "seeds", "kNN", "linear", f"kNN over {REFERENCE}", "MB per round", "virtual s to 90%"]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *body)]
    commits = sorted({row["commit"] for runs in ended.values() for row in runs})
    minutes = sorted(row["minutes"] for runs in ended.values() for row in runs)
    title = f"{NAMES[shown['data']]}, {SPLITS[shown['partition']]}, 5 clients, at {', '.join(commits)}"
    title += f"; {minutes[0]:.1f} to {minutes[-1]:.1f} minutes a run, beside other work:" if minutes else ":"
    return "\n".join([title, "", *lines, *footnote(lines, f"runs of `{REFERENCE}`")])
