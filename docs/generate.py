"""Write the generated parts of the documentation, which stand between ``<!-- NAME -->`` and ``<!-- end NAME -->``, and
the JSON Schemas of configuration files.

python docs/generate.py            # rewrite them
python docs/generate.py --check    # exit status 1 and the page's name where one is old
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rayfed_ssl.commands.config import File, schema_of
from rayfed_ssl.methods import METHODS
from rayfed_ssl.settings.json_schema import json_schema
from rayfed_ssl.settings.keys import KIND, Key, keys

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(1, str(ROOT / "benchmarks"))
import budgets  # noqa: E402
import claims  # noqa: E402
import claims_overview  # noqa: E402
import claims_tables  # noqa: E402
import gpu_table  # noqa: E402
import json_lines  # noqa: E402
import leaderboard_pixels as board_pixels  # noqa: E402
import leaks  # noqa: E402
import speed_table  # noqa: E402
from boards import absolute as board_absolute  # noqa: E402
from boards import agreement as board_agreement  # noqa: E402
from boards import budget as board_budget  # noqa: E402
from boards import fewer_bytes as board_bytes  # noqa: E402
from boards import grids as board_grids  # noqa: E402
from boards import labels as board_labels  # noqa: E402
from boards import longer, many, momentum, prediction  # noqa: E402
from boards import overall as board_overall  # noqa: E402
from boards import rows as board_rows  # noqa: E402
from boards import tables as board_tables  # noqa: E402
from boards import tuning as board_tuning  # noqa: E402
from boards import tuning_tables as board_tuning_tables  # noqa: E402
from boards import verdicts as board_verdicts  # noqa: E402

LAYERS = (  # from the ground up: an import leads into the same layer or a lower one
    "base", "data", "models", "evaluation", "objectives", "settings", "federated", "methods",
    "consistency.py", "defaults.py", "extensions.py", "config.py", "records", "storage", "simulation", "leak",
    "exporting", "report", "terminal", "api", "commands", "testing", "cli.py",
)  # fmt: skip
WIDTH = 120
FromRows = Callable[[Sequence[board_rows.Record], Mapping[str, Any]], str]


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[a-z)`\]])(?<!et al)(?<!eq)\. |: (?=``|one |name)", paragraph)[0].rstrip(".:")


def _line(indent: int, name: str, words: str) -> str:
    line = f"{' ' * indent}{name.ljust(24 - indent)} {words}".rstrip()
    return line if len(line) <= WIDTH else line[: WIDTH - 3].rsplit(" ", 1)[0] + " .."


def _files(folder: Path, indent: int) -> Iterator[str]:
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            yield _line(indent, path.name, first_sentence(path))
    for package in sorted(path.parent for path in folder.glob("*/__init__.py")):
        yield _line(indent, f"{package.name}/", first_sentence(package / "__init__.py"))
        yield from _files(package, indent + 2)


def tree() -> str:
    """Every file of the library in the order of its layers, from the ground up, with its first sentence."""
    library = ROOT / "rayfed_ssl"
    lines = ["    rayfed_ssl/"]
    for layer in LAYERS:
        path = library / layer
        if path.is_dir():
            lines.append(_line(6, f"{layer}/", first_sentence(path / "__init__.py")))
            lines += _files(path, 8)
        else:
            lines.append(_line(6, layer, first_sentence(path)))
    lines += [_line(6, p.name, first_sentence(p)) for p in sorted(library.glob("*.py")) if p.name not in LAYERS]
    for package in ("actors", "tune"):
        lines.append(_line(4, f"{package}/", first_sentence(ROOT / package / "__init__.py")))
        lines += _files(ROOT / package, 6)
    return "\n".join(lines)


def methods() -> str:
    """The table of methods, a row per name in the order of ``METHODS``."""
    rows = [
        "| name | paper | what crosses | state | mixed encoders | public images | file |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, method in METHODS.items():
        info, file = method.info, method.config.__module__.split(".")[-1]
        marks = ("yes" if mark else "" for mark in (info.stateful, info.heterogeneous, info.public_data))
        link = f"[{file}.py](../rayfed_ssl/methods/{file}.py)"
        rows.append("| " + " | ".join((f"`{name}`", info.paper, info.transmits, *marks, link)) + " |")
    return "\n".join(rows)


def configuration(file: str) -> str:
    """The keys of a file: a section for each block at the top, within it a table for each of its kinds."""
    known = keys(schema_of(File(file)))
    top = [key for key in known if "." not in key.path and key.type != KIND]
    blocks = [key for key in top if sum(other.path.startswith(f"{key.path}.") for other in known)]
    lines = _key_table([key for key in top if key not in blocks])
    for block in blocks:
        inside = [key for key in known if key.path.startswith(f"{block.path}.") or key.path == block.path]
        lines += ["", f"### `{block.path}`", "", *_key_prose(inside[0])]
        for when in dict.fromkeys(key.when for key in inside):
            group = [key for key in inside[1:] if key.when == when]
            if group and group[0].type == KIND:
                path, name = when[-1]
                lines += ["", f"#### `{path}.name: {name}`", "", group[0].sentence]
            if table := _key_table([key for key in group if key.type != KIND]):
                lines += ["", *table]
    return "\n".join(lines)


def _key_prose(key: Key) -> list[str]:
    """A block in words."""
    default = f" By default `{key.default_text}`." if key.default not in ({}, None) else ""
    return [f"{key.sentence}{default}"]


def _key_table(rows: list[Key]) -> list[str]:
    if not rows:
        return []
    lines = ["| key | type | default | allowed | |", "|---|---|---|---|---|"]
    for key in rows:
        default = "" if key.default == {} else f"`{key.default_text}`"
        cells = (
            f"`{key.path}`",
            key.type,
            default,
            key.allowed.replace("<", "&lt;").replace(">", "&gt;"),
            key.sentence,
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def schema(file: str) -> str:
    """The JSON Schema of a file that has keys."""
    made = json_schema(schema_of(File(file)), profiles=file == File.run)
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def tuned() -> str:
    """The grids of the leaderboard's methods, and what they chose."""
    lines, board = json_lines.read(board_tuning.RESULTS), board_rows.load_board()
    found = board_tuning.winners(lines, board)
    return board_tuning_tables.tuning(lines, lambda data, method: found.get((data, method), {}))


