"""What the two source-free methods of Kundu et al. share (USFDA, InheriTune; CVPR 2020): features, answers, and the
losses of the stage that has no source.

M is the backbone, which is frozen. Behind it, an extractor learns; its copy of the source's stage stays as it is and
says how much each target image counts as known.
"""

import torch
from torch import Tensor

from unida.losses.source_free import negative_score, separation_loss, split_entropy
from unida.methods.base import DomainName, Losses, Method, Scores, SourceBatch, TargetBatch
from unida.models.source_free import Extractor, SplitHead, SplitLogits


class SourceFree(Method):
    extractor: Extractor
    source_extractor: Extractor  # as the source's stage left it
    head: SplitHead

    def image_weights(self, logits: SplitLogits) -> tuple[Tensor, Tensor]:
        """w and w′, (B,) each: how much an image counts as known and as unknown, by the source's model."""
        raise NotImplementedError  # abstract

    def adaptation(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        seen = self.framed(target.images, "target")
        known, negative = self.head(self.extractor(seen))
        weights = self.weights_of(seen)
        known_weight = weights[0].mean()
        self.watched["known_weight"] = lambda: known_weight
        return {
            "separation": separation_loss(known, negative, weights),
            "entropy": self.options.entropy_weight * split_entropy(known, negative, weights),
        }

    @torch.no_grad()
    def weights_of(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of what M saw."""
        logits: SplitLogits = self.head(self.source_extractor(seen))
        return self.image_weights(logits)

    def framed(self, images: Tensor, domain: DomainName) -> Tensor:
        """M(x), (B, 3, H, W) → (B, frame.size): in the frame, if it is on."""
        return self.frame(self.backbone(images), domain)

    def features(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) → (B, 256), of the target's extractor; before its stage, of the source's."""
        found: Tensor = self.extractor(self.framed(images, "target"))
        return found

    def source_features(self, images: Tensor) -> Tensor:
        """The same, of images of the source: each domain has its own mean in the frame."""
        found: Tensor = self.extractor(self.framed(images, "source"))
        return found

    def score(self, features: Tensor) -> Scores:
        logits = self.head(features)
        return Scores(logits.known, negative_score(*logits))
