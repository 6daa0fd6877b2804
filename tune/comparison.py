"""Compares methods, or other variants of one run, over the same seeds: a sweep's trials, with one table of results.

    base: ../demo.yaml                       a run's config, relative to this file
    overrides: {train.rounds: 10}            of all variants
    seeds: 3                                 runs of each variant, with seeds one apart
    variants:                                the first is what the others are compared with
      fedsimclr:                             nothing: the method of that name
      near: {method.name: fedprox, method.mu: 0.1}

Before the first run starts, every variant's config is built for every seed and checked against the images.

OUT/comparison.yaml            what was asked; OUT/trial-00003/ etc. are a sweep's: see ``sweep``
OUT/comparison.{md,tex,csv,parquet,json}  figures/
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, model_validator

from rayfed_ssl import extensions
from rayfed_ssl.base.files import replace_file
from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.config import RESULT_NEUTRAL, RunConfig
from rayfed_ssl.methods import METHODS
from rayfed_ssl.records.comparison import Comparison
from rayfed_ssl.records.comparison_choice import Selection, asked_before, named, selected
from rayfed_ssl.records.comparison_files import write
from rayfed_ssl.records.comparison_rows import of_variants
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.storage import failure
from rayfed_ssl.storage.claim import claimed
from tune.book import OVER, Book, measured, trial_name
from tune.config import Point, Sweep, SweepConfig, differing, measured_by, read_base
from tune.dealing import refusals

FILE = "comparison.yaml"
EVERY = "all"  # in place of methods' names: every method there is
NEUTRAL = (*RESULT_NEUTRAL, "profile")  # blocks that change no result


class CompareConfig(Block):
    """The keys of a comparison's file. A variant that is null is the method with that name."""

    base: Path
    """A run's config, relative to this file."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys of the run, the same for every variant."""
    seeds: Annotated[int, Field(ge=1)] = 1
    """Runs of each variant, with seeds one apart."""
    variants: Annotated[dict[str, dict[str, Any] | None], Field(min_length=1)]
    """Name -> dotted keys of the run; null: the method of that name."""
    left_out: dict[str, str] = Field(default_factory=dict)
    """Name -> why ``--skip-unfit`` left it out; ``compare`` writes it."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        seen: dict[str, str] = {}
        for name, point in self.points.items():
            if not name.isprintable() or not name.strip():
                raise ValueError(f"variants: found the name {name!r}; must be text of one line")
            for key in point:
                if key.split(".")[0] in NEUTRAL:
                    raise ValueError(f"variants.{name}.{key}: found a key that changes no result; set it in overrides")
                if key == "seed":
                    raise ValueError(f"variants.{name}.seed: found; variants share their seeds: set it in overrides")
            same = json.dumps(point, sort_keys=True, default=str)
            if same in seen:
                raise ValueError(f"variants: found {seen[same]} and {name} with the same keys; each once")
            seen[same] = name
        return self

    @property
    def points(self) -> dict[str, Point]:
        """Variant's name -> its changes of the base, by dotted keys."""
        return {name: {"method.name": name} if v is None else configfile.flat(v) for name, v in self.variants.items()}


@dataclass(frozen=True)
class Variants:
    """A comparison's settings over a run's document. ``unfit``: variants that do not fit it, and why."""

    settings: CompareConfig
    document: Mapping[str, Any]
    origin: str
    imports: tuple[extensions.Extension, ...] = ()
    unfit: dict[str, str] = field(default_factory=dict)

    @property
    def points(self) -> dict[str, Point]:
        """The variants that fit, by name."""
        return {name: point for name, point in self.settings.points.items() if name not in self.unfit}

    @property
    def left_out(self) -> dict[str, str]:
        """The variants that did not fit, now or when the comparison began, and why."""
        return {**self.settings.left_out, **self.unfit}

    def sweep(self, metric: str = "wall_s") -> Sweep:
        """The runs of all variants as a sweep's trials: those of variant i are the repeats of configuration i."""
        settings = self.settings
        wanted = {
            "base": settings.base, "overrides": settings.overrides, "points": list(self.points.values()),
            "repeat": settings.seeds, "metric": metric, "mode": "max",
        }  # fmt: skip
        return Sweep(
            configfile.validate(SweepConfig, wanted, origin=self.origin), self.document, self.origin, self.imports
        )


def from_methods(base: Path, names: Sequence[str], changes: Sequence[str] = (), seeds: int | None = None) -> Variants:
    """Methods by name, each replacing the base's ``method`` block with its own defaults (the base's own method keeps
    the base's settings). ``changes`` are ``key=value`` for all of them. Raises UserError.
    """
    document, imports, overrides = read_base(base, configfile.parse_overrides(changes))
    extensions.load(imports)
    names = list(METHODS) if list(names) == [EVERY] else names
    if not names:
        raise UserError(f"compare: found no method beside --base; name some of {', '.join(METHODS)}, or {EVERY}")
    for name in names:
        if name not in METHODS:
            raise UserError(METHODS.unknown("compare", name))
        if names.count(name) > 1:
            raise UserError(f"compare: found {name} twice; each method once")
    wanted = {"base": base, "overrides": overrides, "seeds": _at_least_one(seeds), "variants": dict.fromkeys(names)}
    settings = configfile.validate(CompareConfig, wanted, origin="compare")
    return _fitted(Variants(settings, document, str(base), imports))


