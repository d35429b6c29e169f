"""Which classes the data of a study has, and draws of some of them.

Names of classes decide which images take part at all, before a run begins. Training never sees them.
"""

from collections.abc import Sequence

from unida.data.benchmarks import load_benchmark
from unida.data.folders import image_stamps
from unida.data.settings import LabelSets
from unida.errors import UserError
from unida.studies.options import StudyOptions
from unida.support.random import generator


def refuse_unlabelled(options: StudyOptions) -> None:
    """Refuse a folder with an image that has no class, now and not in every run. Opens no image."""
    for name, folder in (("source", options.source), ("target", options.target)):
        if folder is None:  # a benchmark
            continue
        paths = sorted(image_stamps(folder))
        if not paths:
            raise UserError(f"--{name} {folder} holds no image: it needs one sub-folder of images per class")
        loose = next((path for path in paths if path.parent == folder), None)
        if loose is not None:
            raise UserError(f"{loose}: lies in no class folder; move it into the sub-folder of its class")


def label_sets_of(options: StudyOptions) -> LabelSets:
    """Of the benchmark's setting, or of two folders with one sub-folder per class. Opens no image."""
    if options.benchmark is not None:
        return load_benchmark(options.benchmark).label_sets(options.setting)
    assert options.source is not None and options.target is not None  # or check() would have raised
    source, target = (
        sorted({path.relative_to(folder).parts[0] for path in image_stamps(folder) if path.parent != folder})
        for folder in (options.source, options.target)
    )
    return LabelSets(
        shared=tuple(name for name in source if name in target),
        source_private=tuple(name for name in source if name not in target),
        target_private=tuple(name for name in target if name not in source),
    )


def drawn_order(names: Sequence[str], purpose: str, draw: int) -> list[str]:
    """The names in a random order that depends on the draw alone: larger sets of a draw contain its smaller ones."""
    return [names[i] for i in generator(draw, purpose).permutation(len(names))]


def left_out(names: Sequence[str], kept: Sequence[str]) -> str | None:
    """For --source-without and --target-without."""
    return "/".join(name for name in names if name not in kept) or None
