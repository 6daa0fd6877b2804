"""Every command in README.md, docs/ and the heads of configs/.

Run as they stand: ``config`` and ``methods``. Run with overrides that make them tiny, in this process: ``run`` and
``compare`` of configs on digits. Parsed, with their configs loaded under their overrides: what needs data sets, a
cluster or a finished run. ``make``, ``pip`` and ``python FILE`` commands are looked up.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.main import get_command

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.cli import app
from rayfed_ssl.config import RunConfig, load
from rayfed_ssl.extensions import unload
from rayfed_ssl.settings.keys import find, keys
from tests.command_line import command
from tests.places import ROOT
from tune import files as sweeps

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
TINY = (
    "train.rounds=1", "train.batch_size=8", "model.width=0.1", "data.image_size=8", "data.limit=80",
    "data.test_limit=20", "evaluation.protocols=[knn]", "evaluation.every=0", "evaluation.fewshot.draws=1",
    "resources.device=cpu", "figures=false",
)  # fmt: skip
OURS = re.compile(r"(?:^|-- )(?:rayfed-ssl|python -m rayfed_ssl) (.*)")


@dataclass(frozen=True)
class Line:
    """One command of a page; ``output`` are the lines of the block below it where it begins with ``$``."""

    where: str
    text: str
    output: tuple[str, ...] = ()

    @property
    def ours(self) -> list[str] | None:
        """The arguments of ``rayfed-ssl``; None for another program."""
        found = OURS.search(self.text)
        return None if found is None else shlex.split(found[1].split(" > ")[0])


def blocks(page: Path) -> Iterator[tuple[int, list[str]]]:
    """Indented and fenced blocks of shell commands, with the number of their first line."""
    block: list[str] = []
    fence: str | None = None
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate([*lines, ""], 1):
        if line.startswith("```"):
            fence = line.strip("`").strip() or "text" if fence is None else None
            continue
        inside = line.startswith("    ") if fence is None else fence in ("sh", "bash", "console", "shell")
        if inside:
            block.append(line.strip())
        elif block:
            yield number - len(block), block
            block = []


def commands(page: Path) -> Iterator[Line]:
    """The commands of a page: lines of its blocks, and code within sentences."""
    for number, block in blocks(page):
        text = "\n".join(block).replace("\\\n", " ")
        lines = [re.split(r"\s+#\s|\s{3,}", re.sub(r"  +(?=\S+=)", " ", line))[0] for line in text.split("\n")]
        for index, line in enumerate(lines):
            if line.startswith("$ "):
                yield Line(f"{page.name}:{number}", line[2:], tuple(block[index + 1 :]))
            elif known(line):
                yield Line(f"{page.name}:{number}", line)
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("    "):
            spans = (span.strip("`") for span in re.findall(r"`[^`]+`", line))
            yield from (Line(f"{page.name}:{number}", span) for span in spans if known(span))


def heads(config: Path) -> Iterator[Line]:
    """The commands in the comments at the head of a config."""
    for number, line in enumerate(config.read_text(encoding="utf-8").splitlines(), 1):
        for part in re.split(r"\s{2,}", line.lstrip("# ")) if line.startswith("#") else ():
            if OURS.match(part):
                yield Line(f"{config.name}:{number}", part)


def known(line: str) -> bool:
    return bool(OURS.search(line)) or line.startswith(("make ", "python ", "pip "))


ALL = list(
    dict.fromkeys([*(line for page in PAGES for line in commands(page)), *(c for p in CONFIGS for c in heads(p))])
)
LINES = [line for line in ALL if line.ours is not None]
COMMANDS = get_command(app).commands  # type: ignore[attr-defined]


def test_the_pages_hold_commands() -> None:
    by_name = {(line.ours or [""])[0] for line in LINES}
    assert {"run", "compare", "tune", "config", "methods", "evaluate", "attach", "stop", "doctor"} <= by_name
    assert len(LINES) > 40
    assert any(line.output for line in LINES)


def parsed(line: Line) -> tuple[str, dict[str, object]]:
    """The command and its parameters. Fails for an option that does not exist. A name alone is a mention."""
    assert line.ours is not None
    name, *arguments = line.ours
    found = COMMANDS[name]
    return name, dict(found.make_context(name, arguments, resilient_parsing=not arguments).params)


def is_pattern(line: Line) -> bool:
    """Whether a word stands for the reader's own (FILE, KEY, RUN ..): it is parsed, and not followed any further."""
    return any(re.fullmatch(r"[A-Z]+|\[.*|\.\.|runs/.*/config.yaml", word) for word in line.ours or ())


