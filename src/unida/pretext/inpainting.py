"""What was in the hole? (context encoders, Pathak et al. 2016)

The loss is the squared difference of colours inside the hole. The paper adds an adversarial loss with a weight of
0.001; it is left out.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from unida.pretext.base import Decoder, Result, Task, picture_size
from unida.recipes.hole import Hole


class Inpainting(Task):
    """The measure is the mean difference of colours in the hole; colours are in 0…1. Less is better."""

    name = "inpainting"
    measure = "error"
    head: Decoder

    def __init__(self, words: int, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.recipe = Hole(tuple(mean), tuple(std))
        self.head = Decoder(words, 3)

    def forward(self, log_words: Tensor, labels: Tensor) -> Result:
        hidden = labels[:, 3:].float()
        wanted = labels[:, :3].float() * (2 / 255) - 1  # −1…1, as in the paper
        difference = (self.head(log_words, picture_size(labels)) - wanted) * hidden
        values = 3 * hidden.sum(dim=(1, 2, 3))  # the same number in every image
        losses, errors = (it.sum(dim=(1, 2, 3)) / values for it in (difference**2, difference.detach().abs() / 2))
        return Result(losses.mean(), errors)

    @torch.no_grad()
    def picture(self, log_words: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, 3, *size) colours in 0…1 as it answers, inside the hole and outside."""
        return ((self.head(log_words, size) + 1) / 2).clamp(0, 1)
