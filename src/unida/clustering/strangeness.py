"""How strange is a target cluster: is it a class of the source, or something else? No label of the target is seen.

    c: the class nearest to cluster k          a_c: the cosine of c and the class next to it, which is something else
    t_ck = (1 − cos(k, c)) / (1 − a_c)         how far k is from c: at c 0, as far as the next class or farther 1
    t of the images, each at its cluster's t_ck, is of known ones ~ N(μ, σ) or of unknown ones ~ N(ν, τ): fitted by EM
    e: where both densities are equal          e_c = e − max(0, μ − min_k t_ck) / 2
    strangeness of k: σ((h_c − cos(k, c)) / temperature), with h_c = 1 − e_c (1 − a_c): ½ at the edge

- Between two domains, no cluster comes near the class itself, and how near they come differs from one backbone to the
  next. So the edge is found on the target, as `unida.answering.threshold` finds a threshold.
- A class that has a cluster nearer than is usual asks more of the others.
- EM starts from, and is held to, μ = min t_ck, ν = 1 and σ = τ = (1 − μ)/4: halfway, two widths from either mean. With
  few images, or where one kind is missing, the edge stays near that.
- So the nearest cluster counts as near, however far it is, unless no cluster is nearer than the next class.

docs/studies/dcc.md has what else was tried.
"""

import torch
from torch import Tensor

from unida.support.two_groups import equal_densities, fit

TINY = 1e-6  # instead of 0, where two classes have the same centre, or all clusters are far


@torch.no_grad()
def strangeness(clusters: Tensor, sizes: Tensor, classes: Tensor, temperature: float) -> Tensor:
    """The formula above.

    A right angle is as different as can be: classes at obtuse angles count as if at right ones.

    Args:
        clusters: (K, d) centres, of unit length.
        sizes: (K,) int64, images of each.
        classes: (C, d) centres, of unit length; zeros for a class without images.

    Returns:
        (K,) in 0…1.
    """
    alike = classes @ classes.T
    alike.fill_diagonal_(0)  # so that the highest of a row is never below a right angle's
    to_next = (1 - alike.amax(dim=1)).clamp(min=TINY)  # (C,) 1 − a_c
    cosines = clusters @ classes.T  # (K, C)
    distances = ((1 - cosines) / to_next).clamp(0, 1)  # (K, C) t_ck
    cosine, nearest = cosines.max(dim=1)
    usual, edge = usual_and_edge(distances.gather(1, nearest[:, None]).squeeze(1), sizes)
    edges = edge - (usual - distances.amin(dim=0)).clamp(min=0) / 2  # (C,) e_c
    return torch.sigmoid((1 - (edges * to_next)[nearest] - cosine) / temperature)


def usual_and_edge(distances: Tensor, sizes: Tensor) -> tuple[float, float]:
    """(K,) in 0…1, and the images of each → how far known images usually are, μ, and the edge, e."""
    x = distances.cpu().double()
    nearest = float(x.min())
    width = max(1 - nearest, TINY) / 4
    means, widths, _ = fit(x, (nearest, 1.0), (width, width), sizes.cpu())
    return float(means[0]), equal_densities(means, widths)
