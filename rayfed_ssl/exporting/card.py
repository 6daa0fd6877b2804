"""A model card: what an exported encoder is, what it was trained on, how well it does, what training it cost.

Every number is read from the run folder: from ``summary.json``, ``evaluation.json`` if there is one,
``environment.json``, ``partition.parquet``, ``outcomes.parquet`` and ``config.yaml``. Paths of folders on this machine
are left out, and so are names of classes, clients and groups in the run's notes. Names that the config itself gives (of
files, of a run, of classes in ``data.tasks``) are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from rayfed_ssl.base.files import read_json
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import bounded, fraction, in_one_line, plural, printable
from rayfed_ssl.config import RunConfig
from rayfed_ssl.data.images import are_bands
from rayfed_ssl.exporting.encoders import RunEncoder
from rayfed_ssl.methods import METHODS
from rayfed_ssl.objectives import OBJECTIVES
from rayfed_ssl.records.environment import recorded, scalings
from rayfed_ssl.records.intervals import counts_images
from rayfed_ssl.records.outcomes import FILE as OUTCOMES
from rayfed_ssl.records.summary_file import read_summary
from rayfed_ssl.records.tables import EVALUATION, OTHERS, SKIPPED

UNKNOWN = "unknown"  # the Hugging Face Hub's word for a licence that nobody named
HOME = "rayfed-ssl"
FINE_TUNED = ("semi_", "transfer_finetune")  # how the tags of protocols begin that train the encoder further
COLOURS = {1: "grey", 3: "RGB"}  # by the number of channels
Measured = tuple[str, str, float | None, float | None, float]
"""A row of the table of accuracies: tag, how it was measured, then by raw pixels, before training, by the encoder."""
Value = float | Mapping[str, float | None] | None  # in a summary: one value, or one for each client


def card(encoder: RunEncoder, use: str, licence: str = UNKNOWN, difference: float | None = None) -> str:
    """The card in Markdown, with the front matter of the Hugging Face Hub.

    Args:
        use: Markdown that says how to load what lies beside the card.
        licence: an identifier such as ``apache-2.0``.
        difference: the largest difference of the exported program's features from the run's, if it was measured.
    Raises:
        UserError: a file of the run folder is missing or damaged.
    """
    summary = read_summary(encoder.run)
    if summary is None:
        raise UserError(f"{encoder.run}: found no summary.json; the run has not finished")
    whose = "the global encoder" if encoder.client is None else f"the encoder of client {encoder.client}"
    try:
        parts = [
            _front_matter(encoder, licence),
            f"# {encoder.title}: {whose}",
            _introduction(encoder),
            "## Use",
            use,
            "## Training",
            _table(("", ""), _training(encoder, summary)),
            "## Accuracy",
            _accuracy(encoder, summary),
            *_noted(encoder.run),
            "## Versions",
            _table(("package", "version"), _versions(encoder.run)),
            *_checked(difference),
            "## Licence",
            _licence(licence),
        ]
    except (KeyError, TypeError, AttributeError, ValueError, pa.ArrowException, OSError) as error:
        reason = in_one_line(error)
        raise UserError(f"{encoder.run}: the run's records are damaged ({type(error).__name__}: {reason})") from error
    return "\n\n".join(parts) + "\n"


def _introduction(encoder: RunEncoder) -> str:
    config, side = encoder.config, encoder.transform.image_size
    channels = encoder.transform.channels
    images = f"images of {channels} bands and" if are_bands(channels) else f"{COLOURS[channels]} images of"
    labels = "labels" if OBJECTIVES[config.objective.name].labelled else "no labels"
    return (
        f"An image encoder, `{encoder.architecture}`: {encoder.module.dim} features of {images} {side} x {side} "
        f"px. It was trained by federated learning with {HOME}: method `{config.method.name}` "
        f"({METHODS[config.method.name].info.paper}), objective `{config.objective.name}`, which reads {labels}."
    )


def _front_matter(encoder: RunEncoder, licence: str) -> str:
    config = encoder.config
    head: dict[str, Any] = {
        "license": licence,
        "library_name": HOME,
        "pipeline_tag": "image-feature-extraction",
        "tags": ["federated-learning", "self-supervised-learning", config.method.name, encoder.architecture],
    }
    if config.data.name == "hub" and config.data.path is not None:
        head["datasets"] = ["/".join(config.data.path.parts[:2])]
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---"


# -- training ----------------------------------------------------------------------------------------------------------


def _training(encoder: RunEncoder, summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    config = encoder.config
    yield "config", f"`{config.name}`"
    yield "data", _data(config)
    for scaling in scalings(read_json(encoder.run / "environment.json") or {}):
        yield "values" if are_bands(encoder.transform.channels) else "grey values", scaling
    split = config.data.partition
    yield "partition", _block(split.model_dump(mode="json", exclude=set(split.files), exclude_none=True))
    if config.data.tasks is not None:
        yield "tasks", json.dumps(config.data.tasks)
    yield "clients", f"{summary['clients']}, {_held(encoder.run)}"
    if encoder.client is not None:
        yield f"client {encoder.client}", f"{_images(encoder.run).get(encoder.client, 0):,} training images"
    yield "method", _block(config.method.model_dump(mode="json", exclude_none=True))
    yield "objective", _block(config.objective.model_dump(mode="json", exclude_none=True))
    for plugin in config.plugins:
        yield "plug-in", _block(plugin.model_dump(mode="json", exclude_none=True))
    yield "rounds", f"{summary['rounds']} of {config.train.rounds} ({summary['status']}), seed {summary['seed']}"
    if "start" in summary:
        yield "began with", f"an encoder of digest {summary['start']['digest']}"
    sent = summary["communication"]
    yield "clients sent", f"{sent['up_bytes']:,} bytes up, {sent['down_bytes']:,} bytes down"
    yield "epsilon", _epsilon(encoder, summary)


def _data(config: RunConfig) -> str:
    data = config.data
    parts = [f"`{data.name}`"]
    if data.name == "hub" and data.path is not None:
        parts.append(f"`{data.path.as_posix()}`" + (f" at `{data.revision}`" if data.revision else ""))
    elif data.path is not None:
        parts.append(f"`{data.path.name}`")
    for key in ("limit", "test_limit"):
        if (limit := getattr(data, key)) is not None:
            parts.append(f"{key} {limit:,}")
    return ", ".join(parts)


def _block(values: Mapping[str, Any]) -> str:
    """A configuration block in one line: its name, then its other keys."""
    rest = ", ".join(f"{key} {json.dumps(value)}" for key, value in values.items() if key != "name")
    return f"`{values['name']}`" + (f": {rest}" if rest else "")


def _images(run: Path) -> dict[int, int]:
    """The number of training images of each client, from ``partition.parquet``."""
    rows = pq.read_table(run / "partition.parquet", columns=["client", "split"])
    train = pc.and_(pc.is_valid(rows["client"]), pc.equal(rows["split"].cast(pa.string()), "train"))
    counted = rows.filter(train).group_by("client").aggregate([("client", "count")]).to_pydict()
    return {int(client): int(n) for client, n in zip(counted["client"], counted["client_count"], strict=True)}


def _held(run: Path) -> str:
    """How many training images the clients hold, in words."""
    counts = _images(run).values()
    if not counts:
        return "no training images recorded"
    low, high = min(counts), max(counts)
    per_client = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"each with {per_client} training images, {sum(counts):,} in all"


def _epsilon(encoder: RunEncoder, summary: Mapping[str, Any]) -> str:
    epsilon, privacy = summary["epsilon"], summary.get("privacy", {})
    if epsilon is None:
        return "none: training gives no differential privacy"
    if isinstance(epsilon, Mapping):
        own = epsilon.get(str(encoder.client))
        known = [value for value in epsilon.values() if value is not None]
        if encoder.client is not None:
            shown = "not recorded" if own is None else bounded(own)
        else:
            shown = f"at most {bounded(max(known))} per client" if known else "not finite"
    else:
        shown = bounded(epsilon)
    covered = f"; it covers {privacy['covers']}, not {privacy['not_covered']}" if "covers" in privacy else ""
    return shown + (f" at delta {privacy['delta']:g}" if "delta" in privacy else "") + covered


# -- accuracy ----------------------------------------------------------------------------------------------------------


def _accuracy(encoder: RunEncoder, summary: Mapping[str, Any]) -> str:
    """What was measured of the encoder, on the run's images and on others, as text and tables."""
    evaluated = read_json(encoder.run / EVALUATION) or {}
    others = evaluated.get(OTHERS, {})
    parts = list(_on_other_images(encoder, others))
    if rows := _measured(encoder, summary, evaluated):
        shown = [(tag, how, *(_number(value) for value in values)) for tag, how, *values in rows]
        before = "before training" if "start" in summary else "untrained encoder"
        table = _table(("protocol", "measured by", "raw pixels", before, "this encoder"), shown)
        parts = [table, *_of_chance(encoder, summary, [tag for tag, *_ in rows]), *parts]
    if not parts:
        return "No accuracy was measured of this encoder."
    elsewhere = [tag for other in others.values() for tag in other.get("accuracy", {}).get(encoder.file.stem, {})]
    tuned = any(tag.startswith(FINE_TUNED) for tag in (*(tag for tag, *_ in rows), *elsewhere))
    but = ", but for `semi` and `transfer_finetune`, which train it further" if tuned else ""
    text = f"Shares of test images, the encoder frozen{but}. Accuracy unless the protocol's name says otherwise."
    return "\n\n".join([text, *parts])


