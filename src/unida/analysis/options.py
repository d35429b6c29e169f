"""The options of `unida analyze`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from unida.data.options import LARGEST_IMAGE, DataOptions
from unida.errors import UserError
from unida.methods import METHODS
from unida.models.options import LITE0
from unida.support.options import LARGEST_INTEGER, check_numbers, shown
from unida.support.suggest import did_you_mean


@dataclass(frozen=True)
class LayerOptions:
    data: DataOptions
    out: Annotated[Path, shown("DIR")]
    """Write layers.json and layers.png to this folder."""
    backbone: Annotated[str, shown("NAME", f"(default: {LITE0}, or resnet50.tv_in1k with a GPU)")] = "auto"
    """The network: any timm model."""
    weights: Annotated[str | None, shown("FILE", "(default: pretrained, by the backbone's name)")] = None
    """Read the backbone's weights from a .safetensors or .pth file; "hub@REVISION" for one revision of timm's; "none"
    for random ones."""
    words: int = 256
    """Measure PAS with this many words. SPA has 1,024; fewer words need fewer images, and compare taps just as well."""
    max_images: int = 3000
    """Use at most this many images of each domain, drawn at random, to limit time and memory."""
    seed: int = 0
    """Seed of every random draw."""

    def check(self) -> None:
        self.data.check()
        check_numbers(self, "words", "max_images", least=2, most=LARGEST_INTEGER)
        check_numbers(self, "seed", least=0, most=LARGEST_INTEGER)


@dataclass(frozen=True)
class ComplexityOptions:
    backbone: str = "resnet50.tv_in1k"
    """The network: any timm model. Its weights do not matter."""
    classes: int = 25
    """Number of source classes. 25, as in Office-Home under OSDA, gives the SPA paper's figures."""
    words: int = 1024
    """Size of SPA's vocabulary (1,024 in the paper's table)."""
    crop: int = 224
    """Side in pixels of the image."""
    method: str = "ovanet"
    """Count for this method; see: unida methods."""

    def check(self) -> None:
        if self.method not in METHODS:
            raise UserError(
                f"there is no method {self.method!r}{did_you_mean(self.method, METHODS)}; see: unida methods"
            )
        check_numbers(self, "classes", "words", least=1, most=1_000_000)
        check_numbers(self, "crop", least=1, most=LARGEST_IMAGE)


@dataclass(frozen=True)
class ClusterOptions:
    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], shown("RUN [RUN …]")]
    """The folder of a finished run of DCC, or a folder that holds such runs, up to two levels below."""
    csv: Annotated[Path | None, shown("FILE")] = None
    """Also write a line for each cluster to this file."""

    def check(self) -> None:
        if not self.runs:
            raise UserError("RUN is missing: the folder of a finished run; see: unida analyze clusters --help")
