"""A table of an encoder's features: a Parquet row per image, written while the images are read.

Columns: ``id`` (text), ``split`` if the images have splits, ``label`` (int64, null if unknown) if there are labels,
``class`` if these have names, ``embedding`` (fixed-size list of float32). The schema's metadata says under
``rayfed_ssl`` which encoder made them, and under ``class_names`` what the labels are called.

Every forward pass has BLOCK images; the last one is filled up with black images. So on a CPU an image's embedding has
the same bits in every table.

Shapes: N images, S the run's image side, C channels, D embedding.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from rayfed_ssl.base.files import replace_file
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.catalogue import Catalogue, catalogued, of_parquet
from rayfed_ssl.data.decoding.bit_depth import PERCENTILES
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.decoding.threads import decoded_blocks
from rayfed_ssl.data.images import BadImage
from rayfed_ssl.data.pixels.copies import of_one_colour
from rayfed_ssl.data.pixels.notes import of_table
from rayfed_ssl.data.pixels.traits import Traits
from rayfed_ssl.data.readers.folders.images import has_client_folders
from rayfed_ssl.data.sources import SourceConfig, in_channels, with_bands
from rayfed_ssl.exporting.encoders import RunEncoder
from rayfed_ssl.federated.process_context import resolve_device
from rayfed_ssl.models.transform import HIGH_BIT_DEPTH, as_input, in_yaml
from rayfed_ssl.settings.data_argument import columns_in_block, parse_data_argument_of_run

BLOCK = 64  # images per forward pass
GROUP_BYTES = 32 * 2**20  # of embeddings, in a row group
SUFFIXES = (".parquet", ".pq")  # of the table's file
KEY = "data"


@dataclass(frozen=True)
class Embedded:
    """What was written: ``images`` rows of ``dim`` numbers. The images with the ids ``skipped`` cannot be decoded and
    were left out. ``notes`` are lines on images and files that are not in the table, and on what decoding lost.
    """

    images: int
    dim: int
    skipped: tuple[str, ...]
    notes: tuple[str, ...] = ()


def embed(
    encoder: RunEncoder,
    data: str,
    out: Path,
    *,
    id_column: str | None = None,
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Embedded:
    """Write the table of the images ``data`` to ``out``, whole or not at all.

    Args:
        data: a folder of images, with or without class folders; a Parquet file, a pattern of them, or a folder that
            holds some; a CSV file that names images; an ``.npz`` file, or a folder of ``.npy`` files;
            ``hub:OWNER/NAME``; a source by its name; a block such as ``{name: parquet, path: ..}``.
        id_column: the column of ids, for Parquet or a CSV file.
        skip_bad: whether to leave out images that cannot be decoded.
        overwrite: whether to replace a file that is there.
        progress: is called with the number of images that are done, and of all images.
    Raises:
        UserError: there are no such images, an image cannot be decoded, embeddings are not finite, ``out`` exists and
            is not to be overwritten, cannot be written, or has the name of another format.
    """
    _check_suffix(out)
    images = _images(data, id_column, encoder)
    _check_out(out, data, overwrite)
    table = _Table(encoder, images, skip_bad)
    try:
        with _threads(encoder.config.resources.threads):
            replace_file(out, partial(table.write, progress=progress))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else printable(error)
        raise UserError(f"--out: {printable(out)} cannot be written ({reason})") from error
    return table.embedded


def table_of(
    encoder: RunEncoder, data: str, *, id_column: str | None = None, skip_bad: bool = False
) -> tuple[pa.Table, Embedded]:
    """The table that :func:`embed` would write, in memory."""
    table, sink = _Table(encoder, _images(data, id_column, encoder), skip_bad), pa.BufferOutputStream()
    with _threads(encoder.config.resources.threads):
        table.write(sink)
    return pq.read_table(pa.BufferReader(sink.getvalue())), table.embedded


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads to the run's, so that features have the same bits; restore it at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _form(encoder: RunEncoder, source: SourceConfig | None) -> ImageForm:
    """The form that images are decoded to, which is the run's. The block ``source`` may set other bands, and the range
    of images of more than 8 bits if the run had no such images. Raises UserError if it contradicts the run.
    """
    form = encoder.transform.form
    if source is None:
        return form
    fixed: dict[str, object] = {"image_size": form.size, "channels": form.channels, "fit": form.fit}
    fixed["background"] = form.background
    if _has_range_of_run(encoder):
        fixed["range"] = form.range
    form = replace(form, bands=source.bands, nodata=source.nodata)  # files may hold the same bands in other places
    if "max_pixels" in source.model_fields_set:
        form = replace(form, max_pixels=source.max_pixels)  # changes no pixel
    if source.range == encoder.config.data.range == PERCENTILES:
        source = source.model_copy(update={"range": form.range})
    for name, value in fixed.items():
        if name in source.model_fields_set and (found := getattr(source, name)) != value:
            raise UserError(
                f"{KEY}.{name}: found {in_yaml(found)}; the encoder's run has {in_yaml(value)}, and images have their "
                f"features in the run only so; allowed: {in_yaml(value)}, or nothing"
            )
    if isinstance(source.range, str):
        raise UserError(
            f"{KEY}.range: found {PERCENTILES}, which are of training images, and a table's images train nothing; "
            "allowed: null, or [low, high]"
        )
    return form if source.range is None else replace(form, range=source.range)


def _has_range_of_run(encoder: RunEncoder) -> bool:
    """Whether the run had images of more than 8 bits, so that the table's images have to be scaled as they were."""
    return encoder.transform.range is not None or bool(encoder.file.description["input"].get(HIGH_BIT_DEPTH))


