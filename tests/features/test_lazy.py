"""Training views are computed when a step first needs them: those alone, once, whoever asks; vectors stay in memory."""

import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_shelf import VIEWS, WHOLE, Counting, Fixed, inputs_for, pixels_of, rows_files
from torch import Tensor

from unida.data.pixels import Pixels
from unida.errors import UserError
from unida.features import shelf
from unida.features.kept import TEST_VIEW, FeatureInputs, Job
from unida.features.shelf import ENTRY, Shelf
from unida.features.stem import Stem
from unida.models.backbone import POOLED, Backbone, create_backbone
from unida.recipes.rotation import Rotation

CLOSE = {"atol": 2e-3, "rtol": 2e-3}  # a view computed in another batch differs in its last bits


@pytest.fixture(scope="module")
def pooling() -> Backbone:
    """Its features are vectors."""
    torch.manual_seed(0)
    backbone = create_backbone("test_resnet", "none")
    backbone.freeze(POOLED, torch.float16)
    return backbone


def drawn_views(inputs: FeatureInputs, pixels: Pixels, index: list[int], views: list[int]) -> Tensor:
    """These views of these images, as a step draws them."""
    return inputs.training_view(pixels, np.array(index), Fixed(np.array(views)), WHOLE)  # type: ignore[arg-type]


def entries_of(rows: Path) -> list[bytes]:
    return np.fromfile(rows.with_name("index"), dtype=ENTRY)["digest"].tolist()  # type: ignore[no-any-return]


def whole(backbone: Backbone, pixels: Pixels, cache: Path) -> FeatureInputs:
    """Every view computed in advance."""
    inputs, _ = inputs_for(backbone, cache)
    inputs.prepare([Job(pixels, inputs.every_view)], visible=False)
    return inputs


