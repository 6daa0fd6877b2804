"""From a ``data:`` block to a data set: open the source, find its cache files, decode once.

A cache file's name holds a digest of the source's files (their content up to 256 MiB in all, beyond that their relative
paths, sizes and modification times) and of every setting that changes the pixels. Images become squares of
``image_size``, RGB, grey or of as many bands as ``channels`` says: the central square, or what ``fit`` says, resized
with an antialiased bilinear filter (see ``decode``).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.decoding.bit_depth import PERCENTILES, Range, Ranges, as_lists
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.images import Dataset, Listing, Scaling, Source, are_bands
from rayfed_ssl.data.pixels.cache_names import add_files, left_out, root_of
from rayfed_ssl.data.pixels.copies import kept_copies
from rayfed_ssl.data.pixels.digests import kept_digests
from rayfed_ssl.data.pixels.notes import scaled
from rayfed_ssl.data.pixels.percentiles import kept_range
from rayfed_ssl.data.pixels.store import FORMAT, Stored, Undecodable, cached, default_cache
from rayfed_ssl.data.pixels.stored_notes import near_copy_notes, pixel_notes
from rayfed_ssl.data.pixels.traits import NOTICED
from rayfed_ssl.data.readers.listing_checks import in_order, refuse_empty, sound
from rayfed_ssl.data.source_notes import recounted
from rayfed_ssl.data.sources import OWN_IMAGES, SOURCES, SourceConfig, SourceKind

NOT_PIXELS = {"path", "download"}  # the files that are read, by their names, are in a cache's key


def load(
    config: SourceConfig,
    cache: Path | None = None,
    key: str = "data",
    splits: tuple[str, ...] = ("train", "test"),
    skipping: str | None = None,
    range_may_be_unused: bool = False,
) -> Dataset:
    """The data set, decoded at the first call and memory-mapped from ``cache`` from then on.

    Args:
        key: the configuration block that error messages name.
        splits: ``("train",)`` for the training images alone, which need no test images then.
        skipping: what to do to leave out images that cannot be decoded, where ``key`` cannot be set.
        range_may_be_unused: whether ``range`` was set for other images, so that these need not use it.
    Raises:
        UserError: whatever is wrong with the configuration or the files.
    """
    cache = cache or default_cache()
    source = SOURCES[config.name].open(config, cache, key)
    if not isinstance(source, Source) or not all(isinstance(file, Path) for file in source.files):
        raise UserError(f"{key}.name: {config.name} opens no rayfed_ssl.data.images.Source whose files are paths")
    file_name = re.sub(r"[^\w.-]", "_", config.name)
    stem = f"{file_name}-{config.image_size}-{_cache_key(config, source, key)}"
    part = ""
    if (alone := source.alone) is not None and "test" not in splits:
        source, part = replace(source, listing=lambda split: alone()), "-alone"
    files = {split: cache / f"{stem}{part}-{split}.arrow" for split in splits}
    if "test" in files and source.doubt and "layout" not in config.model_fields_set:
        raise UserError(source.doubt).setting("layout")
    if "test" in files and not all(os.path.exists(file) for file in files.values()):
        source.check()
    skipping = skipping or f"set {key}.on_bad_image=skip"
    form = _form(config, source, cache / f"{stem}{part}-percentiles.json", key, skipping)  # -range: without colours
    found = _decoded(files, source, form, config, key, skipping)
    train = found["train"]
    counts = {split: (len(stored.images), len(stored.skipped)) for split, stored in found.items()}
    refuse_empty(counts, bool((train.images.labels >= 0).any()), config.path, key)
    test = found["test"].images if "test" in found else train.images.rows(np.arange(0))
    digest = hashlib.blake2b(" ".join(stored.digest for stored in found.values()).encode(), digest_size=16).hexdigest()
    skipped = tuple(in_order([name for stored in found.values() for name in stored.skipped], source))
    traits = {trait: sum(stored.counts[trait] for stored in found.values()) for trait in NOTICED}
    scaling = _scaling(config, form.range, traits, key, range_may_be_unused)
    pixels = pixel_notes(found, traits, scaling, form, key, percentiles=isinstance(config.range, str))
    both = {"train", "test"} <= set(found)
    left = len(test), len(test) + len(train.images)
    wanted = (left[0] + len(found["test"].skipped), left[1] + len(skipped)) if both else left
    notes = recounted((*source.notes, *pixels), wanted, left)
    copies = kept_copies(train.images.pixels, test.pixels, digest, cache / f"{stem}-copies.json") if both else None
    if copies is not None and OWN_IMAGES & SOURCES[config.name].reads:
        group = f"{key}.group" if "group" in SOURCES[config.name].reads else f"{key}.columns.group"
        notes += near_copy_notes(found, copies, digest, cache / f"{stem}-near.json", group)
    called = {split: stored.names for split, stored in found.items()}
    grey = traits["grey"] == left[1]
    digests = partial(kept_digests, train.images.pixels, train.digest, cache / f"{stem}{part}-digests.npz")
    return Dataset(
        config.name, train.images, test, digest, skipped, notes, scaling, copies, called, digests, grey, form.range
    )


def _form(config: SourceConfig, source: Source, percentiles: Path, key: str, skipping: str) -> ImageForm:
    """What images are brought to. A range that percentiles of the training images decide is kept in a file."""
    form = ImageForm(
        config.image_size, config.max_pixels, config.channels, fit=config.fit, background=config.background,
        bands=config.bands, nodata=config.nodata,
    )  # fmt: skip
    if not isinstance(by := config.range, str):
        return replace(form, range=by)
    missed = "" if config.on_bad_image == "skip" else skipping
    listed = partial(_listed, source, "train", config, key)
    return replace(form, range=kept_range(listed, form, percentiles, key, missed))


def _decoded(
    files: Mapping[str, Path], source: Source, form: ImageForm, config: SourceConfig, key: str, skipping: str
) -> dict[str, Stored]:
    """Each split, from its cache file or written there now. Raises Undecodable for the broken images of all splits."""
    root, skips = root_of(source), config.on_bad_image == "skip"
    found, broken = dict[str, Stored](), list[Undecodable]()
    for split, file in files.items():
        try:
            found[split] = cached(file, partial(_listed, source, split, config, key), form, skips, key, skipping, root)
        except Undecodable as error:
            broken.append(error)
    if broken:
        names = in_order([name for error in broken for name in error.names], source)
        first = next(error for error in broken if error.names[0] == names[0])
        raise Undecodable.named(names, first.reason, key, skipping)
    return found


def _listed(source: Source, split: str, config: SourceConfig, key: str) -> Listing:
    """The source's listing of a split. Raises UserError if it is not sound, or longer than the limit."""
    listing, most = sound(source.listing(split), key), config.limits[split]
    if most is not None and len(listing.labels) > most:
        raise UserError(
            f"{key}.{'limit' if split == 'train' else 'test_limit'}: found {most}; the source lists "
            f"{len(listing.labels)} images; it must list at most config.limits[{split!r}]"
        )
    return listing


