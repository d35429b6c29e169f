"""The card and options of USFDA."""

from dataclasses import dataclass
from typing import Literal

from unida.methods.card import Card
from unida.support.options import check_numbers


@dataclass(frozen=True)
class USFDAOptions:
    bottleneck: int = 256
    """Size of the extractor's feature (USFDA's code)."""
    negative_weight: float = 0.2
    """Weight of the cross-entropy of spliced images (USFDA's code)."""
    negative_classes: int = 0
    """Number of negative classes; 0: one for each pair of source classes, 190 for 20 classes (USFDA, paper and code).
    With fewer, several pairs share a class (USFDA's code has 150 as a comment)."""
    spliced_images: int = 2048
    """Spliced images to make and keep if the backbone's features are kept (USFDA's code makes 20,000; this is a tenth,
    as each has to go through the backbone). With --train all they are made anew for each step."""
    instance_weights: Literal["exponential", "mass"] = "exponential"
    """How to weigh images of the target as known and as unknown, by the source's model. exponential: by its best known
    class, exp(p) and exp(1 − p), each brought to 0…1 over the batch (USFDA's paper, as a fork of its code has it).
    mass: by the sum of all known classes (what that fork chooses)."""
    entropy_weight: float = 0.1
    """Weight of the target's entropies (a fork of USFDA's code)."""
    procurement_share: float = 0.5
    """Share of the steps that train on the source (USFDA's code: 500 steps; how many follow on the target is not known,
    so half)."""
    deployment_rate: float = 1.0
    """Learning rate on the target, as a multiple of --lr (the authors' is not known)."""

    def check(self) -> None:
        check_numbers(self, "bottleneck", least=1, most=65_536)
        check_numbers(self, "negative_classes", least=0, most=1_000_000)
        check_numbers(self, "spliced_images", least=1, most=1_000_000)
        check_numbers(self, "negative_weight", "entropy_weight", least=0)
        check_numbers(self, "procurement_share", above=0, below=1)
        check_numbers(self, "deployment_rate", above=0)


CARD = Card(
    name="usfda",
    title="Source-free: learn classes and spliced negatives on the source, then adapt to the target without the source",
    paper="Kundu et al., Universal Source-Free Domain Adaptation, CVPR 2020",
    settings="UniDA",
    Options=USFDAOptions,
    code="unida.methods.usfda:USFDA",
    lr=1e-4,  # (USFDA's code)
    steps=1_000,  # 500 on the source (USFDA's code), and as many on the target
)
