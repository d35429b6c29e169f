"""Mosaics that are made once and kept must be those that would be made, and damage must never go unnoticed."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_shelf import CROP, pixels_of, rows_files
from torch import Tensor

from unida.data.augment import Preprocess
from unida.data.pixels import Pixels
from unida.features.inputs import FeatureInputs
from unida.features.pool import PretextPool
from unida.features.shelf import Shelf, stem_of
from unida.models import pool as pool_module
from unida.models.backbone import Backbone, create_backbone
from unida.recipes.mosaic import InstanceCount, assemble

CHUNK = 8
WHOLE = slice(None)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "CHUNK", CHUNK)


def pool_for(backbone: Backbone, pixels: Pixels, cache: Path, size: int = 3 * CHUNK, grid: int = 2) -> PretextPool:
    preprocess = Preprocess(CROP, backbone.mean, backbone.std, torch.device("cpu"))
    return PretextPool(InstanceCount(grid), pixels, size, preprocess, stem_of(backbone, CROP, "fp16"), cache)


class Counting:
    """Counts the chunks that a pool makes; the two calls that measure the time are none."""

    def __init__(self, pool: PretextPool, monkeypatch: pytest.MonkeyPatch, dies_after: int | None = None) -> None:
        self.kept: list[int] = []
        keep = pool._keep

        def counted(names: list[bytes], features: Tensor) -> None:
            if len(self.kept) == dies_after:
                raise KeyboardInterrupt
            self.kept.append(len(names))
            keep(names, features)

        monkeypatch.setattr(pool, "_keep", counted)


def all_of(pool: PretextPool) -> Tensor:
    """Every mosaic, in order."""
    return pool.shelf.read(pool._rows).float()


def made_anew(pool: PretextPool) -> Tensor:
    return torch.cat([pool._compute(chunk) for chunk in range(pool.chunks)]).half().float()


def assert_right(pool: PretextPool) -> None:
    torch.testing.assert_close(all_of(pool), made_anew(pool), rtol=2e-3, atol=2e-3)


def test_kept_mosaics_are_the_stem_of_mosaics_and_labels_agree(
    backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    pool = pool_for(backbone, pixels, tmp_path)
    pool.prepare(visible=False)
    assert_right(pool)
    batch = pool.draw(200, np.random.default_rng(0), WHOLE)
    assert batch.images.shape == (200, *pool.stem.shape) and batch.labels.dtype == torch.int64
    kept = all_of(pool)
    counts = np.concatenate([pool._plan(chunk).layout.instances for chunk in range(3)])
    for features, label in zip(batch.images.float(), batch.labels.tolist(), strict=True):
        (found,) = (kept == features).flatten(1).all(dim=1).nonzero()[0].tolist()
        assert counts[found] == label + 1
    assert set(batch.labels.tolist()) == {0, 1, 2, 3}


def test_a_plan_is_of_fresh_views_of_distinct_images(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    pool = pool_for(backbone, pixels, tmp_path)
    images, views, layout = pool._plan(0)
    assert len(images) == CHUNK == len(set(images.tolist()))
    assert [len(set(row)) for row in layout.image.tolist()] == layout.instances.tolist()
    mosaics = assemble(pool.preprocess.view(pixels, images, views), layout, 2)
    with torch.no_grad():
        expected = backbone.stem(mosaics)
    torch.testing.assert_close(pool._compute(0), expected, rtol=1e-4, atol=1e-4)
    assert not np.array_equal(pool._plan(1).images, images)


def test_a_pool_is_made_once_and_found_by_the_next_run(
    backbone: Backbone, pixels: Pixels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pool_for(backbone, pixels, tmp_path)
    counting = Counting(first, monkeypatch)
    first.prepare(visible=False)
    assert counting.kept == [CHUNK] * 3
    size = rows_files(tmp_path)[0].stat().st_size
    again = pool_for(backbone, pixels, tmp_path)
    counting = Counting(again, monkeypatch)
    again.prepare(visible=False)
    assert counting.kept == []
    assert rows_files(tmp_path)[0].stat().st_size == size
    assert torch.equal(all_of(first), all_of(again))


def test_a_larger_pool_adds_to_a_smaller_one(
    backbone: Backbone, pixels: Pixels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = pool_for(backbone, pixels, tmp_path, size=CHUNK)
    small.prepare(visible=False)
    large = pool_for(backbone, pixels, tmp_path, size=3 * CHUNK)
    counting = Counting(large, monkeypatch)
    large.prepare(visible=False)
    assert counting.kept == [CHUNK] * 2
    assert torch.equal(all_of(large)[:CHUNK], all_of(small))
    assert_right(large)
    drawn = small.draw(300, np.random.default_rng(0), WHOLE).images  # from its own mosaics alone
    assert len(drawn.flatten(1).unique(dim=0)) == CHUNK


@pytest.mark.parametrize(("size", "made"), [(1, CHUNK), (CHUNK, CHUNK), (CHUNK + 1, 2 * CHUNK)])
def test_the_size_is_rounded_up_to_whole_chunks(
    backbone: Backbone, pixels: Pixels, tmp_path: Path, size: int, made: int
) -> None:
    pool = pool_for(backbone, pixels, tmp_path, size=size)
    pool.prepare(visible=False)
    assert pool.size == made == len(pool.shelf.row_of)
    drawn = pool.draw(400, np.random.default_rng(0), WHOLE).images
    assert len(drawn.flatten(1).unique(dim=0)) == made  # all are used


def test_a_kill_half_way_keeps_what_was_made(
    backbone: Backbone, pixels: Pixels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = pool_for(backbone, pixels, tmp_path)
    Counting(killed, monkeypatch, dies_after=2)
    with pytest.raises(KeyboardInterrupt):
        killed.prepare(visible=False)
    resumed = pool_for(backbone, pixels, tmp_path)
    counting = Counting(resumed, monkeypatch)
    resumed.prepare(visible=False)
    assert counting.kept == [CHUNK]
    assert_right(resumed)


@pytest.mark.parametrize("file", ["rows.16", "index"])
@pytest.mark.parametrize("lost", [1, 3, 9, 1000])
def test_a_truncated_shelf_is_completed(
    file: str, lost: int, backbone: Backbone, pixels: Pixels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever it ends: within a mosaic, within a chunk, before everything."""
    first = pool_for(backbone, pixels, tmp_path)
    first.prepare(visible=False)
    path = rows_files(tmp_path)[0].with_name(file)
    entry = path.stat().st_size // first.size
    os.truncate(path, max(0, path.stat().st_size - lost * entry + 1))
    resumed = pool_for(backbone, pixels, tmp_path)
    assert len(resumed.shelf.row_of) == max(0, first.size - lost)
    assert "end early" in caplog.text or lost == 1000
    resumed.prepare(visible=False)
    assert_right(resumed)
    once_more = pool_for(backbone, pixels, tmp_path, size=5 * CHUNK)  # what is written after the mend is right too
    once_more.prepare(visible=False)
    assert_right(once_more)
    assert len(once_more.shelf.row_of) == 5 * CHUNK
    assert_right(pool_for(backbone, pixels, tmp_path, size=5 * CHUNK))


