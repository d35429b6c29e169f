"""Mosaics that are made once and kept must be those that would be made, and damage must never go unnoticed."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_shelf import CROP, WHOLE, Counting, Fixed, inputs_for, pixels_of, preprocess_for, rows_files
from torch import Tensor

from unida.data.pixels import Pixels
from unida.features import pool as pool_module
from unida.features.pool import Pool
from unida.features.shelf import Shelf
from unida.features.stem import Stem, stem_of
from unida.models.backbone import Backbone, create_backbone
from unida.recipes.base import Made
from unida.recipes.mosaic import Mosaic
from unida.recipes.splice import Splice

CHUNK = 8
SIZE = 3 * CHUNK
TIMED = 2  # chunks that are computed to measure how long it takes


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "CHUNK", CHUNK)


def pool_for(backbone: Backbone, pixels: Pixels, cache: Path, size: int = SIZE, grid: int = 2) -> Pool:
    stem = stem_of(backbone, CROP, "fp16")
    return Pool(Mosaic(grid, pool=size), pixels, preprocess_for(backbone), stem, cache / "features")


def counted_pool(
    backbone: Backbone, pixels: Pixels, cache: Path, size: int = SIZE, last_call: int | None = None
) -> tuple[Pool, Counting]:
    """A pool, and the count of chunks that it computes, those of the timing included."""
    counting = Counting(stem_of(backbone, CROP, "fp16"), last_call)
    recipe = Mosaic(pool=size)
    return Pool(recipe, pixels, preprocess_for(backbone), counting.stem, cache / "features"), counting


def all_of(pool: Pool) -> Made:
    """Every mosaic, in order."""
    made = pool.draw(pool.size, Fixed(np.arange(pool.size)), WHOLE)  # type: ignore[arg-type]
    return made._replace(images=made.images.float())


def assert_right(pool: Pool, apart: Path) -> None:
    """It holds what the same pool holds if it is made at once, somewhere else."""
    other = Pool(pool.recipe, pool.pixels, pool.preprocess, pool.stem, apart / "features")
    other.prepare(visible=False)
    found, expected = all_of(pool), all_of(other)
    torch.testing.assert_close(found.images, expected.images, rtol=2e-3, atol=2e-3)
    assert torch.equal(found.labels, expected.labels) and torch.equal(found.of, expected.of)


def identity_stem() -> Stem:
    """Keeps the images themselves."""
    return Stem(lambda images: images, (3, CROP, CROP), "identity", "fp16")


@dataclass(frozen=True)
class Selection:
    """A recipe that makes nothing new: it takes the images in the order of a draw."""

    pool: int
    name: ClassVar[str] = "selected images"
    key: ClassVar[str] = "selection"

    def make_of_several(self, images: Tensor, of: np.ndarray, draw: np.random.Generator, count: int) -> Made:
        assert len(set(of.tolist())) == len(of) == len(images)
        chosen = draw.permutation(len(images))[:count]
        return Made(images[chosen], torch.from_numpy(chosen % 3), torch.from_numpy(of[chosen, None]))


def test_a_mosaic_is_of_the_images_that_are_named_and_as_many_as_its_label_says(
    backbone: Backbone, tmp_path: Path
) -> None:
    """Images of one colour each: what a cell shows tells which image it was cut from."""
    (tmp_path / "plain").mkdir()
    for i in range(9):
        Image.new("RGB", (40, 40), (28 * i, 255 - 28 * i, 10)).save(tmp_path / "plain" / f"{i}.png")
    pixels = pixels_of(tmp_path / "plain", tmp_path)
    preprocess = preprocess_for(backbone)
    pool = Pool(Mosaic(pool=SIZE), pixels, preprocess, identity_stem(), tmp_path / "features")
    pool.prepare(visible=False)
    batch = pool.draw(200, np.random.default_rng(0), WHOLE)
    assert batch.images.shape == (200, 3, CROP, CROP) and batch.labels.dtype == torch.int64
    assert batch.of.shape == (200, 4)
    colours = preprocess.test_view(pixels, np.arange(len(pixels)))[:, :, 0, 0]  # (N, 3)
    cells = batch.images.float().unflatten(3, (2, -1)).unflatten(2, (2, -1)).mean(dim=(3, 5)).permute(0, 2, 3, 1)
    torch.testing.assert_close(cells.flatten(1, 2), colours[batch.of], rtol=2e-3, atol=2e-3)
    assert [len(set(of)) for of in batch.of.tolist()] == (batch.labels + 1).tolist()
    assert set(batch.labels.tolist()) == {0, 1, 2, 3}


def test_kept_are_features_of_what_the_recipe_makes_with_labels_and_origins(
    backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    recipe, preprocess = Selection(SIZE), preprocess_for(backbone)
    as_images = Pool(recipe, pixels, preprocess, identity_stem(), tmp_path / "features")
    as_features = Pool(recipe, pixels, preprocess, stem_of(backbone, CROP, "fp16"), tmp_path / "features")
    for pool in (as_images, as_features):
        pool.prepare(visible=False)
    images, features = all_of(as_images), all_of(as_features)
    with torch.no_grad():
        expected = backbone.stem(images.images)
    torch.testing.assert_close(features.images, expected, rtol=2e-2, atol=2e-2)  # images have 16 bits, too
    assert torch.equal(features.labels, images.labels) and torch.equal(features.of, images.of)


def test_a_chunk_is_of_fresh_views_of_distinct_images(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    preprocess = preprocess_for(backbone)
    pool = Pool(Selection(SIZE), pixels, preprocess, identity_stem(), tmp_path / "features")
    pool.prepare(visible=False)
    made = all_of(pool)
    room, corners = 40 - CROP + 1, set()
    for image, (i,) in zip(made.images, made.of.tolist(), strict=True):
        whole = preprocess.normalise(torch.from_numpy(pixels.image(i).copy())[None])[0]
        crops = whole.unfold(1, CROP, 1).unfold(2, CROP, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)  # (room², 3, …)
        both = torch.cat([crops, crops.flip(3)])
        apart = (both - image).abs().flatten(1).amax(dim=1)
        assert apart.min() < 5e-3, f"no view of image {i}"
        corners.add(int(apart.argmin()) % room**2)
    assert len(corners) > SIZE // 2, "views are drawn"
    in_chunks = made.of.view(3, CHUNK)
    assert all(len(set(chunk)) == CHUNK for chunk in in_chunks.tolist())
    assert not torch.equal(in_chunks[0], in_chunks[1])


def test_a_pool_is_made_once_and_found_by_the_next_run(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    first, counting = counted_pool(backbone, pixels, tmp_path)
    assert first.count_missing() == SIZE
    first.prepare(visible=False)
    assert counting.calls == 3 + TIMED
    sizes = [path.stat().st_size for path in rows_files(tmp_path)]
    again, counting = counted_pool(backbone, pixels, tmp_path)
    assert again.count_missing() == 0
    again.prepare(visible=False)
    assert counting.calls == 0
    assert [path.stat().st_size for path in rows_files(tmp_path)] == sizes
    assert all(torch.equal(*both) for both in zip(all_of(first), all_of(again), strict=True))


def test_a_larger_pool_adds_to_a_smaller_one(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    small = pool_for(backbone, pixels, tmp_path, size=CHUNK)
    small.prepare(visible=False)
    large, counting = counted_pool(backbone, pixels, tmp_path)
    large.prepare(visible=False)
    assert counting.calls == 2 + TIMED
    assert torch.equal(all_of(large).images[:CHUNK], all_of(small).images)
    assert_right(large, tmp_path / "apart")
    drawn = small.draw(300, np.random.default_rng(0), WHOLE).images  # from its own mosaics alone
    assert len(drawn.flatten(1).unique(dim=0)) == CHUNK


@pytest.mark.parametrize(("size", "made"), [(1, CHUNK), (CHUNK, CHUNK), (CHUNK + 1, 2 * CHUNK)])
def test_the_size_is_rounded_up_to_whole_chunks(
    backbone: Backbone, pixels: Pixels, tmp_path: Path, size: int, made: int
) -> None:
    pool = pool_for(backbone, pixels, tmp_path, size=size)
    pool.prepare(visible=False)
    assert pool.size == made == len(pool.features.row_of)
    drawn = pool.draw(400, np.random.default_rng(0), WHOLE).images
    assert len(drawn.flatten(1).unique(dim=0)) == made  # all are used


def test_a_kill_half_way_keeps_what_was_made(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    killed, _ = counted_pool(backbone, pixels, tmp_path, last_call=2 + TIMED)
    with pytest.raises(KeyboardInterrupt):
        killed.prepare(visible=False)
    resumed, counting = counted_pool(backbone, pixels, tmp_path)
    resumed.prepare(visible=False)
    assert counting.calls == 1 + TIMED
    assert_right(resumed, tmp_path / "apart")


@pytest.mark.parametrize("appended", [1, 2, 5])
def test_a_kill_between_two_shelves_is_made_good(
    appended: int, backbone: Backbone, pixels: Pixels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features, labels and origins are kept one after the other: some of a chunk may be there without the rest."""
    calls, append = [], Shelf.append

    def dies(shelf: Shelf, digests: list[bytes], values: Tensor) -> None:
        if len(calls) == appended:
            raise KeyboardInterrupt
        calls.append(1)
        append(shelf, digests, values)

    with monkeypatch.context() as patched:
        patched.setattr(Shelf, "append", dies)
        with pytest.raises(KeyboardInterrupt):
            pool_for(backbone, pixels, tmp_path).prepare(visible=False)
    resumed = pool_for(backbone, pixels, tmp_path)
    resumed.prepare(visible=False)
    assert_right(resumed, tmp_path / "apart")


