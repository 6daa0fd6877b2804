"""Kinds of reply fields: a method's row declares each field's kind, so that an audit (``rayfed-ssl leak``) knows which
attack reads it.

Weights under the name ``weights``, and a momentum target under ``target``, need no row. A field that is not declared is
sent all the same; the audit lists it among those that it does not read.

Shapes: n images, V views, D projection, L entries, M public images of a round, K outputs of an encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.settings.run import RunSettings


@dataclass(frozen=True)
class Correlation:
    """A matrix that is the mean of z z' over the projections z (D,) of the client's training images.

    Args:
        summed: (client, projections (V, n, D)) -> the projections as the client summed them: clipped, scaled, ..
        views: the number of augmented views of an image that the client may have summed.
        matrix: (client, field) -> the mean (D, D).
    """

    summed: Callable[[EncoderClient[Any], Tensor], Tensor] = lambda client, z: z
    views: Callable[[RunSettings], int] = lambda settings: 1
    matrix: Callable[[EncoderClient[Any], np.ndarray], Tensor] = lambda client, field: torch.from_numpy(np.array(field))


@dataclass(frozen=True)
class Entries:
    """Rows (L, D) in the space of the projections of the client's training images: some of these projections, or their
    means.

    Args:
        network: the reply's field with the weights of the network that made the projections.
    """

    network: str = "weights"


@dataclass(frozen=True)
class PublicOutputs:
    """Rows (M, K): the outputs of the client's encoder for public images.

    Args:
        rows: the client's reply -> the rows as the server reads them; None: the field as it is.
        positions: (settings, round, number of public images) -> which of the public images the rows belong to (M,).
    """

    rows: Callable[[Mapping[str, Any]], np.ndarray] | None = None
    positions: Callable[[RunSettings, int, int], np.ndarray] = lambda settings, round, images: np.arange(images)


Upload = Correlation | Entries | PublicOutputs
