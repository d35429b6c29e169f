"""The card and options of GDA."""

from dataclasses import dataclass

from unida.methods.card import Card
from unida.support.options import check_numbers


@dataclass(frozen=True)
class GDAOptions:
    bottleneck: int = 256
    """Size of the feature that classifier and discriminator read (GDA's code)."""
    domain_weight: float = 1.0
    """θ, weight of the domain loss (GDA's code, all data sets)."""
    first_share: float = 0.1
    """Share of the steps before pseudo-labels are learnt (GDA's code: 100 of 1,000 epochs)."""
    hold_share: float = 0.1
    """Share of the steps, after these, in which the first pseudo-labels stay (GDA's code: epochs 100 to 199)."""
    early_unknown: float = 0.5
    """σ: in the first part, this share of a batch votes "unknown", by entropy (GDA's code, Office-31)."""
    history: int = 20
    """How many of its last votes decide an image's pseudo-label; fewer in short runs (GDA's code)."""
    unknown_prior: float = 0.33
    """Share of "unknown" that answers should have, in a batch of both domains; the classes share the rest evenly
    (GDA's code, Office-31: 0.33, and 0.033 for each of 20 classes)."""
    prior_weight: float = 1.0
    """Weight of the prior loss (GDA's code, Office-31)."""

    def check(self) -> None:
        check_numbers(self, "bottleneck", least=1, most=65_536)
        check_numbers(self, "domain_weight", "prior_weight", least=0)
        check_numbers(self, "first_share", "hold_share", least=0, most=1)
        check_numbers(self, "early_unknown", "unknown_prior", least=0, below=1)
        check_numbers(self, "history", least=1, most=1000)


CARD = Card(
    name="gda",
    title="Adversarial alignment, then pseudo-labels that an image's last answers vote for, with an unknown class",
    paper="Mitsuzumi et al., Generalized Domain Adaptation, CVPR 2021",
    settings="OSDA",
    Options=GDAOptions,
    code="unida.methods.gda:GDA",
    lr=1e-3,  # of all layers (GDA's code)
    steps=36_000,  # 1,000 epochs of batches of 16 (GDA's code), with the 564 target images of A→W, OSDA
    short_lr=1e-2,  # ours, as for UAN: with 1e-3, 300 steps leave the classifier near where it began
)
