"""The card and options of InheriTune."""

from dataclasses import dataclass

from unida.methods.card import Card
from unida.support.options import check_numbers


@dataclass(frozen=True)
class InheriTuneOptions:
    bottleneck: int = 256
    """Size of the extractor's feature (InheriTune's code)."""
    negative_classes: int = 45
    """Number of negative classes: clusters of spliced features (InheriTune's code, for the 10 classes of Office-31)."""
    spliced_features: int = 20_000
    """Spliced features in which the negative classes are found (InheriTune's code); fewer if there are not as many
    pairs of source images of different classes."""
    spliced_top: float = 0.15
    """Share of a feature's numbers, the largest ones, that another image's replace (InheriTune's code)."""
    spliced_bottom: float = 0.10
    """The same of the smallest numbers (InheriTune's code)."""
    negative_weight: float = 0.2
    """Weight of the cross-entropy of spliced features (InheriTune's code)."""
    vendor_steps: int = 90
    """Steps with the source, at most half of the run (InheriTune's code: 90 from amazon, 60 from dslr and webcam).
    They do not grow with --steps: the paper's method stops early here, and in a short run too there must be enough."""
    client_rate: float = 0.1
    """Learning rate with the target, as a multiple of --lr (InheriTune's code: 1e-5 after 1e-4). In runs with fewer
    than 15,000 steps on the target it grows as they shrink, up to ten times."""
    entropy_weight: float = 0.1
    """Weight of the target's entropies (InheriTune's code)."""
    pseudo_share: float = 0.15
    """Share of the target's images that get a label, those that look most like a known class (InheriTune's code)."""

    def check(self) -> None:
        check_numbers(self, "bottleneck", least=1, most=65_536)
        check_numbers(self, "negative_classes", least=1, most=65_536)
        check_numbers(self, "spliced_features", "vendor_steps", least=1, most=1_000_000)
        check_numbers(self, "spliced_top", "spliced_bottom", above=0, most=0.5)
        check_numbers(self, "negative_weight", "entropy_weight", least=0)
        check_numbers(self, "client_rate", above=0)
        check_numbers(self, "pseudo_share", above=0, most=1)


CARD = Card(
    name="inheritune",
    title="Source-free: a vendor learns classes and spliced negatives on the source, a client adapts to the target",
    paper="Kundu et al., Towards Inheritable Models for Open-Set Domain Adaptation, CVPR 2020",
    settings="OSDA",
    Options=InheriTuneOptions,
    code="unida.methods.inheritune:InheriTune",
    lr=1e-4,  # (InheriTune's code)
    steps=15_090,  # 90 on the source, 15,000 on the target (InheriTune's code)
)
