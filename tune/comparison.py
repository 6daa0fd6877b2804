"""Compares the variants of one run (``variants``) over the same seeds: a sweep's trials, with one table of results.

OUT/comparison.yaml            what was asked; OUT/trial-00003/ etc. are a sweep's: see ``sweep``
OUT/comparison.{md,tex,csv,parquet,json}  figures/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line
from rayfed_ssl.records.comparison import Comparison
from rayfed_ssl.records.comparison_choice import Selection, asked_before, selected
from rayfed_ssl.records.comparison_files import write
from rayfed_ssl.records.comparison_rows import of_variants
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.storage import failure
from rayfed_ssl.storage.claim import claimed
from tune.book import OVER, Book, measured, trial_name
from tune.config import Sweep, measured_by
from tune.files import differing, write_yaml
from tune.variants import CompareConfig, Variants, refusal, shown_metric

FILE = "comparison.yaml"


@dataclass(frozen=True)
class ComparisonResult:
    """The result of a comparison's runs."""

    comparison: Comparison | None  # None: no run is complete
    left: int  # runs that are not over
    failed: int
    diverged: int
    selection: Selection | None = None  # the row that was chosen, where one was to be


def run_comparison(
    variants: Variants,
    folder: Path,
    *,
    local: bool = False,
    resume: bool = False,
    select: str | None = None,
    say: Callable[[str], None] = lambda line: None,
    ended: Callable[[Progress], None] | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> ComparisonResult:
    """Run the variants that fit, for every seed whose run is not over, and write the comparison into ``folder``.

    Args:
        local: one run after the other in this process, instead of as many as the cluster takes.
        resume: go on with the comparison in ``folder``, if there is one; more variants may follow those it has.
        select: the measure by which to choose a row; the choice is written, too.
        ended: called for every run that ends; by default ``say`` gets its line.
        stopping: once it returns True, running trials end after their round, with a checkpoint, and no other starts.
    Raises:
        UserError: nothing fits, the folder or the resources cannot be used, or another command works in the folder;
            nothing is half-written. Or the disk is full.
    """
    from tune.sweep import disk_in_one_line, examine, run_trials, say_first, say_unlocked

    folder = folder.absolute()
    if not variants.points:
        raise UserError(f"{refusal(variants)}\ncompare: nothing is left to run")

    def on_begin() -> None:
        write_yaml(folder / FILE, _dumped(variants))

    with disk_in_one_line(folder), claimed(folder) as why_not:
        _examine(variants, folder, resume)
        shown = shown_metric(variants, select or asked_before(folder))
        examine(variants.sweep(_metric_of(folder) or shown), folder, resume)
        sweep = variants.sweep(shown)
        configs = [config for _, config in sweep.check()]
        if not (folder / "trials.json").exists():
            say_first(folder, configs, say)
        first = configs[0]
        say_unlocked(folder, why_not, say)
        if local:
            book = _run_here(sweep, folder, on_begin, say, ended or (lambda progress: say(progress.line)), stopping)
        else:
            book = run_trials(sweep, folder, first, say=say, ended=ended, stopping=stopping, on_begin=on_begin)
        return _result(variants, folder, book, select)


def _metric_of(folder: Path) -> str | None:
    """The metric of the comparison in ``folder``, which may change from session to session; None without one."""
    existing = folder / "sweep.yaml"
    return str(configfile.read(existing)["metric"]) if existing.exists() else None


def _run_here(
    sweep: Sweep,
    folder: Path,
    on_begin: Callable[[], None],
    say: Callable[[str], None],
    ended: Callable[[Progress], None],
    stopping: Callable[[], bool],
) -> Book:
    """Run every trial that is not over, in this process. If one fails, its folder says why, and the next starts."""
    from tune.sweep import begin, opening, trial_ended

    book = Book(folder, sweep.settings.repeat)
    for point in (sweep.configurations or [])[book.configurations :]:
        book.add(point)
    begin(sweep, book, on_begin)
    say(f"{opening(sweep, book)}; one at a time, in this process")
    for entry in [entry for entry in book.entries if entry.status not in OVER]:
        if stopping():
            break
        config = sweep.config_of(entry.point, entry.repetition, trial_name(entry.trial))
        run = folder / entry.name
        entry.status = "running"
        book.save()
        try:
            loop.run(config, run, LocalCohort, resume=(run / "config.yaml").exists(), stopping=stopping)
            failure.clear(run)
            entry.status = book.ended(entry) or "waiting"
        except Exception as error:
            failure.keep(run, error)
            entry.status = "failed"
            say(f"{entry.name} failed: {in_one_line(error)} ({run / failure.ERROR})")
        book.save()
        ended(trial_ended(sweep, book, entry))
    return book


def _result(variants: Variants, folder: Path, book: Book, select: str | None) -> ComparisonResult:
    """Compare the existing runs, and write the comparison into the folder."""
    runs = _folders(variants.points, folder, book)
    complete = any(entry.status == "complete" for entry in book.entries)
    comparison = of_variants(runs, variants.left_out) if complete else None
    selection = None if comparison is None else selected(comparison, select, folder)
    if comparison is not None:
        write(comparison, folder, selection)
    _tell_tensorboard(variants, folder, book)
    statuses = [entry.status for entry in book.entries]
    left = sum(status not in OVER for status in statuses)
    return ComparisonResult(comparison, left, statuses.count("failed"), statuses.count("diverged"), selection)


def _tell_tensorboard(variants: Variants, folder: Path, book: Book) -> None:
    """Write for HParams each begun run's variant, seed and accuracies (means over clients)."""
    from rayfed_ssl.records import hparams  # TensorBoard's writers, loaded only to write

    sweep = variants.sweep()
    for c, name in enumerate(variants.points):
        for entry in book.of(c):
            run, summary = folder / entry.name, book.summary(entry) or {}
            if not (run / "config.yaml").is_file():
                continue
            config = sweep.config_of(entry.point, entry.repetition)
            names = measured_by(config, "accuracy")
            results = {f"accuracy.{name}": measured(summary, f"accuracy.{name}") for name in names}
            varied = {"variant": name, "seed": config.seed}
            over, rounds = entry.status in OVER, summary.get("rounds")
            hparams.write(run, varied, results, rounds, over=over, group=hparams.COMPARISON)


def read_comparison(folder: Path) -> Comparison:
    """The rows of the comparison in ``folder``, by its variants' names, as far as its runs have come; writes nothing.

    Raises:
        UserError: no comparison is there, its records are damaged, or no run is complete.
    """
    settings = configfile.validate(CompareConfig, configfile.read(folder / FILE), origin=str(folder / FILE))
    book = Book(folder, settings.seeds)
    return of_variants(_folders(settings.points, folder, book), settings.left_out)


def _folders(names: Iterable[str], folder: Path, book: Book) -> dict[str, list[Path]]:
    """The run folders of each variant."""
    return {name: [folder / entry.name for entry in book.of(c)] for c, name in enumerate(names)}


def _dumped(variants: Variants) -> dict[str, Any]:
    """The content of ``comparison.yaml``, which is complete together with the sweep's ``base.yaml``."""
    return {
        "base": "base.yaml",
        "overrides": dict(variants.settings.overrides),
        "seeds": variants.settings.seeds,
        "variants": {name: variants.settings.variants[name] for name in variants.points},
        **({"left_out": variants.left_out} if variants.left_out else {}),
    }


def _examine(variants: Variants, folder: Path, resume: bool) -> None:
    """Refuse to overwrite a comparison, or to go on with a different one; writes nothing."""
    existing = folder / FILE
    if not existing.exists():
        return
    if not resume:
        raise UserError(
            f"--out: {folder} already holds a comparison; add --resume to continue it, or name another folder"
        )
    old, new = configfile.read(existing), _dumped(variants)
    there, given = (document.get("variants") or {} for document in (old, new))
    added = len(given) > len(there) and list(given.items())[: len(there)] == list(there.items())
    same = ("base", "left_out", *(["variants"] if added else []))
    changed = [name for key in new if key not in same for name in differing(key, old.get(key), new[key])]
    if changed:
        raise UserError(
            f"{folder}: cannot resume with changed {', '.join(changed)}; only variants may be added, after those that "
            "are there (another --out starts a new comparison)"
        )
