"""What is looked at before the first file of a run is written: the folder, the shards, the labels."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from rayfed_ssl import evaluation
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.config import RunConfig, load_untrusted, result_affecting
from rayfed_ssl.config import load as load_config
from rayfed_ssl.data.partition import FromFile
from rayfed_ssl.defaults import as_made
from rayfed_ssl.extensions import refuse_other
from rayfed_ssl.federated.bench import Initial
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.methods import METHODS
from rayfed_ssl.models import pinned
from rayfed_ssl.objectives import build as build_objective
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.settings.system import Trace
from rayfed_ssl.storage import checkpoint
from rayfed_ssl.storage.claim import refuse_taken

WRITTEN = (  # what a run writes over, or deletes
    "metrics.parquet", "communication.parquet", "dropped.parquet", "partition.parquet", "summary.json",
    "environment.json", "environment-*.json", "checkpoints", "encoder", "figures", "events.out.tfevents.*",
)  # fmt: skip


def with_start(config: RunConfig) -> RunConfig:
    """The configuration with the digest of what ``model.start`` names, which every process then compares."""
    if config.model.start is None:
        return config
    model = config.model.model_copy(update={"start": pinned(config.model.start)})
    return config.model_copy(update={"model": model})


def as_begun(config: RunConfig, folder: Path, say: Callable[[str], None]) -> RunConfig:
    """The configuration with the ``model.initial`` of the run in ``folder``, where its method's default is another
    since that run began. A value that is not the default is left, and refused with the other changes.
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

    ``resume`` starts afresh in a folder that holds nothing, so that one command can be queued again and again.

    Raises:
        UserError: the folder cannot be written to; a run is there and ``resume`` is not set; what is there is no run.
    """
    existing = folder / "config.yaml"
    refuse_taken(folder, resume)
    checkpoint.writable(folder)
    if not existing.exists():
        _refuse_what_is_no_run(folder, resume)
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
    else:
        refuse_other(config.extensions, folder, configfile.read(existing).get("imports"))
        began = load_config(existing)
        result_affecting(began, config, folder, moved(began, config, folder))
    return found


def rounds_in(folder: Path) -> int:
    """How many rounds the run in ``folder`` was to have, as its config.yaml says."""
    return load_config(folder / "config.yaml").train.rounds


def _refuse_what_is_no_run(folder: Path, resume: bool) -> None:
    """Raise UserError where a run would write over something, or is to be resumed where there is none."""
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
    """Whether a run has written the folder's ``config.yaml``: what a run says of itself lies beside it; or, after a
    kill before that, it reads as a run writes it.
    """
    told = ("environment.json", "partition.parquet")  # before the first round; metrics come with the first checkpoint
    if all((folder / name).is_file() for name in told):
        return True
    try:
        config = load_untrusted(folder / "config.yaml")
        return (folder / "config.yaml").read_text(encoding="utf-8") == configfile.dumped(config)
    except (UserError, OSError, ValueError):
        return False


def moved(began: RunConfig, config: RunConfig, folder: Path) -> set[str]:
    """The keys of places that are others than those the run in ``folder`` began with, and whose content its
    environment.json names by a digest: :func:`check_same_images` and :func:`check_same_files` compare it.
    """
    try:
        known = dict(json.loads((folder / "environment.json").read_text(encoding="utf-8")))
        named = {*dict(known.get("files", {})), *(("data.path",) if known.get("images") is not None else ())}
    except (OSError, ValueError, TypeError):
        return set()
    old, new = places(began), places(config)
    return {key for key in named & old.keys() & new.keys() if old[key] != new[key]}


def places(config: RunConfig) -> dict[str, Path]:
    """Where the images and the other files that a run's result depends on lie, by key; none of a source without path,
    or whose path is a name.
    """
    images = {} if config.data.path is None or config.data.name == "hub" else {"data.path": config.data.path}
    return images | files_of(config)


def load_moved(run: Path, changes: Sequence[str], *, trust_imports: bool = False) -> RunConfig:
    """The settings of a run folder, with ``changes`` (``key=value``) of where its images and files lie now. Raises
    UserError for any other change.
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
    """Name the way out where images are not found, of a run that ``began`` before they moved, or elsewhere."""
    try:
        yield
    except UserError as error:
        path = places(config).get("data.path")
        if not began or path is None or path.expanduser().exists():
            raise
        raise UserError(f"{error}; data.path=PLACE in this command says where the run's images lie now") from None


def check_same_images(folder: Path, federation: Federation) -> None:
    """Raise UserError where the images are not those that the run in ``folder`` began with, as its environment.json
    says. A run of a version that did not record them is taken at its word.
    """
    try:
        began = json.loads((folder / "environment.json").read_text(encoding="utf-8")).get("images")
    except (OSError, ValueError, AttributeError):
        return
    if began is not None and began != federation.dataset.digest:
        raise UserError(
            f"data.path: found images with digest {federation.dataset.digest}, but the run in {folder} began with "
            f"{began}; restore the images it began with, or name another --out"
        )


def check_same_public(folder: Path, federation: Federation) -> None:
    """Raise UserError where public images of another source are not those that the run in ``folder`` began with, as its
    environment.json says. A run of a version that did not record them is taken at its word.
    """
    try:
        began = json.loads((folder / "environment.json").read_text(encoding="utf-8")).get("public_images")
    except (OSError, ValueError, AttributeError):
        return
    if began is not None and began != federation.public_digest:
        raise UserError(
            f"data.public.images: found images with digest {federation.public_digest}, but the run in {folder} began "
            f"with {began}; restore the images it began with, or name another --out"
        )


