"""Features that are kept must be the features that would be computed, and damage must never go unnoticed."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_shelf import CROP, pixels_of, rows_files

from unida.data.augment import Preprocess
from unida.data.pixels import Pixels
from unida.errors import UserError
from unida.features.inputs import TEST_VIEW, FeatureInputs
from unida.features.shelf import Shelf, stem_of
from unida.models.backbone import POOLED, Backbone, create_backbone

VIEWS = 2


def inputs_for(backbone: Backbone, cache: Path, views: int = VIEWS) -> FeatureInputs:
    preprocess = Preprocess(CROP, backbone.mean, backbone.std, torch.device("cpu"))
    return FeatureInputs(preprocess, stem_of(backbone, CROP, "fp16"), views, cache)


class Counting:
    """Counts the images that pass through a stem."""

    def __init__(self, inputs: FeatureInputs, monkeypatch: pytest.MonkeyPatch) -> None:
        self.images = 0
        compute = inputs._compute

        def counted(pixels: Pixels, index: np.ndarray, view: int) -> torch.Tensor:
            self.images += len(index)
            return compute(pixels, index, view)

        monkeypatch.setattr(inputs, "_compute", counted)
        monkeypatch.setattr(inputs, "_announce", lambda *_: None)


def test_the_test_view_is_the_stem_of_the_central_crop_in_16_bits(
    backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    inputs = inputs_for(backbone, tmp_path)
    inputs.prepare([(pixels, inputs.every_view)], visible=False)
    index = np.array([4, 0, 7])
    with torch.no_grad():
        expected = backbone.stem(inputs.preprocess.test_view(pixels, index)).half().float()
    assert torch.allclose(inputs.test_view(pixels, index), expected, atol=2e-3, rtol=2e-3)


def test_training_views_are_kept_views_and_their_draw_does_not_depend_on_the_share(
    backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    inputs = inputs_for(backbone, tmp_path)
    inputs.prepare([(pixels, inputs.every_view)], visible=False)
    index = np.arange(len(pixels))
    whole = inputs.training_view(pixels, index, np.random.default_rng(3), slice(None))
    parts = [
        inputs.training_view(pixels, index, np.random.default_rng(3), part) for part in (slice(0, 4), slice(4, None))
    ]
    assert torch.equal(whole, torch.cat(parts))
    kept = [inputs._gather(pixels, index, np.full(len(index), view)) for view in range(1, VIEWS + 1)]
    chosen = [next(v for v, k in enumerate(kept) if torch.equal(k[i], whole[i])) for i in range(len(index))]
    assert set(chosen) == set(range(VIEWS))
    assert not torch.equal(kept[0], kept[1]), "two views of the same images must differ"


def test_what_is_there_is_not_computed_again_and_new_images_are(
    backbone: Backbone, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = pixels_of(folders / "source", tmp_path), pixels_of(folders / "target", tmp_path)
    first = inputs_for(backbone, tmp_path)
    counting = Counting(first, monkeypatch)
    first.prepare([(source, first.every_view)], visible=False)
    assert counting.images == len(source) * (VIEWS + 1)
    again = inputs_for(backbone, tmp_path)  # as another run, method or seed would
    counting = Counting(again, monkeypatch)
    again.prepare([(source.subset([5, 1, 2]), again.every_view), (target, TEST_VIEW)], visible=False)
    assert counting.images == len(target), "the subset's features are there; the target needs its test view"
    more = inputs_for(backbone, tmp_path, views=VIEWS + 1)
    counting = Counting(more, monkeypatch)
    more.prepare([(source, more.every_view)], visible=False)
    assert counting.images == len(source), "one more view, and no more than that"


def test_an_interruption_half_way_keeps_what_was_done_and_computes_the_rest(
    backbone: Backbone, pixels: Pixels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unida.features.inputs.BATCH", 2)
    whole = inputs_for(backbone, tmp_path / "whole")
    whole.prepare([(pixels, whole.every_view)], visible=False)
    broken = inputs_for(backbone, tmp_path / "broken")
    compute, calls = broken._compute, []

    def dies(pixels: Pixels, index: np.ndarray, view: int) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return compute(pixels, index, view)

    monkeypatch.setattr(broken, "_compute", dies)
    with pytest.raises(KeyboardInterrupt):
        broken.prepare([(pixels, broken.every_view)], visible=False)
    resumed = inputs_for(backbone, tmp_path / "broken")
    counting = Counting(resumed, monkeypatch)
    resumed.prepare([(pixels, resumed.every_view)], visible=False)
    assert 0 < counting.images < len(pixels) * (VIEWS + 1)
    index = np.arange(len(pixels))
    for view in range(VIEWS + 1):
        chosen = np.full(len(index), view)
        assert torch.allclose(
            whole._gather(pixels, index, chosen), resumed._gather(pixels, index, chosen), atol=2e-3, rtol=2e-3
        )


@pytest.mark.parametrize("file", ["rows.16", "index"])
@pytest.mark.parametrize("lost", [1, 100_000])
def test_a_truncated_shelf_is_noticed_and_completed(
    file: str, lost: int, backbone: Backbone, pixels: Pixels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = inputs_for(backbone, tmp_path, views=1)
    first.prepare([(pixels, TEST_VIEW)], visible=False)
    index = np.arange(len(pixels))
    before = first.test_view(pixels, index)
    (rows,) = rows_files(tmp_path)
    path = rows.with_name(file)
    os.truncate(path, max(0, path.stat().st_size - lost))
    again = inputs_for(backbone, tmp_path, views=1)
    again.prepare([(pixels, TEST_VIEW)], visible=False)
    assert torch.allclose(again.test_view(pixels, index), before, atol=2e-3, rtol=2e-3)
    assert "end early" in caplog.text or lost > 1, "a torn entry is told"


def test_a_damaged_shelf_is_noticed_and_computed_again(
    backbone: Backbone, pixels: Pixels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = inputs_for(backbone, tmp_path, views=1)
    first.prepare([(pixels, TEST_VIEW)], visible=False)
    index = np.arange(len(pixels))
    before = first.test_view(pixels, index)
    (rows,) = rows_files(tmp_path)
    content = bytearray(rows.read_bytes())
    content[10] ^= 0xFF
    rows.write_bytes(content)
    again = inputs_for(backbone, tmp_path, views=1)
    again.prepare([(pixels, TEST_VIEW)], visible=False)
    assert "damaged" in caplog.text
    assert torch.allclose(again.test_view(pixels, index), before, atol=2e-3, rtol=2e-3)


def test_a_shelf_that_another_process_finds_damaged_is_read_on_as_it_was(tmp_path: Path) -> None:
    """Written over in place, the rows would be other images' now: in another order, under the reader's feet."""
    names = [bytes([number]) * 16 for number in range(1, 8)]
    numbers = torch.arange(1.0, 8.0)[:, None]
    reader = Shelf(tmp_path / "shelf", (1,), "fp16")
    reader.append(names[:5], numbers[:5])
    with (tmp_path / "shelf" / "rows.16").open("r+b") as rows:
        rows.write(b"\xff")  # of the first image
    finder = Shelf(tmp_path / "shelf", (1,), "fp16")
    assert not finder.row_of
    finder.append(names[4::-1], numbers[:5].flip(0))

    def read(shelf: Shelf, which: slice) -> list[float]:
        return shelf.read(np.array([shelf.row_of[name] for name in names[which]])).flatten().tolist()

    assert read(reader, slice(1, 5)) == [2, 3, 4, 5]
    reader.append(names[5:], numbers[5:])  # goes on where it is at home
    assert read(reader, slice(1, 7)) == [2, 3, 4, 5, 6, 7]
    assert read(finder, slice(0, 5)) == [1, 2, 3, 4, 5]
    assert read(Shelf(tmp_path / "shelf", (1,), "fp16"), slice(0, 5)) == [1, 2, 3, 4, 5]


def test_other_weights_tap_crop_or_normalisation_have_a_shelf_of_their_own(
    backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    inputs_for(backbone, tmp_path, views=1).prepare([(pixels, TEST_VIEW)], visible=False)
    assert len(rows_files(tmp_path)) == 1
    torch.manual_seed(1)
    other_weights = create_backbone("test_resnet", "none")
    other_weights.freeze("layer2", torch.float16)
    inputs_for(other_weights, tmp_path, views=1).prepare([(pixels, TEST_VIEW)], visible=False)
    assert len(rows_files(tmp_path)) == 2
    other_weights.freeze("layer1", torch.float16)
    inputs_for(other_weights, tmp_path, views=1).prepare([(pixels, TEST_VIEW)], visible=False)
    assert len(rows_files(tmp_path)) == 3
    other_weights.mean = (0.1, 0.1, 0.1)
    inputs_for(other_weights, tmp_path, views=1).prepare([(pixels, TEST_VIEW)], visible=False)
    assert len(rows_files(tmp_path)) == 4
    other_weights.freeze(POOLED, torch.float16)
    inputs = inputs_for(other_weights, tmp_path, views=1)
    inputs.prepare([(pixels, TEST_VIEW)], visible=False)
    assert inputs.test_view(pixels, np.array([0])).shape == (1, other_weights.num_features)


def test_numbers_too_large_for_the_format_are_refused(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf", (2,), "fp16")
    with pytest.raises(UserError, match="--feature-format bf16"):
        shelf.append([b"0" * 16], torch.tensor([[1e6, 0.0]]))
    large = Shelf(tmp_path / "large", (2,), "bf16")
    large.append([b"0" * 16], torch.tensor([[1e6, 0.0]]))
    assert large.read(np.array([0])).float()[0, 0] == pytest.approx(1e6, rel=0.01)


def test_a_digest_that_ends_in_zero_bytes_is_found_again(tmp_path: Path) -> None:
    digest = bytes(range(1, 13)) + b"\0" * 4
    Shelf(tmp_path / "shelf", (1,), "fp16").append([digest], torch.tensor([[2.0]]))
    again = Shelf(tmp_path / "shelf", (1,), "fp16")
    assert again.read(np.array([again.row_of[digest]])).item() == 2.0


def test_starting_at_the_tap_equals_starting_at_the_image(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    inputs = inputs_for(backbone, tmp_path)
    inputs.prepare([(pixels, TEST_VIEW)], visible=False)
    index = np.arange(len(pixels))
    backbone.eval()
    with torch.no_grad():
        from_images = backbone(inputs.preprocess.test_view(pixels, index))
        backbone.starts_at_tap = True
        from_features = backbone(inputs.test_view(pixels, index))
        backbone.starts_at_tap = False
    assert torch.allclose(from_images, from_features, atol=1e-3, rtol=1e-3)


def test_freezing_leaves_only_what_follows_to_be_trained(backbone: Backbone) -> None:
    trained = {name for name, parameter in backbone.model.named_parameters() if parameter.requires_grad}
    assert trained == {n for n, _ in backbone.model.named_parameters() if n.startswith(("layer3", "layer4"))}


@pytest.mark.parametrize(
    ("name", "tap"),
    [
        ("tf_efficientnet_lite0", "blocks.5"),
        ("resnet18", "layer3"),
        ("test_vit", "blocks.3"),
        ("test_convnext", "stages.2"),
        ("regnetx_002", "final"),
    ],
)
def test_default_taps(name: str, tap: str) -> None:
    assert create_backbone(name, "none").default_tap == tap
