"""A memory of all target images (Saito et al., DANCE, NeurIPS 2020)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FeatureMemory(nn.Module):
    """A unit vector for each image: the feature that training saw of it. Zeros before its first time.

    Args:
        momentum: share of the old vector that stays in the new one.
    """

    rows: Tensor  # (N, d)

    def __init__(self, num_images: int, num_features: int, momentum: float = 0.0) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("rows", torch.zeros(num_images, num_features))

    @torch.no_grad()
    def write(self, indices: Tensor, features: Tensor) -> None:
        """Renew the rows of a batch. If it shows an image twice, the last one stays.

        With several processes, all of them must write the same: give it what `gather` returns.

        Args:
            indices: (B,) which images these are.
            features: (B, d) of unit length.
        """
        places = torch.arange(len(indices), device=indices.device)
        last = torch.where(indices[:, None] == indices[None], places, -1).amax(dim=1)
        kept, new = self.momentum * self.rows[indices], (1 - self.momentum) * features[last].to(self.rows.dtype)
        self.rows[indices] = F.normalize(kept + new, dim=1)  # equal indices get equal rows: their order is no matter
