"""Visual words: a vocabulary of prototypes, how much of each is at a location, and how much in an image.

φ_k^u = softmax_k(v_k · h^u)         which words are at location u (SPA, the soft quantisation)
ψ_k   = mean_u φ_k^u                 the image's word histogram
"""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.losses.entropy import entropy, entropy_of_logs

Similarity = Literal["dot", "cosine"]

COSINES_AT_ONCE = 2**24  # 64 MiB of float32


class Words(nn.Module):
    """V, the vocabulary: K prototypes of D channels, as a 1×1 convolution without bias would hold them.

    Args:
        similarity: of a location's feature with a prototype: their dot product (the paper) or their cosine.
        temperature: similarities are divided by it before the softmax (1 in the paper).
    """

    def __init__(self, channels: int, count: int, similarity: Similarity = "dot", temperature: float = 1.0) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.empty(count, channels))
        nn.init.kaiming_uniform_(self.prototypes, a=math.sqrt(5))  # as torch starts a convolution
        self.similarity, self.temperature = similarity, temperature

    def forward(self, features: Tensor, updating: bool = True) -> Tensor:
        """log φ, in float32: entropies and logs of a thousand small probabilities need it.

        Args:
            features: (B, D, H, W).
            updating: False keeps gradients from V; they still flow through it into the features.

        Returns:
            (B, H·W, K).
        """
        prototypes = self.prototypes if updating else self.prototypes.detach()
        locations = features.permute(0, 2, 3, 1).flatten(1, 2)  # in channels-last memory this is no copy
        if self.similarity == "dot":
            return (F.linear(locations, prototypes).float() / self.temperature).log_softmax(dim=-1)
        directions = F.normalize(prototypes, dim=1)
        learns = torch.is_grad_enabled() and (locations.requires_grad or directions.requires_grad)
        cosines = _Cosines.apply(locations, directions) if learns else cosines_of(locations, directions)[0]
        return (cosines / self.temperature).log_softmax(dim=-1)


def cosines_of(locations: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """In float32, the cosines of each location with each word (…, K), and the lengths of the locations (…, 1).

    Args:
        locations: (…, D).
        directions: (K, D) of length 1.
    """
    kind = torch.promote_types(locations.dtype, torch.float32)
    with torch.autocast(locations.device.type, enabled=False):  # it would make a copy in float32 first
        lengths = torch.linalg.vector_norm(locations, dim=-1, keepdim=True, dtype=kind).clamp_min(1e-12)
    # The product is divided by the lengths, not the features: there are fewer words than channels.
    return F.linear(locations, directions.to(locations.dtype)).to(kind) / lengths, lengths


class _Cosines(torch.autograd.Function):
    """`cosines_of`, with a backward pass of its own.

    The locations are large. torch would go through them several times, in float32 also if they have 16 bits.
    """

    @staticmethod
    def forward(ctx: Any, locations: Tensor, directions: Tensor) -> Tensor:
        cosines, lengths = cosines_of(locations, directions)
        ctx.save_for_backward(locations, directions, cosines, lengths)
        return cosines

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """∂cos/∂h = v/‖h‖ − cos h/‖h‖², ∂cos/∂v = h/‖h‖."""
        locations, directions, cosines, lengths = ctx.saved_tensors
        of_products = gradient / lengths
        for_locations = for_directions = None
        if ctx.needs_input_grad[0]:
            shrinks = (of_products * cosines).sum(dim=-1, keepdim=True) / lengths
            kind = locations.dtype
            for_locations = of_products.to(kind) @ directions.to(kind)
            for_locations.addcmul_(shrinks.to(kind), locations, value=-1)
        if ctx.needs_input_grad[1]:
            rows = of_products.flatten(0, -2).to(locations.dtype)
            for_directions = (rows.T @ locations.flatten(0, -2)).to(directions.dtype)
        return for_locations, for_directions


def histogram(log_words: Tensor) -> Tensor:
    """ψ, the share of each word in an image: log φ (B, U, K) → (B, K), rows sum to 1."""
    return log_words.exp().mean(dim=1)


def word_entropy(log_words: Tensor) -> Tensor:
    """The mean over images and locations of −Σ_k φ_k log φ_k, in nats; ln K if all shares are equal.

    Args:
        log_words: (B, U, K) log φ.
    """
    return entropy_of_logs(log_words).mean()


def usage_gap(one: Tensor, other: Tensor) -> Tensor:
    """How differently two sets of images use words: the Jensen–Shannon divergence of two (K,) distributions, in bits.

    0 if they are the same, 1 if no word is in both.
    """
    of_both = entropy((one + other) / 2) - (entropy(one) + entropy(other)) / 2
    return (of_both / math.log(2)).clamp(0, 1)


def prototype_alignment_score(features: Tensor, words: Tensor) -> Tensor:
    """PAS = max_k cos(h^u, v_k), averaged over the locations u of each image (SPA §3.2).

    Args:
        features: (N, D, H, W), or (N, D) for one location each.
        words: (K, D).

    Returns:
        (N,), at most 1; a feature of all zeros has no direction, and counts as 0. Only a part of the N·H·W × K
        cosines is in memory at a time.
    """
    directions = F.normalize(words.float(), dim=1)
    maps = features.flatten(2) if features.dim() > 2 else features[:, :, None]  # (N, D, H·W)
    images = max(1, COSINES_AT_ONCE // max(1, len(words) * maps.shape[2]))
    scores = [
        torch.einsum("kd,ndu->nku", directions, F.normalize(part.float(), dim=1)).amax(dim=1).mean(dim=1)
        for part in maps.split(images)
    ]
    return torch.cat(scores)
