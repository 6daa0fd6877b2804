"""Standard output that nobody reads, or that is full: a run goes on to its end and says so on stderr, in one line."""

from __future__ import annotations

import errno
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rayfed_ssl.settings import files as configfile
from rayfed_ssl.terminal.output import Output, prose
from tests.places import ROOT
from tests.tiny import tiny


class Failing(io.StringIO):
    """Takes ``lines`` writes, then fails."""

    def __init__(self, error: OSError, lines: int) -> None:
        super().__init__()
        self.error, self.left = error, lines

    def write(self, text: str) -> int:
        if self.left <= 0:
            raise self.error
        self.left -= 1
        return super().write(text)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "standard output: closed by its reader; going on without it"),
        (OSError(errno.ENOSPC, "No space left on device"), "standard output: No space left on device; going on"),
    ],
)
def test_a_console_that_takes_no_more_says_so_once(
    error: OSError, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Failing(error, 1)
    console = Output(file=file, width=140)
    for line in ("one", "two", "three"):
        console.print(line)
    assert file.getvalue() == "one\n"
    err = capsys.readouterr().err
    assert err.startswith(said)
    assert err.count("\n") == 1


def test_sentences_wrap_between_words_on_a_terminal_and_are_one_line_elsewhere() -> None:
    path = "/data/" + 60 * "x"
    text = f"The encoder at {path} is better than the untrained encoder by −1.5 points, [bold] or so."
    plain = text.replace("−", "-")
    shown = {}
    for terminal in (True, False):
        file = io.StringIO()
        prose(Output(file=file, width=40, force_terminal=terminal, color_system=None), text)
        shown[terminal] = file.getvalue()
    assert shown[False] == f"{plain}\n"
    lines = [line.rstrip() for line in shown[True].splitlines()]
    assert " ".join(lines) == plain  # no word is cut, none is lost
    assert all(len(line) <= 40 or path in line.split() for line in lines)
    assert len(lines) > 3


@pytest.mark.long
@pytest.mark.parametrize("to", ["| head -1", "> /dev/full", ">&-"])
def test_a_run_whose_output_is_lost_goes_on_to_its_end(to: str, tmp_path: Path) -> None:
    if "full" in to and not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    configfile.dump(tiny("fedsimclr", train__rounds=2), tmp_path / "tiny.yaml")
    command = f"{sys.executable} -m rayfed_ssl run {tmp_path}/tiny.yaml --executor local --out {tmp_path}/run {to}"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run/summary.json").read_text())["status"] == "complete"
    assert done.stderr.startswith("standard output: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.long
def test_a_list_that_cannot_be_printed_is_one_line() -> None:
    command = f"{sys.executable} -m rayfed_ssl methods --json > /dev/full"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "standard output: No space left on device\n"