@pytest.mark.parametrize("line", LINES, ids=[f"{line.where} {line.text[:40]}" for line in LINES])
def test_a_command_has_options_and_keys_that_exist(line: Line) -> None:
    name, given = parsed(line)
    if is_pattern(line) or line.output:
        return
    if name == "run":
        assert load(ROOT / str(given["config"]), list(given["changes"] or ())).method.name  # type: ignore[call-overload]
    elif name == "tune":
        sweep = sweeps.load(ROOT / str(given["config"]), list(given["changes"] or ()))  # type: ignore[call-overload]
        assert all(run.method.name for _, run in sweep.check())
    elif name == "compare" and given["base"]:
        assert load(ROOT / str(given["base"])).method.name


def runnable(line: Line) -> bool:
    """Whether this process can carry out a command."""
    name, given = parsed(line)
    if is_pattern(line) or line.output:
        return False
    if name in ("config", "methods"):
        return True
    if name == "compare":
        return given["base"] is not None and load(ROOT / str(given["base"])).data.name == "digits"  # type: ignore[call-overload]
    if name != "run" or given["detach"]:
        return False
    config = load(ROOT / str(given["config"]), list(given["changes"] or ()))  # type: ignore[call-overload]
    for extension in config.extensions:  # tests are collected here: what one imports is none of the others' business
        unload(extension)
    return config.data.name == "digits"


RUNNABLE = {" ".join(line.ours or ()): line for line in LINES if runnable(line)}


@pytest.mark.long
@pytest.mark.parametrize("text", RUNNABLE)
def test_a_command_does_what_it_says(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = list(RUNNABLE[text].ours or ())
    if arguments[0] in ("run", "compare"):
        monkeypatch.chdir(ROOT)
        protocols = any(word.startswith("evaluation.protocols=") for word in arguments)  # a command's own stand
        tiny = [change for change in TINY if not (protocols and change.startswith("evaluation.protocols="))]
        arguments += [*tiny, "--executor", "local", "--out", str(tmp_path / "out")]
        arguments += ["--seeds", "1"] if arguments[0] == "compare" else []
    else:
        (tmp_path / "my_method.py").write_bytes((ROOT / "examples" / "koleo.py").read_bytes())
        monkeypatch.chdir(tmp_path)
    status, out, err = command(capsys, *arguments)
    assert status == 0, err
    assert out
    if arguments[0] == "run" and "--check" not in arguments:
        assert (tmp_path / "out" / "summary.json").is_file()


@pytest.mark.parametrize("line", [line for line in LINES if line.output], ids=lambda line: line.where)
def test_a_transcript_is_what_is_said(
    line: Line, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``...`` in the page stands for whatever is there."""
    monkeypatch.chdir(ROOT)
    _, out, err = command(capsys, *(line.ours or ()))
    pattern = "\n".join(re.escape(expected).replace(re.escape("..."), ".*") for expected in line.output)
    assert re.fullmatch(pattern, (out + err).strip())


@pytest.mark.parametrize(
    "line", [line for line in ALL if line.ours is None], ids=lambda line: f"{line.where} {line.text[:30]}"
)
def test_another_programs_command_finds_what_it_names(line: Line) -> None:
    words = shlex.split(line.text)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    elif words[0] == "python":
        source = (ROOT / words[1]).read_text(encoding="utf-8")
        for option in (word for word in words[2:] if word.startswith("--")):
            assert f'"{option}"' in source, f"{words[1]} has no {option}"
    elif words[0] == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "optional-dependencies"
        ]
        for extra in re.findall(r"rayfed-ssl\[(\w+)\]", line.text):
            assert extra in extras


KEYS = keys(RunConfig)
FILES = (".json", ".jsonl", ".yaml", ".parquet", ".csv", ".py", ".md", ".onnx", ".pt", ".pt2", ".safetensors")
NAMES = {key.path for key in KEYS if "." not in key.path}


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_keys_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    wrong = []
    for span in re.findall(r"`([a-z_]+(?:\.\w+)+)(?:[=:][^`]*)?`", text):
        if span.split(".")[0] not in NAMES or span.endswith(FILES):
            continue
        try:
            find(KEYS, re.sub(r"\.[A-Z]+\b.*", "", span))  # NAME: a name of the reader's own
        except UserError as unknown:
            wrong.append(str(unknown))
    assert wrong == []