def of_board(make: FromRows) -> Callable[[], str]:
    """A part that is made of the leaderboard's rows."""
    return other_board(board_rows.BOARD, make)


def other_board(path: Path, make: FromRows) -> Callable[[], str]:
    """A part that is made of the rows of the board at ``path``."""

    def made() -> str:
        rows = board_pixels.onto(board_rows.read(board_rows.results_of(path)), json_lines.read(board_pixels.RESULTS))
        return make(rows, board_rows.load_board(path))

    return made


def claim(name: str) -> str:
    """The tables of one paper's claim."""
    lines, document = json_lines.read(claims.RESULTS), claims.load()
    return claims_tables.section(lines, name, document["claims"][name])


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {
        "leaderboard": of_board(board_tables.short),
        "speed": lambda: speed_table.sentence(json_lines.read(speed_table.RESULTS)),
        "gpu": lambda: gpu_table.sentence(json_lines.read(gpu_table.RESULTS)),
    },
    "docs/architecture.md": {"tree": tree},
    "docs/methods.md": {"methods": methods},
    "docs/configuration.md": {file.value: partial(configuration, file.value) for file in File},
    "docs/results.md": {
        "overall": of_board(board_overall.overall),
        "made with": of_board(board_absolute.made_with),
        "absolute": of_board(board_absolute.absolute),
        "pixels": of_board(board_absolute.below_pixels),
        "inert": of_board(board_absolute.inert),
        "told apart": of_board(board_verdicts.verdicts),
        "tuned apart": of_board(lambda rows, board: board_verdicts.verdicts(rows, board, board_rows.TUNED)),
        "by data": of_board(board_overall.by_data),
        "by partition": of_board(board_overall.by_partition),
        "mixed": of_board(board_overall.mixed),
        "labels": of_board(board_labels.resolved),
        "agreement": of_board(board_agreement.agreement),
        "verdicts": lambda: claims_overview.section(json_lines.read(claims.RESULTS), claims.load()),
        **{name: partial(claim, name) for name in claims.load()["claims"]},
        "predictors": lambda: prediction.table(board_rows.read(), board_rows.load_board()["references"]),
        "grids": lambda: board_grids.table(json_lines.read(board_tuning.RESULTS)),
    },
    "docs/leaderboard.md": {
        "leaderboard": of_board(board_tables.page),
        "tuning": tuned,
        "tuned": of_board(board_tuning_tables.gained),
        "longer in short": other_board(board_rows.LONGER, board_overall.overall),
        "longer": other_board(board_rows.LONGER, board_tables.page),
        "change": other_board(board_rows.LONGER, lambda rows, board: longer.change(board_rows.read(), rows, board)),
        "many in short": other_board(board_rows.MANY, board_overall.overall),
        "many beside few": other_board(
            board_rows.MANY, lambda rows, board: many.beside(board_rows.read(), rows, board)
        ),
        "many clients": other_board(board_rows.MANY, board_tables.page),
        "losses": other_board(board_rows.LOSSES, board_tables.page),
        "transformer": other_board(board_rows.TRANSFORMER, board_tables.page),
        "bytes": other_board(board_rows.BYTES, board_bytes.less),
        "rounds": other_board(board_rows.ROUNDS, board_bytes.less),
        "steps in short": other_board(board_rows.SERVER_STEPS, board_overall.overall),
        "server steps": other_board(board_rows.SERVER_STEPS, board_tables.page),
        "momentum in short": lambda: momentum.table(momentum.read()),
        "momentum": lambda: momentum.runs(momentum.read()),
        "recipe in short": other_board(board_rows.RECIPE, board_overall.overall),
        "recipe": other_board(board_rows.RECIPE, board_bytes.less),
        "field": other_board(board_rows.FIELD, board_tables.page),
        "short": other_board(board_rows.SHORT, board_tables.page),
        "budgets": lambda: budgets.table(json_lines.read(budgets.RESULTS)),
        "confirmed": of_board(board_budget.confirmed),
    },
    "docs/leak.md": {"leaks": lambda: leaks.tables(json_lines.read(leaks.RESULTS), leaks.load())},
    "docs/performance.md": {
        "speed": lambda: speed_table.table(json_lines.read(speed_table.RESULTS)),
        "parts": lambda: speed_table.parts(json_lines.read(speed_table.RESULTS)),
        "many actors": lambda: speed_table.many_actors(json_lines.read(speed_table.RESULTS)),
        "driver memory": lambda: speed_table.driver_memory(json_lines.read(speed_table.RESULTS)),
        "gpu": lambda: gpu_table.section(json_lines.read(gpu_table.RESULTS)),
    },
}
FILES: dict[str, Callable[[], str]] = {
    f"rayfed_ssl/schemas/{file.value}.json": partial(schema, file.value) for file in File
}


def filled(page: str, parts: dict[str, Callable[[], str]]) -> str:
    """The page with each of its generated parts made anew. Raises ValueError where a part has no place in it."""
    for name, make in parts.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"no place for {name!r}")
        body = make()
        page = pattern.sub(lambda found, body=body: f"{found[1]}\n{body}\n\n{found[2]}", page)
    return page


def main() -> int:
    """Rewrite the pages, or say which are old."""
    old = []
    for name, parts in PARTS.items():
        path = ROOT / name
        page = path.read_text(encoding="utf-8")
        if (new := filled(page, parts)) != page:
            old.append(name)
            if "--check" not in sys.argv:
                path.write_text(new, encoding="utf-8")
    for name, make in FILES.items():
        path, body = ROOT / name, make()
        if not path.exists() or path.read_text(encoding="utf-8") != body:
            old.append(name)
            if "--check" not in sys.argv:
                path.write_text(body, encoding="utf-8")
    print("\n".join(f"{name}: {'old' if '--check' in sys.argv else 'rewritten'}" for name in old) or "all fresh")
    return 1 if old and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
