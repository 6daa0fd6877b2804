"""Checks whether a run may be resumed in its folder: its images and files must be the same, wherever they are now."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import Any

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.config import RESULT_NEUTRAL, RunConfig, load_of_run, load_untrusted
from rayfed_ssl.defaults import as_made
from rayfed_ssl.extensions import refuse_other
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.methods import METHODS
from rayfed_ssl.records.environment import recorded
from rayfed_ssl.records.outcomes import ALL as OUTCOMES
from rayfed_ssl.records.summary import evaluated_rounds
from rayfed_ssl.records.summary_file import SUMMARY, known_summary, read_summary
from rayfed_ssl.records.tables import EVALUATION, read_metrics
from rayfed_ssl.records.trained_image_digests import ENCODERS
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.settings.run import IMAGES, OTHER_IMAGES, START
from rayfed_ssl.simulation.placing import of_others, refuse_among_images
from rayfed_ssl.storage import checkpoint
from rayfed_ssl.storage.claim import refuse_taken, writable

CURVE = Path("figures/accuracy.png")  # the figure that a run draws last

WRITTEN = (  # what a run writes over, or deletes
    "metrics.parquet", "communication.parquet", "dropped.parquet", "partition.parquet", "images.parquet",
    "trained.parquet", *OUTCOMES, SUMMARY, "environment.json", "environment-*.json", "checkpoints", "encoder",
    "figures", "events.out.tfevents.*",
)  # fmt: skip


def as_begun(config: RunConfig, folder: Path, say: Callable[[str], None]) -> RunConfig:
    """The configuration with ``model.initial: common`` if the run in ``folder`` has it and the method's default is
    another. A value that is not the default is kept, and refused with the other changes.
    """
    existing = folder / "config.yaml"
    differing = config.data.tasks is not None or config.clients.heterogeneous
    by_default = METHODS[config.method.name].info.independent and differing
    if config.model.initial == "common" or not by_default or not existing.is_file():
        return config
    model = as_made(existing, configfile.read(existing)).get("model")
    if not isinstance(model, dict) or model.get("initial") != "common":
        return config
    say("model.initial: common, as this run began (its method's default is own since)")
    return config.model_copy(update={"model": config.model.model_copy(update={"initial": "common"})})


def examine_folder(
    config: RunConfig, folder: Path, resume: bool, say: Callable[[str], None]
) -> tuple[int, Path] | None:
    """What to resume from: (round, checkpoint), or None for a fresh start.

    ``resume`` starts afresh in an empty folder, so that one command can be queued again and again. It also does if no
    checkpoint is intact and the settings are the same, since they give the same results.

    Raises:
        UserError: the folder cannot be written to, or lies among the images; it holds a run and ``resume`` is not set;
            it holds something that is not a run, or a run with other settings that has made progress.
    """
    existing = folder / "config.yaml"
    refuse_taken(folder, resume)
    if not existing.exists():
        refuse_among_images(config, folder)
    writable(folder)
    if not existing.exists():
        _refuse_what_is_no_run(folder, resume)
        if note := of_others(folder):
            say(note)
        return None
    if not made_by_a_run(folder):
        raise UserError(
            f"--out: {folder} holds a config.yaml that no run has written, and --resume would write over it; name a "
            "folder that a run made, or another one"
        )
    found, damaged = checkpoint.newest(folder / "checkpoints")
    for line in damaged:
        say(f"checkpoint passed over: {line}")
    if found is None:
        say("no complete checkpoint yet: starting from round 0")
    if found is not None or damaged or has_results(folder):
        refuse_other(config.extensions, folder, configfile.read(existing).get("imports"))
        began = load_of_run(existing)
        result_affecting(began, config, folder, moved(began, config, folder))
    return found


def has_results(folder: Path) -> bool:
    """Whether the run in ``folder`` has ended with results, not in divergence."""
    try:
        summary = read_summary(folder)
    except UserError:
        return True  # a damaged one, of a run that has ended
    return summary is not None and summary.get("status") != "diverged"


def evaluated(config: RunConfig, folder: Path, t: int) -> bool:
    """Whether the committed tables hold round t's evaluation. A checkpoint has all of a round's evaluations or none."""
    in_round = [row.tag for row in config.evaluation.comparisons.values()]
    return t in evaluated_rounds(read_metrics(folder), in_round)


def nothing_left(config: RunConfig, folder: Path, round: int) -> dict[str, Any] | None:
    """The summary of the run in ``folder``, whose newest checkpoint is of ``round``, if it is complete; None if it
    lacks a round, its last evaluation, its encoder or its figures, or if any key has another value now.
    """
    summary = known_summary(folder)
    if summary.get("status") != "complete" or not summary.get("rounds") == round == config.train.rounds:
        return None
    if load_of_run(folder / "config.yaml") != config:
        return None
    measured = not config.evaluation.rows or evaluated(config, folder, round)
    drawn = not (config.figures and summary.get("accuracy")) or (folder / CURVE).is_file()
    return summary if measured and drawn and (folder / ENCODERS).is_dir() else None


def forget_end(folder: Path) -> list[str]:
    """Remove the summary and the encoders of the run in ``folder``, which ended and now goes on. What ``rayfed-ssl
    evaluate`` has measured of these encoders is kept under the name of their round; then there is a line that says so.
    """
    lines, evaluated = [], folder / EVALUATION
    if evaluated.exists():
        stem = f"{evaluated.stem}_round_{known_summary(folder).get('rounds', 'unknown')}"
        names = chain([stem], (f"{stem}_{number}" for number in count(2)))  # a round may have been the last one twice
        kept = next(path for name in names if not (path := evaluated.with_stem(name)).exists())
        evaluated.replace(kept)
        lines.append(f"{EVALUATION}: now {kept.name}, as it is of encoders that are trained further")
    for name in (SUMMARY, *OUTCOMES):
        (folder / name).unlink(missing_ok=True)
    if (folder / ENCODERS).is_dir():
        shutil.rmtree(folder / ENCODERS)
    return lines


def rounds_in(folder: Path) -> int:
    """How many rounds the run in ``folder`` was to have, according to its config.yaml."""
    return load_of_run(folder / "config.yaml").train.rounds


def _refuse_what_is_no_run(folder: Path, resume: bool) -> None:
    """Raise UserError if a run would overwrite something, or is to be resumed where there is none."""
    if theirs := sorted({path.name for pattern in WRITTEN for path in folder.glob(pattern)}):
        raise UserError(
            f"--out: {folder} holds {', '.join(theirs[:3])} and no config.yaml, so it is no run, and a run would "
            "write over that; name another folder"
        )
    others = sorted(path.name for path in folder.glob("*") if not path.name.startswith("."))
    if resume and others:
        raise UserError(
            f"--out: {folder} holds {', '.join(others[:3])} and no config.yaml, so there is no run to --resume; name a "
            "folder that a run made, or one that is empty"
        )


def made_by_a_run(folder: Path) -> bool:
    """Whether a run has written the folder's ``config.yaml``: a run's other files lie beside it or, if the run was
    killed before it wrote them, the file has the form in which a run writes it.
    """
    told = ("environment.json", "partition.parquet")  # before the first round; metrics come with the first checkpoint
    if all((folder / name).is_file() for name in told):
        return True
    try:
        config = load_untrusted(folder / "config.yaml")
        return (folder / "config.yaml").read_text(encoding="utf-8") == configfile.dumped(config)
    except (UserError, OSError, ValueError):
        return False


# -- places ------------------------------------------------------------------------------------------------------------


def moved(began: RunConfig, config: RunConfig, folder: Path) -> set[str]:
    """The keys of paths that differ from those the run in ``folder`` began with, and whose content is named by a digest
    in its environment.json: :func:`check_same` compares the content.
    """
    known = recorded(folder)
    of_images = dict(zip(IMAGES, (known.images, known.public_images), strict=True))
    named = {*known.files, *(key for key, digest in of_images.items() if digest is not None)}
    old, new = places(began), places(config)
    return {key for key in named & old.keys() & new.keys() if old[key] != new[key]}


def places(config: RunConfig) -> dict[str, Path]:
    """The paths of the images that are dealt and of the files beside them, by key. environment.json has digests of
    their content, so they may lie elsewhere when the run goes on or is evaluated again.
    """
    return {key: path for key, path in config.files().items() if key not in (OTHER_IMAGES, START)}


def load_moved(run: Path, changes: Sequence[str], *, trust_imports: bool = False) -> RunConfig:
    """The settings of a run folder, with ``changes`` (``key=value``) that say where its images and files are now.
    Raises UserError for any other change.
    """
    config = load_untrusted(run / "config.yaml", trust_imports=trust_imports)
    allowed = places(config)
    for key in configfile.parse_overrides(changes):
        if key not in allowed:
            named = f"; allowed here: {', '.join(allowed)}" if allowed else ""
            raise UserError(f"{key}: found a change of what the run was{named}")
    return load_untrusted(run / "config.yaml", changes, trust_imports=trust_imports)


@contextmanager
def began_earlier(config: RunConfig, began: bool = True) -> Iterator[None]:
    """If images are not found, name the remedy for a run that ``began`` before they were moved, or on another
    machine.
    """
    try:
        yield
    except UserError as error:
        gone = [key for key, path in places(config).items() if key in IMAGES and not path.expanduser().exists()]
        if not began or not gone:
            raise
        raise UserError(f"{error}; {gone[0]}=PLACE in this command says where the run's images lie now") from None


# -- digests -----------------------------------------------------------------------------------------------------------


def check_same(config: RunConfig, folder: Path, federation: Federation) -> None:
    """Raise UserError if the images, public images of another source or a file are not those that the run in ``folder``
    began with, according to its environment.json. For a run of a version that did not record them, nothing is checked.
    """
    check_same_images(folder, federation)
    _check_digest("data.public.images", recorded(folder).public_images, federation.public_digest, folder)
    check_same_files(config, folder)


def check_same_images(folder: Path, federation: Federation) -> None:
    """Like :func:`check_same`, for the run's own images alone."""
    _check_digest("data.path", recorded(folder).images, federation.dataset.digest, folder)


