"""What a method may ask of a run beside its batches: images by index, a shuffled source, a schedule, its own rate."""

import json
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_training import Tiny, make_config, make_method
from torch import Tensor

from unida.data.augment import Preprocess
from unida.data.domains import Source, Target
from unida.data.pixels import Pixels
from unida.methods.base import Requests, SourceBatch, Sweep, TargetBatch
from unida.recipes.mosaic import PretextBatch
from unida.training.batches import BatchStream, images_shown
from unida.training.loop import Training

StartRun = Callable[..., Training]


def stream_of(pixels: Pixels, rank: int = 0, processes: int = 1, balanced: bool = True, seed: int = 4) -> BatchStream:
    labels = np.array([0, 1, 1, 1, 1, 1, 1, 1, 2])  # balanced or not is easy to see
    return BatchStream(
        Source(pixels.subset(np.arange(9)), labels, ("a", "b", "c")),
        Target(pixels.subset(np.arange(9, 15))),
        Preprocess(8, (0.5,) * 3, (0.25,) * 3, torch.device("cpu")),
        make_config(seed=seed),
        SimpleNamespace(global_rank=rank, world_size=processes),  # type: ignore[arg-type]
        None,
        balanced,
    )


ASKED: Requests = {
    "source": {"some": np.array([8, 0, 8])},
    "target": {"some": np.array([1, 1]), "more": np.array([5, 4, 3, 2, 1, 0, 0])},
}


