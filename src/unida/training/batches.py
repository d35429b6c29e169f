"""The batches of a run, and passes over all images. All draws are functions of the seed and the step."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from unida.config import Config
from unida.data.domains import Source, Target
from unida.data.pixels import Pixels
from unida.data.sampling import BalancedSampler, ShuffledSampler, shard
from unida.features.inputs import Inputs
from unida.methods.base import DomainName, Method, Phase, SourceBatch, TargetBatch, Want
from unida.recipes.base import ImageRecipe, Made, Recipe
from unida.support.fabric import Fabric
from unida.support.random import generator

SWEEP_BATCH = 64
WHOLE = slice(0, None)


class BatchStream:
    """The batches of a run: step t's is a function of the seed and t, and each process gets its slice of it."""

    def __init__(
        self,
        source: Source,
        target: Target,
        inputs: Inputs,
        config: Config,
        fabric: Fabric,
        recipes: Mapping[str, Recipe],
    ) -> None:
        self.batch_size, self.seed = config.training.batch_size, config.training.seed
        self.source, self.target, self.inputs, self.recipes = source, target, inputs, recipes
        self.rank, self.processes = fabric.global_rank, fabric.world_size
        size, seed = self.batch_size, self.seed
        self.source_samplers: dict[str, BalancedSampler | ShuffledSampler] = {
            "balanced": BalancedSampler(source.labels, size, seed),
            "shuffled": ShuffledSampler(len(source.pixels), size, seed, "source epoch"),
        }
        self.target_sampler = ShuffledSampler(len(target.pixels), size, seed)

    def pixels(self, domain: DomainName) -> Pixels:
        return (self.source if domain == "source" else self.target).pixels

    def batch(self, step: int, phase: Phase, wants: Sequence[Want] = ()) -> tuple[SourceBatch, TargetBatch]:
        """The batches of a phase's step; a batch that the phase does not use is empty."""
        nothing = np.zeros(0, dtype=np.int64)
        source_index = self.source_samplers[phase.source].batch(step) if phase.source is not None else nothing
        target_index = self.target_sampler.batch(step)
        for want in wants:
            assert phase.source is not None or want.domain == "target", f"phase {phase.name!r} has no source"
        source_images = self._views("source", step, source_index)
        of_batch = any(want.domain == "target" and want.indices is None for want in wants)
        target_images = self._views("target", step, target_index if phase.target or of_batch else nothing)
        source_extra = self._wanted("source", step, wants, source_images, source_index)
        target_extra = self._wanted("target", step, wants, target_images, target_index)
        if not phase.target:
            target_index, target_images = nothing, target_images[:0]
        mine = source_index[shard(source_index, self.rank, self.processes)]
        return (
            SourceBatch(source_images, self._on_device(self.source.labels[mine]), self._on_device(mine), source_extra),
            TargetBatch(
                target_images,
                self._on_device(target_index[shard(target_index, self.rank, self.processes)]),
                target_extra,
            ),
        )

    def _views(self, domain: DomainName, step: int, index: np.ndarray) -> Tensor:
        """This process's share of the batch's training views."""
        if not len(index):
            return torch.empty(0, device=self.inputs.device)
        draw = generator(self.seed, f"{domain} view", step)
        part = shard(index, self.rank, self.processes)
        return self.inputs.training_view(self.pixels(domain), index, draw, part)

    def _wanted(
        self, domain: DomainName, step: int, wants: Sequence[Want], images: Tensor, index: np.ndarray
    ) -> dict[str, Made]:
        """What the method wants beside the batch. Processes divide what is made from the batch, like the batch.

        Images that it names are given to every process, all of them: losses on them are then the same on each, and so
        is their mean. A loss over classes cannot be divided into shares; a mean over images can.
        """
        found = {}
        for want in (want for want in wants if want.domain == domain):
            if want.indices is None:
                draw = generator(self.seed, f"{domain} {want.name}", step)  # its own stream: other draws do not change
                recipe, part = self.recipes[want.recipe or ""], shard(index, self.rank, self.processes)
                found[want.name] = self.inputs.made(recipe, self.pixels(domain), index, draw, part, images)
            else:
                draw = generator(self.seed, f"{domain} view, {want.name}", step)
                found[want.name] = self._views_of(domain, want.indices, want.recipe, draw)
        return found

    def _views_of(self, domain: DomainName, index: np.ndarray, recipe: str | None, draw: np.random.Generator) -> Made:
        pixels = self.pixels(domain)
        views = self.inputs.training_view(pixels, index, draw, WHOLE)
        if recipe is not None:
            return self.inputs.made(self.recipes[recipe], pixels, index, draw, WHOLE, views)
        which = self._on_device(index)
        return Made(views, torch.zeros_like(which), which[:, None])

    def made(self, domain: DomainName, recipe: str, number: int) -> Made:
        """A batch of what a recipe makes, outside the training steps; every process gets all of it."""
        draw = generator(self.seed, f"{domain} {recipe} to look at", number)
        index = draw.integers(len(self.pixels(domain)), size=self.batch_size)
        return self._views_of(domain, index, recipe, draw)

    def sweep(self, method: Method, phase: Phase) -> "AllImages":
        """For work over all images between the steps of a phase."""
        return AllImages(method, self, phase)

    def _on_device(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers).to(self.inputs.device, non_blocking=True)


