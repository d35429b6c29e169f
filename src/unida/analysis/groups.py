"""Groups of images that look like one class each. No label, no answer and no number of groups is needed.

    z: features at unit length
    tree: two groups of images are merged, always the pair that raises the inertia least (Ward), until one is left
    within(A): the mean cosine of two images of A;   between(A, B): of an image of A and one of B
    A and B are two classes if between(A, B) < ½ within, the mean of within(A) and within(B), weighted by size

From the top of the tree, a group is cut in two as long as its sides are two classes. Neither the scale of cosines,
which differs between networks, nor the size of classes matters. docs/discover.md tells what else was tried.

A side that is too small for a group falls out, and so does one whose images are hardly like each other. At the end, an
image that fell out joins the group that it is most like, if it is at least half as like it as the group's own images
are. The others are in no group.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unida.clustering.kmeans import lloyd, means, nearest, spread_points, ward_merges
from unida.support.random import generator

TWO_CLASSES = 0.5  # of the cosine within: below it, images of two sides show two classes
LEAST_WITHIN = 0.1  # below this mean cosine, images have nothing in common
MOST_SINGLE = 2000  # images that are each a leaf of the tree; above, small clusters are its leaves
LEAVES = 1000  # small clusters
LEAF_ROUNDS = 5  # of k-means for the small clusters
SAMPLE = 20_000  # images that small clusters are found from
SOME = 2**14  # images at a time


@dataclass(frozen=True)
class Groups:
    """The largest group is 0."""

    of: Tensor  # (N,) int64: the group of each image; −1: it is in none
    sureness: Tensor  # (N,) float32 in 0…1: how much more the image is like its own group than like any other

    @property
    def count(self) -> int:
        return int(self.of.max()) + 1 if len(self.of) else 0


@dataclass(frozen=True)
class _Tree:
    """Leaves are nodes 0…M−1; node M + t is the t-th merge."""

    sides: np.ndarray  # (M−1, 2) the two nodes of each merge
    sums: np.ndarray  # (2M−1, d) of the directions in each node
    counts: np.ndarray  # (2M−1,) images in each node
    leaf: np.ndarray  # (N,) of each image

    def within(self, node: int) -> float:
        """The mean cosine of two images of a node."""
        n = self.counts[node]
        return float(np.square(self.sums[node]).sum() - n) / float(n * (n - 1))

    def shows_two_classes(self, node: int) -> bool:
        sides = self.sides[node - len(self.sides) - 1]
        several = [side for side in sides if self.counts[side] > 1]
        if not several:
            return False  # two images: nothing says how much images of a class differ
        within = np.average([self.within(side) for side in several], weights=self.counts[several])
        a, b = sides
        between = self.sums[a] @ self.sums[b] / (self.counts[a] * self.counts[b])
        return bool(between < TWO_CLASSES * within)

    def leaves_below(self, node: int) -> Iterator[int]:
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if node <= len(self.sides):
                yield node
            else:
                waiting += self.sides[node - len(self.sides) - 1].tolist()


@torch.inference_mode()
def find_groups(features: Tensor, seed: int = 0, least: int | None = None) -> Groups:
    """Find groups of images that look like one class each, and how many there are.

    Args:
        features: (N, d), centred. Only their directions count.
        seed: of the random draws, above 2000 images; below, nothing is drawn.
        least: images that a group has at least; by default 1.5 N^¼, but 3 or more: 100 images: 5, 10,000 images: 15.
    """
    count = len(features)
    least = max(3, round(1.5 * count**0.25)) if least is None else max(2, least)
    if count < least:
        return Groups(torch.full((count,), -1), torch.zeros(count))
    points = _directions(features)
    tree = _grow(points, seed)
    home = torch.from_numpy(_cut(tree, least))
    return _joined(points, home)


def _directions(features: Tensor) -> Tensor:
    """At unit length. Features without a direction are all alike."""
    points = F.normalize(features.float(), dim=1)
    points[points.norm(dim=1) < 0.5, 0] = 1
    return points


def _grow(points: Tensor, seed: int) -> _Tree:
    """Ward's tree over all images; over small clusters if there are many."""
    leaf = torch.arange(len(points))
    if len(points) > MOST_SINGLE:
        draw = generator(seed, "small clusters")
        sample = points[torch.from_numpy(draw.permutation(len(points))[:SAMPLE])]
        centres = lloyd(sample, spread_points(sample, LEAVES, draw), LEAF_ROUNDS).centres
        leaf = torch.cat([nearest(some, centres)[0] for some in points.split(SOME)]).unique(return_inverse=True)[1]
    centres, sizes = means(points, leaf, int(leaf.max()) + 1)
    M = len(centres)
    counts = np.concatenate([sizes.numpy(), np.zeros(M - 1, dtype=np.int64)])
    sums = np.concatenate([(centres * sizes[:, None]).numpy(), np.zeros((M - 1, points.shape[1]), dtype=np.float32)])
    sides = np.empty((M - 1, 2), dtype=np.int64)
    node = np.arange(M)  # that each cluster is by now
    for t, (i, j) in enumerate(ward_merges(centres.double().numpy(), sizes.numpy())):
        sides[t] = node[i], node[j]
        sums[M + t] = sums[sides[t]].sum(axis=0)
        counts[M + t] = counts[sides[t]].sum()
        node[i] = M + t
    return _Tree(sides, sums, counts, leaf.numpy())


