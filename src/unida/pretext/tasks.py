"""The pretext tasks by the names of `--spa.task`. `count` is SPA's own, and has options of its own."""

from collections.abc import Callable, Mapping, Sequence

from unida.pretext.base import Task
from unida.pretext.colorization import Colorization
from unida.pretext.inpainting import Inpainting
from unida.pretext.jigsaw import JigsawTask
from unida.pretext.patch_location import PatchLocation
from unida.pretext.rotation import RotationTask

# Made from the number of words, and the mean and deviation of the backbone's input.
OTHER_TASKS: Mapping[str, Callable[[int, Sequence[float], Sequence[float]], Task]] = {
    "rotation": RotationTask,
    "jigsaw": JigsawTask,
    "patch-location": PatchLocation,
    "colorization": Colorization,
    "inpainting": Inpainting,
}
