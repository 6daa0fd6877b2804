"""The request of ``rayfed-ssl compare``: methods over a base, a file of variants, or existing run folders."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.config import RunConfig, load_untrusted
from rayfed_ssl.methods import METHODS
from rayfed_ssl.records.comparison_choice import selected
from rayfed_ssl.records.comparison_files import write
from rayfed_ssl.records.comparison_rows import of_runs
from rayfed_ssl.simulation.placing import refuse_among_images
from rayfed_ssl.simulation.progress import Progress
from tune.comparison import FILE, ComparisonResult, read_comparison, run_comparison
from tune.variants import Variants, from_file, from_methods, refusal, refuse_unmeasured

YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class Request:
    """Either variants to run in ``out``, or folders of runs or comparisons to read, which are only shown if ``out`` is
    None.
    """

    out: Path | None
    variants: Variants | None = None
    runs: tuple[Path, ...] = ()
    resume: bool = False

    def refuse_unmeasured(self, measure: str | None) -> None:
        """Raise UserError if the variants to run will not have the measure that is to choose."""
        if self.variants is not None and measure is not None:
            refuse_unmeasured(self.variants, measure)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders from which the comparison can be read again without running anything: that of its own runs, or
        the runs named.
        """
        return self.runs or (() if self.out is None else (self.out,))

    @property
    def count(self) -> int:
        """The number of runs."""
        return 0 if self.variants is None else len(self.variants.points) * self.variants.settings.seeds

    def carry_out(
        self,
        *,
        local: bool,
        say: Callable[[str], None],
        stopping: Callable[[], bool],
        ended: Callable[[Progress], None] | None = None,
        select: str | None = None,
    ) -> ComparisonResult:
        """Run the variants, if any, and write the comparison, with the row that ``select`` chooses. Raises
        UserError.
        """
        if self.variants is not None and self.out is not None:
            return run_comparison(
                self.variants, self.out, local=local, resume=self.resume, select=select, say=say, ended=ended,
                stopping=stopping,
            )  # fmt: skip
        if len(self.runs) == 1 and is_comparison(self.runs[0]):
            comparison = read_comparison(self.runs[0])
        else:
            comparison = of_runs([run for given in self.runs for run in _run_folders(given)])
        selection = selected(comparison, select, self.out)
        if self.out is not None:
            try:
                write(comparison, self.out, selection)
            except OSError as error:
                reason = error.strerror or printable(error)
                raise UserError(f"--out: cannot write to {self.out} ({reason}); name another folder") from None
        return ComparisonResult(comparison, 0, 0, 0, selection)


def of_request(
    what: Sequence[str], base: Path | None, seeds: int | None, out: Path | None, *, resume: bool, skip_unfit: bool
) -> Request:
    """Read the command line. Raises UserError if it is ambiguous, or if something does not fit."""
    if seeds is not None and seeds < 1:
        raise UserError(f"--seeds: found {seeds}; must be at least 1")
    if out is not None and re.match(r"\w+:/", str(out)):
        raise UserError(f"--out: found {out}; a comparison lies in a folder of this machine or of shared storage")
    changes = [item for item in what if "=" in item and not Path(item).exists()]
    names = [item for item in what if item not in changes]
    base = None if base is None else base.expanduser()
    file = Path(names[0]) if len(names) == 1 and names[0].endswith(YAML) else None
    if base is None and file is None and resume and (begun := _begun(names, out)) is not None:
        file, out = begun / FILE, begun
    if base is None and file is None:
        return _of_runs(names, changes, seeds, out, resume=resume, skip_unfit=skip_unfit)
    if base is not None and file is not None:
        raise UserError(f"--base: found beside {file}, which names its own; allowed with methods")
    if base is not None:
        variants, default = from_methods(base, names, changes, seeds), Path("runs") / f"{base.stem}-compare"
    else:
        assert file is not None
        variants = from_file(file, changes, seeds)
        default = file.parent if resume and file.name == FILE else Path("runs") / file.stem
    if (unfit := refusal(variants)) is not None and not skip_unfit:
        count = len(variants.settings.variants)
        others = "; --skip-unfit runs the others" if variants.points else ""
        raise UserError(f"{unfit}\ncompare: {len(variants.unfit)} of {count} do not fit the base{others}")
    return Request((out or default).expanduser(), variants, resume=resume)


def is_comparison(folder: Path) -> bool:
    """Whether the folder is a comparison's and not a run's."""
    return (folder / FILE).is_file() and not (folder / "config.yaml").exists()


def _begun(names: Sequence[str], out: Path | None) -> Path | None:
    """The comparison to go on with if only its folder was named. Raises UserError if the folder holds none."""
    if len(names) == 1 and out is None and is_comparison(folder := Path(names[0]).expanduser()):
        return folder
    if names or out is None:
        return None
    folder = out.expanduser()
    if not is_comparison(folder):
        raise UserError(
            f"--out: {folder} holds no comparison to --resume, of which there would be a {FILE}; a new one needs "
            "methods (with --base) or a file of variants"
        )
    return folder


def _run_folders(given: Path) -> list[Path]:
    """The runs in the folder of a comparison or a sweep; any other folder is returned as it is."""
    inside = [] if (given / "config.yaml").exists() else sorted(path.parent for path in given.glob("*/config.yaml"))
    return inside or [given]


def _of_runs(
    names: Sequence[str], changes: Sequence[str], seeds: int | None, out: Path | None, *, resume: bool, skip_unfit: bool
) -> Request:
    """The request for folders of runs or of comparisons. Raises UserError for options and keys of runs to come."""
    for name in names:
        if not Path(name).is_dir():
            raise UserError(
                f"compare: {printable(name)} {_no_folder(name)}; allowed: folders of runs, of a comparison or of a "
                "sweep, one .yaml file of variants, or methods with --base"
            )
    if not names:
        found = " ".join(changes) or "nothing"
        raise UserError(f"compare: found {found}; name methods (with --base), a file of variants, or run "
                        "folders; --resume goes on with the comparison in --out")  # fmt: skip
    given = {"--seeds": seeds is not None, "--resume": resume, "--skip-unfit": skip_unfit, "key=value": bool(changes)}
    if wrong := [option for option, here in given.items() if here]:
        raise UserError(f"compare: found {', '.join(wrong)} beside run folders, which have been run; allowed: --out")
    runs = tuple(Path(name) for name in names)
    if out is not None:
        _refuse_taken(out := out.expanduser(), runs)
        for config in () if is_comparison(out) else _configs(runs):
            refuse_among_images(config, out)
    return Request(out, runs=runs)


def _no_folder(name: str) -> str:
    """What a name that is no folder is, in words."""
    if Path(name).exists():
        return "is a file"
    return "is a method, and there is no --base" if name in METHODS else "does not exist"


def _configs(runs: Sequence[Path]) -> Iterator[RunConfig]:
    """The configurations that can be read without the runs' own code."""
    for run in (run for given in runs for run in _run_folders(given)):
        try:
            config = load_untrusted(run / "config.yaml")
        except UserError:  # reported when the runs are read
            continue
        yield config


def _refuse_taken(out: Path, runs: Sequence[Path]) -> None:
    """Raise UserError if tables of ``runs`` would lie among the files of a run, or replace those of another comparison.
    The tables of the same comparison may be written again.
    """
    if (out / "config.yaml").exists():
        raise UserError(f"--out: {out} holds a run; name another folder")
    if is_comparison(out) and [run.resolve() for run in runs] != [out.resolve()]:
        raise UserError(f"--out: {out} holds a comparison of its own, whose tables would be lost; name another folder")
