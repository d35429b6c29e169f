"""Features that are kept must be the features that would be computed, and damage must never go unnoticed."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_shelf import VIEWS, WHOLE, Counting, Fixed, inputs_for, pixels_of, rows_files
from torch import Tensor

from unida.data.pixels import Pixels
from unida.features.kept import TEST_VIEW, FeatureInputs, Job
from unida.models.backbone import POOLED, Backbone, create_backbone


def prepare(inputs: FeatureInputs, *jobs: tuple[Pixels, range]) -> None:
    inputs.prepare([Job(*job) for job in jobs], visible=False)


def kept_view(inputs: FeatureInputs, pixels: Pixels, view: int) -> Tensor:
    """All images in one of the kept views; view 0 is the central crop."""
    index = np.arange(len(pixels))
    return inputs.training_view(pixels, index, Fixed(view), WHOLE)  # type: ignore[arg-type]


def test_the_test_view_is_the_stem_of_the_central_crop_in_16_bits(
    backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    inputs, _ = inputs_for(backbone, tmp_path)
    prepare(inputs, (pixels, inputs.every_view))
    index = np.array([4, 0, 7])
    with torch.no_grad():
        expected = backbone.stem(inputs.preprocess.test_view(pixels, index)).half().float()
    assert torch.allclose(inputs.test_view(pixels, index), expected, atol=2e-3, rtol=2e-3)


def test_training_views_are_kept_views_and_their_draw_does_not_depend_on_the_share(
    backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    inputs, _ = inputs_for(backbone, tmp_path)
    prepare(inputs, (pixels, inputs.every_view))
    index = np.arange(len(pixels))
    whole = inputs.training_view(pixels, index, np.random.default_rng(3), WHOLE)
    parts = [
        inputs.training_view(pixels, index, np.random.default_rng(3), part) for part in (slice(0, 4), slice(4, None))
    ]
    assert torch.equal(whole, torch.cat(parts))
    kept = [kept_view(inputs, pixels, view) for view in inputs.training_views]
    chosen = [next(v for v, k in enumerate(kept) if torch.equal(k[i], whole[i])) for i in range(len(index))]
    assert set(chosen) == set(range(VIEWS))
    assert not torch.equal(kept[0], kept[1]), "two views of the same images must differ"


def test_what_is_there_is_not_computed_again_and_new_images_are(
    backbone: Backbone, folders: Path, tmp_path: Path
) -> None:
    source, target = pixels_of(folders / "source", tmp_path), pixels_of(folders / "target", tmp_path)
    first, counting = inputs_for(backbone, tmp_path)
    prepare(first, (source, first.every_view))
    assert counting.images == len(source) * (VIEWS + 1)
    again, counting = inputs_for(backbone, tmp_path)  # as another run, method or seed would
    prepare(again, (source.subset([5, 1, 2]), again.every_view), (target, TEST_VIEW))
    assert counting.images == len(target), "the subset's features are there; the target needs its test view"
    more, counting = inputs_for(backbone, tmp_path, views=VIEWS + 1)
    prepare(more, (source, more.every_view))
    assert counting.images == len(source), "one more view, and no more than that"


def test_an_interruption_half_way_keeps_what_was_done_and_computes_the_rest(
    backbone: Backbone, pixels: Pixels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unida.features.kept.BATCH", 2)
    whole, _ = inputs_for(backbone, tmp_path / "whole")
    prepare(whole, (pixels, whole.every_view))
    broken, counting = inputs_for(backbone, tmp_path / "broken", counted=partial(Counting, last_call=5))
    with pytest.raises(KeyboardInterrupt):
        prepare(broken, (pixels, broken.every_view))
    done = counting.images
    assert done > 0
    resumed, counting = inputs_for(backbone, tmp_path / "broken")
    prepare(resumed, (pixels, resumed.every_view))
    assert counting.images == len(pixels) * (VIEWS + 1) - done
    for view in range(VIEWS + 1):
        torch.testing.assert_close(
            kept_view(whole, pixels, view), kept_view(resumed, pixels, view), atol=2e-3, rtol=2e-3
        )


@pytest.mark.parametrize("file", ["rows.16", "index"])
@pytest.mark.parametrize("lost", [1, 100_000])
def test_a_truncated_shelf_is_noticed_and_completed(
    file: str, lost: int, backbone: Backbone, pixels: Pixels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = inputs_for(backbone, tmp_path, views=1)
    prepare(first, (pixels, TEST_VIEW))
    index = np.arange(len(pixels))
    before = first.test_view(pixels, index)
    (rows,) = rows_files(tmp_path)
    path = rows.with_name(file)
    os.truncate(path, max(0, path.stat().st_size - lost))
    again, _ = inputs_for(backbone, tmp_path, views=1)
    prepare(again, (pixels, TEST_VIEW))
    assert torch.allclose(again.test_view(pixels, index), before, atol=2e-3, rtol=2e-3)
    assert "end early" in caplog.text or lost > 1, "a torn entry is reported"


def test_a_damaged_shelf_is_noticed_and_computed_again(
    backbone: Backbone, pixels: Pixels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = inputs_for(backbone, tmp_path, views=1)
    prepare(first, (pixels, TEST_VIEW))
    index = np.arange(len(pixels))
    before = first.test_view(pixels, index)
    (rows,) = rows_files(tmp_path)
    content = bytearray(rows.read_bytes())
    content[10] ^= 0xFF
    rows.write_bytes(content)
    again, _ = inputs_for(backbone, tmp_path, views=1)
    prepare(again, (pixels, TEST_VIEW))
    assert "damaged" in caplog.text
    assert torch.allclose(again.test_view(pixels, index), before, atol=2e-3, rtol=2e-3)


def test_other_weights_tap_crop_or_normalisation_have_a_shelf_of_their_own(
    backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    def prepared(backbone: Backbone) -> FeatureInputs:
        inputs, _ = inputs_for(backbone, tmp_path, views=1)
        prepare(inputs, (pixels, TEST_VIEW))
        return inputs

    prepared(backbone)
    assert len(rows_files(tmp_path)) == 1
    torch.manual_seed(1)
    other_weights = create_backbone("test_resnet", "none")
    other_weights.freeze("layer2", torch.float16)
    prepared(other_weights)
    assert len(rows_files(tmp_path)) == 2
    other_weights.freeze("layer1", torch.float16)
    prepared(other_weights)
    assert len(rows_files(tmp_path)) == 3
    other_weights.mean = (0.1, 0.1, 0.1)
    prepared(other_weights)
    assert len(rows_files(tmp_path)) == 4
    other_weights.freeze(POOLED, torch.float16)
    assert prepared(other_weights).test_view(pixels, np.array([0])).shape == (1, other_weights.num_features)


def test_training_what_follows_the_tap_leaves_the_shelf_valid(
    backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    def shelves() -> int:
        prepare(inputs_for(backbone, tmp_path, views=1)[0], (pixels, TEST_VIEW))
        return len(rows_files(tmp_path))

    assert shelves() == 1
    model: Any = backbone.model
    with torch.no_grad():
        for parameter in backbone.parameters():
            if parameter.requires_grad:
                parameter.add_(1.0)
        model.layer4[0].bn1.running_mean += 1
        assert shelves() == 1
        model.layer1[0].bn1.running_mean += 1  # of the frozen part, though not a parameter
        assert shelves() == 2


def test_starting_at_the_tap_equals_starting_at_the_image(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    inputs, _ = inputs_for(backbone, tmp_path)
    prepare(inputs, (pixels, TEST_VIEW))
    index = np.arange(len(pixels))
    backbone.eval()
    with torch.no_grad():
        from_images = backbone(inputs.preprocess.test_view(pixels, index))
        backbone.starts_at_tap = True
        from_features = backbone(inputs.test_view(pixels, index))
        backbone.starts_at_tap = False
    assert torch.allclose(from_images, from_features, atol=1e-3, rtol=1e-3)
