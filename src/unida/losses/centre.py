"""Centre loss: features of a class lie close together (Wen et al., ECCV 2016; as ROS uses it)."""

from torch import Tensor


def centre_loss(features: Tensor, centres: Tensor, labels: Tensor, weight: float = 1.0) -> Tensor:
    """weight · Σ_i ‖f_i − c_{y_i}‖² / B. The weight holds for the features alone: centres learn as if it were 1.

    So centres move at one speed, however little the loss counts (ROS's code divides their gradient by the weight).

    Args:
        features: (B, D).
        centres: (K, D), that learn too.
        labels: (B,) int64 in 0…K−1.
    """
    features, own = features.float(), centres.float()[labels]
    for_features = weight * (features - own.detach()).square().sum(dim=1).mean()
    for_centres = (features.detach() - own).square().sum(dim=1).mean()
    return for_features + (for_centres - for_centres.detach())
