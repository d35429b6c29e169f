"""Visual words: a vocabulary of prototypes, how much of each is at a location, and how much in an image.

φ_k^u = softmax_k(v_k · h^u)         which words are at location u (SPA, the soft quantisation)
ψ_k   = mean_u φ_k^u                 the image's word histogram
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Similarity = Literal["dot", "cosine"]


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
        # The product is divided by the lengths, not the features: there are fewer words than channels.
        lengths = torch.linalg.vector_norm(locations.float(), dim=-1, keepdim=True).clamp_min(1e-12)
        cosines = F.linear(locations.float(), F.normalize(prototypes, dim=1)) / lengths
        return (cosines / self.temperature).log_softmax(dim=-1)


def histogram(log_words: Tensor) -> Tensor:
    """ψ, the share of each word in an image: log φ (B, U, K) → (B, K), rows sum to 1."""
    return log_words.exp().mean(dim=1)


def word_entropy(log_words: Tensor) -> Tensor:
    """L_em of SPA: the mean over images and locations of −Σ_k φ_k log φ_k, in nats; ln K where all words are alike.

    Args:
        log_words: (B, U, K) log φ.
    """
    return -(log_words.exp() * log_words).sum(dim=-1).mean()


def usage_gap(one: Tensor, other: Tensor) -> Tensor:
    """How differently two sets of images use words: the Jensen–Shannon divergence of two (K,) distributions, in bits.

    0 where they are the same, 1 where no word is in both.
    """
    of_both = entropy((one + other) / 2) - (entropy(one) + entropy(other)) / 2
    return (of_both / math.log(2)).clamp(0, 1)


def entropy(probabilities: Tensor) -> Tensor:
    """−Σ p log p over the last dimension, in nats; 0 log 0 = 0."""
    return torch.special.entr(probabilities).sum(dim=-1)
