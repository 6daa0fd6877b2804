"""Features, labels and thumbnails for TensorBoard's projector: ``projector_config.pbtxt`` and the files it names.

TensorBoard finds the files in a run folder beside its event files.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from rayfed_ssl.base.files import replace_file
from rayfed_ssl.report.maps import thumbnail
from rayfed_ssl.report.representations import Look

CONFIG = "projector_config.pbtxt"
FOLDER = "projector"
SIDE = 32  # pixels of a thumbnail's side


def write(seen: Look, folder: Path) -> None:
    """Write ``projector/features.tsv`` (N rows of D), ``labels.tsv``, ``images.png`` (thumbnails row by row) and
    ``projector_config.pbtxt``. Raises OSError.
    """
    put, inside = partial(replace_file, within=folder), folder / FOLDER
    put(inside / "features.tsv", lambda draft: np.savetxt(draft, seen.features, fmt="%.6g", delimiter="\t"))
    labels = "".join(f"{seen.class_name(row)}\n" for row in range(len(seen.labels)))
    put(inside / "labels.tsv", lambda draft: draft.write_text(labels, encoding="utf-8"))
    put(inside / "images.png", lambda draft: sprite(seen).save(draft, format="PNG", optimize=True))
    text = (
        "embeddings {\n"
        f'  tensor_name: "features of {seen.split} images"\n'
        f'  tensor_path: "{FOLDER}/features.tsv"\n'
        f'  metadata_path: "{FOLDER}/labels.tsv"\n'
        "  sprite {\n"
        f'    image_path: "{FOLDER}/images.png"\n'
        f"    single_image_dim: {SIDE}\n    single_image_dim: {SIDE}\n"
        "  }\n}\n"
    )
    put(folder / CONFIG, lambda draft: draft.write_text(text, encoding="utf-8"))


def sprite(seen: Look) -> Image.Image:
    """The thumbnails in a square grid, row by row, as the projector expects them."""
    across = math.ceil(math.sqrt(len(seen.pixels)))
    sheet = Image.new("RGB", (across * SIDE, across * SIDE), "white")
    for number, pixels in enumerate(seen.pixels):
        small = thumbnail(pixels, SIDE).convert("RGB").resize((SIDE, SIDE), Image.Resampling.NEAREST)
        sheet.paste(small, (number % across * SIDE, number // across * SIDE))
    return sheet
