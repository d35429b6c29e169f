"""The card and options of ROS."""

from dataclasses import dataclass

from unida.methods.card import Card
from unida.support.options import check_numbers


@dataclass(frozen=True)
class ROSOptions:
    separation_share: float = 0.5
    """Share of the steps for the first stage, which tells known from unknown (ROS's code: 80 of 160 epochs for
    Office-31, 150 of 195 for Office-Home)."""
    rotation_weight: float = 3.0
    """Weight of the rotation losses, in both stages (ROS's code, all data sets)."""
    centre_weight: float = 0.1
    """λ, weight of the centre loss (ROS's code: 0.1 for Office-31, 0.001 for Office-Home)."""
    entropy_weight: float = 0.1
    """Weight of the entropy of known target images, in the second stage (ROS's code, all data sets)."""
    unknown_weight: float = 2.0
    """Let all unknown images together count as much as this many average source classes (ROS's code: 2 with ResNet-50,
    1.5 with VGG-19)."""
    bottleneck: int = 256
    """Size of the hidden layer of every head (ROS's code)."""
    labelled_batch: int = 32
    """Labelled images, and known target images, in a step of the second stage (ROS's code: batches of 32)."""

    def check(self) -> None:
        check_numbers(self, "separation_share", above=0, below=1)
        check_numbers(self, "rotation_weight", "centre_weight", "entropy_weight", "unknown_weight", least=0)
        check_numbers(self, "bottleneck", least=1, most=65_536)
        check_numbers(self, "labelled_batch", least=2, most=1_000_000)  # BatchNorm needs two


CARD = Card(
    name="ros",
    title="Rotations tell known from unknown target images; then both train a classifier with an unknown class",
    paper="Bucci et al., On the Effectiveness of Image Rotation for Open Set Domain Adaptation, ECCV 2020",
    settings="OSDA, UniDA",
    Options=ROSOptions,
    code="unida.methods.ros:ROS",
    lr=3e-3,  # the backbone's is a tenth (ROS's code)
    short_lr=0.01,  # ours: at 0.003, 300 steps leave the unknown class, whose weight is small, far below the others
    steps=4_800,  # 80 and 80 epochs with 958 source images of 10 classes: amazon, OSDA (ROS's code)
)