def same_place(view: Tensor, whole: Tensor) -> bool:
    """Whether an 8 × 8 view is a crop of a 10 × 10 image, or of its mirror image."""
    crops = whole.unfold(1, 8, 1).unfold(2, 8, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
    return any(torch.allclose(view, crop) or torch.allclose(view, crop.flip(2)) for crop in crops)


def test_a_batch_holds_training_views_of_the_images_asked_for(pixels: Pixels) -> None:
    stream = stream_of(pixels)
    source, target = stream.batch(3, ASKED)
    assert {name: len(views) for name, views in source.extra.items()} == {"some": 3}
    assert {name: len(views) for name, views in target.extra.items()} == {"some": 2, "more": 7}
    whole = Preprocess(10, (0.5,) * 3, (0.25,) * 3, torch.device("cpu"))
    for domain, batch in ((stream.source, source), (stream.target, target)):
        asked = ASKED["source" if batch is source else "target"]
        for name, index in asked.items():
            for view, image in zip(batch.extra[name], whole.test_view(domain.pixels, index), strict=True):
                assert same_place(view, image)
    assert not torch.equal(source.extra["some"][0], source.extra["some"][2])  # each time a view of its own


def test_views_asked_for_depend_on_seed_name_and_step_and_leave_other_draws_alone(pixels: Pixels) -> None:
    plain, again = stream_of(pixels).batch(3), stream_of(pixels).batch(3, ASKED)
    for one, other in zip(plain, again, strict=True):
        assert not one.extra
        assert torch.equal(one.images, other.images) and torch.equal(one.indices, other.indices)
    first = stream_of(pixels).batch(3, ASKED)[1].extra["more"]
    assert torch.equal(first, again[1].extra["more"])
    assert not torch.equal(first, stream_of(pixels).batch(4, ASKED)[1].extra["more"])
    assert not torch.equal(first, stream_of(pixels, seed=5).batch(3, ASKED)[1].extra["more"])
    renamed: Requests = {"target": {"other": ASKED["target"]["more"]}}
    assert not torch.equal(first, stream_of(pixels).batch(3, renamed)[1].extra["other"])


def test_every_process_gets_all_images_asked_for(pixels: Pixels) -> None:
    alone = stream_of(pixels).batch(2, ASKED)
    for rank in range(3):
        share = stream_of(pixels, rank, 3).batch(2, ASKED)
        for one, other in zip(alone, share, strict=True):
            assert len(other.images) == 2
            assert one.extra.keys() == other.extra.keys()
            assert all(torch.equal(one.extra[name], other.extra[name]) for name in one.extra)


def test_a_shuffled_source_shows_each_image_equally_often_and_not_as_the_target_does(pixels: Pixels) -> None:
    stream = stream_of(pixels, balanced=False)
    drawn = [stream.batch(step) for step in range(30)]
    index = torch.cat([source.indices for source, _ in drawn])
    assert torch.bincount(index).tolist() == [20] * 9  # 180 images drawn
    labels = torch.cat([source.labels for source, _ in drawn])
    assert torch.bincount(labels).tolist() == [20, 140, 20]
    balanced = torch.cat([stream_of(pixels).batch(step)[0].labels for step in range(30)])
    assert torch.bincount(balanced).max() < 90
    shuffles = stream.source_sampler.batch(0), stream.target_sampler.batch(0)
    twin = BatchStream(
        Source(stream.target.pixels, np.arange(6) % 3, ("a", "b", "c")),
        stream.target,
        stream.inputs,
        make_config(seed=4),
        SimpleNamespace(global_rank=0, world_size=1),  # type: ignore[arg-type]
        balanced_source=False,
    )
    assert len(shuffles[0]) == 6
    firsts = [twin.batch(step) for step in range(4)]  # six images on both sides: their shuffles are not the same
    assert any(not torch.equal(source.indices, target.indices) for source, target in firsts)


class Asks(Tiny):
    """Asks for what its last round found, and notes what it is given."""

    round_every = 4
    lr_decay = 3.0
    default_lr = 0.05

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("found", torch.zeros(2, dtype=torch.int64))
        self.given: list[tuple[int, list[int]]] = []

    def on_round(self, step: int, sweep: Sweep) -> None:
        assert sweep.source_labels.tolist() == [0, 1, 2] * 3
        self.found = torch.tensor([step % 6, self.seed])

    def requests(self, step: int) -> Requests:
        return {"target": {"found": self.found.numpy().repeat(1 + step % 2)}}

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> dict[str, Tensor]:
        self.given.append((step, list(target.extra["found"].shape)))
        assert not source.extra
        return super().training_step(source, target, step)


def test_the_loop_asks_after_the_round_and_tells_the_runs_length_and_seed(start: StartRun) -> None:
    training = start(kind=Asks, steps=6, seed=3)
    method = training.method
    assert isinstance(method, Asks)
    assert (method.steps, method.seed) == (6, 3)
    training.run()
    assert method.given == [(step, [2 + 2 * (step % 2), 3, 8, 8]) for step in range(6)]
    assert method.found.tolist() == [4, 3]


def test_images_are_counted_that_go_through_the_network(pixels: Pixels, start: StartRun) -> None:
    batch = stream_of(pixels).batch(3, ASKED)
    mosaics = PretextBatch(torch.zeros(6, 3, 8, 8), torch.zeros(6))
    with_mosaics = (batch[0]._replace(pretext=mosaics), batch[1]._replace(pretext=mosaics))
    method = make_method()
    assert images_shown(method, *stream_of(pixels).batch(3)) == 6 + 6
    assert images_shown(method, *batch) == 6 + 6 + len(ASKED["source"]["some"]) + 2 + 7
    assert images_shown(method, *with_mosaics) == 12 + 12 + 12
    method.looks_at_target_batch = False
    assert images_shown(method, *with_mosaics) == 6 + 12 + 12
    shares = [stream_of(pixels, rank, 3).batch(3, ASKED) for rank in range(3)]
    assert [images_shown(method, *share, 3) for share in shares] == [6 + 12] * 3
    training = start(kind=Asks, steps=6)
    training.run()
    assert training.images_here == 6 * 12 + 3 * 2 + 3 * 4
    assert training.images_per_second() == training.images_here / training.seconds


def test_a_method_has_its_own_rate_and_decay_unless_told(start: StartRun) -> None:
    for folder, told, rate in (("own", {}, 0.05), ("told", {"lr": 0.02}, 0.02)):
        training = start(kind=Asks, folder=folder, steps=6, seed=3, **told)
        training.run()
        lines = [json.loads(line) for line in (training.folder / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            factor = (1 + 3 * (line["step"] - 1) / 6) ** -0.75
            assert (line["lr_backbone"], line["lr_new"]) == pytest.approx((0.1 * rate * factor, rate * factor))
