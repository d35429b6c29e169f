"""What a method may ask of a run beside its batches: images by index, what recipes make, a source of its own kind."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_training import BALANCED, RECIPES, SHUFFLED, StartRun, Tiny, inputs_of, lines_of, make_config, stream_of
from torch import Tensor

from unida.data.domains import Source
from unida.data.pixels import Pixels
from unida.methods import METHODS
from unida.methods.base import Losses, Phase, Problem, Round, SourceBatch, Sweep, TargetBatch, Turn, Want
from unida.training.batches import BatchStream, images_shown

ASKED = [
    Want("some", "source", np.array([8, 0, 8])),
    Want("some", "target", np.array([1, 1])),
    Want("more", "target", np.array([5, 4, 3, 2, 1, 0, 0])),
]


def same_place(view: Tensor, whole: Tensor) -> bool:
    """Whether an 8 × 8 view is a crop of a 10 × 10 image, or of its mirror image."""
    crops = whole.unfold(1, 8, 1).unfold(2, 8, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
    return any(torch.allclose(view, crop) or torch.allclose(view, crop.flip(2)) for crop in crops)


# ---- images by index -------------------------------------------------------------------------------------------------


def test_a_batch_holds_training_views_of_the_images_asked_for(pixels: Pixels) -> None:
    stream = stream_of(pixels)
    source, target = stream.batch(3, BALANCED, ASKED)
    assert {name: len(made.images) for name, made in source.extra.items()} == {"some": 3}
    assert {name: len(made.images) for name, made in target.extra.items()} == {"some": 2, "more": 7}
    for want in ASKED:
        made = (source if want.domain == "source" else target).extra[want.name]
        assert want.indices is not None and made.of.tolist() == want.indices[:, None].tolist()
        whole = inputs_of(crop=10).test_view(stream.pixels(want.domain), want.indices)
        assert all(same_place(view, image) for view, image in zip(made.images, whole, strict=True))
    some = source.extra["some"].images
    assert not torch.equal(some[0], some[2])  # each time a view of its own


def test_views_asked_for_depend_on_seed_name_and_step_and_leave_other_draws_alone(pixels: Pixels) -> None:
    plain, again = stream_of(pixels).batch(3, BALANCED), stream_of(pixels).batch(3, BALANCED, ASKED)
    for one, other in zip(plain, again, strict=True):
        assert not one.extra
        assert torch.equal(one.images, other.images) and torch.equal(one.indices, other.indices)

    def more(step: int = 3, seed: int = 4, name: str = "more") -> Tensor:
        wants = [dataclasses.replace(want, name=name) if want.name == "more" else want for want in ASKED]
        return stream_of(pixels, seed=seed).batch(step, BALANCED, wants)[1].extra[name].images

    assert torch.equal(more(), again[1].extra["more"].images)
    assert not torch.equal(more(), more(step=4))
    assert not torch.equal(more(), more(seed=5))
    assert not torch.equal(more(), more(name="other"))


def test_every_process_gets_all_images_asked_for(pixels: Pixels) -> None:
    asked = [*ASKED, Want("turned ones", "target", np.array([2, 3]), recipe="turned")]
    alone = stream_of(pixels).batch(2, BALANCED, asked)
    for rank in range(3):
        share = stream_of(pixels, rank, 3).batch(2, BALANCED, asked)
        for one, other in zip(alone, share, strict=True):
            assert len(other.images) == 2
            assert one.extra.keys() == other.extra.keys()
            for name, made in one.extra.items():
                assert all(torch.equal(ours, theirs) for ours, theirs in zip(made, other.extra[name], strict=True))


# ---- what recipes make -----------------------------------------------------------------------------------------------

OF_BATCH = [Want("made", "source", recipe="turned"), Want("made", "target", recipe="turned")]


def test_a_recipe_makes_an_image_of_each_image_of_the_batch(pixels: Pixels) -> None:
    stream = stream_of(pixels)
    labels, alike = [], []
    for step in range(3):
        for domain, batch in zip(("source", "target"), stream.batch(step, BALANCED, OF_BATCH), strict=True):
            made = batch.extra["made"]
            assert torch.equal(made.of[:, 0], batch.indices) and len(made.images) == 6
            back = [
                image.rot90(-turns, dims=(1, 2)) for image, turns in zip(made.images, made.labels.tolist(), strict=True)
            ]
            whole = inputs_of(crop=10).test_view(stream.pixels(domain), batch.indices.numpy())
            assert all(same_place(view, image) for view, image in zip(back, whole, strict=True))
            alike += [torch.equal(view, image) for view, image in zip(back, batch.images, strict=True)]
            labels += made.labels.tolist()
    assert set(labels) == {0, 1, 2, 3}
    assert np.mean(alike) < 0.3  # each is a view of its own, of 18 possible ones


def test_processes_share_what_is_made_of_each_image(pixels: Pixels) -> None:
    alone = stream_of(pixels).batch(2, BALANCED, OF_BATCH)
    shares = [stream_of(pixels, rank, 3).batch(2, BALANCED, OF_BATCH) for rank in range(3)]
    for domain, whole in enumerate(alone):
        for field, expected in enumerate(whole.extra["made"]):
            joined = torch.cat([share[domain].extra["made"][field] for share in shares])
            assert torch.equal(joined, expected)


def test_processes_make_mosaics_of_their_own_images_by_draws_of_their_own(pixels: Pixels) -> None:
    wants = [Want("made", "target", recipe="mosaics")]
    shares = [stream_of(pixels, rank, 2).batch(2, BALANCED, wants)[1] for rank in range(2)]
    for share in shares:
        made = share.extra["made"]
        assert len(made.images) == len(share.images) == 3 and made.of.shape == (3, 4)
        assert set(made.of.flatten().tolist()) <= set(share.indices.tolist())
        assert [len(set(row)) for row in made.of.tolist()] == (made.labels + 1).tolist()
    counts = [
        [stream_of(pixels, rank, 2).batch(step, BALANCED, wants)[1].extra["made"].labels.tolist() for step in range(9)]
        for rank in range(2)
    ]
    assert counts[0] != counts[1]


def test_a_recipe_for_images_by_index(pixels: Pixels) -> None:
    index = np.array([5, 0, 5])
    stream = stream_of(pixels)
    made = stream.batch(3, BALANCED, [Want("made", "target", index, recipe="upside down")])[1].extra["made"]
    assert made.of.tolist() == index[:, None].tolist() and made.labels.tolist() == [2, 2, 2]
    whole = inputs_of(crop=10).test_view(stream.target.pixels, index)
    assert all(same_place(view.rot90(2, dims=(1, 2)), image) for view, image in zip(made.images, whole, strict=True))


# ---- phases that look at one domain ----------------------------------------------------------------------------------


def test_a_phase_without_the_source_has_an_empty_source_batch(pixels: Pixels) -> None:
    alone = Phase(turns=(), source=None)
    source, target = stream_of(pixels).batch(3, alone, [Want("made", "target", recipe="turned")])
    assert len(source.images) == len(source.labels) == len(source.indices) == 0 and not source.extra
    usual = stream_of(pixels).batch(3, BALANCED)[1]
    assert torch.equal(target.images, usual.images) and torch.equal(target.indices, usual.indices)
    with pytest.raises(AssertionError, match="has no source"):
        stream_of(pixels).batch(3, alone, [Want("made", "source", recipe="turned")])


def test_a_phase_that_does_not_look_at_the_target_has_only_what_it_wants_of_it(pixels: Pixels) -> None:
    blind = Phase(turns=(), target=False)
    source, target = stream_of(pixels).batch(3, blind, ASKED)
    assert len(target.images) == len(target.indices) == 0
    expected = stream_of(pixels).batch(3, BALANCED, ASKED)
    assert torch.equal(source.images, expected[0].images)
    assert torch.equal(target.extra["more"].images, expected[1].extra["more"].images)
    of_batch = [Want("made", "target", recipe="mosaics")]
    target, usual = (stream_of(pixels).batch(3, phase, of_batch)[1] for phase in (blind, BALANCED))
    assert not len(target.images)
    assert all(torch.equal(*pair) for pair in zip(target.extra["made"], usual.extra["made"], strict=True))


def test_a_shuffled_source_shows_each_image_equally_often_and_not_as_the_target_does(pixels: Pixels) -> None:
    stream = stream_of(pixels)
    drawn = [stream.batch(step, SHUFFLED) for step in range(30)]
    index = torch.cat([source.indices for source, _ in drawn])
    assert torch.bincount(index).tolist() == [20] * 9  # 180 images drawn
    labels = torch.cat([source.labels for source, _ in drawn])
    assert torch.bincount(labels).tolist() == [20, 140, 20]
    balanced = torch.cat([stream.batch(step, BALANCED)[0].labels for step in range(30)])
    assert torch.bincount(balanced).max() < 90
    twin = BatchStream(
        Source(stream.target.pixels, np.arange(6) % 3, ("a", "b", "c")),
        stream.target,
        stream.inputs,
        make_config(seed=4),
        SimpleNamespace(global_rank=0, world_size=1),  # type: ignore[arg-type]
        RECIPES,
    )
    firsts = [twin.batch(step, SHUFFLED) for step in range(4)]  # six images on both sides: other shuffles all the same
    assert any(not torch.equal(source.indices, target.indices) for source, target in firsts)


# ---- in a run --------------------------------------------------------------------------------------------------------


class Asks(Tiny):
    """Asks for what its last round found, and notes what it is given."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.register_buffer("found", torch.zeros(2, dtype=torch.int64))
        self.given: list[tuple[int, list[int]]] = []

    def phases(self) -> list[Phase]:
        turn = Turn(self.training_step, self.groups(), decay=3.0)
        return [Phase([turn], round=Round(self.find, every=4))]

    def find(self, step: int, sweep: Sweep) -> None:
        assert sweep.source_labels.tolist() == [0, 1, 2] * 3
        self.found = torch.tensor([step % 6, self.problem.seed])

    def wants(self, step: int) -> list[Want]:
        return [Want("found", "target", self.found.numpy().repeat(1 + step % 2))]

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        made = target.extra["found"]
        self.given.append((step, list(made.images.shape)))
        assert not source.extra and set(made.of.flatten().tolist()) == set(self.found.tolist())
        return super().training_step(source, target, step)


