"""The options that say which network is trained, and how much of it."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from unida.errors import UserError
from unida.support.options import check_numbers, shown

AUTO: Final = "auto"  # of --tap and --spa.tap: measured when the run starts (unida.analysis.auto_tap)
MOST_VIEWS = 100  # each view of the images is a pair of open files
NO_WEIGHTS = "none"  # of --weights: random weights, on purpose
ON_HUB = "hub@"  # of --weights: "hub@REVISION", one revision of timm's weights on the hub
LITE0 = "tf_efficientnet_lite0"
TINY_VIT = "tiny_vit_5m_224.dist_in22k"
KEPT: Final = "kept"
PUBLISHED: Final = "published"
EngineName = Literal["auto", "torch", "openvino"]
TrainMode = Literal["auto", "all", "tail", "head"]

# Repository on the hub → the commit whose weights are taken. None is known yet: what is newest there is taken, and the
# log says which that was.
HUB_REVISIONS: dict[str, str] = {}


def default_backbone(has_gpu: bool) -> str:
    """The backbone when the user names none: the best for its time without a GPU, else the papers'."""
    return "resnet50.tv_in1k" if has_gpu else TINY_VIT


def pinned_revision(weights: str | None) -> str | None:
    """REVISION, if ``weights`` is hub@REVISION."""
    return weights.removeprefix(ON_HUB) if weights is not None and weights.startswith(ON_HUB) else None


def refuse_weights(weights: str | None) -> None:
    if pinned_revision(weights) == "":
        raise UserError(f"--weights {ON_HUB} names no revision: add a commit, as in {ON_HUB}1a2b3c4")


@dataclass(frozen=True)
class ModelOptions:
    backbone: Annotated[str, shown("NAME", f"(default: {TINY_VIT}, or resnet50.tv_in1k with a GPU)")] = "auto"
    """The network: any timm model."""
    weights: Annotated[str | None, shown("FILE", "(default: pretrained, by the backbone's name)")] = None
    """Read the backbone's weights from a .safetensors or .pth file; "hub@REVISION" for one revision of timm's; "none"
    for random ones."""
    train: Annotated[TrainMode, shown("all|tail|head", "(default: head, or all with a GPU)")] = "auto"
    """all: train every layer. tail: freeze the layers up to --tap, keep their output and train the rest, in minutes on
    a CPU. head: freeze the whole backbone; its features are computed once, and the rest takes seconds."""
    tap: Annotated[str | None, shown("NAME", "(default: before the backbone's last stage)")] = None
    """Freeze the backbone up to this tap with --train tail. auto: choose by Definition 1 of the SPA paper, from a few
    hundred images without target labels. If the domains differ clearly at every tap, as on Office-31, this is close to
    a guess."""
    views: Annotated[int | None, shown("N", "(default: 0, or 4 in the published regime)")] = None
    """Train on this many random crops and mirrors of each image, whose features are kept, with --train tail or head. 0:
    train on the central crop alone."""
    frame: Annotated[Literal["auto", "on", "off"], shown("on|off", "(default: on, or measured with --train all)")] = (
        AUTO
    )
    """Show features to the method's heads centred for each domain, at one length, with a constant beside them. Heads
    without a bias need it if features have signs, as in token models. With the published regime it is on if the mean of
    the features is short."""
    feature_format: Literal["fp16", "bf16"] = "fp16"
    """Number format of kept features."""
    engine: EngineName = "auto"
    """What computes kept features on a CPU, with --train tail or head. openvino: 2 to 3 times as fast as torch on
    convolutional networks; pip install "unida[fast]". auto: openvino if it is installed and can run the backbone, else
    torch."""

    def check(self) -> None:
        check_numbers(self, "views", least=0, most=MOST_VIEWS)
        refuse_weights(self.weights)
        if self.tap is not None and self.train in ("all", "head"):
            raise UserError(f"--tap has no effect with --train {self.train}: leave it out, or use --train tail")
        if self.engine == "openvino" and self.train == "all":
            raise UserError("--engine has no effect with --train all: leave it out, or use --train tail")
