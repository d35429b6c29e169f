"""The card and options of UAN."""

from dataclasses import dataclass

from unida.methods.card import Card
from unida.support.options import check_numbers


@dataclass(frozen=True)
class UANOptions:
    bottleneck: int = 256
    """Size of the feature that classifier and discriminators read (UAN's code)."""
    weight_threshold: float = -0.5
    """w_0: a target image whose weight is below this is unknown; weights are in −1…1 (UAN's code, all data sets)."""
    as_released: bool = False
    """Give probabilities, not logits, to the cross-entropy, as UAN's code does. It then takes the softmax twice, which
    weakens the source's loss."""

    def check(self) -> None:
        check_numbers(self, "bottleneck", least=1, most=65_536)
        check_numbers(self, "weight_threshold", least=-1, most=1)


CARD = Card(
    name="uan",
    title="Adversarial alignment, weighted by entropy and similarity to the other domain",
    paper="You et al., Universal Domain Adaptation, CVPR 2019",
    settings="CDA, PDA, OSDA, UniDA",
    Options=UANOptions,
    code="unida.methods.uan:UAN",
    lr=1e-3,  # (UAN's code: Office-31 and VisDA; 1e-2 for Office-Home)
    steps=20_000,  # (UAN's code: Office-31; 40,000 for Office-Home, 30,000 for VisDA)
    short_lr=1e-2,  # UAN's own for Office-Home: with 1e-3, 300 steps leave the classifier near where it began
)