def _check_suffix(out: Path) -> None:
    """Raise UserError for a file whose name does not say that it is Parquet."""
    if out.suffix.lower() not in SUFFIXES and not out.is_dir():
        example = printable(out.with_suffix(SUFFIXES[0]).name) if out.name else f"x{SUFFIXES[0]}"
        raise UserError(
            f"--out: found {printable(out)}, but the table is Parquet; allowed: a name that ends in "
            f"{' or '.join(SUFFIXES)}, such as {example}; pandas.read_parquet reads it, and writes other formats"
        )


def _check_out(out: Path, data: str, overwrite: bool) -> None:
    """Raise UserError if ``out`` is a folder, is or lies within what the images are read from, or exists and is not to
    be overwritten.
    """
    if out.is_dir():
        raise UserError(f"--out: {printable(out)} is a folder; allowed: a file, such as {printable(out / 'x.parquet')}")
    place = out.resolve()
    for given in (path.resolve() for path in _files(data)):
        if place == given or (place.exists() and given in place.parents):
            raise UserError(f"--out: {printable(out)} is, or lies within, what the images are read from; name another")
    if out.is_file() and not overwrite:
        raise UserError(f"--out: {printable(out)} exists; name another file, or give --overwrite")


@dataclass(frozen=True)
class _Images:
    """A table's images. ``source`` is the block that they are read by, None for a pattern of files; ``block`` is that
    block as a user would write it, for messages on keys to add.
    """

    catalogue: Catalogue
    source: SourceConfig | None
    block: dict[str, Any]


def _images(data: str, id_column: str | None, encoder: RunEncoder) -> _Images:
    """The images that ``data`` names. The run's own images are read by the run's block. Another folder that is given by
    its path is read with client folders if the run was, and if the folder has them.
    """
    if _is_pattern(data):
        files = [(Path(name).name, Path(name)) for name in sorted(map(str, _files(data)))]
        if not files:
            raise UserError(f"{KEY}: found {printable(data)!r}, to which no file fits (seen from {Path.cwd()})")
        first_block = {"name": "parquet", "path": str(files[0][1])}
        with columns_in_block(first_block):
            return _Images(of_parquet(_told_apart(files), SourceConfig().columns, KEY, id_column), None, first_block)
    own = encoder.config.data.model_copy(update={"limit": None, "test_limit": None})  # a table has every image
    block = parse_data_argument_of_run(data, own, KEY)
    by_path = block.name == "imagefolder" and block.path is not None and not data.lstrip().startswith("{")
    if by_path and own.name == "imagefolder" and own.layout == "clients":
        assert block.path is not None
        if has_client_folders(Path(block.path).expanduser(), KEY):
            block = block.model_copy(update={"layout": "clients"})
    block = with_bands(block, encoder.config.data)
    if "channels" not in block.model_fields_set:
        block = in_channels(block, encoder.transform.channels, KEY)
    as_written = {"name": block.name, **block.model_dump(mode="json", exclude_defaults=True)}
    with columns_in_block(as_written):
        return _Images(catalogued(block, KEY, id_column), block, as_written)


