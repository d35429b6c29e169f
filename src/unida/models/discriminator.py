"""The domain discriminator of UAN's family: which domain is a feature of?"""

from torch import Tensor, nn


class Discriminator(nn.Module):
    """d → 1024 → 1024 → 1, ReLU and dropout ½ between (UAN, CMU, I-UAN: released codes).

    Args:
        normalise: BatchNorm before each ReLU, and no dropout (TLlib: DANN, and CMU's later code).
        leak: slope of the ReLUs below 0 (STA: 0.2).
    """

    def __init__(
        self, num_features: int, hidden: int = 1024, dropout: float = 0.5, normalise: bool = False, leak: float = 0.0
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs in (num_features, hidden):
            layers.append(nn.Linear(inputs, hidden))
            bend = nn.LeakyReLU(leak) if leak else nn.ReLU()
            layers += [nn.BatchNorm1d(hidden), bend] if normalise else [bend, nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden, 1))

    def forward(self, features: Tensor) -> Tensor:
        """(B, d) → (B,) logits in float32; high for the source."""
        logits: Tensor = self.layers(features).float().squeeze(1)
        return logits
