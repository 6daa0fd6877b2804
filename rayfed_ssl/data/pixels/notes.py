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
from rayfed_ssl.data.pixels.store import MISFITS, Misfits, Traits

MOST_NAMED = 5  # clients with clipped images
MOST_SHOWN = 3  # images named as examples
SAID = {  # of one image, of several; and what of it is no matter of a model card
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
    """What was done to images of more than 8 bits, ``by`` which range, and whether it is one of ``percentiles``; None
    where there are none.
    """
    if not counts["deep"]:
        return None
    own = "its own smallest and largest value"
    own = f"its own window where it has one (DICOM), else by {own}" if counts["windowed"] else own
    if percentiles and by is not None:
        of_these = "the 0.5th and the 99.5th percentile of the pixels of the training images"
        of_these += "" if is_one(by) else ", of each band"
        return Scaling(counts["deep"], f"{key}.range={PERCENTILES}, which is {as_lists(by)}: {of_these}")
    return Scaling(counts["deep"], own if by is None else f"{key}.range={as_lists(by)}")


def outside_of(by: Range | Ranges | None, key: str, percentiles: bool = False) -> str:
    """What pixels lie outside of that are clipped. The numbers of a range by ``percentiles`` are in the line before."""
    if percentiles:
        return f"{key}.range={PERCENTILES}"
    return "their own window" if by is None else f"{key}.range={as_lists(by)}"


def of_table(
    traits: Traits, colours: NDArray[np.uint8], by: Range | Ranges | None, background: Background, key: str
) -> tuple[str, ...]:
    """Lines on images of which a table was made, ``by`` a range and on a ``background`` that are not to be chosen, and
    on those of one single colour (K, C)."""
    scaling, misfits = scaled(traits.counts, by, key), [traits.misfits()]
    of_range = texts(misfitting(misfits, outside_of(by, key), bands=are_bands(colours.shape[1])))
    range_notes = () if scaling is None else (str(scaling), *of_range)
    counted_ones = counted(traits.counts, background, key)
    one_colour = plain(colours, traits.counts["transparent"], background, key)
    return (*range_notes, *public_lines((*counted_ones, *one_colour)))


def counted(counts: Mapping[str, int], background: Background, key: str) -> tuple[Note, ...]:
    """A line on each trait of ``store.NOTICED`` that images have."""
    return tuple(
        Note.shareable(
            plural(counts[trait], f"image {one}", f"images {several}").format(background=background),
            more.format(key=key),
        )
        for trait, (one, several, more) in SAID.items()
        if counts[trait]
    )


def all_grey(images: int, key: str) -> Note:
    """The note that all of so many images are grey, and are read with three channels."""
    said = f"all {images} images are grey, and are read with three channels that are the same"
    more = f": {key}.channels=1 reads one, a third of the memory; views that change hue or saturation do nothing"
    return Note.shareable(said, more)


def misfitting(
    splits: Sequence[Mapping[str, Misfits]],
    outside: str,
    key: str | None = None,
    *,
    bands: bool = False,
    percentiles: bool = False,
) -> Iterator[Note]:
    """A line on images of which many pixels lie ``outside`` their range, one on those that take up little of it, and
    one on those of which few pixels take up most of it, with whose they are, where there are any. A range is proposed
    where ``key`` is the block that it can be set in. Of ``bands`` one alone may take up little. A range by
    ``percentiles`` is meant to leave out some pixels, so that the first line is no cause for alarm, and says so.
    """
    intended = f" (of all pixels that it is taken from, at most {2 * OUTER_SHARE:.0%})" if percentiles else ""
    for kind in MISFITS:
        found = [split[kind] for split in splits if kind in split]
        if not found:
            continue
        images, low, high = sum(c.images for c in found), min(c.low for c in found), max(c.high for c in found)
        whose = sum((Counter(split.clients) for split in found), Counter[str]()).most_common()
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
            yield Note(
                f"{images} of them {take_up} less than a sixteenth of {outside}, {few}: {values}",
                f"{images} images {take_up} less than a sixteenth of the range that is read, {few}",
            )


def _spiked(images: int, within: tuple[float, float], by_client: str, key: str | None) -> Note:
    """``within`` is the widest range of these images without their outermost pixels."""
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
    """A line on images of one single colour (K, C), where there are any; and where images have transparent pixels, on
    how many are of what those are laid on. ``names`` (K,) of the images: the first ones are shown as examples."""
    if not len(colours):
        return ()
    said, more = plural(len(colours), "image is", "images are") + " of one single colour throughout", ""
    if names:
        others = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
        more = f" ({', '.join(printable(name, 80) for name in names[:MOST_SHOWN])}{others})"
    lost = int((colours == ImageColor.getcolor(background, "L")).all(axis=1).sum()) if transparent else 0
    if lost:
        words = " or ".join(word for word in get_args(Background) if word != background)
        more += f", {lost} of them {background}, as transparent pixels become: {key}.background={words} may show more"
    return (Note.shareable(said, more),)
