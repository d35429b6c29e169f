"""The card and options of source-only."""

from dataclasses import dataclass
from typing import Literal

from unida.methods.card import Card
from unida.support.options import check_numbers


@dataclass(frozen=True)
class SourceOnlyOptions:
    rejection: Literal["entropy", "max-prob", "one-vs-all"] = "entropy"
    """The rule for unknown images. The default, the entropy rule with the SPA paper's threshold, needs no tuning."""
    rejection_threshold: float = 0.5
    """entropy: an image is unknown above this share of log C (½ in the SPA paper's NTR); max-prob: unknown below this
    probability; one-vs-all: unknown above this probability of "not this class" (½ in OVANet)."""

    def check(self) -> None:
        check_numbers(self, "rejection_threshold", least=0, most=1)


CARD = Card(
    name="source-only",
    title="Classifier trained on the source alone, unknown by confidence",
    paper="baseline",
    settings="CDA, PDA, OSDA, UniDA",
    Options=SourceOnlyOptions,
    kept_steps=100,  # with --train tail: the backbone hardly moves (docs/studies/features.md)
    code="unida.methods.source_only:SourceOnly",
)
