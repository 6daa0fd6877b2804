"""What tables in Markdown share: heads, cells over several seeds, and the names of data sets and partitions."""

from __future__ import annotations

from collections.abc import Sequence

from rayfed_ssl.records.comparison import spread

NOT_RUN = "not run yet"
NAMES = {"fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
SPLITS = {
    "iid": "IID",
    "dirichlet": "Dirichlet 0.1",
    "two_classes": "two classes per client",
    "cross_device": "Dirichlet 0.1, 50 clients of which 10 a round",
    "many_clients": "two classes per client, 50 clients of which 10 a round",
}


def head(names: Sequence[str]) -> list[str]:
    """The first two lines of a table whose columns have these names."""
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def number(values: Sequence[float | None], digits: int = 3, none: str = "-") -> str:
    """Mean ± standard deviation over seeds; ``none`` if a run has no value."""
    known = [value for value in values if value is not None]
    found = spread(known)
    if found is None or len(known) < len(values):
        return none
    text = f"{found.mean:z.{digits}f}"
    return text if found.deviation is None else f"{text} ± {found.deviation:.{digits}f}"