def _measured(encoder: RunEncoder, summary: Mapping[str, Any], evaluated: Mapping[str, Any]) -> list[Measured]:
    """The values of the encoder on the run's own images: those of its last round, then what ``evaluated`` adds or
    changes, the file of ``rayfed-ssl evaluate``.
    """
    rows: list[Measured] = [
        (
            tag,
            "the run's last round",
            summary["pixels"].get(tag),
            _untrained(encoder, summary["untrained"].get(tag)),
            own,
        )
        for tag, value in summary["accuracy"].items()
        if (own := _own(encoder, value)) is not None
    ]
    untrained, pixels = evaluated.get("untrained", {}).get(_began_as(encoder), {}), evaluated.get("pixels", {})
    for tag, value in evaluated.get("accuracy", {}).get(encoder.file.stem, {}).items():
        before = untrained.get(tag)
        if "start" in summary:  # training did not begin with an untrained encoder: the last round knows what with
            before = next((row[3] for row in rows if row[0] == tag), None)
        row: Measured = (tag, "`rayfed-ssl evaluate`", pixels.get(tag), before, value)
        if not any(known[0] == tag and known[2:] == row[2:] for known in rows):
            rows.append(row)
    return rows


def _began_as(encoder: RunEncoder) -> str:
    """The name in ``evaluation.json`` of the encoder that training began with."""
    return encoder.file.before_training(encoder.config.model.initial == "own")


