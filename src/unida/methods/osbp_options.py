"""The card and options of OSBP."""

from dataclasses import dataclass

from unida.methods.card import Card
from unida.support.options import check_numbers


@dataclass(frozen=True)
class OSBPOptions:
    boundary: float = 0.5
    """t, the probability of "unknown" that the classifier wants for every target image (OSBP's paper, TLlib)."""
    bottleneck: int = 256
    """Size of the two layers between backbone and classifier (TLlib; OSBP's own code: 1000 behind a ResNet)."""

    def check(self) -> None:
        check_numbers(self, "boundary", above=0, below=1)  # at 0 or 1 the classifier has nothing to balance
        check_numbers(self, "bottleneck", least=1, most=65_536)


CARD = Card(
    name="osbp",
    title="Classifier with an unknown class: it wants a fixed probability of it, the features want to leave that",
    paper="Saito et al., Open Set Domain Adaptation by Backpropagation (OSBP), ECCV 2018",
    settings="OSDA",
    Options=OSBPOptions,
    code="unida.methods.osbp:OSBP",
    lr=1e-3,  # the backbone's is a tenth (TLlib, and OSBP's own code)
    steps=10_000,  # 20 epochs of 500 steps (TLlib: Office-31; 30 of 500 for Office-Home, 30 of 1,000 for VisDA)
)