def files_of(config: RunConfig) -> dict[str, Path]:
    """The files beside the images that a run's result depends on, by the key that names them."""
    found = {}
    if isinstance(config.data.partition, FromFile):
        found["data.partition.path"] = config.data.partition.path.expanduser()
    if config.system is not None and config.system.devices is not None:
        found["system.devices"] = config.system.devices
    if config.system is not None and isinstance(config.system.availability, Trace):
        found["system.availability.path"] = config.system.availability.path
    return found


def digests_of(config: RunConfig) -> dict[str, str]:
    """The digests of :func:`files_of`, by key. Raises UserError for a file that cannot be read."""
    digests = {}
    for key, path in files_of(config).items():
        try:
            with path.open("rb") as file:
                digests[key] = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        except OSError as error:
            raise UserError(f"{key}: {printable(path)} cannot be read ({error.strerror})") from None
    return digests


def check_same_files(config: RunConfig, folder: Path) -> None:
    """Raise UserError where a file is not what the run in ``folder`` began with, as its environment.json says. A run of
    a version that did not record it is taken at its word.
    """
    try:
        began = dict(json.loads((folder / "environment.json").read_text(encoding="utf-8")).get("files", {}))
    except (OSError, ValueError, TypeError, AttributeError):
        return
    for key, digest in digests_of(config).items():
        if began.get(key, digest) != digest:
            raise UserError(
                f"{key}: found {printable(files_of(config)[key])} with digest {digest}, but the run in {folder} began "
                f"with {began[key]}; restore the file it began with, or name another --out"
            )


def check_run(config: RunConfig, federation: Federation) -> None:
    """Raise UserError for what the images, as they are dealt, do not allow the run: too few of a client's, no labels
    where some are needed, encoders that cannot be compared, what the method lacks.
    """
    check_shards(config, federation)
    check_labels(config, federation)
    check_comparisons(config, federation)
    if (check := METHODS[config.method.name].check_federation) is not None:
        check(config, federation)


def check_shards(config: RunConfig, federation: Federation) -> None:
    """Refuse shards below what the objective or a plug-in needs; batches are min(batch_size, shard)."""
    smallest = min(federation.clients, key=lambda client: federation.sizes[client])
    size = int(federation.sizes[smallest])
    images = f"{size} image{'' if size == 1 else 's'}"
    for reason, least in config.least_batches:
        if size < least:
            raise UserError(
                f"clients.count: {federation.called(smallest)} has {images}; {reason} needs batches of at least "
                f"{least} (fewer clients, more images, or another data.partition)"
            )


def check_labels(config: RunConfig, federation: Federation) -> None:
    """Refuse an objective, or protocols, that need labels where images have none, before rounds are spent on them: a
    line for each.
    """
    lines: list[str] = []
    trained = np.concatenate([federation.dataset.train.labels[shard["train"]] for shard in federation.shards])
    if build_objective(config.objective).labelled and (unknown := int((trained < 0).sum())):
        lines.append(
            f"objective.name: found '{config.objective.name}', but {unknown} of {len(trained)} training images have no "
            "label; allowed without labels: a self-supervised objective"
        )
    train, test = federation.dataset.train, federation.dataset.test
    try:
        evaluation.check(config.evaluation, train.labels, test.labels, config.data.image_size)
    except UserError as error:
        lines.append(str(error))
    if lines:
        raise UserError("\n".join(lines))


def ignored_clients(config: RunConfig, federation: Federation) -> list[str]:
    """A line where images come in client folders, or with a client column, and are dealt without regard to them."""
    names = federation.dataset.train.group_names
    if federation.dataset.train.groups is None or config.data.partition.name in ("folders", "natural", "file"):
        return []
    return [
        f"data.partition.name: {config.data.partition.name} deals the images of {len(names)} client folders or values "
        f"anew; data.partition.name=folders with clients.count={len(names)} gives each client its own"
    ]


def check_comparisons(config: RunConfig, federation: Federation) -> None:
    """Refuse to compare the encoders of a round's clients where a round never has two that can be compared."""
    if not config.evaluation.comparisons:
        return
    names, clients = ", ".join(config.evaluation.comparisons), len(federation.clients)
    found = f"evaluation.protocols: found {names}, which compares the encoders of a round's clients;"
    at_once = config.server.buffer if config.server.schedule == "fedbuff" else config.participants(clients)
    if config.method.name == "centralized":
        raise UserError(f"{found} centralized trains one; allowed: the other protocols")
    if min(at_once, clients) < 2:
        raise UserError(f"{found} a round has {min(at_once, clients)} of {clients}; must be at least 2")
    initial = Initial(config, federation)
    named = [config.clients.encoder(client) for client in federation.clients]
    dims = Counter(initial.network(name).dim for name in named)
    if max(dims.values()) < 2:
        raise UserError(f"{found} of {', '.join(named)} no two have features of one dimension; must be two at least")


def describe(config: RunConfig, federation: Federation) -> str:
    sizes = federation.sizes[list(federation.clients)]
    spread = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    line = f"{config.method.name} on {federation.dataset.name}: {len(federation.clients)} clients x {spread} images"
    if sizes.min() < config.train.batch_size:
        line += f"; batches of min({config.train.batch_size}, shard)"
    if federation.held_out is not None:
        line += f"; {len(federation.held_out)} training images held out to choose by"
    if skipped := federation.dataset.skipped:
        line += f"; {len(skipped)} broken images left out, named in skipped_images.txt"
    return line
