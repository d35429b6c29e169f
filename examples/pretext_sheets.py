"""The pictures of docs/pretext.md: a contact sheet of each pretext task, and what two of them answer after training.

    python examples/pretext_sheets.py --out docs/pretext

All is made from drawn pictures. The two tasks that ask for a picture are trained for a few minutes, with a small
network that starts from random weights: enough to see what they learn, not to see how good they can be.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from unida.data.glyphs import write_glyphs
from unida.data.sheet import contact_sheet
from unida.models.backbone import create_backbone
from unida.models.words import Words
from unida.pretext.colorization import Colorization
from unida.pretext.inpainting import Inpainting
from unida.pretext.show import colour_picture, hole_picture, show_task
from unida.recipes.lab import to_pixels

TASKS = ("count", "rotation", "jigsaw", "patch-location", "colorization", "inpainting")
SIDE, WORDS, BATCH, SHOWN = 96, 64, 16, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("pretext"), help="write .jpg files to this folder")
    parser.add_argument("--steps", type=int, default=300, help="training steps of each task that asks for a picture")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        drawn = write_glyphs(
            Path(folder) / "drawn", shared=6, source_private=0, target_private=0, per_class=12, size=SIDE
        )
        sheet = Path(folder) / "sheet.png"
        for name in TASKS:
            show_task(drawn.target, name, sheet, SHOWN)
            save_small(sheet, arguments.out / f"{name}.jpg")
        images = read_all(drawn.source, drawn.target)
        for task_class in (Colorization, Inpainting):
            train_and_show(task_class, images, arguments.steps, sheet)
            save_small(sheet, arguments.out / f"{task_class.name}-answers.jpg")


def train_and_show(task_class: Any, images: Tensor, steps: int, sheet: Path) -> None:
    """Train a network, words and the task's head on all but the last images; draw what it answers for those."""
    torch.manual_seed(0)
    backbone = create_backbone("test_resnet", "none")
    words = Words(backbone.channels(backbone.taps[-1]), WORDS)
    task = task_class(WORDS, backbone.mean, backbone.std)
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (backbone.mean, backbone.std))
    images, draw = (images - mean) / std, np.random.default_rng(0)

    def made(batch: Tensor) -> tuple[Tensor, Tensor]:
        return task.recipe.make_each(batch, task.recipe.choose(len(batch), draw))

    def log_words(batch: Tensor) -> Tensor:
        features = backbone.spatial(backbone.run(batch), backbone.taps[-1])
        return words(features).unflatten(1, features.shape[2:])

    learning = nn.ModuleList([backbone, words, task])
    optimiser = torch.optim.AdamW(learning.parameters(), lr=2e-3)
    for step in range(steps):
        pick = torch.from_numpy(draw.choice(len(images) - SHOWN, BATCH, replace=False))
        shown, labels = made(images[pick])
        result = task(log_words(shown), labels)
        optimiser.zero_grad()
        result.loss.backward()
        optimiser.step()
        if step % 50 == 0:
            print(f"{task.name} step {step}: loss {result.loss.item():.3f} {task.measure} {result.measure.mean():.3f}")
    learning.eval()
    with torch.no_grad():
        shown, labels = made(images[-SHOWN:])
        size = labels.shape[2], labels.shape[3]
        answer = task.picture(log_words(shown), size)
    if task.name == "colorization":
        asked, answered = colour_picture(labels), colour_picture(answer)
    else:
        asked, answered = (hole_picture(it, labels[:, 3:]) for it in (labels[:, :3] / 255, answer))
    groups = {
        "what the network sees": to_pixels(shown, backbone.mean, backbone.std),
        "what it is asked for": asked,
        f"what it answers after {steps} steps": answered,
    }
    contact_sheet([(caption, pictures(pixels)) for caption, pixels in groups.items()], sheet, per_row=SHOWN)


def read_all(*folders: Path) -> Tensor:
    """(N, 3, H, W) in 0…1, the same pictures in the same order in every run, mixed."""
    paths = sorted(path for folder in folders for path in folder.rglob("*.png"))
    order = np.random.default_rng(0).permutation(len(paths))
    arrays = [np.array(Image.open(paths[i]).convert("RGB")) for i in order]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).float() / 255


def pictures(pixels: Tensor) -> list[Image.Image]:
    return [Image.fromarray(it) for it in (255 * pixels).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()]


def save_small(sheet: Path, out: Path) -> None:
    Image.open(sheet).convert("RGB").save(out, quality=60, optimize=True)
    print(f"wrote {out} ({out.stat().st_size // 1000} kB)")


if __name__ == "__main__":
    main()
