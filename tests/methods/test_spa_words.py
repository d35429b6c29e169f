"""SPA's words, pretext classes and statistics."""

import pytest
import torch
import torch.nn.functional as F
from few_steps import Batches, Looking, losses_of, phases_of, prepare, take_round, total
from tiny_spa import (
    SIZE,
    build,
    make_backbone,
    make_batches,
    state,
    with_labels,
    without_mosaics,
)
from torch import Tensor, nn

from unida.clustering.kmeans import kmeans
from unida.methods.base import SourceBatch, TargetBatch
from unida.methods.spa.method import SPA
from unida.training.optim import covers_all


@pytest.fixture(scope="module")
def batches() -> Batches:
    return make_batches()


# ---- words, classes and statistics -----------------------------------------------------------------------------------


def test_the_entropy_counts_the_less_the_more_alike_the_domains_are(batches: Batches) -> None:
    source, target = batches
    gaps = []
    for images in (source.images, (source.images + target.images) / 2, target.images):
        method = prepare(build(preset="best", gap="on"), (source, target._replace(images=images)))
        gaps.append(method.gap.item())
    assert gaps[0] == pytest.approx(0, abs=1e-4) and gaps[0] < gaps[1] < gaps[2] < 1
    assert prepare(build(preset="best", gap="off"), batches).gap.item() == 1


def test_words_are_found_in_both_domains(batches: Batches) -> None:
    """Two domains that look at different things: each has words of its own, as k-means of both together finds them."""
    method = build(preset="best", vocabulary=6)
    prepare(method, batches)
    method.eval()
    with torch.no_grad():
        maps = [method.words.map(batch.images).flatten(2).transpose(1, 2).flatten(0, 1) for batch in batches]
        nearest = [(F.normalize(at, dim=1) @ F.normalize(method.prototypes, dim=1).T) for at in maps]
    used = [set(cosines.argmax(dim=1).tolist()) for cosines in nearest]
    assert used[0] and used[1] and used[0] != used[1] and used[0] | used[1] == set(range(6))
    expected = kmeans(F.normalize(torch.cat(maps), dim=1), 6, seed=0)
    spread = float((F.normalize(torch.cat(maps), dim=1) - expected.centres[expected.assignment]).square().sum())
    distances = torch.cdist(F.normalize(torch.cat(maps), dim=1), method.prototypes)
    assert float(distances.amin(dim=1).square().sum()) == pytest.approx(spread, rel=0.1)
    of_source = kmeans(F.normalize(maps[0], dim=1), 6, seed=0).centres
    alone = torch.cdist(F.normalize(torch.cat(maps), dim=1), of_source).amin(dim=1).square().sum()
    assert float(alone) > 1.5 * spread  # words of the source alone would not do


def test_with_fewer_places_than_words_the_others_stay_as_they_started() -> None:
    method = build(preset="best", vocabulary=40)
    one = torch.zeros(1, 3, SIZE, SIZE)
    batch = (SourceBatch(one, torch.zeros(1), torch.zeros(1)), TargetBatch(one, torch.zeros(1)))
    started = method.prototypes.clone()
    prepare(method, batch)
    changed = (method.prototypes != started).any(dim=1)
    assert 1 <= int(changed.sum()) <= 4  # of an even picture, at most all four places differ
    assert method.prototypes.isfinite().all()


def test_rounds_of_the_method_leave_the_words(batches: Batches) -> None:
    method = prepare(build("dcc", "best", bins="auto"), batches)
    before = state(method)
    take_round(method, batches, step=7)
    changed = {name for name, tensor in method.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed and all(name.startswith("method.") and "backbone" not in name for name in changed)
    assert phases_of(build("ovanet", "best"))[0].round is None  # SPA has none of its own


def test_merged_numbers_of_images_are_one_class(batches: Batches) -> None:
    merged, plain = build(bins="1,2-3,4"), build()
    assert merged.task.bins.tolist() == [0, 1, 1, 2]
    renamed = with_labels(batches, torch.tensor([0, 1, 1, 2]))
    expected, found = losses_of(plain, renamed, "pretext"), losses_of(merged, batches, "pretext")
    torch.testing.assert_close(found["count"], expected["count"])


def test_automatic_classes_are_found_before_the_first_step_and_kept(batches: Batches) -> None:
    method = build(bins="auto")  # random words cannot tell any numbers apart
    assert method.task.bins.tolist() == [0, 1, 2, 3]
    prepare(method, batches)
    assert len(set(method.task.bins.tolist())) < 4
    assert "task.bins" in method.state_dict()


def test_the_papers_preset_looks_at_no_image_before_the_first_step(batches: Batches) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("it looked")

    class Closed(Looking):
        __call__ = made = refuse  # type: ignore[assignment]

    paper, best = (phases_of(build(preset=preset))[0] for preset in ("paper", "best"))
    assert paper.start is not None and best.start is not None
    paper.start(Closed(build(), batches))
    with pytest.raises(AssertionError, match="it looked"):
        best.start(Closed(build(), batches))
    assert paper.sweeps == ("target",) and best.sweeps == ("source", "target")  # whose test views must be there


def statistics(method: SPA) -> dict[str, Tensor]:
    """Of the backbone: mosaics go through no other BatchNorm."""
    of_backbone = state(method.backbone)
    return {name: tensor for name, tensor in of_backbone.items() if name.endswith(("running_mean", "running_var"))}


@pytest.mark.parametrize(("name", "kept"), [("ovanet", "images"), ("ovanet", "mixed"), ("cmu", "images")])
def test_mosaics_leave_the_kept_statistics_alone_if_asked_to(name: str, kept: str, batches: Batches) -> None:
    found = []
    for pretext in ("on", "off"):
        method = prepare(build(name, "best", statistics=kept, pretext=pretext), batches)
        before = statistics(method)
        assert ("count" in losses_of(method, batches)) == (pretext == "on")
        found.append(statistics(method))
        assert not all(torch.equal(found[-1][layer], before[layer]) for layer in before)
    same = [torch.equal(found[0][layer], found[1][layer]) for layer in found[0]]
    assert len(same) > 10
    assert all(same) if kept == "images" else not any(same)
    momenta = {layer.momentum for layer in method.modules() if isinstance(layer, nn.BatchNorm2d)}
    assert momenta == {0.1}  # as they were


@pytest.mark.parametrize(("place", "unused"), [("instead", True), ("beside", False)])
def test_layers_behind_the_pooling_get_no_gradient_without_it(place: str, unused: bool, batches: Batches) -> None:
    """Processes that share the work wait for every gradient, unless they know: so a turn must not name these layers."""
    backbone = make_backbone(name="test_convnext.r160_in1k")
    method = prepare(build(preset="best", backbone=backbone, place=place, pretext="off"), batches)
    (turn,) = phases_of(method)[0].turns
    assert covers_all(turn, method) == (not unused)
    total(losses_of(method, without_mosaics(batches))).backward()
    named = {id(p) for group in turn.groups for p in group.parameters}
    for name, parameter in method.named_parameters():
        if parameter.requires_grad:
            assert (parameter.grad is not None) == (id(parameter) in named), name