def from_file(path: Path, changes: Sequence[str] = (), seeds: int | None = None) -> Variants:
    """The variants that a file lists; ``changes`` and ``seeds`` take precedence over the file. Raises UserError."""
    written = configfile.read(path)
    settings = configfile.validate(CompareConfig, written, origin=str(path))
    base = path.parent / settings.base
    given = {**settings.overrides, **configfile.parse_overrides(changes)}
    document, imports, overrides = read_base(base, given)
    update = {"overrides": overrides, "seeds": settings.seeds if seeds is None else _at_least_one(seeds)}
    extensions.load(imports)
    for name, point in settings.variants.items():
        if point is None and name not in METHODS:
            raise UserError(METHODS.unknown(f"variants.{name}", name))
    return _fitted(Variants(settings.model_copy(update=update), document, f"{path} (base {base})", imports))


def _at_least_one(seeds: int | None) -> int:
    if seeds is not None and seeds < 1:
        raise UserError(f"--seeds: found {seeds}; must be at least 1")
    return seeds or 1


# -- what fits ---------------------------------------------------------------------------------------------------------


def _fitted(variants: Variants) -> Variants:
    """The same, with those marked that do not fit: the config cannot be built, or the images do not suit it."""
    sweep, seeds = variants.sweep(), range(variants.settings.seeds)
    runs: list[tuple[str, RunConfig]] = []
    unfit: dict[str, str] = {}
    for name, point in variants.points.items():
        try:
            runs += [(name, sweep.run(point, repetition)) for repetition in seeds]
        except UserError as error:
            unfit[name] = str(error)
    refused = refusals([config for _, config in runs])
    for place, (name, _) in enumerate(runs):
        if place in refused:
            unfit.setdefault(name, refused[place])
    unfit = {name: unfit[name] for name in variants.points if name in unfit}
    settings, origin = variants.settings, variants.origin
    return Variants(settings, variants.document, origin, variants.imports, unfit)


def refusal(variants: Variants) -> str | None:
    """A line for each reason why something does not fit; None if everything fits."""
    lines = [f"{name}: {line}" for name, why in variants.unfit.items() for line in why.splitlines()]
    return "\n".join(lines) or None


def _shown_metric(variants: Variants, select: str | None) -> str:
    """The metric shown in a line about a run: the one that ``select`` chooses by, or without ``select`` the first
    accuracy; the time if not all variants have that.
    """
    kind, _, name = ("accuracy/" if select is None else named(select)).partition("/")
    configs = [variants.sweep().run(point) for point in variants.points.values()]
    first, *others = [measured_by(config, kind) for config in configs]
    return next((f"{kind}.{m}" for m in first if name in ("", m) and all(m in other for other in others)), "wall_s")


def _metric_of(folder: Path) -> str | None:
    """The metric of the comparison in ``folder``, which may change from session to session; None without one."""
    existing = folder / "sweep.yaml"
    return str(configfile.read(existing)["metric"]) if existing.exists() else None


def refuse_unmeasured(variants: Variants, measure: str) -> None:
    """Raise UserError if no run will have the measure that is to choose: ``select/PROTOCOL`` or ``features/NAME``."""
    kind, _, name = measure.partition("/")
    configs = [variants.sweep().run(point) for point in variants.points.values()]
    if configs and not any(name in measured_by(config, kind) for config in configs):
        allowed = sorted({measure for config in configs for measure in measured_by(config, kind)})
        remedy = {"select": "set evaluation.select.share", "features": "name rank in evaluation.protocols"}[kind]
        raise UserError(f"--select: found {name}; these runs will have {', '.join(allowed) or f'none: {remedy}'}")


# -- running -----------------------------------------------------------------------------------------------------------


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
        _dump(variants, folder)

    with disk_in_one_line(folder), claimed(folder) as why_not:
        _examine(variants, folder, resume)
        shown = _shown_metric(variants, select or asked_before(folder))
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
        config = sweep.run(entry.point, entry.repetition, trial_name(entry.trial))
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
            say(f"{entry.name} failed: {' '.join(str(error).split()) or type(error).__name__} ({run / failure.ERROR})")
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
            config = sweep.run(entry.point, entry.repetition)
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


def _dump(variants: Variants, folder: Path) -> None:
    text = yaml.safe_dump(_dumped(variants), sort_keys=False, allow_unicode=True, width=120)
    replace_file(folder / FILE, lambda draft: draft.write_text(text, encoding="utf-8"))


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
