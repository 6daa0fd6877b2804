"""Codes weights as the receiver gets them if ``transport`` sends them in fewer bytes than float32.

A client's reply is coded as the difference to the weights that it was sent under the same name, if these have the same
layout (FedPAQ, Reisizadeh et al. 2020); the server knows both. What the server sends is coded without a reference,
because a client that missed a round does not have what others have. Buffers, BatchNorm's running statistics, cross as
they are: they are few, and a variance may be beyond float16.

The result of a download is a function of the run's seed and of its values, which also seed its random numbers. So all
clients get the same values, whichever is sent them first, and FedBuff's clients keep what they were sent rounds ago.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from typing import Any

import numpy as np

from rayfed_ssl.base.quantizing import dequantized, quantized
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.aggregation import NonFinite
from rayfed_ssl.federated.messages import Fields, Unread
from rayfed_ssl.settings.transport import FULL, Code, Float16, Quantized

RECENT = 8  # downloads that are known in both forms at a time
Change = Callable[[Weights, str, object], Weights]  # weights, their path in the message, what stands there in another


class OutOfRange(ValueError):
    """A number type cannot hold the ``values`` that were to be coded."""

    def __init__(self, values: np.ndarray, kind: type[np.floating[Any]]) -> None:
        super().__init__(f"values beyond {np.dtype(kind).name}'s {float(np.finfo(kind).max):.6g}")
        self.values = values


def decoded(vector: np.ndarray, code: Code, draws: Callable[[], np.random.Generator]) -> np.ndarray:
    """The (n,) float32 values that arrive when (n,) float32 values are sent.

    Args:
        draws: makes the generator of the code's random numbers, if it uses any.
    Raises:
        OutOfRange: a value is infinite, or float16 would make it so.
    """
    if not np.isfinite(vector).all():
        raise OutOfRange(vector, np.float32)
    if isinstance(code, Quantized):
        return dequantized(*quantized(vector, code.bits, code.bucket, draws()), code.bits, code.bucket)
    if isinstance(code, Float16):
        with np.errstate(over="ignore"):
            half = vector.astype(np.float16)
        if not np.isfinite(half).all():
            raise OutOfRange(vector, np.float16)
        return half.astype(np.float32)
    return vector


def received(weights: Weights, code: Code, draws: Callable[[], np.random.Generator], beside: object = None) -> Weights:
    """The weights as the receiver gets them.

    Args:
        beside: what both sides have. If these are weights of the same layout, the difference to them is coded.
    Raises:
        OutOfRange: as :func:`decoded`.
    """
    known = beside if isinstance(beside, Weights) and beside.layout == weights.layout else None
    vector, count = np.array(weights.vector, np.float32), weights.parameters
    if known is None:
        vector[:count] = decoded(vector[:count], code, draws)
    else:
        with np.errstate(over="ignore"):
            moved = vector[:count] - known.vector[:count]
        vector[:count] = known.vector[:count] + decoded(moved, code, draws)
    return weights.with_vector(vector)


def replaced(value: Any, change: Change, path: str, beside: object = None) -> Any:
    """``value`` with all weights in it replaced, at any depth; ``value`` itself if it has none.

    Args:
        change: returns the weights to put in place of those at a path.
        beside: the value at the same path of another message.
    """
    match value:
        case Weights():
            return change(value, path, beside)
        case Unread():
            whole = value.read()
            new = replaced(whole, change, path, beside)
            return value if new is whole else new
        case Mapping():
            items = value.unread if isinstance(value, Fields) else value
            others = beside if isinstance(beside, Mapping) else {}
            made = {name: replaced(item, change, f"{path}.{name}", others.get(name)) for name, item in items.items()}
            return value if all(made[name] is item for name, item in items.items()) else made
        case list() | tuple() | AbstractSet():
            old = list(value)
            new = [replaced(item, change, f"{path}.{place}") for place, item in enumerate(old)]
            same = all(a is b for a, b in zip(new, old, strict=True))
            kind: Callable[[list[Any]], Any] = getattr(type(value), "_make", type(value))  # a named tuple's is _make
            return value if same else kind(new)
    return value


def reply_received(
    reply: dict[str, Any],
    message: Mapping[str, Any],
    code: Code,
    draws: Callable[[str], np.random.Generator],
    said: str,
) -> dict[str, Any]:
    """A client's reply as the server receives it: every ``Weights`` in it is coded, under whatever name.

    Args:
        message: what the client was sent, including its own fields.
        draws: makes the operation's random generator for a purpose.
        said: begins the text of an error.
    Raises:
        NonFinite: float16 cannot hold what the client replied.
    """
    if code == FULL:
        return reply

    def change(weights: Weights, path: str, beside: object) -> Weights:
        try:
            return received(weights, code, lambda: draws(f"transport {path}"), beside)
        except OutOfRange as error:
            raise NonFinite(f"{said} {error} in '{path}', as transport.up has it cross", error.values) from None

    return {name: replaced(value, change, name, message.get(name)) for name, value in reply.items()}


class Downloads:
    """What clients receive of what a server sends. The last few downloads are remembered, as sent and as received.

    Args:
        seed: the run's.
    """

    def __init__(self, code: Code, seed: int) -> None:
        self.code, self.seed = code, seed
        self.recent: OrderedDict[int, tuple[Weights, Weights]] = OrderedDict()  # id -> what was sent, what arrives

    def received(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """A message as its clients receive it: every ``Weights`` in it is coded. Raises UserError if float16 cannot
        hold the server's values.
        """
        if self.code == FULL:
            return fields
        return {name: replaced(value, self._change, name) for name, value in fields.items()}

    def forget(self) -> None:
        """Forget the remembered downloads."""
        self.recent.clear()

    def _change(self, weights: Weights, path: str, beside: object) -> Weights:
        key = id(weights)
        if key not in self.recent:
            try:
                self.recent[key] = weights, received(weights, self.code, lambda: self._draws(weights))
            except OutOfRange as error:
                raise UserError(
                    f"transport.down: found {self.code.name}, but the server sends {error} in '{path}'; allowed then: "
                    "float32, quantized"
                ) from None
            if len(self.recent) > RECENT:
                self.recent.popitem(last=False)
        return self.recent[key][1]

    def _draws(self, weights: Weights) -> np.random.Generator:
        digest = blake2b(np.ascontiguousarray(weights.vector).data, digest_size=16).hexdigest()
        return numpy_generator(self.seed, "transport", digest)
