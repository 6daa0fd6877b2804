"""The leaderboard in Markdown, made from its rows alone: what no row says is shown as not run yet."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from scipy.stats import kendalltau, rankdata

from boards.markdown import head
from boards.rows import BOARD, MEASURE, MEASURES, MIXED, ONE, REFERENCE, TUNED, Record
from rayfed_ssl.base.text import bounds, signed
from rayfed_ssl.records.comparison import difference, spread

NOT_RUN = "not run yet"
ELSEWHERE = "made on another kind of processor or by another torch, which round otherwise"
GAIN, SHARE = 0.08, 0.25  # what a budget has to gain, and the share of the gain that seeds may differ by
NAMES = {"fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
SPLITS = {
    "iid": "IID",
    "dirichlet": "Dirichlet 0.1",
    "two_classes": "two classes per client",
    "cross_device": "Dirichlet 0.1, 50 clients of which 10 a round",
    "many_clients": "two classes per client, 50 clients of which 10 a round",
}
COLUMNS = (
    "method", "seeds", "kNN", "linear", "few-shot", "1% labels", "effective rank", "MB per round", "MB to 90%",
    "virtual s to 90%", "epsilon", "kNN over {}", "linear over {}", "few-shot over {}", "rank", "minutes",
)  # fmt: skip
NOTHING = ("", "-", NOT_RUN)  # cells without a value
LABELS = "semi_1"  # shown where every run of a table has it
COMPARED = {ONE: REFERENCE, TUNED: REFERENCE, MIXED: "local"}  # the method that a table's others are compared with
Seeds = dict[int, Record]


def load_board(path: Path = BOARD) -> dict[str, Any]:
    """``leaderboard.yaml``, or another board."""
    import yaml

    board: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return board


def of_table(rows: Sequence[Record], data: str, partition: str, table: str) -> dict[str, Seeds]:
    """Method -> seed -> row, of one table."""
    found: dict[str, Seeds] = {}
    for row in rows:
        if (row["data"], row["partition"], row["table"]) == (data, partition, table):
            found.setdefault(row["method"], {})[row["seed"]] = row
    return found


def complete(seeds: Seeds) -> list[Record]:
    return [row for _, row in sorted(seeds.items()) if row["status"] == "complete"]


# -- differences to the reference, ranks -------------------------------------------------------------------------------


def paired(seeds: Seeds, reference: Seeds, measure: str) -> list[float]:
    """``measure`` less the reference's, one for each seed in which both are complete and have it."""
    runs, others = ({row["seed"]: row for row in complete(each)} for each in (seeds, reference))
    found = [beyond(runs[seed], others[seed], measure) for seed in sorted(runs.keys() & others.keys())]
    return [each for each in found if each is not None]


def beyond(row: Record, other: Record, measure: str) -> float | None:
    """``measure`` of a run less that of another; None where one lacks it. Where clients' architectures differ, the mean
    over the architectures that both ended with: an architecture gains more than another whatever trains it.
    """
    if row["by_encoder"] and other["by_encoder"]:
        ours, theirs = (json.loads(each["by_encoder"]) for each in (row, other))
        pairs = [(ours[name].get(measure), theirs[name].get(measure)) for name in ours if name in theirs]
    else:
        pairs = [(row[measure], other[measure])]
    known = [own - its for own, its in pairs if None not in (own, its)]
    return fmean(known) if known and len(known) == len(pairs) else None


def made_elsewhere(seeds: Seeds, reference: Seeds) -> bool:
    """Whether a run and the one that it is paired with were made on other kinds of processors, or by other torches."""
    runs, others = ({row["seed"]: row for row in complete(each)} for each in (seeds, reference))
    both = runs.keys() & others.keys()
    return any(runs[seed][key] != others[seed][key] for seed in both for key in ("machine", "torch"))


def over(methods: Mapping[str, Seeds], reference: str, measure: str = MEASURE) -> dict[str, float]:
    """Method -> mean paired difference to the reference, which itself has 0, of those with a seed in common.

    Methods have different seeds, which move all of them: their own means cannot be compared, their differences to the
    same reference can. Equal ones come out equal: rounded to 12 digits.
    """
    found = {method: paired(seeds, methods.get(reference, {}), measure) for method, seeds in methods.items()}
    return {method: round(fmean(pairs), 12) for method, pairs in found.items() if pairs}


def ranks(differences: Mapping[str, float]) -> dict[str, float]:
    """Method -> rank, 1 the largest difference, of equal ones the mean rank."""
    order = rankdata([-value for value in differences.values()])
    return {method: float(rank) for method, rank in zip(differences, order, strict=True)}