def _cut(tree: _Tree, least: int) -> np.ndarray:
    """(N,) the group of each image, or −1 if it fell out."""
    leaves = len(tree.sides) + 1
    group_of_leaf = np.full(leaves, -1)
    waiting, found = [2 * leaves - 2], 0
    while waiting:
        node = waiting.pop()
        if tree.counts[node] < least:
            continue  # falls out
        if node >= leaves and tree.shows_two_classes(node):
            waiting += tree.sides[node - leaves].tolist()
        elif tree.within(node) >= LEAST_WITHIN:
            group_of_leaf[list(tree.leaves_below(node))] = found
            found += 1
    return group_of_leaf[tree.leaf]


def _joined(points: Tensor, home: Tensor) -> Groups:
    """Each image in the group that it is in or, if it fell out, in the one that it is most like; and how surely."""
    found = int(home.max()) + 1
    if not found:
        return Groups(home, torch.zeros(len(home)))
    sizes = torch.bincount(home[home >= 0], minlength=found)
    sums = points.new_zeros(found, points.shape[1]).index_add_(0, home[home >= 0], points[home >= 0])
    within = (sums.square().sum(dim=1) - sizes) / (sizes * (sizes - 1))
    blocks = zip(points.split(SOME), home.split(SOME), strict=True)
    parts = [_compared(some, of, sums, sizes, within) for some, of in blocks]
    home, sureness = (torch.cat(column) for column in zip(*parts, strict=True))
    largest_first = torch.bincount(home[home >= 0], minlength=found).argsort(descending=True, stable=True)
    return Groups(torch.where(home >= 0, largest_first.argsort()[home.clamp(min=0)], -1), sureness)


def _compared(points: Tensor, home: Tensor, sums: Tensor, sizes: Tensor, within: Tensor) -> tuple[Tensor, Tensor]:
    """The group and the sureness of some images: (own − other) / within, of their mean cosines with groups."""
    rows, is_in = torch.arange(len(points)), home >= 0
    total = points @ sums.T
    like = total / sizes  # (B, G) mean cosine with the images of each group
    like[rows[is_in], home[is_in]] = (total[rows[is_in], home[is_in]] - 1) / (sizes[home[is_in]] - 1)  # without itself
    home = torch.where(is_in, home, like.argmax(dim=1))
    own = like[rows, home]
    home = torch.where(is_in | (own >= TWO_CLASSES * within[home]), home, -1)
    like[rows, home] = 0  # what is left: the others
    sureness = ((own - like.amax(dim=1).clamp(min=0)) / within[home].clamp(min=1e-6)).clamp(0, 1)
    return home, torch.where(home >= 0, sureness, 0)
