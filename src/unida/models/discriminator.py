"""The domain discriminator of UAN's family: which domain is a feature of?"""

from torch import Tensor, nn


class Discriminator(nn.Module):
    """d → 1024 → 1024 → 1, ReLU and dropout ½ between (UAN, CMU, I-UAN: released codes)."""

    def __init__(self, num_features: int, hidden: int = 1024, dropout: float = 0.5) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(num_features, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, 1),
        )

    def forward(self, features: Tensor) -> Tensor:
        """(B, d) → (B,) logits in float32; high for the source."""
        logits: Tensor = self.layers(features).float().squeeze(1)
        return logits