def stability(methods: Mapping[str, Seeds], measure: str = MEASURE) -> float | None:
    """Mean over pairs of seeds of Kendall's tau between the methods that are complete in both; None without a pair that
    has three methods (of two it is 1 or -1, like a coin) of which two differ.
    """
    of_seeds: dict[int, dict[str, float]] = {}
    for method, seeds in methods.items():
        for row in complete(seeds):
            if row[measure] is not None:
                of_seeds.setdefault(row["seed"], {})[method] = row[measure]
    taus = []
    for a, b in combinations(of_seeds.values(), 2):
        common = [method for method in a if method in b]
        if len(common) > 2:
            taus.append(float(kendalltau([a[m] for m in common], [b[m] for m in common]).statistic))
    known = [tau for tau in taus if not math.isnan(tau)]
    return fmean(known) if known else None


def placed(methods: Mapping[str, Seeds], board: Mapping[str, Any], reference: str) -> list[str]:
    """The methods in a table's order: by their kNN over the reference, then those without a seed of the reference's,
    then the board's references, then what has no accuracy.
    """
    differences = over(methods, reference)

    def place(method: str) -> tuple[bool, bool, bool, float]:
        values = [row[MEASURE] for row in complete(methods[method]) if row[MEASURE] is not None]
        own = differences[method] if method in differences else fmean(values or [0.0])
        return not values, method in board["references"], method not in differences, -own

    return sorted(methods, key=place)


# -- cells -------------------------------------------------------------------------------------------------------------


def number(values: Sequence[float | None], digits: int = 3, none: str = "-") -> str:
    """Mean ± standard deviation over seeds; ``none`` where a run has no value."""
    known = [value for value in values if value is not None]
    found = spread(known)
    if found is None or len(known) < len(values):
        return none
    text = f"{found.mean:z.{digits}f}"
    return text if found.deviation is None else f"{text} ± {found.deviation:.{digits}f}"


def megabytes(runs: Sequence[Record]) -> str:
    """MB per round: the mean alone, because seeds hardly differ."""
    known = [row["bytes_per_round"] for row in runs]
    return "-" if None in known else f"{1e-6 * fmean(known):.2f}"


def over_reference(seeds: Seeds, reference: Seeds, measure: str) -> str:
    """The mean paired difference and its 95% interval; of one seed no interval, without a common one a dash."""
    if (found := difference(paired(seeds, reference, measure))) is None:
        return "-"
    text = signed(found.mean)
    return text if found.low is None or found.high is None else f"{text} {bounds(found.low, found.high)}"


def _cells(method: str, seeds: Seeds, reference: Seeds, rank: float | None) -> list[str]:
    runs = complete(seeds)
    if not runs:
        status = ", ".join(sorted({row["status"] for row in seeds.values()})) or NOT_RUN
        return [f"`{method}`", str(len(seeds)), status, *[""] * (len(COLUMNS) - 3)]

    def of(name: str, digits: int = 3, none: str = "-", scale: float = 1.0) -> str:
        return number([None if row[name] is None else scale * row[name] for row in runs], digits, none)

    beside = [over_reference(seeds, reference, m) if seeds is not reference else "-" for m in MEASURES]
    name = f"`{method}`{' *' if made_elsewhere(seeds, reference) else ''}"
    count = str(len(runs)) if len(runs) == len(seeds) else f"{len(runs)} of {len(seeds)}"
    return [
        name, count, of("knn"), of("linear"), of("fewshot"), of(LABELS, none=NOT_RUN),
        of("effective_rank", 1), megabytes(runs), of("bytes_to_90", 1, scale=1e-6),
        of("hours_to_90", 0, scale=3600.0), of("epsilon", 2), *beside, "-" if rank is None else f"{rank:g}",
        of("minutes", 1),
    ]  # fmt: skip


def _before(methods: Mapping[str, Seeds], compared: str) -> list[str]:
    """The untrained encoder: of every seed, as the run of the method that others are compared with measured it, or the
    first that there is."""
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
    """One table: the best by kNN over the reference first, then references, then what has not run."""
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
    if any(cells[0].endswith(" *") for cells in body):
        lines.append(f"\n\\* Paired with runs of `{compared}` that were {ELSEWHERE}.")
    return "\n".join(lines)


def _with_values(body: Sequence[Sequence[str]]) -> list[int]:
    """The columns to show: the first three, which say what has not run, and of the others those in which some row has a
    value and none was left to be measured."""
    columns = {at: [row[at] for row in body] for at in range(len(COLUMNS))}
    return [
        at
        for at, cells in columns.items()
        if at < 3 or (any(cell not in NOTHING for cell in cells) and NOT_RUN not in cells)
    ]


# -- the page ----------------------------------------------------------------------------------------------------------


