"""``rayfed_ssl.compare``, which compares methods, variants or finished runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from rayfed_ssl.api.arguments import as_text, check_callable, check_count, check_flag
from rayfed_ssl.api.call_arguments import as_changes
from rayfed_ssl.api.executor import Executor
from rayfed_ssl.api.folder import Run
from rayfed_ssl.api.process_state import Listener, OnProgress, executor_named, surroundings
from rayfed_ssl.api.python_messages import python_words
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.records.comparison import Comparison
from rayfed_ssl.records.comparison_choice import Selection, named
from rayfed_ssl.records.comparison_files import markdown, records
from rayfed_ssl.records.comparison_notes import notes
from rayfed_ssl.terminal.comparison import comparison_table
from rayfed_ssl.terminal.fitting import show
from rayfed_ssl.terminal.output import console
from rayfed_ssl.terminal.shadow import refuse_shadows
from rayfed_ssl.terminal.signals import interruptions


@dataclass(frozen=True, repr=False)
class Compared:
    """The results of several runs, side by side. Printing it, or showing it in a notebook, gives a table with notes.

    ``folder`` has the tables and figures; it is None if existing runs were compared without ``out``. ``left`` and
    ``failed`` count the runs that are not over and those that failed. ``selection`` is the row that ``select`` chose,
    if it was given.
    """

    comparison: Comparison
    folder: Path | None
    left: int = 0
    failed: int = 0
    selection: Selection | None = None

    @property
    def table(self) -> pa.Table:
        """An Arrow table with a row per method or variant, and all numbers: means, deviations, paired differences."""
        return pa.Table.from_pylist(records(self.comparison))

    @property
    def notes(self) -> list[str]:
        """What a reader has to know: seeds, split, intervals, settings that differ beside the method, missing runs, and
        last the row that was selected.
        """
        return [*notes(self.comparison), *([] if self.selection is None else [self.selection.sentence])]

    def __repr__(self) -> str:
        """``Compared(runs/x-compare: fedsimclr, fedprox)``."""
        rows = ", ".join(row.name for row in self.comparison.rows)
        return f"Compared({'' if self.folder is None else f'{self.folder}: '}{rows})"

    def __str__(self) -> str:
        screen = Console(width=140, force_jupyter=False)
        with screen.capture() as shown:
            show(screen, comparison_table(self.comparison))
        return "\n".join([shown.get().rstrip(), "", *self.notes])

    def _repr_markdown_(self) -> str:
        return markdown(self.comparison, self.selection)


def compare(
    *what: str | os.PathLike[str] | Run,
    base: str | os.PathLike[str] | None = None,
    seeds: int | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    skip_unfit: bool = False,
    select: str | None = None,
    executor: Executor | str = Executor.ray,
    progress: bool = True,
    on_progress: OnProgress | None = None,
    **overrides: object,
) -> Compared:
    """Run methods with the same seeds and split, or read existing runs, and compare them.

    Ctrl-C ends the running runs after their rounds; ``resume=True`` continues. If Ray's servers end, this process ends,
    too, as in ``run``.

    Args:
        what: methods, with ``base``; or one file of variants; or runs and run folders, which are only read.
        base: the YAML file that the methods share.
        seeds: how many runs of each method or variant, with consecutive seeds; by default 1.
        out: the folder of the comparison; by default ``runs/<base>-compare``, and none for existing runs.
        resume: whether to run what an earlier call has left.
        skip_unfit: whether to leave out methods that need something that the base lacks, instead of refusing them.
        select: the measure without test labels by which to name the best row: ``rankme``, ``uniformity``,
            ``alignment``, or ``select.PROTOCOL``.
        on_progress: called in this process with everything that would be printed, as a ``rayfed_ssl.Progress``. Its
            ``round`` and ``rounds`` count the runs that have ended and all runs; ``values`` are those of the run that
            ended. If it returns something true, or raises, the comparison ends as by Ctrl-C; its exception is raised
            at the end.
        overrides: keys of all runs, with ``__`` for dots: ``train__rounds=3``.
    Raises:
        UserError: the caller made a mistake, one line each; or no run is complete.
    """
    with python_words():
        refuse_shadows()
    from tune.request import of_request

    where = executor_named(executor)
    _check(base, seeds, out, on_progress, {"resume": resume, "skip_unfit": skip_unfit, "progress": progress})
    names, changes = [_named(one) for one in what], as_changes(overrides)
    with python_words(), surroundings(where):
        measure = None if select is None else named(select)  # an unknown measure is reported before anything runs
        request = of_request(
            [*names, *changes], None if base is None else Path(base), seeds, None if out is None else Path(out),
            resume=resume, skip_unfit=skip_unfit,
        )  # fmt: skip
        request.refuse_unmeasured(measure)
        listener = Listener(console(quiet=not progress), on_progress, request.count)
        with interruptions(listener.show) as interrupted:
            outcome = request.carry_out(
                local=where is Executor.local, say=listener.line, ended=listener.hear, select=select,
                stopping=lambda: interrupted() or listener.stop,
            )  # fmt: skip
    listener.check()
    if outcome.comparison is None:
        raise UserError(f"compare: no run is complete, {outcome.failed} failed, {outcome.left} are left; resume=True "
                        "continues")  # fmt: skip
    return Compared(outcome.comparison, request.out, outcome.left, outcome.failed, outcome.selection)


def _named(one: str | os.PathLike[str] | Run) -> str:
    """A method, a file of variants, or a run's folder, as text. Raises UserError if ``one`` is none of these."""
    allowed = "methods with base, one file of variants, or runs and run folders"
    return os.fspath(one.folder) if isinstance(one, Run) else os.path.expanduser(as_text(one, "compare", allowed))


def _check(base: object, seeds: object, out: object, on_progress: OnProgress | None, flags: dict[str, bool]) -> None:
    """Raise UserError if an argument of :func:`compare` has a wrong type."""
    if base is not None:
        as_text(base, "base", "the path of a YAML file")
    if seeds is not None:
        check_count(seeds, "seeds")
    if out is not None:
        as_text(out, "out", "a folder")
    for name, value in flags.items():
        check_flag(value, name)
    check_callable(on_progress, "on_progress")
