"""Contact sheets of what pretext tasks make of a folder's pictures, and of what they ask for."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unida.data.folders import scan
from unida.data.images import BadImage, read_rgb
from unida.data.sheet import contact_sheet
from unida.errors import UserError
from unida.recipes.base import ImageRecipe
from unida.recipes.grey import Grey
from unida.recipes.hole import Hole
from unida.recipes.jigsaw import Jigsaw
from unida.recipes.lab import lab_to_srgb, to_pixels
from unida.recipes.mosaic import Mosaic
from unida.recipes.quadrant import Quadrant
from unida.recipes.rotation import Rotation
from unida.support.random import generator

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of most backbones' input; the mean colour fills holes
SIDE = 224
LIGHT = 70.0  # L of a picture that shows colours alone
MOSAICS = 64  # to find some of each number of images
PAPER = 0.93  # around the inside of a hole

# Tasks with classes: the captions of those that are shown (of 31 orders, four).
CLASSES: Mapping[str, tuple[ImageRecipe, tuple[str, ...]]] = {
    "rotation": (Rotation(), ("as it is", "a quarter turn", "a half turn", "three quarters")),
    "jigsaw": (Jigsaw(), ("as it is", "another order", "another order", "another order")),
    "patch-location": (Quadrant(), ("top left", "top right", "bottom left", "bottom right")),
}

Group = tuple[str, Sequence[Image.Image]]


def show_task(folder: Path, task: str, out: Path, count: int) -> Path:
    """A sheet of `count` pictures of the folder: as they are, as the task shows them, and what it asks for."""
    if count < 1:
        raise UserError(f"--per-class is {count}: a sheet needs one picture or more")
    images = _read(folder, count)
    groups = [("the pictures", _made(images)), *_groups(task, images, count)]
    return contact_sheet(groups, out, per_row=count)


def colour_picture(colours: Tensor) -> Tensor:
    """(B, 2, h, w) a and b → (B, 3, h, w) in 0…1: these colours, all equally light."""
    light = torch.full_like(colours[:, :1], LIGHT, dtype=torch.float32)
    return lab_to_srgb(torch.cat([light, colours.float()], dim=1))


def hole_picture(colours: Tensor, hidden: Tensor) -> Tensor:
    """(B, 3, h, w) in 0…1 and (B, 1, h, w) → the inside of the hole."""
    return torch.where(hidden > 0, colours, PAPER)


def _groups(task: str, images: Tensor, count: int) -> list[Group]:
    draw = generator(0, f"sheet of {task}")
    if task == "count":
        mosaics = Mosaic().make_of_several(images, np.arange(len(images)), draw, MOSAICS)
        numbers = sorted(set(mosaics.labels.tolist()))
        return [
            (
                f"label {n}: made of {n + 1} picture{'s' if n else ''}",
                _made(mosaics.images[mosaics.labels == n][:count]),
            )
            for n in numbers
        ]
    if task in CLASSES:
        recipe, captions = CLASSES[task]
        return [
            (f"label {n}: {caption}", _made(recipe.make_each(images, np.full(len(images), n))[0]))
            for n, caption in enumerate(captions)
        ]
    if task == "colorization":
        made, labels = _drawn(Grey(MEAN, STD), images, draw)
        asked = colour_picture(labels)
    else:
        made, labels = _drawn(Hole(MEAN, STD), images, draw)
        asked = hole_picture(labels[:, :3].float() / 255, labels[:, 3:])
    return [("what the network sees", _made(made)), ("what it is asked for", _pictures(asked))]


def _drawn(recipe: ImageRecipe, images: Tensor, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
    return recipe.make_each(images, recipe.choose(len(images), draw))


def _made(images: Tensor) -> list[Image.Image]:
    return _pictures(to_pixels(images, MEAN, STD))


def _pictures(pixels: Tensor) -> list[Image.Image]:
    """(B, 3, H, W) in 0…1 → images."""
    return [Image.fromarray(it) for it in (255 * pixels).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()]


def _read(folder: Path, count: int) -> Tensor:
    """(N, 3, 224, 224) normalised: squares from the middle of pictures, spread over the folder."""
    files, _ = scan(folder)
    if not files:
        raise UserError(f"{folder} holds no image: nothing to show")
    paths = sorted(file.path for file in files)
    squares = []
    for at in np.linspace(0, len(paths) - 1, min(count, len(paths))).astype(int):
        try:
            picture = read_rgb(paths[at])
        except BadImage:
            continue
        side = min(picture.size)
        left, top = ((length - side) // 2 for length in picture.size)
        square = picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS, (left, top, left + side, top + side))
        squares.append(torch.from_numpy(np.array(square)).permute(2, 0, 1))
    if not squares:
        raise UserError(f"{folder}: none of {count} pictures can be read: nothing to show")
    shift, scale = (torch.tensor(numbers)[:, None, None] for numbers in (MEAN, STD))
    return (torch.stack(squares).float() / 255 - shift) / scale