def _on_other_images(encoder: RunEncoder, others: Mapping[str, Any]) -> Iterator[str]:
    """A table of what ``rayfed-ssl evaluate --data`` measured, for each data set. A data set has the name of its file
    or folder, without the path.
    """
    for other in others.values():
        untrained, pixels = other.get("untrained", {}).get(_began_as(encoder), {}), other.get("pixels", {})
        values = other.get("accuracy", {}).get(encoder.file.stem, {})
        rows = [
            (tag, _number(pixels.get(tag)), _number(untrained.get(tag)), _number(value))
            for tag, value in values.items()
        ]
        if rows:
            images, source = other["images"], other["images"]["source"]
            name = printable(Path(source["path"]).name if source.get("path") else source["name"])
            where = f"`{name}`, {images['test']:,} test images and {images['train']:,} to learn from"
            head = ("protocol", "raw pixels", "untrained encoder", "this encoder")
            yield f"On other images than the run's ({where}), by `rayfed-ssl evaluate --data`:\n\n{_table(head, rows)}"
            if lines := images.get("card_notes"):
                yield "\n".join(f"- {line}." for line in lines)


def _of_chance(encoder: RunEncoder, summary: Mapping[str, Any], tags: Sequence[str]) -> Iterator[str]:
    """A sentence on the accuracy of a guess that looks at no image, if accuracies were measured."""
    if encoder.config.data.tasks is not None or not any(counts_images(tag) for tag in tags):
        return
    path, images = encoder.run / OUTCOMES, (summary.get("evaluation") or {}).get("test_images")
    which = "the test images" if images is None else f"the {images:,} labelled test images"
    sentence = f"Without a look at an image, always naming the largest class is right for {{}} of {which}"
    if path.exists():
        labels = pq.read_table(path, columns=["label"])["label"]
        counts = labels.value_counts().field("counts").to_numpy()
        at_random = f"naming one of their {len(counts)} classes at random for {1 / len(counts):.3f}"
        yield f"{sentence.format(fraction(counts.max() / counts.sum()))}, and {at_random}."
    elif (largest := summary.get("largest_class")) is not None:
        yield f"{sentence.format(fraction(largest['share']))}."


