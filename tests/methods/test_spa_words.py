"""SPA's words, pretext classes and statistics."""

import pytest
import torch
import torch.nn.functional as F
from tiny_spa import (
    CLASSES,
    SIZE,
    WORDS,
    Batches,
    Looking,
    build,
    every_method,
    make_batches,
    prepare,
    state,
    without_mosaics,
)
from torch import Tensor, nn

from unida.clustering.kmeans import kmeans
from unida.methods import METHODS
from unida.methods.base import SourceBatch, TargetBatch
from unida.methods.spa.method import SPA
from unida.methods.spa.options import SPAOptions, leaves_parameters_unused, resolve
from unida.models.backbone import create_backbone


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
        nearest = [(F.normalize(at, dim=1) @ F.normalize(method.words.words.prototypes, dim=1).T) for at in maps]
    used = [set(cosines.argmax(dim=1).tolist()) for cosines in nearest]
    assert used[0] and used[1] and used[0] != used[1] and used[0] | used[1] == set(range(6))
    expected = kmeans(F.normalize(torch.cat(maps), dim=1), 6, seed=0)
    spread = float((F.normalize(torch.cat(maps), dim=1) - expected.centres[expected.assignment]).square().sum())
    distances = torch.cdist(F.normalize(torch.cat(maps), dim=1), method.words.words.prototypes)
    assert float(distances.amin(dim=1).square().sum()) == pytest.approx(spread, rel=0.1)
    of_source = kmeans(F.normalize(maps[0], dim=1), 6, seed=0).centres
    alone = torch.cdist(F.normalize(torch.cat(maps), dim=1), of_source).amin(dim=1).square().sum()
    assert float(alone) > 1.5 * spread  # words of the source alone would not do


def test_with_fewer_places_than_words_the_others_stay_as_they_started() -> None:
    method = build(preset="best", vocabulary=40)
    one = torch.zeros(1, 3, SIZE, SIZE)
    batch = (SourceBatch(one, torch.zeros(1), torch.zeros(1)), TargetBatch(one, torch.zeros(1)))
    started = method.words.words.prototypes.clone()
    prepare(method, batch)  # type: ignore[arg-type]
    changed = (method.words.words.prototypes != started).any(dim=1)
    assert 1 <= int(changed.sum()) <= 4  # of an even picture, at most all four places differ
    assert method.words.words.prototypes.isfinite().all()


def test_rounds_after_the_first_leave_the_words(batches: Batches) -> None:
    method = prepare(build(preset="best"), batches)
    before = state(method)
    method.on_round(7, Looking(method, batches))
    assert all(torch.equal(tensor, before[name]) for name, tensor in method.state_dict().items())


def test_merged_numbers_of_images_are_one_class(batches: Batches) -> None:
    source, target = batches
    assert source.pretext is not None and target.pretext is not None
    merged, plain = build(bins="1,2-3,4"), build()
    assert merged.bins.tolist() == [0, 1, 1, 2]
    renamed = torch.tensor([0, 1, 1, 2])
    expected = plain(
        source._replace(pretext=source.pretext._replace(labels=renamed[source.pretext.labels])),
        target._replace(pretext=target.pretext._replace(labels=renamed[target.pretext.labels])),
        0,
        "pretext",
    )
    torch.testing.assert_close(merged(source, target, 0, "pretext")["count"], expected["count"])


def test_automatic_classes_are_found_before_the_first_step_and_kept(batches: Batches) -> None:
    method = build(bins="auto")  # random words cannot tell any numbers apart
    assert method.round_every
    assert method.bins.tolist() == [0, 1, 2, 3]
    prepare(method, batches)
    assert len(set(method.bins.tolist())) < 4
    assert "bins" in method.state_dict()
    assert build().round_every == 0  # the paper's needs none


def statistics(method: SPA) -> dict[str, Tensor]:
    """Of the backbone: mosaics go through no other BatchNorm."""
    of_backbone = state(method.backbone)
    return {name: tensor for name, tensor in of_backbone.items() if name.endswith(("running_mean", "running_var"))}


@every_method
@pytest.mark.parametrize("kept", ["images", "mixed"])
def test_mosaics_leave_the_kept_statistics_alone_if_told_so(name: str, kept: str, batches: Batches) -> None:
    found = []
    for given in (batches, without_mosaics(batches)):
        method = prepare(build(name, "best", statistics=kept), batches)
        before = statistics(method)
        method(*given, 0)
        found.append(statistics(method))
        assert not all(torch.equal(found[-1][layer], before[layer]) for layer in before)
    same = [torch.equal(found[0][layer], found[1][layer]) for layer in found[0]]
    assert len(same) > 10
    assert all(same) if kept == "images" else not any(same)
    momenta = {layer.momentum for layer in method.modules() if isinstance(layer, nn.BatchNorm2d)}
    assert momenta == {0.1}  # as they were


@pytest.mark.parametrize(("place", "unused"), [("instead", True), ("beside", False)])
def test_layers_behind_the_pooling_get_no_gradient_without_it(place: str, unused: bool, batches: Batches) -> None:
    """Processes that share the work wait for every gradient, unless they know."""
    options = resolve(SPAOptions(spa=True, spa_vocabulary=WORDS, spa_place=place))  # type: ignore[arg-type]
    assert leaves_parameters_unused(options) == unused
    backbone = create_backbone("test_convnext.r160_in1k", "none")
    method = SPA(METHODS["ovanet"], backbone, CLASSES, METHODS["ovanet"].Options(), options).train()
    prepare(method, batches)
    torch.stack(list(method(*without_mosaics(batches), 0).values())).sum().backward()
    learning = [parameter for group in method.parameter_groups() for parameter in group]
    assert any(parameter.grad is None for parameter in learning) == unused