def _is_pattern(data: str) -> bool:
    """Whether ``data`` is a pattern of files such as ``folder/*.parquet``, and no path that exists."""
    return not data.lstrip().startswith("{") and glob.has_magic(data) and not Path(data).expanduser().exists()


def _files(data: str) -> list[Path]:
    """The files that fit the pattern ``data``, or ``data`` itself as a path."""
    path = Path(data).expanduser()
    if _is_pattern(data):
        return [file for name in glob.glob(str(path), recursive=True) if (file := Path(name)).is_file()]
    return [path]


def _told_apart(files: list[tuple[str, Path]]) -> list[tuple[str, Path]]:
    """The files as they are given, by their names; but by their paths if two have the same name."""
    if len({name for name, _ in files}) == len(files):
        return files
    return [(path.as_posix(), path) for _, path in files]


class _Table:
    """Writes the table of a catalogue, and notes meanwhile what there is to say of it."""

    def __init__(self, encoder: RunEncoder, images: _Images, skip_bad: bool) -> None:
        self.encoder, self.images, self.block = encoder, images.catalogue, images.block
        source = images.source
        self.form = _form(encoder, source)
        self.skip = skip_bad or (source is not None and source.on_bad_image == "skip")
        self.device = resolve_device("cpu" if encoder.config.resources.device == "cpu" else "auto")
        self.module = encoder.module.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.skipped: list[str] = []
        self.traits = Traits()
        self.one_colour = [np.empty((0, encoder.transform.channels), np.uint8)]  # (K, C) of each block
        self.written = 0

    @property
    def embedded(self) -> Embedded:
        """What was written, once ``write`` is done."""
        colours = np.concatenate(self.one_colour)
        notes = of_table(self.traits, colours, self.form.range, self.form.background, KEY)
        return Embedded(self.written, self.encoder.module.dim, tuple(self.skipped), (*self.images.notes, *notes))

    def write(
        self, sink: Path | pa.NativeFile, progress: Callable[[int, int], object] = lambda done, total: None
    ) -> None:
        """Write the table to ``sink``, a row group of about ``GROUP_BYTES`` at a time."""
        schema = self._schema()
        dim = self.encoder.module.dim
        most = max(BLOCK, GROUP_BYTES // (4 * dim))
        with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
            rows: list[int] = []
            ids: list[str] = []
            features: list[NDArray[np.float32]] = []
            for block_rows, block_ids, values in self._blocks():
                rows.extend(block_rows)
                ids.extend(block_ids)
                features.append(values)
                if len(rows) >= most:
                    self._group(writer, schema, rows, ids, features)
                    rows, ids, features = [], [], []
                progress(self.written + len(rows) + len(self.skipped), len(self.images))
            if rows or not self.written:
                self._group(writer, schema, rows, ids, features)

    def _blocks(self) -> Iterator[tuple[list[int], list[str], NDArray[np.float32]]]:
        """The catalogue's rows, the ids and the embeddings (n, D) of BLOCK images at a time, without skipped images.
        Raises UserError for an image that cannot be decoded, and for an embedding that is not finite.
        """
        numbered = (((row, name), payload) for row, (name, payload) in enumerate(self.images.read()))
        for named, results in decoded_blocks(numbered, self.form, BLOCK):
            rows, ids, squares = [], [], []
            for (row, name), result in zip(named, results, strict=True):
                if not isinstance(result, BadImage):
                    rows.append(row)
                    ids.append(name)
                    squares.append(result.pixels)
                    self.traits.add(row, result)
                elif self.skip:
                    self.skipped.append(printable(name))
                else:
                    self._refuse(name, result)
            if rows:
                pixels = np.stack(squares)
                self.one_colour.append(of_one_colour(pixels)[1])
                values = self._embedded(pixels)
                if (broken := ~np.isfinite(values).all(axis=1)).any():
                    first = printable(ids[int(np.flatnonzero(broken)[0])])
                    raise UserError(f"{self.encoder.run}: the embedding of {first} is not finite; training diverged")
                yield rows, ids, values

    def _refuse(self, name: str, bad: BadImage) -> NoReturn:
        """Raise UserError for an image that cannot be decoded, with the key to set if one would help."""
        line = f"{KEY}: {printable(name)} cannot be decoded ({bad}); mend or remove it, or leave such images out with "
        line += "--skip-bad"
        if bad.to_set == "range" and _has_range_of_run(self.encoder):
            by = in_yaml(self.encoder.transform.range)
            raise UserError(
                f"{line}; here {KEY}.range cannot be set: the encoder's run has {by}, and images have their features "
                "in the run only so"
            )
        with columns_in_block(self.block):
            raise UserError(line).setting(bad.to_set)

    @torch.inference_mode()
    def _embedded(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The embeddings (n, D) of images (n, S, S, C), n at most BLOCK."""
        block = np.zeros((BLOCK, *pixels.shape[1:]), np.uint8)
        block[: len(pixels)] = pixels
        features = self.module(self.encoder.transform.normalised(torch.from_numpy(block).to(self.device)))
        return np.asarray(features.float().cpu().numpy()[: len(pixels)], np.float32)

    def _schema(self) -> pa.Schema:
        names, word = self.images.class_names, pa.dictionary(pa.int32(), pa.string())
        fields = [pa.field("id", pa.string(), nullable=False)]
        if self.images.divided:
            fields.append(pa.field("split", word))
        if self.images.labelled:
            fields.append(pa.field("label", pa.int64()))
            if names is not None:
                fields.append(pa.field("class", word))
        fields.append(pa.field("embedding", pa.list_(pa.float32(), self.encoder.module.dim), nullable=False))
        about = {"rayfed_ssl": json.dumps(self._origin())}
        if self.images.labelled and names is not None:
            about["class_names"] = json.dumps(names)
        return pa.schema(fields, metadata=about)

    def _origin(self) -> dict[str, object]:
        """Which encoder makes the embeddings, for the schema's metadata."""
        encoder = self.encoder
        return {
            "run": encoder.title,
            "encoder": encoder.file.stem,
            "architecture": encoder.architecture,
            "image_size": encoder.transform.image_size,
            "channels": encoder.transform.channels,
            "mean": encoder.transform.mean,
            "std": encoder.transform.std,
            **as_input(encoder.config.data, encoder.transform.range),
            "rayfed-ssl": metadata.version("rayfed-ssl"),
        }

    def _group(
        self,
        writer: pq.ParquetWriter,
        schema: pa.Schema,
        rows: list[int],
        ids: list[str],
        features: list[NDArray[np.float32]],
    ) -> None:
        """Write one row group."""
        dim, positions = self.encoder.module.dim, np.array(rows, np.int64)
        labels = pa.array(self.images.labels[positions], mask=self.images.labels[positions] < 0)
        numbers = np.concatenate(features).ravel() if features else np.empty(0, np.float32)
        columns = {"id": pa.array(ids, pa.string()), "label": labels}
        if self.images.divided:
            columns["split"] = self.images.split_of(positions)
        if self.images.class_names is not None:
            columns["class"] = pa.DictionaryArray.from_arrays(labels.cast(pa.int32()), list(self.images.class_names))
        columns["embedding"] = pa.FixedSizeListArray.from_arrays(pa.array(numbers), dim)
        arrays = [columns[field.name].cast(field.type) for field in schema]
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        self.written += len(rows)
