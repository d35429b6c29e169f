"""Classifier heads."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.losses.one_vs_all import one_vs_all_entropy, one_vs_all_loss, split_one_vs_all
from unida.models.solve import minimise


class EnsembleHead(nn.ModuleList):
    """Five linear classifiers on one feature, each drawn in another way, so that they differ (CMU's released codes)."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        heads = [nn.Linear(num_features, num_classes) for _ in range(5)]  # the first stays as torch draws it
        nn.init.xavier_uniform_(heads[1].weight, gain=nn.init.calculate_gain("relu"))
        nn.init.xavier_normal_(heads[2].weight)
        nn.init.kaiming_uniform_(heads[3].weight, nonlinearity="relu")
        nn.init.kaiming_normal_(heads[4].weight)
        super().__init__(heads)

    def forward(self, features: Tensor) -> Tensor:
        """(B, d) → (5, B, C) logits in float32."""
        return torch.stack([head(features) for head in self]).float()


class UnitRows(nn.Linear):
    """A linear layer without a bias, whose rows a method rescales to unit length when a step starts."""

    def __init__(self, num_features: int, num_rows: int) -> None:
        super().__init__(num_features, num_rows, bias=False)

    @torch.no_grad()
    def normalise_rows(self) -> None:
        """Rescale each row to unit L2 norm, in place."""
        self.weight.div_(self.weight.norm(dim=1, keepdim=True).clamp_min(1e-12))


class OneVsAllHead(UnitRows):
    """C two-way classifiers on one feature: a bias-free linear layer d → 2C (facts of OVANet's released code)."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__(num_features, 2 * num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """(B, d) → (B, 2, C); channel 0 "not this class", channel 1 "is this class"."""
        return split_one_vs_all(super().forward(features))

    def solve(self, source: Tensor, labels: Tensor, target: Tensor | None = None, entropy_weight: float = 0.0) -> float:
        """Rows of unit length with the least one-vs-all loss, from where they are; returns the loss.

        Args:
            source: (N, d) features with labels (N,).
            target: (M, d) features, whose one-vs-all entropy joins the loss.
        """
        source = source.float()

        def objective() -> Tensor:
            rows = F.normalize(self.weight, dim=1)
            loss = one_vs_all_loss(split_one_vs_all(F.linear(source, rows)), labels)
            if target is None or entropy_weight == 0:
                return loss
            return loss + entropy_weight * one_vs_all_entropy(split_one_vs_all(F.linear(target.float(), rows)))

        self.normalise_rows()
        loss = minimise(objective, [self.weight], "one-vs-all classifiers")
        self.normalise_rows()
        return loss


class CosineClassifier(UnitRows):
    """A direction for each class: logits are cosines over a temperature, if rows have unit length (DANCE's code)."""

    def __init__(self, num_features: int, num_classes: int, temperature: float) -> None:
        super().__init__(num_features, num_classes)
        self.temperature = temperature

    def forward(self, features: Tensor) -> Tensor:
        """(B, d), of any length → (B, C) float32."""
        with torch.autocast(features.device.type, enabled=False):  # 16 bits are too few for a temperature of 0.05
            return F.linear(F.normalize(features.float(), dim=1), self.weight.float()) / self.temperature


class BinaryHeads(nn.Sequential):
    """C classifiers with one output each, side by side: "is it this class?" (STA). (B, d) → (B, C) logits.

    Each is Linear, BatchNorm, LeakyReLU, Linear. A grouped convolution keeps their last layers apart; all else is by
    unit.
    """

    def __init__(self, num_features: int, num_classes: int, hidden: int) -> None:
        units = num_classes * hidden
        last = nn.Conv1d(units, num_classes, kernel_size=1, groups=num_classes)
        super().__init__(*hidden_layer(num_features, units), nn.Unflatten(1, (units, 1)), last, nn.Flatten())


def hidden_layer(inputs: int, units: int) -> tuple[nn.Module, ...]:
    """As STA and ROS have them in every head (released codes)."""
    return nn.Linear(inputs, units), nn.BatchNorm1d(units), nn.LeakyReLU(0.2)