def over_test_views(
    compute: Callable[[Tensor], Tensor],
    pixels: Pixels,
    inputs: Inputs,
    count: int | None = None,
    recipe: ImageRecipe | None = None,
) -> Tensor:
    """(N, …) float32: the result of `compute` for the test view of each image, or of the first `count`.

    Args:
        recipe: makes an image from each test view first.
    """
    index = np.arange(len(pixels) if count is None else count)
    found = []
    for batch in np.split(index, range(SWEEP_BATCH, len(index), SWEEP_BATCH)):
        views = inputs.test_view(pixels, batch) if recipe is None else inputs.made_test_view(recipe, pixels, batch)
        found.append(compute(views).float())
    return torch.cat(found)


def images_shown(source: SourceBatch, target: TargetBatch, wants: Sequence[Want], processes: int = 1) -> int:
    """Images of a step that go through the network; those that every process gets count once."""
    extras = {"source": source.extra, "target": target.extra}
    shared = len(source.images) + len(target.images)
    shared += sum(len(extras[want.domain][want.name].images) for want in wants if want.indices is None)
    alike = sum(len(want.indices) for want in wants if want.indices is not None)
    return shared * processes + alike


class AllImages:
    """The `Sweep` of a method in a phase: each process sees all images, so that all agree."""

    def __init__(self, method: Method, stream: BatchStream, phase: Phase) -> None:
        self.method, self.stream, self.phase = method, stream, phase
        self.target_features: Tensor | None = None  # of all images, if they were asked for

    @property
    def source_labels(self) -> Tensor:
        assert self.phase.source is not None, f"phase {self.phase.name!r} has no source"
        return torch.from_numpy(self.stream.source.labels).to(self.stream.inputs.device)

    def __call__(
        self,
        domain: DomainName,
        compute: Callable[[Tensor], Tensor] | None = None,
        limit: int | None = None,
        recipe: str | None = None,
    ) -> Tensor:
        assert domain in self.phase.sweeps, f"phase {self.phase.name!r} does not sweep over the {domain}"
        assert domain == "target" or self.phase.source is not None, f"phase {self.phase.name!r} has no source"
        assert recipe is None or (domain, recipe) in self.phase.sweeps_made, f"{recipe} of {domain} is not in its phase"
        pixels = self.stream.pixels(domain)
        count = len(pixels) if limit is None else min(limit, len(pixels))
        made_by = None if recipe is None else self.stream.recipes[recipe]
        assert made_by is None or isinstance(made_by, ImageRecipe)
        features = self.method.source_features if domain == "source" else self.method.features
        found = over_test_views(compute or features, pixels, self.stream.inputs, count, made_by)
        if domain == "target" and compute is None and limit is None and recipe is None:
            self.target_features = found
        return found

    def made(self, domain: DomainName, recipe: str, batches: int) -> Iterator[Made]:
        return (self.stream.made(domain, recipe, number) for number in range(batches))
