"""Notes about decoded images: parts that were not read or are lost, and images that show nothing.

Shape legend: K images of one single colour, C channels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from PIL import ImageColor

from rayfed_ssl.base.notes import Note, public_lines, texts
from rayfed_ssl.base.text import plural, printable
from rayfed_ssl.data.decoding.bit_depth import CLIPPED_SHARE, OUTER_SHARE, PERCENTILES, Range, Ranges, as_lists, is_one
from rayfed_ssl.data.decoding.squares import ENLARGED, Background
from rayfed_ssl.data.images import Scaling, are_bands
from rayfed_ssl.data.pixels.traits import MISFITS, Misfits, Traits

MOST_NAMED = 5  # clients with clipped images
MOST_SHOWN = 3  # images named as examples
SAID = {  # trait -> (the text for one image, the text for several, what follows outside model cards)
    "windowed": ("is scaled by a window of its own (DICOM)", "are scaled by a window of their own (DICOM)", ""),
    "frames": (
        "has several frames: the first is read",
        "have several frames: the first is read",
        "; {key}.bands or {key}.channels reads those of TIFF files as bands",
    ),
    "bands": (
        "has bands (TIFF) beside its colours and transparency, which are not read",
        "have bands (TIFF) beside their colours and transparency, which are not read",
        "; {key}.channels, the number of all of them, reads them as bands",
    ),
    "transparent": (
        "has transparent pixels, which are laid on {background}",
        "have transparent pixels, which are laid on {background}",
        "; {key}.background says on what",
    ),
    "filled": ("has pixels without data, which become black", "have pixels without data, which become black", ""),
    "unfilled": (
        "has pixels of its GDAL_NODATA value (TIFF), which are read like any other",
        "have pixels of their GDAL_NODATA value (TIFF), which are read like any other",
        "; {key}.nodata=file with {key}.bands leaves them out of ranges and makes them black",
    ),
    "cropped": (
        "loses more than half of its area: the central square is taken",
        "lose more than half of their area: of each the central square is taken",
        "; {key}.fit=pad or stretch keeps all of it",
    ),
    "enlarged": (
        f"is enlarged {ENLARGED:g} times or more",
        f"are enlarged {ENLARGED:g} times or more",
        ": a smaller {key}.image_size would show as much of such images",
    ),
}


def scaled(counts: Mapping[str, int], by: Range | Ranges | None, key: str, percentiles: bool = False) -> Scaling | None:
    """How images of more than 8 bits were scaled; None if there are none. ``by`` is the range, None for each image's
    own; ``percentiles`` says whether it was found by ``data.range=percentiles``.
    """
    if not counts["deep"]:
        return None
    own = "its own smallest and largest value"
    own = f"its own window where it has one (DICOM), else by {own}" if counts["windowed"] else own
    if percentiles and by is not None:
        meaning = "the 0.5th and the 99.5th percentile of the pixels of the training images"
        meaning += "" if is_one(by) else ", of each band"
        return Scaling(counts["deep"], f"{key}.range={PERCENTILES}, which is {as_lists(by)}: {meaning}")
    return Scaling(counts["deep"], own if by is None else f"{key}.range={as_lists(by)}")


def outside_of(by: Range | Ranges | None, key: str, percentiles: bool = False) -> str:
    """The range outside of which pixels are clipped, in words. The numbers of a range by ``percentiles`` are left out,
    because the line before has them.
    """
    if percentiles:
        return f"{key}.range={PERCENTILES}"
    return "their own window" if by is None else f"{key}.range={as_lists(by)}"


def of_table(
    traits: Traits, colours: NDArray[np.uint8], by: Range | Ranges | None, background: Background, key: str
) -> tuple[str, ...]:
    """Lines on images of which a table was made: on their scaling, on their traits, and on images of one single colour
    (K, C). ``by`` is the range and ``background`` the colour that they were read with, which cannot be chosen there.
    """
    scaling, misfits = scaled(traits.counts, by, key), [traits.misfits()]
    misfit_lines = texts(misfitting(misfits, outside_of(by, key), bands=are_bands(colours.shape[1])))
    range_lines = () if scaling is None else (str(scaling), *misfit_lines)
    trait_notes = counted(traits.counts, background, key)
    colour_notes = plain(colours, traits.counts["transparent"], background, key)
    return (*range_lines, *public_lines((*trait_notes, *colour_notes)))


def counted(counts: Mapping[str, int], background: Background, key: str) -> tuple[Note, ...]:
    """A line on each trait of ``SAID`` that images have, with how many these are."""
    return tuple(
        Note.shareable(
            plural(counts[trait], f"image {one}", f"images {several}").format(background=background),
            more.format(key=key),
        )
        for trait, (one, several, more) in SAID.items()
        if counts[trait]
    )


def all_grey(images: int, key: str) -> Note:
    """The note that all ``images`` are grey, though they are read with three channels."""
    text = f"all {images} images are grey, and are read with three channels that are the same"
    more = f": {key}.channels=1 reads one, a third of the memory; views that change hue or saturation do nothing"
    return Note.shareable(text, more)


def misfitting(
    splits: Sequence[Mapping[str, Misfits]],
    outside: str,
    key: str | None = None,
    *,
    bands: bool = False,
    percentiles: bool = False,
) -> Iterator[Note]:
    """Lines on images that their range does not fit, one for each kind of ``MISFITS`` that there is: images with many
    pixels outside of it, images that take up little of it, and images of which few pixels take up most of it.

    Args:
        splits: the misfits of each split, by kind, with whose images they are.
        outside: the range in words, from ``outside_of``.
        key: the block of keys in which a range can be set, for the lines to propose one; None: no range is proposed.
        bands: whether the images are read band by band, so that a single band may take up little.
        percentiles: whether the range was found by percentiles. It is then meant to leave out some pixels, and the line
            says so.
    """
    intended = f" (of all pixels that it is taken from, at most {2 * OUTER_SHARE:.0%})" if percentiles else ""
    for kind in MISFITS:
        parts = [split[kind] for split in splits if kind in split]
        if not parts:
            continue
        images, low, high = sum(p.images for p in parts), min(p.low for p in parts), max(p.high for p in parts)
        whose = sum((Counter(part.clients) for part in parts), Counter[str]()).most_common()
        more = f" and {len(whose) - MOST_NAMED} more" if len(whose) > MOST_NAMED else ""
        named = ", ".join(f"{name} {count}" for name, count in whose[:MOST_NAMED]) + more
        by_client = f"; by client: {named}" if whose else ""
        values = f"their values go from {low:g} to {high:g}{by_client}"
        if kind == "clipped":
            yield Note(
                f"{images} of them have over {CLIPPED_SHARE:.0%} of their pixels outside {outside}, and these are "
                f"clipped{intended}: {values}",
                f"of {images} images more than {CLIPPED_SHARE:.0%} of the pixels lie outside the range that is read, "
                "and are clipped",
            )
        elif kind == "spiked":
            yield _spiked(images, (low, high), by_client, key)
        else:
            few = "and keep at most 17 of 256 grey levels" + (" in it" if bands else "")
            take_up = "have a band that takes up" if bands else "take up"
            offered = "" if key is None or percentiles else f"; {key}.range={PERCENTILES} takes the range of the pixels"
            yield Note(
                f"{images} of them {take_up} less than a sixteenth of {outside}, {few}: {values}{offered}",
                f"{images} images {take_up} less than a sixteenth of the range that is read, {few}",
            )


def _spiked(images: int, within: tuple[float, float], by_client: str, key: str | None) -> Note:
    """The line on images of which few pixels take up most of the range. ``within`` holds the values of all of them
    without their outermost pixels.
    """
    low, high = within
    most = f"{1 - 2 * OUTER_SHARE:.0%} of the pixels"
    few = "and keep at most 17 of 256 grey levels: a few pixels, such as hot ones, are far darker or brighter"
    either = f"{key}.range=[{low:g},{high:g}], or {key}.range={PERCENTILES},"
    offered = f", and {either} clips the others" if key is not None and low < high else ""
    return Note(
        f"{images} of them have {most} in less than a sixteenth of their own range, {few}; {most} of each lie within "
        f"{low:g} to {high:g}{offered}{by_client}",
        f"of {images} images {most} take up less than a sixteenth of the image's own range, {few}",
    )


def plain(
    colours: NDArray[np.uint8], transparent: int, background: Background, key: str, names: Sequence[str] = ()
) -> tuple[Note, ...]:
    """A line on images of one single colour (K, C), if there are any. If ``transparent`` images have transparent
    pixels, it also says how many have the colour that those are laid on. ``names`` (K,) are the images' names, of which
    the first are shown as examples.
    """
    if not len(colours):
        return ()
    text, more = plural(len(colours), "image is", "images are") + " of one single colour throughout", ""
    if names:
        others = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
        more = f" ({', '.join(printable(name, 80) for name in names[:MOST_SHOWN])}{others})"
    lost = int((colours == ImageColor.getcolor(background, "L")).all(axis=1).sum()) if transparent else 0
    if lost:
        words = " or ".join(word for word in get_args(Background) if word != background)
        more += f", {lost} of them {background}, as transparent pixels become: {key}.background={words} may show more"
    return (Note.shareable(text, more),)