def _scaling(
    config: SourceConfig, by: Range | Ranges | None, counts: Mapping[str, int], key: str, range_may_be_unused: bool
) -> Scaling | None:
    """How images of more than 8 bits were scaled. Raises UserError if a range is set and no image uses it."""
    scaling = scaled(counts, by, key, config.range == PERCENTILES)
    if scaling is None and by is not None and not range_may_be_unused:
        raise UserError(f"{key}.range: found {as_lists(by)}, but no image has more than 8 bits; allowed: null")
    return scaling


def _code_of(kind: SourceKind) -> str:
    """A digest of the file that a third-party source is written in: another version of it may list other images. A file
    that ``imports`` names is a module whose name has the digest.
    """
    module = kind.open.__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    found = Path(file).read_bytes() if file is not None and Path(file).is_file() else module.encode()
    return hashlib.blake2b(found, digest_size=12).hexdigest()


def _cache_key(config: SourceConfig, source: Source, key: str) -> str:
    """A digest of the settings that change the pixels and of the files. Raises UserError as ``add_files`` does."""
    settings = config.model_dump(include=set(SourceConfig.model_fields) - NOT_PIXELS)
    for name in ("fit", "group", "background", "test_split", "bands", "nodata"):
        if settings[name] == SourceConfig.model_fields[name].default:
            del settings[name]  # its default changes no key
    if config.columns.split is None:
        del settings["columns"]["split"]
    ranged, rasters = config.range is not None, are_bands(config.channels) or config.bands is not None
    if ranged:
        settings["clipped"] = "counted"  # files made before do not say how many were
    if config.on_bad_image == "skip":
        settings |= left_out(ranged, rasters)
    if SOURCES.origin(config.name) is not None:
        settings["code"] = _code_of(SOURCES[config.name])
    digest = hashlib.blake2b(json.dumps([FORMAT, settings], sort_keys=True).encode(), digest_size=12)
    add_files(digest, source, key)
    return digest.hexdigest()
