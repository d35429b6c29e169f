"""The card and options of RTN."""

from dataclasses import dataclass, fields
from typing import Literal

from unida.errors import UserError
from unida.methods.card import Card
from unida.support.options import check_numbers, flag

LIMITS = {"max-prob": "least_probability", "entropy": "entropy_threshold"}  # the option that each rule reads


@dataclass(frozen=True)
class RTNOptions:
    bottleneck: int = 256
    """Size of the feature that classifiers read (DANN with ResNet-50, TLlib; RTN's code has 128, with AlexNet)."""
    mmd_weight: float = 0.3
    """λ, weight of the discrepancy between the domains (RTN's paper: 0.1 to 1, often 0.3; its code: 1, with
    --quadruples)."""
    quadruples: bool = False
    """Estimate the discrepancy from a few random images of the batch, as RTN's code does, instead of all pairs."""
    entropy_weight: float = 0.1
    """γ, weight of the target's entropy; it rises from 0 in the first tenth of the run (RTN's code)."""
    rejection: Literal["max-prob", "entropy"] = "max-prob"
    """The rule for unknown images. RTN has none; this one is TLlib's for DANN."""
    least_probability: float = 0.8
    """max-prob: an image is unknown if its largest probability is below this (TLlib's DANN: 0.8, and 0.9 on Office-31);
    0 makes none unknown."""
    entropy_threshold: float = 0.5
    """entropy: an image is unknown if its entropy is above this share of log C (½ in the SPA paper's NTR); 1 makes none
    unknown."""

    def check(self) -> None:
        check_numbers(self, "bottleneck", least=1, most=65_536)
        check_numbers(self, "mmd_weight", "entropy_weight", least=0)
        check_numbers(self, *LIMITS.values(), least=0, most=1)
        usual = {field.name: field.default for field in fields(self)}
        for rule, name in LIMITS.items():
            if rule != self.rejection and getattr(self, name) != usual[name]:
                raise UserError(f"{flag(name)} has no effect without --rejection {rule}: leave it out")


CARD = Card(
    name="rtn",
    title="Residual between source and target classifier, and alignment of features times logits",
    paper="Long et al., Unsupervised Domain Adaptation with Residual Transfer Networks, NIPS 2016",
    settings="CDA, PDA, OSDA",  # made for CDA; PDA needs nothing more, OSDA a rule for unknown images
    Options=RTNOptions,
    code="unida.methods.rtn:RTN",
    lr=1e-2,  # the backbone's is a tenth (RTN's code: 0.001, and ten times that for new layers)
    steps=20_000,  # (RTN's code: Office-31)
)
