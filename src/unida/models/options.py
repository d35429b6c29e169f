"""The options that say which network is trained, and how much of it."""

from dataclasses import dataclass
from typing import Annotated, Literal

from unida.errors import UserError
from unida.support.options import check_numbers, shown

AUTO = "auto"  # of --tap and --spa.tap: measured when the run starts (unida.analysis.auto_tap)
MOST_VIEWS = 100  # each view of the images is a pair of open files
NO_WEIGHTS = "none"  # of --weights: random weights, on purpose
LITE0 = "tf_efficientnet_lite0"
EngineName = Literal["auto", "torch", "openvino"]


def default_backbone(has_gpu: bool) -> str:
    """The backbone when the user names none: a small one without a GPU, the papers' own with a GPU."""
    return "resnet50.tv_in1k" if has_gpu else LITE0


@dataclass(frozen=True)
class ModelOptions:
    backbone: Annotated[str, shown("NAME", f"(default: {LITE0}, or resnet50.tv_in1k with a GPU)")] = "auto"
    """The network: any timm model."""
    weights: Annotated[str | None, shown("FILE", "(default: pretrained, by the backbone's name)")] = None
    """Read the backbone's weights from a .safetensors or .pth file; "none" for random ones."""
    train: Annotated[
        Literal["auto", "all", "tail", "head"], shown("all|tail|head", "(default: tail, or all with a GPU)")
    ] = "auto"
    """all: train every layer. tail: freeze the layers up to --tap, keep their output and train the rest, in minutes on
    a CPU. head: freeze the whole backbone."""
    tap: Annotated[str | None, shown("NAME", "(default: before the backbone's last stage)")] = None
    """Freeze the backbone up to this tap with --train tail. auto: choose by Definition 1 of the SPA paper, from a few
    hundred images without target labels. If the domains differ clearly at every tap, as on Office-31, this is close to
    a guess."""
    views: int = 4
    """Keep features of this many random crops and mirrors of each image, with --train tail or head."""
    feature_format: Literal["fp16", "bf16"] = "fp16"
    """Number format of kept features."""
    engine: EngineName = "auto"
    """What computes kept features on a CPU, with --train tail or head. openvino: 2 to 3 times as fast as torch on
    convolutional networks; pip install "unida[fast]". auto: openvino if it is installed and can run the backbone, else
    torch."""

    def check(self) -> None:
        check_numbers(self, "views", least=1, most=MOST_VIEWS)
        if self.tap is not None and self.train in ("all", "head"):
            raise UserError(f"--tap has no effect with --train {self.train}: leave it out, or use --train tail")
        if self.engine == "openvino" and self.train == "all":
            raise UserError("--engine has no effect with --train all: leave it out, or use --train tail")
