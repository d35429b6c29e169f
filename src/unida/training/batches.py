"""The batches of a run, and looks at all images beside them. All draws are functions of the seed and the step."""

from collections.abc import Callable, Iterator
from types import MappingProxyType

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from unida.config import Config
from unida.data.augment import Inputs
from unida.data.cache import Pixels
from unida.data.domains import Source, Target
from unida.data.sampling import BalancedSampler, ShuffledSampler, generator, shard
from unida.methods.base import Domain, Method, Requests, SourceBatch, TargetBatch
from unida.pretext.instance_count import InstanceCount, PretextBatch

SWEEP_BATCH = 64
NO_REQUESTS: Requests = MappingProxyType({})


class BatchStream:
    """The batches of a run: step t's is a function of the seed and t, and each process gets its slice of it."""

    def __init__(
        self,
        source: Source,
        target: Target,
        inputs: Inputs,
        config: Config,
        fabric: Fabric,
        pretext: InstanceCount | None = None,
        balanced_source: bool = True,
    ) -> None:
        self.pretext = pretext
        size, self.seed = config.training.batch_size, config.training.seed
        self.source, self.target, self.inputs = source, target, inputs
        self.rank, self.processes = fabric.global_rank, fabric.world_size
        self.source_sampler = (
            BalancedSampler(source.labels, size, self.seed)
            if balanced_source
            else ShuffledSampler(len(source.pixels), size, self.seed, "source epoch")
        )
        self.target_sampler = ShuffledSampler(len(target.pixels), size, self.seed)

    def batch(self, step: int, requests: Requests = NO_REQUESTS) -> tuple[SourceBatch, TargetBatch]:
        source_index, target_index = self.source_sampler.batch(step), self.target_sampler.batch(step)
        part = shard(source_index, self.rank, self.processes)
        source_draw = generator(self.seed, "source view", step)
        target_draw = generator(self.seed, "target view", step)
        source_images = self.inputs.training_view(self.source.pixels, source_index, source_draw, part)
        target_images = self.inputs.training_view(self.target.pixels, target_index, target_draw, part)

        def on_device(numbers: np.ndarray) -> Tensor:
            return torch.from_numpy(numbers).to(self.inputs.device, non_blocking=True)

        return (
            SourceBatch(
                images=source_images,
                labels=on_device(self.source.labels[source_index[part]]),
                indices=on_device(source_index[part]),
                pretext=self._pretext("source", step, source_images, source_index, part),
                extra=self._requested("source", step, requests),
            ),
            TargetBatch(
                images=target_images,
                indices=on_device(target_index[part]),
                pretext=self._pretext("target", step, target_images, target_index, part),
                extra=self._requested("target", step, requests),
            ),
        )

    def _requested(self, domain: Domain, step: int, requests: Requests) -> dict[str, Tensor]:
        """Training views of the images that a method asked for, all of them on every process.

        Losses on them are then the same on each, and so is their mean: a loss over classes cannot be cut into shares
        as a mean over images can.
        """
        pixels = (self.source if domain == "source" else self.target).pixels
        views = {}
        for name, index in requests.get(domain, {}).items():
            draw = generator(self.seed, f"{domain} view, {name}", step)
            views[name] = self.inputs.training_view(pixels, index, draw, slice(0, None))
        return views

    def _pretext(self, domain: str, step: int, images: Tensor, index: np.ndarray, part: slice) -> PretextBatch | None:
        """The domain's batch of the method's pretext task, from a stream of its own: other draws stay as they are."""
        if self.pretext is None:
            return None
        pixels = (self.source if domain == "source" else self.target).pixels
        draw = generator(self.seed, f"{domain} pretext", step)
        return self.inputs.pretext(self.pretext, pixels, images, index, draw, part)

    def whole_pretext(self, domain: Domain, number: int) -> PretextBatch | None:
        """A pretext batch beside the training steps, whole on every process."""
        pixels = (self.source if domain == "source" else self.target).pixels
        draw = generator(self.seed, f"{domain} pretext to look at", number)
        index, whole = draw.integers(len(pixels), size=self.source_sampler.batch_size), slice(0, None)
        images = self.inputs.training_view(pixels, index, draw, whole)
        return self.inputs.pretext(self.pretext, pixels, images, index, draw, whole) if self.pretext else None


def over_test_views(
    compute: Callable[[Tensor], Tensor], pixels: Pixels, inputs: Inputs, count: int | None = None
) -> Tensor:
    """(N, …) float32: what `compute` makes of the test view of each image, or of the first `count`."""
    index = np.arange(len(pixels) if count is None else count)
    batches = np.split(index, range(SWEEP_BATCH, len(index), SWEEP_BATCH))
    return torch.cat([compute(inputs.test_view(pixels, batch)).float() for batch in batches])


def images_shown(method: Method, source: SourceBatch, target: TargetBatch, processes: int = 1) -> int:
    """Images and mosaics of a step that go through the network; those that all processes are given alike count once."""
    shared = len(source.images) + (len(target.images) if method.looks_at_target_batch else 0)
    shared += sum(len(batch.pretext.images) for batch in (source, target) if batch.pretext is not None)
    alike = sum(len(views) for batch in (source, target) for views in batch.extra.values())
    return shared * processes + alike


class Looking:
    """The `Sweep` of a method: each process looks at all images, so that all agree."""

    def __init__(self, method: Method, stream: BatchStream) -> None:
        self.method, self.stream = method, stream
        self.target_features: Tensor | None = None  # of all images, if they were asked for

    @property
    def source_labels(self) -> Tensor:
        return torch.from_numpy(self.stream.source.labels).to(self.stream.inputs.device)

    def __call__(
        self, domain: Domain, compute: Callable[[Tensor], Tensor] | None = None, limit: int | None = None
    ) -> Tensor:
        pixels = (self.stream.source if domain == "source" else self.stream.target).pixels
        count = len(pixels) if limit is None else min(limit, len(pixels))
        found = over_test_views(compute or self.method.features, pixels, self.stream.inputs, count)
        if domain == "target" and compute is None and limit is None:
            self.target_features = found
        return found

    def pretext(self, domain: Domain, batches: int) -> Iterator[PretextBatch]:
        for number in range(batches):
            batch = self.stream.whole_pretext(domain, number)
            assert batch is not None  # the method has a task, or it would not ask
            yield batch
