"""Which images a step sees, as a pure function of (seed, step).

Nothing here has state. Step t's batch can be drawn without drawing the batches before it, so a resumed run needs no
sampler state, and every process can draw the same global batch and keep its own slice of it.
"""

import numpy as np

from unida.support.random import generator


class BalancedSampler:
    """Class-balanced draws with replacement: each class equally likely, then each of its images equally likely.

    OVANet draws with weights 1/class frequency and replacement (WeightedRandomSampler), which is the same distribution.

    Args:
        labels: (N,) class ids 0…C−1; a class without images is never drawn.
    """

    def __init__(self, labels: np.ndarray, batch_size: int, seed: int) -> None:
        self.batch_size, self.seed = batch_size, seed
        self.order = np.argsort(labels, kind="stable")
        self.counts = np.bincount(labels)[np.unique(labels)]
        self.starts = np.cumsum(self.counts) - self.counts

    def batch(self, step: int) -> np.ndarray:
        """(batch_size,) image indices of this step."""
        draw = generator(self.seed, "source batch", step)
        classes = draw.integers(len(self.counts), size=self.batch_size)
        within = draw.integers(self.counts[classes])
        return self.order[self.starts[classes] + within]


class ShuffledSampler:
    """An endless stream of shuffles of all images, cut into batches.

    The references drop the incomplete batch at the end of each epoch; here the next epoch's shuffle follows, so
    that a set smaller than a batch works too and every image is seen equally often.

    Args:
        purpose: names the stream of shuffles.
    """

    def __init__(self, count: int, batch_size: int, seed: int, purpose: str = "target epoch") -> None:
        self.count, self.batch_size, self.seed, self.purpose = count, batch_size, seed, purpose
        self._epoch = -1
        self._shuffle = np.empty(0, dtype=np.int64)

    def _shuffled(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:  # remembered only to save time: it can always be drawn again
            self._shuffle = generator(self.seed, self.purpose, epoch).permutation(self.count)
            self._epoch = epoch
        return self._shuffle

    def batch(self, step: int) -> np.ndarray:
        """(batch_size,) image indices of this step."""
        position = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, offsets = np.divmod(position, self.count)
        return np.concatenate([self._shuffled(int(e))[offsets[epochs == e]] for e in np.unique(epochs)])


def shard(batch: np.ndarray, rank: int, world_size: int) -> slice:
    """This process's part of a global batch; the parts differ by at most one image and cover it exactly."""
    edges = [len(batch) * r // world_size for r in range(world_size + 1)]
    return slice(edges[rank], edges[rank + 1])
