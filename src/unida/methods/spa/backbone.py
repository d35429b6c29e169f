"""The backbone of a method under SPA: the feature contains the word histogram."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.errors import UserError
from unida.methods.spa.options import SPAOptions
from unida.models.backbone import Backbone
from unida.models.words import Words, histogram

OLD_SHARE = 0.25  # of models that are older than the option `spa_share`


class Seen(NamedTuple):
    """What the goal's losses computed for a batch of images, to be used again."""

    images: Tensor
    features: Tensor  # (B, D, H, W)
    log_words: Tensor | None  # (B, U, K)


class WordBackbone(nn.Module):
    """The backbone of the method under SPA: the feature is, or ends with, the word histogram."""

    length: Tensor

    def __init__(self, backbone: Backbone, options: SPAOptions) -> None:
        super().__init__()
        self.backbone, self.options = backbone, options
        self.mean, self.std = backbone.mean, backbone.std
        self.tap = options.spa_tap or backbone.taps[-1]
        _refuse_frozen_tap(backbone, self.tap)
        channels = backbone.channels(self.tap)
        count = options.spa_vocabulary
        assert count is not None and options.spa_similarity is not None and options.spa_temperature is not None
        self.vocabulary = Words(channels, count, options.spa_similarity, options.spa_temperature)
        self.share = OLD_SHARE if options.spa_share is None else options.spa_share
        in_feature = options.spa_words == "on"
        has_losses = options.spa_pretext == "on" or options.spa_entropy == "on"
        self.goal_learns = in_feature and options.spa_goal_words == "on"
        self.pretext_learns = has_losses and options.spa_learn == "on"
        self.vocabulary.prototypes.requires_grad_(self.goal_learns or self.pretext_learns)
        self.normalise = nn.BatchNorm1d(count) if in_feature and options.spa_scale == "batchnorm" else None
        histogram_size = count if in_feature else 0
        alone = in_feature and options.spa_place == "instead"
        self.num_features = histogram_size + (0 if alone else backbone.num_features)
        self.register_buffer("length", torch.ones(()))  # of pooled features, before training
        self.seen: list[Seen] | None = None  # while recording, what `forward` computed

    def forward(self, images: Tensor) -> Tensor:
        """Images, or kept features instead of them → (B, num_features)."""
        options, parts = self.options, []
        state = self.backbone.state(images, upto=self.tap)
        features = self.backbone.spatial(state, self.tap)
        log_words = None
        if options.spa_words == "off" or options.spa_place == "beside":
            parts.append(self._pooled(state))
        if options.spa_words == "on":
            log_words = self.vocabulary(features, updating=self.goal_learns)
            parts.append(self.scaled(histogram(log_words)))
        if self.seen is not None:  # log φ can be used again if both losses update the same weights
            self.seen.append(Seen(images, features, log_words if self.goal_learns == self.pretext_learns else None))
        return torch.cat(parts, dim=1)

    @property
    def read_by_words(self) -> set[int]:
        """Ids of the backbone's parameters that words depend on."""
        return {id(p) for p in self.backbone.parameters_upto(self.tap)}

    @property
    def read_by_feature(self) -> set[int]:
        """Ids of the backbone's parameters that the method's feature depends on."""
        alone = self.options.spa_words == "on" and self.options.spa_place == "instead"
        return self.read_by_words if alone else {id(p) for p in self.backbone.parameters()}

    def map(self, images: Tensor) -> Tensor:
        """The features that words are read from: (B, D, H, W)."""
        return self.backbone.spatial(self.backbone.state(images, upto=self.tap), self.tap)

    def log_words(self, features: Tensor) -> Tensor:
        """log φ of a map (B, D, H, W) for the losses on words themselves: (B, U, K)."""
        return self.vocabulary(features, updating=self.pretext_learns)

    def _pooled(self, state: Tensor) -> Tensor:
        backbone = self.backbone
        return backbone.pool(state if self.tap == backbone.taps[-1] else backbone.run(state, after=self.tap))

    def pooled_length(self, images: Tensor) -> Tensor:
        """(B,) ‖f‖ of the pooled features."""
        return self._pooled(self.backbone.state(images, upto=self.tap)).float().norm(dim=1)

    def scaled(self, shares: Tensor) -> Tensor:
        """ψ (B, K), scaled for the heads.

        OVANet's heads have neither bias nor normalisation: they need activations around 1 with a positive mean.
        """
        if self.normalise is not None:
            return F.relu(self.normalise(shares))
        if self.options.spa_scale == "root":
            # Always of length 1 (Hellinger's map), then scaled to a share of the pooled feature's length.
            return shares.clamp_min(1e-9).sqrt() * (self.share * self.length)
        if self.options.spa_scale == "unit":
            return F.normalize(shares, dim=1) / 0.05  # OVANet's temperature for normalised features
        return shares * shares.shape[1] if self.options.spa_scale == "count" else shares

    @contextmanager
    def recording(self) -> Iterator[list[Seen]]:
        """Collect images and the maps that `forward` computed for them, to be used again."""
        self.seen = []
        try:
            yield self.seen
        finally:
            self.seen = None


def _refuse_frozen_tap(backbone: Backbone, tap: str) -> None:
    """Words before the end of the frozen part would need a second set of kept features."""
    frozen, place = backbone.frozen_at, backbone.position(tap)
    if frozen is None or place > backbone.position(frozen):
        return
    is_whole = not any(parameter.requires_grad for parameter in backbone.parameters())
    if not (is_whole and tap == frozen):
        raise UserError(
            f"--spa.tap {tap} is not after --tap {frozen}, where the frozen part ends: choose a later --spa.tap, "
            "or an earlier --tap"
        )
