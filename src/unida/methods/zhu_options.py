"""The card and options of the re-implementation of Zhu & Li."""

from dataclasses import dataclass

from unida.methods.card import Card
from unida.support.options import check_numbers


@dataclass(frozen=True)
class ZhuOptions:
    cluster_weight: float = 0.05
    """Weight of clustering in neighbourhoods (ours: DANCE's η)."""
    consistency_weight: float = 0.05
    """Weight of the consistency between weak and strong views (ours: DANCE's η, as for every loss on the target)."""
    temperature: float = 0.05
    """Divides cosines, to classes, centres and images (ours: DANCE's)."""
    entropy_threshold: float = 0.5
    """ρ as a share of log C, for areas and for the answer (ours: DANCE's log C / 2)."""
    margin: float = 0.5
    """m: below ρ − m is the common area, above ρ + m the unknown one, in nats (ours: DANCE's margin)."""
    centre_momentum: float = 0.9
    """Share of a source class's old centre in its new one (ours; not tuned)."""
    memory_momentum: float = 0.0
    """Share of a target image's old vector in its new one (ours: DANCE's)."""

    def check(self) -> None:
        check_numbers(self, "cluster_weight", "consistency_weight", "margin", least=0)
        check_numbers(self, "temperature", above=0)
        check_numbers(self, "entropy_threshold", least=0, most=1)
        check_numbers(self, "centre_momentum", "memory_momentum", least=0, below=1)


CARD = Card(
    name="zhu",
    title="Re-implementation from its abstract: a memory divided by entropy, and consistent views",
    paper="Zhu & Li, Self-supervised UniDA with Adaptive Memory Separation, ICDM 2021 (no code is public)",
    settings="UniDA",
    Options=ZhuOptions,
    code="unida.methods.zhu:Zhu",
    lr=0.01,  # not known; DANCE's
    steps=10_000,  # not known; DANCE's
    from_abstract=True,
)
