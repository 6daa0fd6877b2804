"""The ``evaluation`` block of a run."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from rayfed_ssl.base.choice import BlocksOf, NameOf
from rayfed_ssl.base.schema import Block
from rayfed_ssl.base.text import nearest
from rayfed_ssl.evaluation.angles import AnglesConfig
from rayfed_ssl.evaluation.cluster import ClusterConfig
from rayfed_ssl.evaluation.fewshot import FewShotConfig
from rayfed_ssl.evaluation.knn import KnnConfig
from rayfed_ssl.evaluation.linear import LinearConfig
from rayfed_ssl.evaluation.metrics import Metric, named
from rayfed_ssl.evaluation.protocol import EncoderComparison, Protocol
from rayfed_ssl.evaluation.rank import RankConfig
from rayfed_ssl.evaluation.semi import SemiConfig
from rayfed_ssl.evaluation.table import PROTOCOLS
from rayfed_ssl.evaluation.transfer import TransferConfig


class SelectConfig(Block):
    """Training images that no client holds, to choose by; protocols are measured on them, too; null: none. Without any
    label they serve ``rayfed-ssl leak`` alone.
    """

    share: float = Field(0.1, gt=0, lt=1)
    """Share of each class (of all images, where none has a label), drawn by the run's seed before images are dealt."""


def _measuring() -> list[str]:
    """The protocols that measure a single encoder, which a run can evaluate."""
    return [name for name, row in PROTOCOLS.items() if isinstance(row, Protocol)]


def _others() -> dict[str, type[Block]]:
    """The settings of third-party protocols."""
    return {name: row.config for name, row in PROTOCOLS.items() if name not in EvaluationConfig.model_fields}


class EvaluationConfig(Block):
    """How the frozen encoder is measured, and when."""

    protocols: tuple[Annotated[str, NameOf(_measuring)], ...] = ("knn", "linear", "fewshot")
    """What is measured of the frozen encoder."""
    every: int = Field(1, ge=0)
    """Rounds between evaluations; 0: only at the end."""
    metrics: tuple[Metric, ...] = ("accuracy",)
    """What is recorded of each classification, such as ``knn_auc`` beside ``knn``."""
    select: SelectConfig | None = None
    tasks_on: Literal["own", "test"] = "own"
    """With ``data.tasks``: images each client holds out of its own (the thesis), or the test images of its classes."""
    knn: KnnConfig = KnnConfig()
    linear: LinearConfig = LinearConfig()
    fewshot: FewShotConfig = FewShotConfig()
    semi: SemiConfig = SemiConfig()
    transfer: TransferConfig = TransferConfig()
    cluster: ClusterConfig = ClusterConfig()
    rank: RankConfig = RankConfig()
    angles: AnglesConfig = AnglesConfig()
    options: Annotated[dict[str, dict[str, Any]], BlocksOf(_others)] = Field(default_factory=dict)
    """Settings of protocols that others added, by protocol."""
    train_images: int | None = Field(None, ge=1)
    """At most so many labelled train images are used, the first in a seeded order; null: all of them."""
    targets: tuple[Annotated[float, Field(gt=0, le=1)], ...] = ()
    """Accuracies, as fractions: the summary says in which round each protocol first reached them."""
    batch_size: int = Field(500, ge=1)
    """Images per forward pass."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        if "accuracy" not in self.metrics:
            raise ValueError(f"evaluation.metrics: found {', '.join(self.metrics) or '[]'}; must include accuracy")
        for name in self.protocols:
            if name not in PROTOCOLS:
                raise ValueError(PROTOCOLS.unknown("evaluation.protocols", name))
        for name, given in self.options.items():
            if name in type(self).model_fields or name not in PROTOCOLS:
                theirs = [name for name in PROTOCOLS if name not in type(self).model_fields]
                raise ValueError(
                    f"evaluation.options: found {name}; must be a protocol that another package adds "
                    f"({', '.join(theirs) or 'none is installed'})"
                )
            try:
                PROTOCOLS[name].config.model_validate(given)
            except ValidationError as error:
                wrong = error.errors()[0]
                key = ".".join(map(str, ("evaluation.options", name, *wrong["loc"])))
                said = f"{wrong['msg'][:1].lower()}{wrong['msg'][1:]}"
                if wrong["type"] == "extra_forbidden" and len(wrong["loc"]) == 1:
                    allowed = PROTOCOLS[name].config.model_fields
                    guess = nearest(str(wrong["loc"][0]), allowed, 1)
                    said = f"unknown key, allowed here: {', '.join(allowed) or 'none'}{guess}"
                raise ValueError(f"{key}: found {wrong['input']!r}; {said}") from None
        return self

    def of(self, protocol: str) -> Block:
        """The settings block of a protocol of this library or of a third party."""
        if protocol in type(self).model_fields:
            block: Block = getattr(self, protocol)
            return block
        made: Block = PROTOCOLS[protocol].config.model_validate(self.options.get(protocol, {}))
        return made

    @property
    def rows(self) -> dict[str, Protocol[Any]]:
        """The rows of ``protocols`` that measure one encoder."""
        rows = {name: PROTOCOLS[name] for name in self.protocols}
        return {name: row for name, row in rows.items() if isinstance(row, Protocol)}

    @property
    def comparisons(self) -> dict[str, EncoderComparison[Any]]:
        """The rows of ``protocols`` that compare encoders."""
        rows = {name: PROTOCOLS[name] for name in self.protocols}
        return {name: row for name, row in rows.items() if isinstance(row, EncoderComparison)}

    @property
    def labelled(self) -> tuple[str, ...]:
        """The ``protocols`` that need labels of the run's own images."""
        return tuple(name for name, row in self.rows.items() if row.needs_labels)

    @property
    def classifying(self) -> tuple[str, ...]:
        """Those of ``labelled`` that answer with a class."""
        return tuple(name for name in self.labelled if self.rows[name].classifies)

    @property
    def on_pixels(self) -> dict[str, Protocol[Any]]:
        """The rows of ``protocols`` that raw pixels can be measured by."""
        return {name: row for name, row in self.rows.items() if row.pixels is not None}

    @property
    def scores(self) -> tuple[str, ...]:
        """What is recorded as ``eval/<score>``, in order."""
        return tuple(score for name in self.rows for score in self.scores_of(name))

    def scores_of(self, protocol: str) -> tuple[str, ...]:
        """The scores of one of ``protocols``."""
        row = self.rows[protocol]
        tags = row.tags(self.of(protocol))
        return tuple(named(tag, metric) for tag in tags for metric in self.metrics) if row.classifies else tags

    @property
    def describing(self) -> tuple[str, ...]:
        """The names in ``features/<name>``, which describe an encoder's features without labels."""
        return tuple(name for row in self.rows.values() for name in row.describes)

    @property
    def selecting(self) -> tuple[str, ...]:
        """The scores that are measured on held-out images too."""
        if self.select is None:
            return ()
        return tuple(score for name in self.labelled for score in self.scores_of(name))
