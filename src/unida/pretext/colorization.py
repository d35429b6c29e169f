"""Which colours has this grey image? (Zhang et al. 2016; Larsson et al. 2017)

A pixel's colour is one of 313 bins, softly: its five nearest bins share it. Pixels of rare colours weigh more; how rare
a colour is, is measured on images of the run, of both domains, without labels.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from unida.pretext.base import Decoder, Result, Task, device_of, picture_size
from unida.pretext.colours import bins_in_gamut, rebalanced, soft_table
from unida.recipes.base import Made
from unida.recipes.grey import Grey

SHARPENED = 0.38  # temperature for a picture of the answers (Zhang et al. 2016)


class Colorization(Task):
    """The measure is the share of an image's pixels whose nearest bin is the most likely one."""

    name = "colorization"
    looks_first = True
    head: Decoder
    weights: Tensor  # (313,) of pixels whose nearest bin is this one
    nearest: Tensor  # (65536, 5) int64
    shares: Tensor  # (65536, 5)

    def __init__(self, words: int, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.recipe = Grey(tuple(mean), tuple(std))
        self.head = Decoder(words, len(bins_in_gamut()))
        self.register_buffer("weights", torch.ones(len(bins_in_gamut())))
        for name, table in zip(("nearest", "shares"), soft_table(), strict=True):
            self.register_buffer(name, table, persistent=False)

    def encoded(self, colours: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 2, h, w) int8 a and b → (B, 5, h, w) bins, the nearest first, and their shares."""
        a, b = (colours.long() + 128).unbind(dim=1)
        place = 256 * a + b
        return self.nearest[place].movedim(3, 1), self.shares[place].movedim(3, 1)

    def forward(self, log_words: Tensor, labels: Tensor) -> Result:
        log_shares = self.head(log_words, picture_size(labels)).log_softmax(dim=1)
        bins, shares = self.encoded(labels)
        losses = -(shares * log_shares.gather(1, bins)).sum(dim=1)  # (B, h, w)
        is_right = log_shares.detach().argmax(dim=1) == bins[:, 0]
        return Result((self.weights[bins[:, 0]] * losses).mean(), is_right.float().mean(dim=(1, 2)))

    def look(self, made: Iterable[Made], log_words: Callable[[Tensor], Tensor]) -> str:
        """Measure how often each colour is there."""
        found = torch.zeros(len(self.weights), dtype=torch.float64, device=device_of(self))
        for it in made:
            bins, shares = self.encoded(it.labels)
            found += torch.bincount(bins.flatten(), shares.flatten().double(), minlength=len(found))
        share = found / found.sum()
        self.weights.copy_(rebalanced(share))
        common = (share > 1 / len(share)).sum()
        return f"colours: {common} of {len(share)} are more frequent than the mean; rare ones weigh more"

    @torch.no_grad()
    def picture(self, log_words: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, 2, *size) a and b as it answers: the mean of the bins, by shares that are made sharper."""
        shares = (self.head(log_words, size).log_softmax(dim=1) / SHARPENED).softmax(dim=1)
        bins = torch.from_numpy(bins_in_gamut()).to(shares)
        return torch.einsum("bqhw,qc->bchw", shares, bins)
