"""The card and options of I-UAN."""

from dataclasses import dataclass

from unida.methods.card import Card
from unida.support.options import check_numbers


@dataclass(frozen=True)
class IUANOptions:
    bottleneck: int = 256
    """Size of the feature that classifier and discriminator read (I-UAN's code)."""
    radius: float = 2.0
    """Length of the feature that the classifier reads (I-UAN's code)."""
    accuracy_gate: float = 0.6
    """Align the domains only in steps whose source batch is classified with a higher accuracy (I-UAN's code)."""
    cut: float = 1.0
    """Source images with a smaller weight do not count; weights are 1 on average (I-UAN's code: 1 for Office-31 and
    VisDA, 0 for Office-Home)."""
    confidence: float = 0.5
    """A target image is unknown if its largest probability is below this (I-UAN's code)."""

    def check(self) -> None:
        check_numbers(self, "bottleneck", least=1, most=65_536)
        check_numbers(self, "radius", above=0)
        check_numbers(self, "accuracy_gate", "confidence", least=0, most=1)
        check_numbers(self, "cut", least=0)


CARD = Card(
    name="iuan",
    title="Adversarial alignment, weighted by running margins of classes",
    paper="Yin et al., Pseudo-margin-based Universal Domain Adaptation (I-UAN), Knowledge-Based Systems 2021",
    settings="UniDA",
    Options=IUANOptions,
    code="unida.methods.iuan:IUAN",
    lr=1e-2,  # (I-UAN's code, all data sets)
    steps=20_000,  # (I-UAN's code: Office-31; 40,000 for Office-Home, 30,000 for VisDA)
    cpu_steps=1_000,  # after 300, no image is as sure as its rule asks for: all are unknown
)
