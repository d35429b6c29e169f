"""Features at a tap, computed once per image and view and kept on disk.

When the layers up to a tap are frozen, their output for an image never changes. View 0 is the central crop (the test
view); views 1…V are random crops and mirrors that depend on the image's content and the view's number alone. So other
methods, seeds, pairs and folders that hold the same image find its features there. What a recipe makes from one
image is kept in the same way; what it makes from several images is a pool (`unida.features.pool`).

Test views are computed before training, with progress. Other views, and what recipes make for steps, are computed when
a step first needs them: training starts at once, and views that no step draws are never computed.

Each view has a shelf of its own (`unida.features.shelf`) in the folder ``<cache_dir>/features/<key>``. The key is made
of the backbone's weights, the tap, the normalisation, the resizing, the crop, the recipe, the view and the number
format: a shelf is never out of date.
"""

import hashlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unida.data.augment import Preprocess, Views, centre_views, random_views
from unida.data.packs import DECODER_VERSION
from unida.data.pixels import Pixels
from unida.errors import UserError
from unida.features.inputs import choices_of
from unida.features.pool import Pool
from unida.features.shelf import Shelf
from unida.features.stem import TORCH_FORMAT, Stem
from unida.recipes.base import ImageRecipe, Made, Recipe, SetRecipe, WaysRecipe
from unida.support.progress import data_size, duration, progress
from unida.support.random import generator

log = logging.getLogger("unida")

BATCH = 64  # images computed and stored at a time
LARGEST_IN_MEMORY = 2**30  # bytes of vectors of one view
TEST_VIEW = range(1)
FORMAT_VERSION = 1  # raise it whenever the same key would hold other numbers


class Job(NamedTuple):
    """Views of images that a run needs."""

    pixels: Pixels
    views: range
    recipe: ImageRecipe | None = None


class _Missing(NamedTuple):
    pixels: Pixels
    recipe: ImageRecipe | None
    view: int
    images: np.ndarray  # indices of those without features


class _Column:
    """One view of each image of a set, or the labels of what a recipe makes from it: rows of a shelf.

    Vectors are small: once read, they stay in memory. Maps are read from the shelf each time.
    """

    def __init__(self, pixels: Pixels, shelf: Shelf) -> None:
        self.pixels, self.shelf = pixels, shelf  # with the pixels: as long as they live, no other object has their id
        self.rows = np.full(len(pixels), -1, dtype=np.int64)  # where each image's row lies; −1: not there
        small = len(shelf.shape) <= 1 and len(pixels) * shelf.row_bytes <= LARGEST_IN_MEMORY
        with torch.inference_mode(False):  # a tensor made in inference mode could not be written to outside of it
            self.values = torch.empty((len(pixels), *shelf.shape), dtype=shelf.kind) if small else None
        self.is_read = np.zeros(len(pixels), dtype=bool)
        self.find(np.arange(len(pixels)))

    def find(self, index: np.ndarray) -> np.ndarray:
        """Those of the images at `index` that are not on the shelf, each once."""
        absent = np.unique(index[self.rows[index] < 0])
        if len(absent):
            row_of = self.shelf.row_of
            self.rows[absent] = [row_of.get(_digest(self.pixels, i), -1) for i in absent]
        return absent[self.rows[absent] < 0]

    def read(self, index: np.ndarray) -> Tensor:
        """(B, …) in the stored format."""
        if self.values is None:
            return self.shelf.read(self.rows[index])
        if len(new := np.unique(index[~self.is_read[index]])):
            self.values[torch.from_numpy(new)] = self.shelf.read(self.rows[new])
            self.is_read[new] = True
        return self.values[torch.from_numpy(index)]