def _check_digest(key: str, began: str | None, found: str | None, folder: Path) -> None:
    if began is not None and began != found:
        raise UserError(
            f"{key}: found images with digest {found}, but the run in {folder} began with {began}; restore the images "
            "it began with (or the version: another may decode images otherwise, or hold out others of a file with "
            "clients), or name another --out"
        )


def check_same_files(config: RunConfig, folder: Path) -> None:
    """Like :func:`check_same`, for the files beside the images."""
    began, paths = recorded(folder).files, config.files()
    for key, digest in digests_of(config).items():
        if began.get(key, digest) != digest:
            raise UserError(
                f"{key}: found {printable(paths[key])} with digest {digest}, but the run in {folder} began with "
                f"{began[key]}; restore the file it began with, or name another --out"
            )


def digests_of(config: RunConfig) -> dict[str, str]:
    """The digests of the files beside the images, by key. Raises UserError for a file that cannot be read."""
    digests = {}
    for key, path in places(config).items():
        if key in IMAGES:
            continue
        try:
            with path.expanduser().open("rb") as file:
                digests[key] = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        except OSError as error:
            raise UserError(f"{key}: {printable(path)} cannot be read ({error.strerror})") from None
    return digests


def changed_keys(old: RunConfig, new: RunConfig) -> list[str]:
    """Dotted keys that affect the result and differ: with any of them a run cannot be resumed."""

    def flat(value: Any, prefix: str) -> dict[str, Any]:
        if isinstance(value, dict):
            return {
                k: v for key, item in value.items() for k, v in flat(item, f"{prefix}.{key}" if prefix else key).items()
            }
        return {prefix: value}

    a, b = (
        {
            key: value
            for key, value in flat(config.model_dump(mode="json"), "").items()
            if key.split(".")[0] not in RESULT_NEUTRAL or key in ("resources.threads", "resources.device")
        }
        for config in (old, new)
    )
    return sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))


