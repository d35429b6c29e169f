"""What a pretext task is: a recipe that makes images, a head on their words, and a loss."""

from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.models.words import histogram
from unida.recipes.base import Made, Recipe


class Result(NamedTuple):
    loss: Tensor  # ()
    measure: Tensor  # (B,) whether each image's answer is right, or another number that its mean tells more of


class Task(nn.Module):
    """A pretext task. Its head is dropped when training ends.

    Attributes:
        name: of its losses and measures in logs.
        measure: what the result's measure is.
        looks_first: whether `look` must be called before the first step.
    """

    name: ClassVar[str]
    measure: ClassVar[str] = "accuracy"
    looks_first: bool = False
    recipe: Recipe
    head: nn.Module

    def forward(self, log_words: Tensor, labels: Tensor) -> Result:
        """The loss on images that the recipe made.

        Args:
            log_words: (B, H, W, K) log φ.
            labels: (B, …) the recipe's.
        """
        raise NotImplementedError  # abstract

    def look(self, made: Iterable[Made], log_words: Callable[[Tensor], Tensor]) -> str:
        """Look at batches of both domains before training; what it finds must live in buffers. Returns a log line."""
        raise NotImplementedError  # only where `looks_first`


class Classification(Task):
    """The label is a class, and the head a linear layer on the word histogram."""

    head: nn.Linear

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(words, classes)

    def classes_of(self, labels: Tensor) -> Tensor:
        return labels

    def forward(self, log_words: Tensor, labels: Tensor) -> Result:
        shares = histogram(log_words.flatten(1, -2))
        logits = self.head(shares * shares.shape[1]).float()  # times K: like the heads, f_n needs numbers around 1
        classes = self.classes_of(labels)
        return Result(F.cross_entropy(logits, classes), logits.detach().argmax(dim=1) == classes)


WIDTHS = (256, 128, 64)  # of the decoder's three stages


class Decoder(nn.Module):
    """A light decoder from words at locations to a picture: three stages, each enlarges the map and looks around.

    Its sizes lie between the map's and the picture's, in equal ratios: 7, 14, 28, 56 for a picture of 56 × 56.
    GroupNorm takes the place of BatchNorm: an image's loss then depends on that image alone, so that the two domains do
    not mix, and two processes give what one gives.
    """

    def __init__(self, words: int, outputs: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(words, WIDTHS[0], 1)
        before = (WIDTHS[0], *WIDTHS)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(one, other, 3, padding=1, bias=False), nn.GroupNorm(8, other), nn.ReLU())
            for one, other in zip(before, WIDTHS, strict=False)
        )
        self.leave = nn.Conv2d(WIDTHS[-1], outputs, 1)

    def forward(self, log_words: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, H, W, K) log φ → (B, outputs, *size), float32."""
        words = log_words.exp().permute(0, 3, 1, 2)
        state = self.enter(words * words.shape[1])
        start = state.shape[-2:]
        for number, stage in enumerate(self.stages, start=1):
            share = number / len(self.stages)
            between = [round(one ** (1 - share) * other**share) for one, other in zip(start, size, strict=True)]
            state = stage(F.interpolate(state, between, mode="bilinear", align_corners=False))
        return self.leave(state).float()


def picture_size(labels: Tensor) -> tuple[int, int]:
    """Height and width of labels (B, C, h, w)."""
    height, width = labels.shape[-2:]
    return height, width


def device_of(module: nn.Module) -> torch.device:
    return next(module.parameters()).device
