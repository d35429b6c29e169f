"""What mosaics cost in a training step that fine-tunes everything, and what they look like.

# how to run
    python benchmarks/pretext.py                          # drawn pictures
    python benchmarks/pretext.py --images DIR --sheet mosaics.jpg   # any folder of pictures; writes a contact sheet

OVANet+SPA (`best --spa.pretext on`) with `--train all`, 36 + 36 images of 224 pixels. Writes pretext.csv.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from common import Measure, report, timed
from PIL import Image

from unida.config import complete, config_from_options
from unida.data.augment import Preprocess
from unida.data.folders import scan
from unida.data.glyphs import write_glyphs
from unida.data.pixels import open_pixels
from unida.methods.base import Problem, SourceBatch, TargetBatch
from unida.methods.build import build_method
from unida.models.backbone import create_backbone
from unida.recipes.base import Made
from unida.recipes.mosaic import Mosaic, assemble
from unida.support.memory import keep_freed_memory
from unida.training.optim import build_optimiser

BATCH, CLASSES = 36, 20


def main() -> None:
    parser = argparse.ArgumentParser(description="Mosaics in a training step.")
    parser.add_argument("--images", type=Path, help="a folder of pictures")
    parser.add_argument("--sheet", type=Path, help="where the contact sheet goes")
    parser.add_argument("--backbone", default="tf_efficientnet_lite0")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    keep_freed_memory()  # as a run does
    with tempfile.TemporaryDirectory() as folder:
        images = options.images or drawn_pictures(Path(folder) / "data")
        pixels = open_pixels(scan(images)[0], resize="squash", size=256, cache_dir=Path(folder) / "cache")
        preprocess = Preprocess(224, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), torch.device("cpu"))
        draw = np.random.default_rng(0)
        index = draw.choice(len(pixels), 2 * BATCH, replace=len(pixels) < 2 * BATCH)
        views = preprocess.training_view(pixels, index, draw, slice(0, None))
    if options.sheet is not None:
        write_sheet(views[:BATCH], options.sheet)
    making = [timed(lambda: [mosaics_of(v, draw) for v in views.split(BATCH)])[0] for _ in range(6)][1:]
    stepping = [timed(step)[0] for step in training_steps(options.backbone, views, options.steps + 1)][1:]
    mosaics, whole = median(making), median(stepping)
    report(
        [
            Measure("making 36 + 36 mosaics", 1000 * mosaics, "ms"),
            Measure("a training step with SPA, mosaics apart", 1000 * whole, "ms"),
            Measure("share of the step", 100 * mosaics / (mosaics + whole), "%"),
        ],
        options.csv,
        backbone=options.backbone,
    )


def drawn_pictures(folder: Path) -> Path:
    kinds = {"shared": 12, "source_private": 0, "target_private": 0}
    return write_glyphs(folder, **kinds, size=256, per_class=6, seed=0).source


def mosaics_of(images: torch.Tensor, draw: np.random.Generator) -> Made:
    """As many as there are images."""
    return Mosaic().make_of_several(images, np.arange(len(images)), draw, len(images))


def training_steps(backbone: str, views: torch.Tensor, count: int) -> list[Callable[[], None]]:
    """Whole steps, all turns, on mosaics that are there already."""
    config = complete(config_from_options({"train": "all", "spa": True, "spa_pretext": "on"}), has_gpu=False)
    problem = Problem(CLASSES, BATCH, BATCH, count)
    method = build_method("ovanet", create_backbone(backbone, "none"), problem, config.method, config.spa).train()
    (phase,) = method.phases()
    optimisers = [(turn, build_optimiser(turn, config.training)) for turn in phase.turns]
    draw = np.random.default_rng(1)
    one, other = views.split(BATCH)
    labels, indices = torch.arange(BATCH) % CLASSES, torch.arange(BATCH)
    batch = (
        SourceBatch(one, labels, indices, {"pretext": mosaics_of(one, draw)}),
        TargetBatch(other, indices, {"pretext": mosaics_of(other, draw)}),
    )

    def step() -> None:
        for turn, optimiser in optimisers:
            torch.stack(list(turn.losses(*batch, 0).values())).sum().backward()
            optimiser.step()
            method.zero_grad(set_to_none=True)

    return [step] * count


def write_sheet(images: torch.Tensor, path: Path, per_row: int = 6) -> None:
    """A row of mosaics for each number of images, 1 to 4."""
    recipe, draw = Mosaic(), np.random.default_rng(2)
    layout = recipe.draw_layout(400, np.arange(len(images)), draw)
    rows = []
    for count in range(1, recipe.cells + 1):
        chosen = np.flatnonzero(layout.instances == count)[:per_row]
        mosaics = assemble(images, type(layout)(*(values[chosen] for values in layout)), recipe.grid)
        shown = ((mosaics * 0.5 + 0.5).clamp(0, 1) * 255).byte().permute(0, 2, 3, 1).numpy()
        rows.append(np.concatenate([np.pad(m, ((4, 4), (4, 4), (0, 0)), constant_values=255) for m in shown], axis=1))
    sheet = Image.fromarray(np.concatenate(rows))
    sheet.resize((sheet.width // 2, sheet.height // 2)).save(path, quality=85)


if __name__ == "__main__":
    main()
