"""The card and options of CMU."""

from dataclasses import dataclass, fields

from unida.errors import UserError
from unida.methods.card import Card
from unida.support.options import check_numbers, flag

OF_THE_LATER_CODE = ("confident_score", "class_cut", "known_score")
OF_THE_FIRST_RELEASE = ("uncertainty_limit",)


@dataclass(frozen=True)
class CMUOptions:
    bottleneck: int = 256
    """Size of the feature that heads and discriminator read (CMU, both codes)."""
    confident_score: float = 0.4
    """Target images with this score or a higher one say which classes are shared (CMU's later code)."""
    class_cut: float = 0.1
    """A class is shared if more than this share of the most frequent class's probability is left, after the least one
    is taken away (CMU's later code)."""
    known_score: float = 0.7
    """A target image with a lower score is unknown (CMU's later code, Office-31)."""
    as_released: bool = False
    """The first release instead of the later code, as far as it needs no list of the shared classes: see
    unida/methods/cmu_released.py."""
    uncertainty_limit: float = 0.55
    """With --as-released: a target image that is more uncertain is unknown (first release: 0.55 for Office-31 and
    DomainNet, 0.6 for VisDA, 0.9 for Office-Home)."""

    def check(self) -> None:
        check_numbers(self, "bottleneck", least=1, most=65_536)
        check_numbers(self, *OF_THE_LATER_CODE, *OF_THE_FIRST_RELEASE, least=0, most=1)
        usual = {field.name: field.default for field in fields(self)}
        for name in OF_THE_LATER_CODE if self.as_released else OF_THE_FIRST_RELEASE:
            if getattr(self, name) != usual[name]:
                when = "with" if self.as_released else "without"
                raise UserError(f"{flag(name)} has no effect {when} --as-released: leave it out")


CARD = Card(
    name="cmu",
    title="Adversarial alignment, weighted by how sure an ensemble of heads is",
    paper="Fu et al., Learning to Detect Open Classes for Universal Domain Adaptation (CMU), ECCV 2020",
    settings="OSDA, UniDA",  # its rule always finds some unknown images
    Options=CMUOptions,
    code="unida.methods.cmu:CMU",
    lr=1e-3,  # (CMU, both codes: Office-31)
    steps=7_000,  # (CMU's later code: 1,000 and 6,000; first release: 5,000)
    short_lr=1e-2,  # UAN's for a short run, for the same reason
)
