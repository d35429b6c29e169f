"""The options that say how target images are answered."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from unida.errors import UserError
from unida.support.options import check_numbers, shown

AUTO: Final = "auto"
METHOD: Final = "method"
MOST_NEIGHBOURS = 1000


@dataclass(frozen=True)
class AnsweringOptions:
    neighbours: Annotated[int | None, shown("K", "(default: by the number of images; 1,000 images: 11)")] = None
    """Answer the target's images together: the K nearest images of each have a say. 0: answer each image alone."""
    threshold: Annotated[float | Literal["auto", "method"], shown("auto|method|FLOAT", "(default: auto)")] = AUTO
    """Call an image unknown if its unknown score is above this. auto: found on the target, without labels. method: the
    rule of the method's paper; where images answer together, that is 0.45."""
    unknown_share: Annotated[float | None, shown("FLOAT", "(default: not known)")] = None
    """Call this share of the target unknown, 0.1 for a tenth, if you know it."""
    no_unknown: bool = False
    """Call nothing unknown: every class of the target is in the source (closed-set and partial adaptation)."""

    def check(self) -> None:
        check_numbers(self, "neighbours", least=0, most=MOST_NEIGHBOURS)
        check_numbers(self, "unknown_share", least=0, most=1)
        if not isinstance(self.threshold, str) and not 0 <= self.threshold <= 1:
            raise UserError(f"--threshold is {self.threshold}: it must be auto, method, or a number from 0 to 1")
        if self.no_unknown and self.unknown_share is not None:
            raise UserError("--no-unknown and --unknown-share exclude each other: leave one out")
        if self.threshold != AUTO and (self.no_unknown or self.unknown_share is not None):
            name = "--no-unknown" if self.no_unknown else "--unknown-share"
            raise UserError(f"{name} has no effect with --threshold {self.threshold}: leave one out")
