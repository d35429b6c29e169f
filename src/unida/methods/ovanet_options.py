"""The card and options of OVANet."""

from dataclasses import dataclass

from unida.methods.card import Card
from unida.support.options import check_numbers


@dataclass(frozen=True)
class OVANetOptions:
    entropy_weight: float = 0.1
    """λ, weight of the target's one-vs-all entropy (the released code's `multi`, 0.1 for all data sets)."""

    def check(self) -> None:
        check_numbers(self, "entropy_weight", least=0)


CARD = Card(
    name="ovanet",
    title="One-vs-all network with entropy minimisation on the target",
    paper="Saito & Saenko, OVANet, ICCV 2021",
    settings="UniDA, OSDA",
    Options=OVANetOptions,
    kept_steps=100,  # with --train tail: the backbone hardly moves (docs/studies/features.md)
    code="unida.methods.ovanet:OVANet",
)
