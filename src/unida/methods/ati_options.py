"""The card and options of ATI-λ."""

from dataclasses import dataclass
from typing import Literal

from unida.methods.card import Card
from unida.support.options import check_numbers


@dataclass(frozen=True)
class ATIOptions:
    reject_place: float = 0.5
    """Where λ lies between the smallest (0) and the largest (1) distance of a target image from a class; an image that
    is farther from every class is unknown. ½ is the paper's. With 1 no image of the run's target is unknown."""
    assignment: Literal["nearest", "every-class"] = "nearest"
    """nearest: a target image belongs to the nearest class, or to none (ATI's code). every-class: and each class has at
    least one image (the paper's constraint, which the code leaves out). Not for targets that lack some classes."""
    iterations: int = 6
    """Assign and map at most this often (ATI's code has 2 to 6, in its different versions)."""
    map_ridge: float = 0.1
    """How strongly the linear map is held to the identity, relative to the mean squared length of the class means.
    Chosen by us: ATI's code stops its search after a few steps from the identity, which has a similar effect."""

    def check(self) -> None:
        check_numbers(self, "reject_place", least=0, most=1)
        check_numbers(self, "iterations", least=1, most=1_000)
        check_numbers(self, "map_ridge", above=0)


CARD = Card(
    name="ati",
    title="Assign target images to classes or to none, map the source onto them, repeat; on fixed features",
    paper="Panareda Busto & Gall, Open Set Domain Adaptation, ICCV 2017",
    settings="CDA, OSDA",
    Options=ATIOptions,
    code="unida.methods.ati:ATI",
    steps=1_000,  # of the classifier alone, with --regime published; the paper solves a support vector machine
    trains=("head",),  # one map for all images needs features that do not change
)