def test_a_shelf_refuses_a_second_row_of_the_same_image(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf", (1,), "fp16")
    shelf.append([b"0" * 16], torch.tensor([[1.0]]))
    with pytest.raises(AssertionError):
        shelf.append([b"1" * 16, b"0" * 16], torch.tensor([[2.0], [3.0]]))


def test_names_of_folders_and_files_do_not_matter(backbone: Backbone, folders: Path, tmp_path: Path) -> None:
    pictures = folders / "source"
    first = pool_for(backbone, pixels_of(pictures, tmp_path), tmp_path)
    first.prepare(visible=False)
    other = tmp_path / "zz"
    other.mkdir()
    for i, path in enumerate(sorted(pictures.rglob("*.png"), reverse=True)):
        shutil.copyfile(path, other / f"{i:02}.png")
    renamed = pool_for(backbone, pixels_of(other, tmp_path), tmp_path)
    assert renamed.shelf.folder == first.shelf.folder
    assert not renamed._missing()
    apart = pool_for(backbone, pixels_of(other, tmp_path / "apart"), tmp_path / "apart")
    apart.prepare(visible=False)
    assert torch.equal(all_of(apart), all_of(first))
    assert np.array_equal(apart._counts, first._counts)


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
    assert len({pool.shelf.folder for pool in pools}) == 4
    for pool in pools:
        assert_right(pool)
    assert max(pools[1]._counts) > 4 >= max(pools[0]._counts)


def test_all_processes_together_draw_what_one_draws(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    pool = pool_for(backbone, pixels, tmp_path)
    pool.prepare(visible=False)
    whole = pool.draw(9, np.random.default_rng(5), WHOLE)
    parts = [pool.draw(9, np.random.default_rng(5), part) for part in (slice(0, 4), slice(4, 9))]
    assert torch.equal(torch.cat([part.images for part in parts]), whole.images)
    assert torch.equal(torch.cat([part.labels for part in parts]), whole.labels)


def test_inputs_draw_from_the_pool_of_the_domain(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    """Each domain has mosaics of its own images, whatever batch is at hand; a step's are fixed by its generator."""
    preprocess = Preprocess(CROP, backbone.mean, backbone.std, torch.device("cpu"))
    inputs = FeatureInputs(preprocess, stem_of(backbone, CROP, "fp16"), 1, tmp_path)
    source, target = pixels.subset(np.arange(4)), pixels.subset(np.arange(4, 9))
    task = InstanceCount(2)
    inputs.prepare_pools(task, [source, target], CHUNK, visible=False)
    for domain in (source, target):
        index = np.arange(4)
        images = torch.zeros(4, *inputs.stem.shape)
        batch = inputs.pretext(task, domain, images, index, np.random.default_rng(3), WHOLE)
        again = inputs.pretext(task, domain, images, index, np.random.default_rng(3), WHOLE)
        assert torch.equal(batch.images, again.images) and torch.equal(batch.labels, again.labels)
        assert batch.images.dtype == torch.float32 and batch.images.shape == images.shape
        pool = pool_for(backbone, domain, tmp_path, size=CHUNK)
        kept = all_of(pool)
        assert all((kept == features).flatten(1).all(dim=1).any() for features in batch.images)