def _noted(run: Path) -> list[str]:
    """The section with the run's notes on its images, clients and method that qualify its numbers, if there are any."""
    lines = [*recorded(run).card_notes]
    if (skipped := run / SKIPPED).exists():
        left_out = len(skipped.read_text(encoding="utf-8").splitlines())
        lines.append(plural(left_out, "image", "images") + " could not be decoded: left out")
    if not lines:
        return []
    return ["## What qualifies these numbers", "\n".join(f"- {line}." for line in lines)]


def _own(encoder: RunEncoder, value: Value) -> float | None:
    """The value that a summary has for this encoder: one of several belongs to a client's encoder, a single one to the
    global encoder.
    """
    if isinstance(value, Mapping):
        return value.get(str(encoder.client))
    return value if encoder.client is None else None


def _untrained(encoder: RunEncoder, value: Value) -> float | None:
    """The value of the untrained encoder: of the client's own, or of the one that all clients began with."""
    return value.get(str(encoder.client)) if isinstance(value, Mapping) else value


def _number(value: float | None) -> str:
    return "-" if value is None else fraction(value)


# -- the rest ----------------------------------------------------------------------------------------------------------


def _versions(run: Path) -> Iterator[tuple[str, str]]:
    environment = read_json(run / "environment.json") or {}
    if "python" in environment:
        yield "python", str(environment["python"])
    for name, version in environment.get("versions", {}).items():
        yield name, "not installed" if version is None else str(version)
    if revision := environment.get("git_revision"):
        yield f"{HOME} revision", f"{revision}{' with changes' if environment.get('git_changed') else ''}"
    if device := environment.get("device"):
        yield "trained on", str(device)


def _checked(difference: float | None) -> list[str]:
    if difference is None:
        return []
    return [f"The exported program's features differ from the run's by at most {difference:.1e} on images of noise."]


def _licence(licence: str) -> str:
    if licence == UNKNOWN:
        return (
            "Nobody has chosen a licence for these weights (`license: unknown`). The terms of the data apply to them."
        )
    return f"`{licence}`. The terms of the data that the encoder was trained on apply beside it."


def _table(head: Sequence[str], rows: Iterator[tuple[str, ...]] | Sequence[tuple[str, ...]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
