"""The card and options of the re-implementation of OSHT-SC."""

from dataclasses import dataclass

from unida.methods.card import Card
from unida.support.options import check_numbers


@dataclass(frozen=True)
class OSHTSCOptions:
    bottleneck: int = 256
    """Size of the feature that the classifier reads (ours: usual for source-free methods)."""
    unknown_outputs: int = 0
    """K, outputs for unknown classes; 0: as many as source classes (ours)."""
    label_smoothing: float = 0.1
    """Share of a source label that is spread over all classes (ours: usual for source-free methods)."""
    source_share: float = 0.5
    """Share of the steps that train on the source (ours)."""
    pseudo_weight: float = 1.0
    """Weight of the cross-entropy with pseudo-labels (ours)."""
    consistency_weight: float = 0.3
    """Weight of the mutual information between two views' answers (ours)."""

    def check(self) -> None:
        check_numbers(self, "bottleneck", least=1, most=65_536)
        check_numbers(self, "unknown_outputs", least=0, most=65_536)
        check_numbers(self, "label_smoothing", least=0, below=1)
        check_numbers(self, "source_share", above=0, below=1)
        check_numbers(self, "pseudo_weight", "consistency_weight", least=0)


CARD = Card(
    name="osht-sc",
    title="Re-implementation from its abstract: source-free; sure pseudo-labels, and consistent, definite answers",
    paper="Feng, Xu & Tao, Open-Set Hypothesis Transfer with Semantic Consistency, IEEE TIP 2021 (no code is public)",
    settings="OSDA",
    Options=OSHTSCOptions,
    code="unida.methods.osht_sc:OSHTSC",
    lr=0.01,  # not known; usual for source-free methods, with a tenth of it for the backbone
    steps=10_000,  # not known; OVANet's
    from_abstract=True,
)
