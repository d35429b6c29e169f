"""The card and options of STA."""

from dataclasses import dataclass
from typing import Literal

from unida.methods.card import Card
from unida.support.options import check_numbers


@dataclass(frozen=True)
class STAOptions:
    ranking: Literal["max", "sum"] = "max"
    """Which target images look known: those with the largest answer of one binary classifier (max: STA_max, the paper's
    and the SPA paper's row), or with the largest sum over all of them (STA's code)."""
    ranked_images: int = 2
    """How many images of a batch are taken as known, and as many as unknown (STA's code: 2 of 32)."""
    adversarial_weight: float = 0.3
    """Weight of the domain losses (STA's code)."""
    entropy_weight: float = 0.1
    """Weight of the entropy of target images that look known (STA's code)."""
    unknown_weight: float = 0.3
    """Weight of the loss on images that are learnt as unknown, in the last stage (STA's code)."""
    as_released: bool = False
    """Let the images that are learnt as unknown pass BatchNorm by themselves, as in STA's code. By default they pass
    with their batch: the statistics of two images say little."""
    bottleneck: int = 256
    """Size of the feature, and of the hidden layer of every head (STA's code)."""

    def check(self) -> None:
        check_numbers(self, "adversarial_weight", "entropy_weight", "unknown_weight", least=0)
        check_numbers(self, "ranked_images", least=1, most=1_000_000)
        check_numbers(self, "bottleneck", least=1, most=65_536)


CARD = Card(
    name="sta",
    title="Separate known from unknown target images; then align the known ones and learn an unknown class",
    paper="Liu et al., Separate to Adapt: Open Set Domain Adaptation via Progressive Separation, CVPR 2019",
    settings="OSDA, UniDA",
    Options=STAOptions,
    code="unida.methods.sta:STA",
    lr=1e-3,  # of the first two stages; half of it in the last two, and the backbone a tenth (STA's code)
    steps=2_800,  # 500, 400, 1,500 and 400 (STA's code: Office-31)
    cpu_steps=280,  # a tenth of them, at ten times the rate, so that as much is learnt:
    short_lr=1e-2,  # at 1e-3, even images that are learnt as unknown have not become so
)