def made_at(methods: Mapping[str, Seeds]) -> str:
    """How many runs a table has, and their commits."""
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
    ended = {name: runs for name in shown["methods"] if (runs := complete(methods.get(name, {})))}
    body = [["untrained encoder", *_before(methods, REFERENCE)[1:4], "", "", ""]]
    for name in [name for name in placed(methods, board, REFERENCE) if name in ended]:
        runs = ended[name]
        beside = over_reference(methods[name], methods.get(REFERENCE, {}), MEASURE) if name != REFERENCE else "-"
        sent = megabytes(runs)
        until = number([None if row["hours_to_90"] is None else 3600 * row["hours_to_90"] for row in runs], 0)
        scores = [number([row[measure] for row in runs]) for measure in ("knn", "linear")]
        mark = " *" if made_elsewhere(methods[name], methods.get(REFERENCE, {})) else ""
        body.append([f"`{name}`{mark}", str(len(runs)), *scores, beside, sent, until])
    heads = ["method", "seeds", "kNN", "linear", f"kNN over {REFERENCE}", "MB per round", "virtual s to 90%"]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *body)]
    commits = sorted({row["commit"] for runs in ended.values() for row in runs})
    minutes = sorted(row["minutes"] for runs in ended.values() for row in runs)
    title = f"{NAMES[shown['data']]}, {SPLITS[shown['partition']]}, 5 clients, at {', '.join(commits)}"
    title += f"; {minutes[0]:.1f} to {minutes[-1]:.1f} minutes a run, beside other work:" if minutes else ":"
    if any(cells[0].endswith(" *") for cells in body):
        lines.append(f"\n\\* Paired with runs of `{REFERENCE}` that were {ELSEWHERE}.")
    return "\n".join([title, "", *lines])


def criterion(gains: Sequence[float]) -> str:
    """Whether the mean gain is ``GAIN`` or more and its deviation over seeds below ``SHARE`` of it, and if not, why."""
    found = spread(gains)
    if found is None or found.deviation is None:
        return f"spread {NOT_RUN}"
    if found.mean < GAIN:
        return "gain too small"
    if found.deviation >= SHARE * found.mean:
        return f"spread too large: {found.deviation:.4f} of {SHARE * found.mean:.4f}"
    return "holds"


def confirmed(rows: Sequence[Record], board: Mapping[str, Any]) -> str:
    """FedSimCLR on IID clients against the untrained encoder, seed by seed: whether the budget answers a question."""
    lines = head(("data", "seeds", "measure", "untrained", "FedSimCLR", "gain by seed", "gain", "criterion", "minutes"))
    for data in board["data"]:
        runs = complete(of_table(rows, data, "iid", ONE).get(REFERENCE, {}))
        for measure in ("knn", "linear", "fewshot"):
            if not runs:
                lines.append(f"| {NAMES.get(data, data)} | 0 | {measure} | {NOT_RUN} | | | | | |")
                continue
            gains = [row[measure] - row[f"untrained_{measure}"] for row in runs]
            cells = (
                NAMES.get(data, data), ", ".join(str(row["seed"]) for row in runs), measure,
                number([row[f"untrained_{measure}"] for row in runs]), number([row[measure] for row in runs]),
                ", ".join(map(signed, gains)), number(gains), criterion(gains),
                number([row["minutes"] for row in runs], 1),
            )  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def tuning(lines: Sequence[Mapping[str, Any]], chosen: Callable[[str, str], Mapping[str, Any]]) -> str:
    """The grids and their winners; ``chosen`` is (data set, method) -> winning keys."""
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
    """Whether numbers beyond the grid may be better still: the smallest or largest of three or more has won."""
    numbers = [value for value in values if isinstance(value, int | float)]
    return len(numbers) > 2 and winner in (min(numbers), max(numbers))


def gained(rows: Sequence[Record], board: Mapping[str, Any]) -> str:
    """What tuning changed on the tables' seeds, none of which it saw: the paired difference to the same at defaults."""
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
                name = f"`{method}`{' *' if made_elsewhere(now, before) else ''}"
                cells = (title, name, chosen or "its defaults", str(len(now)), knn, *gains)
                lines.append(f"| {' | '.join(cells)} |")
    if len(lines) == 2:
        return f"Tuned methods are {NOT_RUN}."
    if any("` *" in line for line in lines):
        lines.append(f"\n\\* Paired with runs at defaults that were {ELSEWHERE}.")
    return "\n".join(lines)


def _changed(row: Record, before: Seeds) -> str:
    """The keys of a tuned row that the same method's row at its defaults has otherwise, or not at all."""
    keys, own = (json.loads(each["keys"]) for each in (row, before.get(row["seed"], row)))
    return ", ".join(f"`{key}={json.dumps(value)}`" for key, value in keys.items() if own.get(key) != value)
