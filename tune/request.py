"""What ``rayfed-ssl compare`` was asked: methods over a base, a file of variants, or run folders that are there."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.reporting.comparison_files import write
from rayfed_ssl.reporting.comparison_rows import of_runs
from tune.comparison import FILE, Outcome, Variants, from_file, from_methods, refusal, run_comparison

YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class Request:
    """Either variants to run in ``out``, or run folders to read; those are only shown where ``out`` is None."""

    out: Path | None
    variants: Variants | None = None
    runs: tuple[Path, ...] = ()
    resume: bool = False

    def carry_out(self, *, local: bool, say: Callable[[str], None], stopping: Callable[[], bool]) -> Outcome:
        """Run what is to run, and write what it came to. Raises UserError."""
        if self.variants is not None and self.out is not None:
            return run_comparison(self.variants, self.out, local=local, resume=self.resume, say=say, stopping=stopping)
        comparison = of_runs(self.runs)
        if self.out is not None:
            write(comparison, self.out)
        return Outcome(comparison, 0, 0, 0)


def of_request(
    what: Sequence[str], base: Path | None, seeds: int | None, out: Path | None, *, resume: bool, skip_unfit: bool
) -> Request:
    """Read the command line. Raises UserError where it cannot be told what is meant, or something does not fit."""
    if seeds is not None and seeds < 1:
        raise UserError(f"--seeds: found {seeds}; must be at least 1")
    if out is not None and re.match(r"\w+:/", str(out)):
        raise UserError(f"--out: found {out}; a comparison lies in a folder of this machine or of shared storage")
    changes = [item for item in what if "=" in item and not Path(item).exists()]
    names = [item for item in what if item not in changes]
    file = Path(names[0]) if len(names) == 1 and names[0].endswith(YAML) else None
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
        raise UserError(f"{unfit}\ncompare: {len(variants.unfit)} of {len(variants.settings.variants)} do not fit the "
                        "base; --skip-unfit runs the others")  # fmt: skip
    return Request((out or default).expanduser(), variants, resume=resume)


def _of_runs(
    names: Sequence[str], changes: Sequence[str], seeds: int | None, out: Path | None, *, resume: bool, skip_unfit: bool
) -> Request:
    """Run folders, which are what they are."""
    for name in names:
        if not Path(name).is_dir():
            raise UserError(
                f"compare: found '{name}', which is no run folder and no .yaml file of variants; methods need --base"
            )
    if not names:
        found = " ".join(changes) or "nothing"
        raise UserError(f"compare: found {found}; name methods (with --base), a file of variants, or run folders")
    given = {"--seeds": seeds is not None, "--resume": resume, "--skip-unfit": skip_unfit, "key=value": bool(changes)}
    if wrong := [option for option, here in given.items() if here]:
        raise UserError(f"compare: found {', '.join(wrong)} beside run folders, which have been run; allowed: --out")
    if out is not None and (out / "config.yaml").exists():
        raise UserError(f"--out: {out} holds a run; name another folder")
    return Request(None if out is None else out.expanduser(), runs=tuple(Path(name) for name in names))
