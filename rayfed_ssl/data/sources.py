"""The ``data:`` block, and the sources of images that it may name.

``SOURCES`` is the table of sources. A row is a ``SourceKind``: which keys it reads, and a function that opens it. That
function gets the ``SourceConfig``, the cache folder and the key that messages name. It returns a ``Source``: the files
that decide the content, and a way to list a split as labels and encoded images (``images.Listing``). Decoding,
resizing, caching, digests (``loading``) and partitions then work as for every other source. Another package adds a row
as an entry point of the group ``rayfed_ssl.sources``:

    def open_scans(config: SourceConfig, cache: Path, key: str) -> Source: ...

    SCANS = SourceKind(open_scans, reads=frozenset({"path"}))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from rayfed_ssl.base.choice import NameOf
from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.base.table import Table
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.decoding.bit_depth import Range, Ranges, allowed_instead, as_lists, in_pairs
from rayfed_ssl.data.decoding.form import MOST_PIXELS
from rayfed_ssl.data.decoding.squares import Background, Fit
from rayfed_ssl.data.images import MOST_BANDS, Source, are_bands
from rayfed_ssl.data.readers.arrays.source import arrays_source
from rayfed_ssl.data.readers.columns import Columns
from rayfed_ssl.data.readers.digits import digits_source
from rayfed_ssl.data.readers.folders.layouts import Layout
from rayfed_ssl.data.readers.folders.names import expression
from rayfed_ssl.data.readers.folders.source import folder_source
from rayfed_ssl.data.readers.parquet.hub import hub_source
from rayfed_ssl.data.readers.parquet.source import parquet_source
from rayfed_ssl.data.readers.places import existing_place
from rayfed_ssl.data.readers.tables.source import table_source
from rayfed_ssl.data.readers.torchvision import torchvision_source
from rayfed_ssl.data.readers.walking import ARCHIVES, FROM_TABLE, READ_TABLES, TABLES, of_container, read_by

SourceName = Annotated[str, NameOf(lambda: SOURCES)]


class SourceConfig(Block):
    """Which images."""

    name: SourceName = "parquet"
    """Where the images come from."""
    path: Path | None = None
    """The file or folder of ``parquet``, the folder of ``imagefolder``, the file of ``table`` or the folder with
    ``train.csv``, the ``.npz`` file of ``arrays`` or the folder with their ``.npy`` files, ``OWNER/NAME`` for ``hub``,
    the root folder of torchvision's data sets; ``digits`` reads none.
    """
    layout: Layout = "classes"
    """Folders of an ``imagefolder``: ``train/<class>/``, or ``train/<client>/<class>/``, or either without ``train/``
    and ``test/``, where a fifth of each class is held out; with ``clients_flat`` only the first folder means anything,
    the client, and with ``flat`` none; all images are unlabelled then.
    """
    group: Annotated[str, AfterValidator(expression)] | None = None
    """For an ``imagefolder``, a regular expression that finds whom or what an image shows, such as the patient, in its
    path below ``path``, as ``person[0-9]+`` does; with brackets, what they hold. ``dicom:PatientID`` is what an
    attribute of a DICOM file says, ``dicom:InstitutionName/PatientID`` what several do. Images of one are held out
    together: by the fifth that becomes the tests, and by ``evaluation.select``; an image of which nothing is found is
    one of its own. null: each image is.
    """
    columns: Columns = Columns()
    revision: str | None = Field(None, min_length=1)
    """Branch, tag or commit of a ``hub`` data set; null: the newest."""
    test_split: str | None = Field(None, pattern=r"^[\w.-]+$")
    """The split of a folder of Parquet files or of tables, of ``hub`` or of ``arrays`` that holds the test images:
    ``validation`` are the files ``validation-*.parquet``; null: ``test``, without one ``validation`` or ``val``.
    """
    download: bool = False
    """Whether ``hub`` and torchvision may fetch files that are not there."""
    image_size: int = Field(32, ge=8, le=1024)
    """S: images become S x S pixels."""
    fit: Fit = "crop"
    """How images become squares: ``crop`` takes the central square, as large as the short side, and what lies beside it
    is lost, two thirds of an image three times as wide as high; ``pad`` keeps all of an image, within a black square;
    ``stretch`` keeps all of it and changes its proportions.
    """
    background: Background = "black"
    """What transparent pixels are laid on. Dark drawings on a transparent ground need ``white`` or ``grey`` (128): on
    ``black`` nothing is seen of them.
    """
    channels: int = Field(3, ge=1, le=MOST_BANDS)
    """3: RGB; 1: grey; else so many bands, as in arrays and TIFF, of which none is a colour or transparency."""
    bands: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, max_length=MOST_BANDS)] | None = None
    """Which bands of arrays and TIFF are read, in this order, numbered from 1 as GDAL and rasterio do; as many as
    ``channels``. Three are RGB, as ``[4,3,2]`` of Sentinel-2, one is grey. null: all.
    """
    nodata: Annotated[float, Field(allow_inf_nan=False)] | Literal["file"] | None = None
    """Which values are missing in images read band by band (``bands``, or other ``channels`` than 1 and 3). They count
    for no range and become 0. ``file``: NaN, infinity, and a TIFF's GDAL_NODATA; a number: NaN, infinity and it; null:
    NaN and infinity cannot be decoded, and GDAL_NODATA is a value like any other.
    """
    range: Annotated[Range | Ranges | Literal["percentiles"] | None, BeforeValidator(in_pairs)] = None
    """(Lowest, highest) value of images of more than 8 bits, of DICOM in rescaled units such as Hounsfield; of bands
    for all, or a list of one each; ``percentiles``: the 0.5th and 99.5th of training pixels, of bands each its own;
    null: each image's own, of DICOM its window; not for colours and bands.
    """
    on_bad_image: Literal["fail", "skip"] = "fail"
    """Whether images that cannot be decoded end the run, all of them named up to 20, or are left out and named."""
    max_pixels: int = Field(50_000_000, ge=64, le=MOST_PIXELS)
    """A larger image counts as one that cannot be decoded."""
    limit: int | None = Field(None, ge=1)
    """At most so many training images: the first rows, of an ``imagefolder`` evenly spaced ones; null: all. A note says
    where they show fewer classes than all images do, as the first rows of a file sorted by class.
    """
    test_limit: int | None = Field(None, ge=1)
    """At most so many test images, likewise; null: all."""

    @model_validator(mode="after")
    def _nothing_ignored(self) -> SourceConfig:
        """Refuses keys that the source does not read: a mistake there would go unnoticed."""
        if self.name not in SOURCES:
            raise ValueError(SOURCES.unknown("name", self.name))
        if not isinstance(SOURCES[self.name], SourceKind):
            by = SOURCES.origin(self.name)
            raise ValueError(f"name: found {self.name!r}, of which {by} gives no rayfed_ssl.data.sources.SourceKind")
        reads = SOURCES[self.name].reads
        for key in sorted(OPTIONAL_KEYS - reads):
            if getattr(self, key) != type(self).model_fields[key].default:
                others = ", ".join(name for name, kind in SOURCES.items() if key in kind.reads)
                unlabelled = key == "columns" and self.columns.label is False and "layout" in reads
                flat = "; layout=flat reads no labels" if unlabelled else ""
                raise ValueError(f"{key}: found a value; {self.name} reads none; allowed with name: {others}{flat}")
        if are_bands(self.channels) and not SOURCES[self.name].bands:
            others = ", ".join(name for name, kind in SOURCES.items() if kind.bands)
            raise ValueError(f"channels: found {self.channels}; {self.name} has 1 or 3; more with name: {others}")
        if self.bands is not None and not SOURCES[self.name].bands:
            others = ", ".join(name for name, kind in SOURCES.items() if kind.bands)
            raise ValueError(f"bands: found a value; {self.name} reads none; allowed with name: {others}")
        if self.bands is not None and len(self.bands) != self.channels:
            raise ValueError(f"bands: found {len(self.bands)} of them; allowed: as many as channels, {self.channels}")
        chosen = self.bands is not None
        if self.nodata is not None and not (chosen or are_bands(self.channels)):
            needs = "needs bands (here, too, where the run has some), such as [1] with channels: 1, or [1, 2, 3]"
            raise ValueError(f"nodata: found {self.nodata}; {needs}")
        if isinstance(self.range, tuple) and (allowed := allowed_instead(self.range, self.channels, chosen)):
            raise ValueError(f"range: found {as_lists(self.range)}; allowed: {allowed}")
        return self

    @property
    def limits(self) -> dict[str, int | None]:
        return {"train": self.limit, "test": self.test_limit}


def with_bands(config: SourceConfig, run: SourceConfig) -> SourceConfig:
    """The block with the run's bands and nodata, unless it sets its own. A source whose images have no bands is left as
    it is.
    """
    if not SOURCES[config.name].bands:
        return config
    free = {"bands", "nodata"} - config.model_fields_set
    return config.model_copy(update={key: getattr(run, key) for key in free})


def in_channels(config: SourceConfig, channels: int, key: str) -> SourceConfig:
    """The block that reads its images with this number of channels. Raises UserError if the source has no such images,
    or if the block chooses another number of bands.
    """
    if are_bands(channels) and not SOURCES[config.name].bands:
        raise UserError(f"{key}.name: found {config.name}, which has no images of {channels} bands, as the run's are")
    if config.bands is not None and len(config.bands) != channels:
        raise UserError(
            f"{key}.bands: found {len(config.bands)} of them; allowed: {channels}, as the run's images have"
        )
    return config.model_copy(update={"channels": channels})


OPTIONAL_KEYS = frozenset({"path", "layout", "group", "columns", "revision", "test_split", "download"})
OWN_IMAGES = frozenset({"layout", "columns"})  # a source that reads one of them reads the user's own images


@dataclass(frozen=True)
class SourceKind:
    """One row of ``SOURCES``.

    ``open(config, cache, key)`` returns the images' ``Source`` and raises UserError, with ``key.path: ..`` in front,
    for what the user can mend. ``reads``: the keys of ``OPTIONAL_KEYS`` it uses; others are refused. ``bands``: whether
    its images may have other numbers of channels than 1 and 3.
    """

    open: Callable[[SourceConfig, Path, str], Source]
    reads: frozenset[str] = frozenset({"path"})
    bands: bool = True


def _digits(config: SourceConfig, cache: Path, key: str) -> Source:
    return digits_source(config.limits)


def _parquet(config: SourceConfig, cache: Path, key: str) -> Source:
    return parquet_source(existing(config, key), config.limits, key, config.columns, test_split=config.test_split)


def _hub(config: SourceConfig, cache: Path, key: str) -> Source:
    if config.path is None:
        raise UserError(f"{key}.path: not set; {key}.name=hub needs OWNER/NAME of a data set")
    name = config.path.as_posix()
    return hub_source(name, config.revision, cache, config.limits, key, config.columns, config.test_split)


def _imagefolder(config: SourceConfig, cache: Path, key: str) -> Source:
    path = existing(config, key)
    if not path.is_dir():
        hint = "; unpack it" if path.suffix.lower() in ARCHIVES else ""
        hint = of_container(path) or hint
        hint = f"; {FROM_TABLE}" if path.suffix.lower() in TABLES else hint
        hint = read_by(path, key) or hint
        raise UserError(
            f"{key}.path: {printable(path)} is a file; {key}.name=imagefolder needs a folder of images{hint}"
        )
    return folder_source(path, config.layout, config.limits, key, config.group)


def _arrays(config: SourceConfig, cache: Path, key: str) -> Source:
    ranged, path = config.range is not None, existing(config, key)
    form = config.channels, config.bands
    return arrays_source(path, config.limits, key, config.columns, config.test_split, ranged, *form)


def _table(config: SourceConfig, cache: Path, key: str) -> Source:
    path = existing(config, key)
    if path.is_file() and path.suffix.lower() not in READ_TABLES:
        hint = read_by(path, key) or "; save it as CSV"
        raise UserError(f"{key}.path: {printable(path)} is no .csv, .tsv or .jsonl file{hint}")
    return table_source(path, config.limits, key, config.columns, config.test_split)


def _torchvision(config: SourceConfig, cache: Path, key: str) -> Source:
    root = config.path.expanduser() if config.path else cache / "downloads"
    return torchvision_source(config.name, root, config.download, config.limits, key)


TORCHVISION = SourceKind(_torchvision, frozenset({"path", "download"}), bands=False)
SOURCES = Table(
    "data source",
    "rayfed_ssl.sources",
    {
        "digits": SourceKind(_digits, frozenset(), bands=False),
        "parquet": SourceKind(_parquet, frozenset({"path", "columns", "test_split"})),
        "hub": SourceKind(_hub, frozenset({"path", "columns", "revision", "test_split", "download"})),
        "imagefolder": SourceKind(_imagefolder, frozenset({"path", "layout", "group"})),
        "table": SourceKind(_table, frozenset({"path", "columns", "test_split"})),
        "arrays": SourceKind(_arrays, frozenset({"path", "columns", "test_split"})),
        "cifar10": TORCHVISION,
        "cifar100": TORCHVISION,
        "svhn": TORCHVISION,
        "stl10": TORCHVISION,
        "fashion_mnist": TORCHVISION,
    },
)


def existing(config: SourceConfig, key: str) -> Path:
    """``config.path``, a folder or a regular file. Raises UserError."""
    return existing_place(config.path, config.name, key)