def result_affecting(old: RunConfig, new: RunConfig, folder: Path, moved: Collection[str] = ()) -> None:
    """Raise UserError naming the keys whose change would make a resumed run a different one.

    More rounds are allowed if the longer run would have begun with the same rounds. So are changes of the keys
    ``moved``, which name paths whose content is compared elsewhere.
    """
    keys = [key for key in changed_keys(old, new) if key not in moved]
    if keys == ["train.rounds"]:
        _check_longer(old, new, folder)
    elif keys:
        others = [key for key in keys if key != "train.rounds" or new.train.rounds < old.train.rounds]
        raise UserError(
            f"{folder}: cannot resume with changed {', '.join(others)}; only resources.*, checkpoint.*, figures and "
            "name may change, paths to where the same images and files lie, and train.rounds may grow (another --out "
            "starts a new run)"
        )


def _check_longer(old: RunConfig, new: RunConfig, folder: Path) -> None:
    """Raise UserError if a run of ``new.train.rounds`` rounds would not have begun with the rounds of ``old``."""
    before, wanted = old.train.rounds, new.train.rounds
    if wanted < before:
        raise UserError(f"train.rounds: found {wanted}; {folder} is a run of {before}, allowed with --resume: {before} "
                        "or more (another --out starts a new run)")  # fmt: skip
    names = [old.method.name, *(plugin.name for plugin in old.plugins)]
    reasons = [why for name in names if (why := METHODS[name].planned(old))]
    if old.train.optimizer.schedule != "constant":
        reasons.append(f"train.optimizer.schedule: found '{old.train.optimizer.schedule}' over all of train.rounds")
    if reasons:
        raise UserError(f"{reasons[0]}; so {folder}, a run of {before} rounds, cannot become one of {wanted} (another "
                        "--out starts a new run)")  # fmt: skip
