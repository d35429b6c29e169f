"""The card and options of DANCE."""

from dataclasses import dataclass

from unida.methods.card import Card
from unida.support.options import check_numbers


@dataclass(frozen=True)
class DANCEOptions:
    target_weight: float = 0.05
    """η, weight of the two losses on the target (DANCE's code: `eta`, 0.05 for all data sets)."""
    temperature: float = 0.05
    """Divides cosines, to classes and to images (DANCE's code: `temp`, 0.05 for all data sets)."""
    entropy_threshold: float = 0.5
    """ρ as a share of log C, in the separation loss and in the answer (DANCE: ρ = log C / 2)."""
    margin: float = 0.5
    """m: entropies nearer to ρ than this many nats are left alone (DANCE's code: `margin`, 0.5 for all data sets)."""
    memory_momentum: float = 0.0
    """Share of an image's old vector in its new one (DANCE's code: 0; 0.001 for VisDA's OSDA)."""

    def check(self) -> None:
        check_numbers(self, "target_weight", "margin", least=0)
        check_numbers(self, "temperature", above=0)
        check_numbers(self, "entropy_threshold", least=0, most=1)
        check_numbers(self, "memory_momentum", least=0, below=1)


CARD = Card(
    name="dance",
    title="Neighbourhood clustering on a memory of the target, and entropy separation",
    paper="Saito et al., Universal Domain Adaptation through Self-Supervision (DANCE), NeurIPS 2020",
    settings="CDA, PDA, OSDA, UniDA",
    Options=DANCEOptions,
    code="unida.methods.dance:DANCE",
    lr=0.01,  # the backbone's is a tenth of it (DANCE's code, all data sets)
    steps=10_000,  # (DANCE's code, all data sets)
)