class FeatureInputs:
    """Gives methods features at the tap, while `PixelInputs` gives images.

    Args:
        views: V, random views kept per image; a training step draws one of them for each image. With 0, training uses
            the test view.
    """

    def __init__(self, preprocess: Preprocess, stem: Stem, views: int, cache_dir: Path) -> None:
        self.preprocess, self.stem, self.views, self.cache_dir = preprocess, stem, views, cache_dir
        self.device = preprocess.device
        self._shelves: dict[str, Shelf] = {}
        self._columns: dict[tuple[int, int, str | None, bool], _Column] = {}
        self._pools: dict[tuple[int, str], Pool] = {}

    @property
    def every_view(self) -> range:
        return range(self.views + 1)

    @property
    def training_views(self) -> range:
        return range(1, self.views + 1)

    def training_view(self, pixels: Pixels, index: np.ndarray, draw: np.random.Generator, part: slice) -> Tensor:
        """A random one of the kept views of each image at `index[part]`: (B, *shape) float32 on the device."""
        return self._to_device(self._gather(pixels, index[part], self._choose(len(index), draw)[part]))

    def _choose(self, count: int, draw: np.random.Generator) -> np.ndarray:
        """(B,) a view's number for each image of a batch."""
        return draw.integers(1, self.views + 1, size=count) if self.views else np.zeros(count, dtype=np.int64)

    def test_view(self, pixels: Pixels, index: np.ndarray) -> Tensor:
        """The central crop's features: (B, *shape) float32 on the device."""
        return self._to_device(self._gather(pixels, index, np.zeros(len(index), dtype=np.int64)))

    def made(
        self, recipe: Recipe, pixels: Pixels, index: np.ndarray, draw: np.random.Generator, part: slice, views: Tensor
    ) -> Made:
        """Kept views of what the recipe makes from each image, or a random part of the pool if it needs several."""
        if isinstance(recipe, SetRecipe):
            features, labels, of = self._pools[id(pixels), recipe.key].draw(len(index), draw, part)
        else:
            assert isinstance(recipe, ImageRecipe)
            chosen, of = self._choose(len(index), draw)[part], torch.from_numpy(index[part, None])
            if isinstance(recipe, WaysRecipe):
                ways = recipe.choose(len(index), draw)[part]
                features = self._gather_ways(index[part], chosen, ways, pixels, recipe)
                labels = torch.from_numpy(ways)
            else:
                features = self._gather(pixels, index[part], chosen, recipe)
                labels = self._gather(pixels, index[part], chosen, recipe, labels=True)
        labels, of = (numbers.to(self.device, non_blocking=True) for numbers in (labels, of))
        return Made(self._to_device(features), labels, of)

    def made_test_view(self, recipe: ImageRecipe, pixels: Pixels, index: np.ndarray) -> Tensor:
        """The features of what the recipe makes from the central crop."""
        return self._to_device(self._gather(pixels, index, np.zeros(len(index), dtype=np.int64), recipe))

    def jobs(self, recipes: Mapping[str, Recipe], sets: Iterable[tuple[Pixels, range]]) -> list[Job]:
        """The views of images, and of what each recipe makes from one image."""
        each = [recipe for recipe in recipes.values() if isinstance(recipe, ImageRecipe)]
        ways = [way for recipe in each for way in (recipe.ways if isinstance(recipe, WaysRecipe) else (recipe,)) if way]
        different = {way.key: way for way in ways}.values()
        return [Job(pixels, views, way) for way in (None, *different) for pixels, views in sets]

    def prepare_pools(self, recipes: Mapping[str, Recipe], domains: Mapping[str, Pixels], visible: bool) -> None:
        """Fill the pools of recipes that need several images, if they are not there yet.

        Args:
            domains: by name, "source" or "target"; a recipe has a pool of each domain that it is for.
        """
        for pixels, pool in self._open_pools(recipes, domains):
            try:
                pool.prepare(visible)
            except OSError as error:
                raise self._cannot_keep(error) from error
            self._pools[id(pixels), pool.recipe.key] = pool

    def count_missing_in_pools(self, recipes: Mapping[str, Recipe], domains: Mapping[str, Pixels]) -> int:
        """How many are still to be made; arguments as in `prepare_pools`."""
        return sum(pool.count_missing() for _, pool in self._open_pools(recipes, domains))

    def _open_pools(self, recipes: Mapping[str, Recipe], domains: Mapping[str, Pixels]) -> list[tuple[Pixels, Pool]]:
        several = [recipe for recipe in recipes.values() if isinstance(recipe, SetRecipe)]
        pairs = [(it, pixels) for it in several for domain, pixels in domains.items() if domain in it.domains]
        folder = self.cache_dir / "features"
        try:
            return [(px, Pool(it, px, self.preprocess, self.stem, folder)) for it, px in pairs]
        except OSError as error:
            raise self._cannot_keep(error) from error

    def count_missing(self, jobs: Sequence[Job]) -> int:
        """How many views are still to be computed."""
        return sum(len(missing.images) for missing in self._find_missing(jobs))

    def prepare(self, jobs: Sequence[Job], visible: bool) -> None:
        """Compute what is not there yet: report how much it is and how long it takes, then show progress."""
        todo = self._find_missing(jobs)
        total = sum(len(missing.images) for missing in todo)
        if not total:
            log.info("features: all found in %s", self.cache_dir / "features")
            return
        self._announce(todo[0], total)
        try:
            self._compute_all(todo, total, visible)
        except OSError as error:
            raise self._cannot_keep(error) from error

    def _cannot_keep(self, error: OSError) -> UserError:
        return UserError(
            f"{error.filename or self.cache_dir}: cannot keep features there ({error.strerror}): free space or choose "
            "another --cache"
        )

    def _compute_all(self, todo: list[_Missing], total: int, visible: bool) -> None:
        done = 0
        with progress("features", total, visible=visible) as report:
            for pixels, recipe, view, missing in todo:
                shelves = self._shelves_of(pixels, view, recipe)
                with shelves[0].computing:
                    for shelf in shelves:
                        shelf.refresh()  # another process may have computed some by now
                    left = self._missing(pixels, view, recipe)
                    for start in range(0, len(left), BATCH):
                        some = left[start : start + BATCH]
                        self._store(pixels, some, np.full(len(some), view), recipe)
                        report(done + min(start + BATCH, len(left)))
                done += len(missing)

    def _store(self, pixels: Pixels, index: np.ndarray, views: np.ndarray, recipe: ImageRecipe | None) -> None:
        """Compute and keep one view of each image, except those that a shelf still has after a kill or damage."""
        computed = self._compute(pixels, index, views, recipe)
        for view in np.unique(views).tolist():
            at = np.flatnonzero(views == view)
            for shelf, values in zip(self._shelves_of(pixels, view, recipe), computed, strict=False):
                shelf.refresh()
                new = [n for n in at.tolist() if _digest(pixels, index[n]) not in shelf.row_of]
                shelf.append([_digest(pixels, index[n]) for n in new], values[new])

    def _find_missing(self, jobs: Sequence[Job]) -> list[_Missing]:
        """Views that are not there, by job; an image that two jobs need counts once."""
        found, counted = [], set[tuple[bytes, str]]()
        for pixels, views, recipe in jobs:
            for view in views:
                key = self._key(pixels, view, recipe)
                index = [i for i in self._missing(pixels, view, recipe) if (_digest(pixels, i), key) not in counted]
                counted.update((_digest(pixels, i), key) for i in index)
                if index:
                    found.append(_Missing(pixels, recipe, view, np.array(index)))
        return found

    def seconds_per_view(self, pixels: Pixels, index: np.ndarray) -> float:
        """Seconds that the frozen part takes for an image on this machine."""
        sample = index[:16]
        views = np.zeros(len(sample), dtype=np.int64)
        self._compute(pixels, sample, views, None)  # the first call is slower than the rest
        start = time.perf_counter()
        self._compute(pixels, sample, views, None)
        return (time.perf_counter() - start) / len(sample)

    def _announce(self, first: _Missing, total: int) -> None:
        seconds = self.seconds_per_view(first.pixels, first.images) * total
        size = data_size(total * 2 * int(np.prod(self.stem.shape)))
        where = self.cache_dir / "features"
        log.info("features: %d views to compute once, %s in %s, about %s", total, size, where, duration(seconds))

    def _missing(self, pixels: Pixels, view: int, recipe: ImageRecipe | None) -> np.ndarray:
        """(M,) indices of images without features or labels, each content once."""
        shelves, seen, missing = self._shelves_of(pixels, view, recipe), set[bytes](), []
        for i in range(len(pixels)):
            digest = _digest(pixels, i)
            if digest not in seen and any(digest not in shelf.row_of for shelf in shelves):
                seen.add(digest)
                missing.append(i)
        return np.array(missing, dtype=np.int64)

    def _compute(
        self, pixels: Pixels, index: np.ndarray, views: np.ndarray, recipe: ImageRecipe | None
    ) -> tuple[Tensor, Tensor]:
        """The stem's output for one view of each image, (B, *shape) float32 on the host; and the recipe's labels."""
        images, labels = self._make(pixels, index, views, recipe)
        with torch.inference_mode():
            return self.stem.run(images).float().cpu(), labels.cpu()

    @torch.inference_mode()
    def _make(
        self, pixels: Pixels, index: np.ndarray, views: np.ndarray, recipe: ImageRecipe | None
    ) -> tuple[Tensor, Tensor]:
        """One view of each image, or what the recipe makes from it, and the recipe's labels."""
        images = self.preprocess.view(pixels, index, self._places(pixels, index, views, recipe))
        if recipe is None:
            return images, torch.empty(0)
        return recipe.make_each(images, choices_of(recipe, pixels, index, views))

    def _places(self, pixels: Pixels, index: np.ndarray, views: np.ndarray, recipe: ImageRecipe | None) -> Views:
        """Crops and mirrors that depend on each image's content and the view's number, not on the run."""
        purpose = "view of" if recipe is None else f"view for {recipe.key} of"
        crop, parts = self.preprocess.crop, []
        for i, view in zip(index.tolist(), views.tolist(), strict=True):
            shape = pixels.shapes[i : i + 1]
            draw = generator(0, f"{purpose} {pixels.files[i].digest}", view)
            parts.append(random_views(draw, shape, crop) if view else centre_views(shape, crop))
        return Views(*(np.concatenate(values) for values in zip(*parts, strict=True)))

    def _gather(
        self,
        pixels: Pixels,
        index: np.ndarray,
        views: np.ndarray,
        recipe: ImageRecipe | None = None,
        labels: bool = False,
    ) -> Tensor:
        """(B, …) rows of kept features, or of a recipe's labels, on the host; computes those that are not there."""
        self._fill(pixels, index, views, recipe)
        gathered: Tensor | None = None
        for view in np.unique(views).tolist():
            at = np.flatnonzero(views == view)
            column = self._column(pixels, view, recipe, labels)
            if len(at) == len(index):
                return column.read(index)
            if gathered is None:
                gathered = torch.empty((len(index), *column.shelf.shape), dtype=column.shelf.kind)
            gathered[at] = column.read(index[at])
        return gathered if gathered is not None else torch.empty((0, *self.stem.shape))

    def _gather_ways(
        self, index: np.ndarray, views: np.ndarray, ways: np.ndarray, pixels: Pixels, recipe: WaysRecipe
    ) -> Tensor:
        """As `_gather`, with each image in its own way."""
        gathered = torch.empty((len(index), *self.stem.shape), dtype=TORCH_FORMAT[self.stem.format])
        for way in np.unique(ways).tolist():
            at = np.flatnonzero(ways == way)
            gathered[at] = self._gather(pixels, index[at], views[at], recipe.ways[way])
        return gathered

    def _fill(self, pixels: Pixels, index: np.ndarray, views: np.ndarray, recipe: ImageRecipe | None) -> None:
        """Compute what is missing of these views, all of it in one call of the stem."""
        absent = {  # by content: two files may hold the same picture, and a shelf has a place for one
            (_digest(pixels, i), view): (i, view)
            for view in np.unique(views).tolist()
            for i in self._absent(pixels, index, views, view, recipe)
        }
        if not absent:
            return
        images, of_views = (np.array(numbers, dtype=np.int64) for numbers in zip(*absent.values(), strict=True))
        try:
            self._store(pixels, images, of_views, recipe)
        except OSError as error:
            raise self._cannot_keep(error) from error
        for view in np.unique(of_views).tolist():
            assert not len(self._absent(pixels, index, views, view, recipe))

    def _absent(
        self, pixels: Pixels, index: np.ndarray, views: np.ndarray, view: int, recipe: ImageRecipe | None
    ) -> np.ndarray:
        """Images of a batch whose features or labels of this view are not there, each once."""
        wanted = index[views == view]
        columns = [
            self._column(pixels, view, recipe, labels) for labels in ((False,) if recipe is None else (False, True))
        ]
        absent = np.unique(np.concatenate([column.find(wanted) for column in columns]))
        if len(absent):  # another process may have computed some by now
            for column in columns:
                column.shelf.refresh()
            absent = np.unique(np.concatenate([column.find(absent) for column in columns]))
        return absent

    def _to_device(self, features: Tensor) -> Tensor:
        """16-bit numbers on the host → float32 on the device, channels-last if they are maps."""
        if self.device.type == "cuda":
            features = features.pin_memory()
        on_device = features.to(self.device, non_blocking=True).float()
        return on_device.contiguous(memory_format=torch.channels_last) if on_device.ndim == 4 else on_device

    def _column(self, pixels: Pixels, view: int, recipe: ImageRecipe | None, labels: bool) -> _Column:
        key = (id(pixels), view, None if recipe is None else recipe.key, labels)
        if key not in self._columns:
            self._columns[key] = _Column(pixels, self._shelf(pixels, view, recipe, labels))
        return self._columns[key]

    def _key(self, pixels: Pixels, view: int, recipe: ImageRecipe | None) -> str:
        """Identifies a shelf."""
        stem, resizing = self.stem, f"{pixels.resize} {pixels.size} decoder {DECODER_VERSION}"
        key = f"{FORMAT_VERSION} | {stem.key} | {stem.format} {stem.shape} | {(resizing, self.preprocess.crop, view)}"
        return key if recipe is None else f"{key} | {recipe.key}"

    def _shelves_of(self, pixels: Pixels, view: int, recipe: ImageRecipe | None) -> list[Shelf]:
        """The shelves of a view's features and of a recipe's labels."""
        kinds = (False,) if recipe is None else (False, True)
        return [self._shelf(pixels, view, recipe, labels) for labels in kinds]

    def _shelf(self, pixels: Pixels, view: int, recipe: ImageRecipe | None = None, labels: bool = False) -> Shelf:
        key = self._key(pixels, view, recipe) + (" | labels" if labels else "")
        if key not in self._shelves:
            name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
            shape, kind = self.stem.shape, TORCH_FORMAT[self.stem.format]
            if labels:
                assert recipe is not None
                first = np.zeros(1, dtype=np.int64)
                example = self._make(pixels, first, np.array([view]), recipe)[1]
                shape, kind = tuple(example.shape[1:]), example.dtype
            try:
                self._shelves[key] = Shelf(self.cache_dir / "features" / name, shape, kind)
            except OSError as error:
                raise self._cannot_keep(error) from error
        return self._shelves[key]


def _digest(pixels: Pixels, i: int) -> bytes:
    return bytes.fromhex(pixels.files[i].digest)