def test_the_loop_asks_after_the_round(start: StartRun) -> None:
    training = start(kind=Asks, steps=6, seed=3)
    method = training.method
    assert isinstance(method, Asks)
    training.run()
    assert method.given == [(step, [2 + 2 * (step % 2), 3, 8, 8]) for step in range(6)]
    assert method.found.tolist() == [4, 3]


def test_images_are_counted_that_go_through_the_network(pixels: Pixels, start: StartRun) -> None:
    mosaics = [Want("mosaics", "source", recipe="mosaics"), Want("mosaics", "target", recipe="mosaics")]

    def shown(wants: list[Want], phase: Phase = BALANCED, rank: int = 0, processes: int = 1) -> int:
        batch = stream_of(pixels, rank, processes).batch(3, phase, wants)
        return images_shown(*batch, wants, processes)

    assert shown([]) == 6 + 6
    assert shown(ASKED) == 6 + 6 + 3 + 2 + 7
    assert shown([*ASKED, *mosaics]) == 12 + 12 + 12
    assert shown([*ASKED, *mosaics], Phase(turns=(), target=False)) == 6 + 12 + 12
    blind = Phase(turns=(), target=False)
    assert [shown(ASKED, blind, rank, 3) for rank in range(3)] == [6 + 12] * 3
    training = start(kind=Asks, steps=6)
    training.run()
    assert training.images_here == 6 * 12 + 3 * 2 + 3 * 4
    assert training.images_per_second() == training.images_here / training.seconds


def test_a_method_has_its_own_rate_and_decay_unless_set(start: StartRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "ovanet", dataclasses.replace(METHODS["ovanet"], lr=0.05))
    for folder, given, rate in (("own", {}, 0.05), ("set", {"lr": 0.02}, 0.02)):
        training = start(kind=Asks, folder=folder, steps=6, seed=3, **given)
        training.run()
        for line in lines_of(training):
            factor = (1 + 3 * (line["step"] - 1) / 6) ** -0.75
            assert (line["lr_backbone"], line["lr_new"]) == pytest.approx((0.1 * rate * factor, rate * factor))
