"""How to load an exported encoder: the lines that its model card shows."""

from __future__ import annotations

from rayfed_ssl.base.text import listed
from rayfed_ssl.data.decoding.bands import Nodata
from rayfed_ssl.data.decoding.bit_depth import Range, Ranges, is_one, pairs_of
from rayfed_ssl.data.images import are_bands
from rayfed_ssl.exporting.encoders import RunEncoder

SQUARE = """An image, turned as its EXIF orientation says, first becomes {square} of {side} x {side} px,
{colour}, resized with an antialiased bilinear filter. Grey images of more than 8 bits are scaled to 0..255 before that,
by {range}: Pillow's `convert("RGB")` would clip them."""

BANDS = """{image} first becomes {square} of {side} x {side} px, each band
resized with an antialiased bilinear filter. Bands of more than 8 bits are scaled to 0..255 before that, by {range}."""

TORCH = """With PyTorch alone, beside `encoder.py`:

```python
import torch
import encoder

model = encoder.load()
pixels = torch.zeros(1, {side}, {side}, {channels}, dtype=torch.uint8)  # encoder.square(image)[None] of {image}
features = model(encoder.normalised(pixels))  # (1, {dim})
```

With rayfed-ssl, as a module that can be trained on:

```python
from rayfed_ssl.models import load_exported

model = load_exported(".", "config")
```

`model.safetensors` holds the values by name."""

ONNX = """```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
pixels = np.zeros((1, {side}, {side}, {channels}), np.uint8)
(features,) = session.run(["features"], {{"images": pixels}})  # (1, {dim}) float32
```

Scaling and normalisation are inside; any number of images goes at once."""

TORCHSCRIPT = """```python
import torch

model = torch.jit.load("model.pt")
pixels = torch.zeros(1, {side}, {side}, {channels}, dtype=torch.uint8)
features = model(pixels)  # (1, {dim}) float32
```

Scaling and normalisation are inside; any number of images goes at once."""

SQUARES = {
    "crop": "its central square",
    "pad": "all of it in the middle of a black square",
    "stretch": "all of it stretched to a square",
}

TEXTS = {"torch": TORCH, "hub-folder": TORCH, "onnx": ONNX, "torchscript": TORCHSCRIPT}


def use_of(encoder: RunEncoder, form: str) -> str:
    """Markdown: code that loads an exported folder from within it and gives it an image."""
    side, channels = encoder.transform.image_size, encoder.transform.channels
    bands = encoder.transform.bands
    image = f"an array (H, W, {channels})" if are_bands(channels) else "a Pillow image"
    image = image if bands is None else "an array (H, W, C) of all bands"
    values = {"side": side, "channels": channels, "dim": encoder.module.dim, "image": image}
    square = SQUARES[encoder.transform.fit]
    if bands is not None or are_bands(channels):
        array = f"An array (H, W, {channels}) of the bands"
        if bands is not None:
            which = ", ".join(map(str, bands))
            array = f"An array (H, W, C) of all bands, of which {which} (the first is 1) are taken,"
        prepared = BANDS.format(image=array, side=side, range=_ranges(encoder.transform.range), square=square)
        prepared += _missing(encoder.transform.nodata)
    else:
        colour, scaled_by = "grey" if channels == 1 else "RGB", _ranges(encoder.transform.range)
        prepared = SQUARE.format(side=side, colour=colour, range=scaled_by, square=square)
    return f"{TEXTS[form].format(**values)}\n\n{prepared}"


def _missing(nodata: Nodata | None) -> str:
    """The sentence on what becomes of missing data; "" if no value means that data are missing."""
    if nodata is None:
        return ""
    values = ["NaN", "infinity", *([] if isinstance(nodata, str) else [f"{nodata:g}"])]
    return f"\nMissing data ({listed(values)}) become 0."


def _ranges(range: Range | Ranges | None) -> str:
    """The range by which images of more than 8 bits are scaled, in words."""
    if range is None:
        return "each one's own smallest and largest value"
    words = [f"{low:g} to {high:g}" for low, high in pairs_of(range)]
    return f"the range {words[0]}" if is_one(range) else f"the ranges {', '.join(words)} of the bands in their order"
