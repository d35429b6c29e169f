"""The card and options of DANN."""

from dataclasses import dataclass
from typing import Literal

from unida.methods.card import Card
from unida.support.options import check_numbers


@dataclass(frozen=True)
class DANNOptions:
    rejection: Literal["max-prob", "entropy"] = "max-prob"
    """The rule for unknown images: the largest probability is low (TLlib), or the entropy is high (as in source-only).
    DANN's own paper has no unknown images."""
    probability_threshold: float = 0.9
    """max-prob: an image is unknown if its largest probability is below this (TLlib: 0.9 for Office-31, 0.8 for
    Office-Home and VisDA); 0: no image is unknown."""
    entropy_threshold: float = 0.5
    """entropy: an image is unknown if its entropy is above this share of log C (½ in the SPA paper's NTR); 1: no image
    is unknown."""
    domain_weight: float = 1.0
    """Weight of the loss of the domain discriminator (TLlib)."""
    bottleneck: int = 256
    """Size of the layer that classifier and discriminator read (TLlib)."""

    def check(self) -> None:
        check_numbers(self, "probability_threshold", "entropy_threshold", least=0, most=1)
        check_numbers(self, "domain_weight", least=0)
        check_numbers(self, "bottleneck", least=1, most=65_536)


CARD = Card(
    name="dann",
    title="Adversarial alignment of the whole domains, unknown by confidence",
    paper="Ganin et al., Domain-Adversarial Training of Neural Networks (DANN), JMLR 2016",
    settings="CDA, PDA, OSDA, UniDA",
    Options=DANNOptions,
    code="unida.methods.dann:DANN",
    lr=2e-3,  # the backbone's is a tenth (TLlib's open-set script, all data sets)
    steps=10_000,  # 20 epochs of 500 steps (TLlib's open-set script: Office-31; 30 for Office-Home and VisDA)
    short_lr=1e-2,  # TLlib's own for closed sets: with 2e-3, 300 steps leave few probabilities above 0.9
)