@pytest.mark.parametrize(
    ("shelf", "file", "lost"),
    [
        (0, "rows.16", 1),
        (0, "rows.16", 9),
        (0, "index", 3),
        (0, "index", 1000),
        (1, "rows.16", 1000),
        (1, "index", 9),
        (2, "rows.16", 3),
        (2, "index", 1),
    ],
)
def test_a_truncated_shelf_is_completed(
    shelf: int,
    file: str,
    lost: int,
    backbone: Backbone,
    pixels: Pixels,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whichever of the three, wherever it ends: within a mosaic, within a chunk, before everything."""
    first = pool_for(backbone, pixels, tmp_path)
    first.prepare(visible=False)
    path = rows_files(tmp_path)[shelf].with_name(file)
    entry = path.stat().st_size // first.size
    os.truncate(path, max(0, path.stat().st_size - lost * entry + 1))
    resumed = pool_for(backbone, pixels, tmp_path)
    assert "end early" in caplog.text or lost == 1000
    assert resumed.count_missing() == min(SIZE, -(-lost // CHUNK) * CHUNK)
    resumed.prepare(visible=False)
    assert resumed.count_missing() == 0
    assert_right(resumed, tmp_path / "apart")
    once_more = pool_for(backbone, pixels, tmp_path, size=5 * CHUNK)  # what is written after it is right, too
    once_more.prepare(visible=False)
    assert_right(once_more, tmp_path / "apart")
    assert len(once_more.features.row_of) == 5 * CHUNK
    assert_right(pool_for(backbone, pixels, tmp_path, size=5 * CHUNK), tmp_path / "apart")


@pytest.mark.parametrize("shelf", range(3))
def test_a_damaged_shelf_is_made_again(
    shelf: int, backbone: Backbone, pixels: Pixels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool_for(backbone, pixels, tmp_path).prepare(visible=False)
    path = rows_files(tmp_path)[shelf]
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    again = pool_for(backbone, pixels, tmp_path)
    assert "damaged" in caplog.text
    assert again.count_missing() == SIZE
    again.prepare(visible=False)
    assert_right(again, tmp_path / "apart")


def test_names_of_folders_and_files_do_not_matter(backbone: Backbone, folders: Path, tmp_path: Path) -> None:
    pictures = folders / "source"
    first = pool_for(backbone, pixels_of(pictures, tmp_path), tmp_path)
    first.prepare(visible=False)
    other = tmp_path / "zz"
    other.mkdir()
    for i, path in enumerate(sorted(pictures.rglob("*.png"), reverse=True)):
        shutil.copyfile(path, other / f"{i:02}.png")
    renamed = pool_for(backbone, pixels_of(other, tmp_path), tmp_path)
    assert renamed.features.folder == first.features.folder
    assert not renamed.count_missing()
    apart = pool_for(backbone, pixels_of(other, tmp_path / "apart"), tmp_path / "apart")
    apart.prepare(visible=False)
    assert all(torch.equal(*both) for both in zip(all_of(apart), all_of(first), strict=True))


def test_other_images_another_grid_or_stem_have_a_shelf_of_their_own(
    backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    other_stem = create_backbone("test_resnet", "none")
    other_stem.freeze("layer1", torch.float16)
    pools = [
        pool_for(backbone, pixels, tmp_path),
        pool_for(backbone, pixels, tmp_path, grid=3),
        pool_for(backbone, pixels.subset(np.arange(7)), tmp_path),
        pool_for(other_stem, pixels, tmp_path),
    ]
    for pool in pools:
        pool.prepare(visible=False)
    assert len({pool.features.folder for pool in pools}) == 4
    assert len(rows_files(tmp_path)) == 3 * 4
    for number, pool in enumerate(pools):
        assert_right(pool, tmp_path / f"apart{number}")
    labels = [all_of(pool).labels.max() for pool in pools]
    assert labels[1] > 3 >= labels[0]


def test_all_processes_together_draw_what_one_draws(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    pool = pool_for(backbone, pixels, tmp_path)
    pool.prepare(visible=False)
    whole = pool.draw(9, np.random.default_rng(5), WHOLE)
    parts = [pool.draw(9, np.random.default_rng(5), part) for part in (slice(0, 4), slice(4, 9))]
    for field in ("images", "labels", "of"):
        assert torch.equal(torch.cat([getattr(part, field) for part in parts]), getattr(whole, field))


def test_inputs_draw_from_the_pool_of_the_domain(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    """Each domain has mosaics of its own images, whatever batch is at hand; a step's are fixed by its generator."""
    inputs, _ = inputs_for(backbone, tmp_path, views=1)
    source, target = pixels.subset(np.arange(4)), pixels.subset(np.arange(4, 9))
    recipe = Mosaic(2, pool=CHUNK)
    domains = {"source": source, "target": target}
    assert inputs.count_missing_in_pools({"pretext": recipe}, domains) == 2 * CHUNK
    inputs.prepare_pools({"pretext": recipe}, domains, visible=False)
    assert inputs.count_missing_in_pools({"pretext": recipe}, domains) == 0
    for domain in (source, target):
        index = np.arange(4)
        views = torch.zeros(4, *inputs.stem.shape)
        batch = inputs.made(recipe, domain, index, np.random.default_rng(3), WHOLE, views)
        again = inputs.made(recipe, domain, index, np.random.default_rng(3), WHOLE, views)
        assert all(torch.equal(*both) for both in zip(batch, again, strict=True))
        assert batch.images.dtype == torch.float32 and batch.images.shape == views.shape
        kept = all_of(pool_for(backbone, domain, tmp_path, size=CHUNK))
        for features, label, of in zip(*batch, strict=True):
            same = (kept.images == features).flatten(1).all(dim=1)
            assert same.any()
            assert (kept.labels[same] == label).all() and (kept.of[same] == of).all()
            assert of.max() < len(domain)


def test_a_recipe_for_the_source_has_no_pool_of_the_target(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    inputs, _ = inputs_for(backbone, tmp_path, views=1)
    source, target = pixels.subset(np.arange(4)), pixels.subset(np.arange(4, 9))
    domains, recipe = {"source": source, "target": target}, Splice(pool=CHUNK)
    assert inputs.count_missing_in_pools({"spliced": recipe}, domains) == CHUNK
    inputs.prepare_pools({"spliced": recipe}, domains, visible=False)
    made = inputs.made(recipe, source, np.arange(4), np.random.default_rng(0), WHOLE, torch.empty(0))
    assert len(made.images) == 4 and made.of.shape == (4, 2) and made.of.max() < 4
    with pytest.raises(KeyError):
        inputs.made(recipe, target, np.arange(4), np.random.default_rng(0), WHOLE, torch.empty(0))