def test_only_views_that_are_drawn_are_computed(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    inputs, counting = inputs_for(backbone, tmp_path)
    first = drawn_views(inputs, pixels, [4, 0, 7], [1, 2, 1])
    assert (counting.images, counting.calls) == (3, 1), "all of a step in one call of the stem"
    assert sorted(len(entries_of(rows)) for rows in rows_files(tmp_path)) == [1, 2]
    assert torch.equal(drawn_views(inputs, pixels, [7, 4, 0], [1, 1, 2]), first[[2, 0, 1]])
    assert counting.images == 3, "they are there now"
    drawn_views(inputs, pixels, [4, 4, 0], [1, 2, 2])
    assert counting.images == 4, "of one image, the view that was not there"


def test_they_are_the_views_that_would_be_prepared(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    inputs, _ = inputs_for(backbone, tmp_path / "lazy")
    ready, index = whole(backbone, pixels, tmp_path / "ready"), list(range(len(pixels)))
    for view in range(1, VIEWS + 1):
        ours = drawn_views(inputs, pixels, index, [view] * len(index))
        torch.testing.assert_close(ours, drawn_views(ready, pixels, index, [view] * len(index)), **CLOSE)


def test_without_views_training_uses_the_test_view(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    inputs, counting = inputs_for(backbone, tmp_path, views=0)
    inputs.prepare([Job(pixels, TEST_VIEW)], visible=False)
    index = np.array([3, 1])
    drawn = inputs.training_view(pixels, index, np.random.default_rng(0), WHOLE)
    assert torch.equal(drawn, inputs.test_view(pixels, index))
    assert counting.images == len(pixels)


def test_an_image_that_comes_twice_is_computed_and_kept_once(backbone: Backbone, folders: Path, tmp_path: Path) -> None:
    """In one batch twice, or as two files of the same content. A second row would shift those that follow it."""
    copied = Path(shutil.copytree(folders / "source", tmp_path / "copied"))
    name = sorted(copied.rglob("*.png"))[0]
    shutil.copyfile(name, name.with_name("again.png"))
    pixels = pixels_of(copied, tmp_path)
    digests = [file.digest for file in pixels.files]
    (one, other) = [i for i, digest in enumerate(digests) if digests.count(digest) == 2]
    third = next(i for i in range(len(pixels)) if i not in (one, other))
    inputs, counting = inputs_for(backbone, tmp_path)
    first = drawn_views(inputs, pixels, [one, other, one], [1, 1, 1])
    assert torch.equal(first[0], first[1]) and torch.equal(first[0], first[2])
    assert counting.images == 1
    drawn_views(inputs, pixels, [third], [1])
    (rows,) = rows_files(tmp_path)
    assert len(entries_of(rows)) == len(set(entries_of(rows))) == 2
    ready = whole(backbone, pixels, tmp_path / "ready")
    expected = drawn_views(ready, pixels, [one, other, third], [1, 1, 1])
    assert not torch.allclose(expected[0], expected[2], **CLOSE)
    for reader in (inputs, inputs_for(backbone, tmp_path)[0]):
        torch.testing.assert_close(drawn_views(reader, pixels, [one, other, third], [1, 1, 1]), expected, **CLOSE)


class Meeting(Counting):
    """A stem that waits until another one is computing too."""

    def __init__(self, stem: Stem, meeting: threading.Barrier) -> None:
        super().__init__(stem)
        self.meeting = meeting

    def run(self, images: Tensor) -> Tensor:
        if not self.calls:
            self.meeting.wait(timeout=600)
        return super().run(images)


def test_two_that_fill_at_the_same_time_keep_each_image_once(
    backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    """Both find nothing, both compute; whoever is second to write leaves what the first one wrote."""
    meeting = threading.Barrier(2)
    both = [inputs_for(backbone, tmp_path, counted=partial(Meeting, meeting=meeting)) for _ in range(2)]
    asked = [[0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8]]
    found: dict[int, Tensor] = {}

    def fill(who: int) -> None:
        found[who] = drawn_views(both[who][0], pixels, asked[who], [1] * 6)

    threads = [threading.Thread(target=fill, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=600)
    assert [counting.images for _, counting in both] == [6, 6], "both were computing"
    (rows,) = rows_files(tmp_path)
    assert len(entries_of(rows)) == len(set(entries_of(rows))) == len(pixels)
    assert rows.stat().st_size == len(pixels) * int(np.prod(both[0][0].stem.shape)) * 2
    ready = whole(backbone, pixels, tmp_path / "ready")
    for who in range(2):
        torch.testing.assert_close(found[who], drawn_views(ready, pixels, asked[who], [1] * 6), **CLOSE)
    index = list(range(len(pixels)))
    everything = [drawn_views(inputs, pixels, index, [1] * len(index)) for inputs, _ in both]
    assert torch.equal(*everything)
    torch.testing.assert_close(everything[0], drawn_views(ready, pixels, index, [1] * len(index)), **CLOSE)


def test_what_another_process_has_computed_is_not_computed_again(
    backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    (ours, our_count), (theirs, their_count) = inputs_for(backbone, tmp_path), inputs_for(backbone, tmp_path)
    drawn_views(ours, pixels, [0], [1])
    drawn_views(theirs, pixels, [1, 2], [1, 1])  # after the shelf was opened here
    drawn_views(ours, pixels, [0, 1, 2, 3], [1, 1, 1, 1])
    assert (our_count.images, their_count.images) == (2, 2)


class Killed(BaseException):
    pass


def kill_before_rows(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """When rows are to be written for the n-th time: as if killed in between."""
    append, calls = Shelf.append, []

    def dying(of: Shelf, *arguments: object) -> None:
        calls.append(1)
        if len(calls) == count:
            raise Killed
        append(of, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Shelf, "append", dying)


def kill_before_entries(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """When rows are written, and their entries are not."""
    write, calls = shelf._write, []

    def dying(descriptor: int, content: bytes, place: int) -> None:
        calls.append(1)
        if len(calls) == 2 * count:
            write(descriptor, content[:7], place)  # half an entry
            raise Killed
        write(descriptor, content, place)

    monkeypatch.setattr(shelf, "_write", dying)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("kill", [kill_before_rows, kill_before_entries])
def test_a_kill_in_the_middle_of_a_fill_is_made_good(
    kill: Callable[[pytest.MonkeyPatch, int], None],
    count: int,
    backbone: Backbone,
    pixels: Pixels,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index, views = [0, 1, 2, 3, 4, 5], [1, 2, 1, 2, 1, 2]
    ready = whole(backbone, pixels, tmp_path / "ready")
    drawn_views(inputs_for(backbone, tmp_path)[0], pixels, [6, 6], [1, 2])
    broken, _ = inputs_for(backbone, tmp_path)
    with monkeypatch.context() as patch:
        kill(patch, count)
        if count == 3:  # two shelves were filled: it is killed in the next step
            drawn_views(broken, pixels, index, views)
        with pytest.raises(Killed):
            drawn_views(broken, pixels, [7] if count == 3 else index, [1] if count == 3 else views)
    again, counting = inputs_for(backbone, tmp_path)
    torch.testing.assert_close(
        drawn_views(again, pixels, index, views), drawn_views(ready, pixels, index, views), **CLOSE
    )
    assert counting.images == {1: 6, 2: 3, 3: 0}[count]
    for rows in rows_files(tmp_path):
        assert len(entries_of(rows)) == len(set(entries_of(rows))) == 4


def test_made_images_and_their_labels_are_filled_together(
    backbone: Backbone, pixels: Pixels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the two shelves of a recipe: features are there, their labels are not."""
    recipe, index = Rotation(), np.array([4, 0, 7])

    def made(inputs: FeatureInputs) -> tuple[Tensor, Tensor]:
        images, labels, _ = inputs.made(recipe, pixels, index, Fixed(1), WHOLE, torch.empty(0))  # type: ignore[arg-type]
        return images, labels

    expected = made(inputs_for(backbone, tmp_path / "ready")[0])
    broken, _ = inputs_for(backbone, tmp_path)
    with monkeypatch.context() as patch:
        kill_before_rows(patch, 2)
        with pytest.raises(Killed):
            made(broken)
    images, labels = made(inputs_for(backbone, tmp_path)[0])
    assert torch.equal(images, expected[0]) and torch.equal(labels, expected[1])
    assert len(set(labels.tolist())) > 1


def test_a_full_disk_is_reported_in_a_step_too(
    backbone: Backbone, pixels: Pixels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, _ = inputs_for(backbone, tmp_path)
    monkeypatch.setattr("unida.features.shelf.os.pwrite", lambda *_: 0)
    with pytest.raises(UserError, match=r"cannot keep features there .*--cache"):
        drawn_views(inputs, pixels, [0], [1])


# ---- vectors in memory -----------------------------------------------------------------------------------------------


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    reads: list[int] = []
    read = Shelf.read

    def counted(of: Shelf, rows: np.ndarray) -> Tensor:
        reads.append(len(rows))
        return read(of, rows)

    monkeypatch.setattr(Shelf, "read", counted)
    return reads


def test_vectors_are_read_from_the_shelf_once(
    pooling: Backbone, pixels: Pixels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, _ = inputs_for(pooling, tmp_path)
    inputs.prepare([Job(pixels, TEST_VIEW)], visible=False)
    reads, index = count_reads(monkeypatch), np.arange(len(pixels))
    some = inputs.test_view(pixels, index[:4])
    assert reads == [4]
    every = inputs.test_view(pixels, index)
    assert reads == [4, len(pixels) - 4], "those that were not read before"
    again = inputs.test_view(pixels, index[::-1].copy())
    assert len(reads) == 2
    assert torch.equal(every[:4], some) and torch.equal(again.flip(0), every)
    again += 1  # what is given out may be changed
    assert torch.equal(inputs.test_view(pixels, index), every)


def test_maps_are_read_each_time(
    backbone: Backbone, pixels: Pixels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, _ = inputs_for(backbone, tmp_path)
    inputs.prepare([Job(pixels, TEST_VIEW)], visible=False)
    reads, index = count_reads(monkeypatch), np.arange(4)
    assert torch.equal(inputs.test_view(pixels, index), inputs.test_view(pixels, index))
    assert reads == [4, 4]


def test_more_vectors_than_memory_should_hold_are_read_each_time(
    pooling: Backbone, pixels: Pixels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unida.features.kept.LARGEST_IN_MEMORY", 100)
    inputs, _ = inputs_for(pooling, tmp_path)
    inputs.prepare([Job(pixels, TEST_VIEW)], visible=False)
    reads, index = count_reads(monkeypatch), np.arange(4)
    assert torch.equal(inputs.test_view(pixels, index), inputs.test_view(pixels, index))
    assert reads == [4, 4]


def test_two_sets_of_pictures_have_vectors_of_their_own(pooling: Backbone, folders: Path, tmp_path: Path) -> None:
    source, target = pixels_of(folders / "source", tmp_path), pixels_of(folders / "target", tmp_path)
    inputs, _ = inputs_for(pooling, tmp_path)
    inputs.prepare([Job(source, TEST_VIEW), Job(target, TEST_VIEW)], visible=False)
    few = source.subset([5, 1, 2])
    index = np.array([0, 2])
    ours, theirs = inputs.test_view(source, index), inputs.test_view(target, index)
    assert not torch.allclose(ours, theirs, **CLOSE)
    assert torch.equal(inputs.test_view(few, index), inputs.test_view(source, np.array([5, 2])))


def test_damage_of_vectors_is_found_at_the_first_read(pooling: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    inputs, _ = inputs_for(pooling, tmp_path)
    inputs.prepare([Job(pixels, TEST_VIEW)], visible=False)
    inputs.test_view(pixels, np.array([0, 1]))
    (rows,) = rows_files(tmp_path)
    content = bytearray(rows.read_bytes())
    content[-1] ^= 0xFF  # of the row that was written last
    rows.write_bytes(content)
    inputs.test_view(pixels, np.array([0, 1]))
    with pytest.raises(UserError, match=f"damaged at row {len(pixels) - 1} "):
        inputs.test_view(pixels, np.arange(len(pixels)))
