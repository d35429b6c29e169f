"""Looks at all images of a domain."""

import numpy as np
import pytest
import torch
from tiny_training import SOURCE_LABELS, Tiny, inputs_of, stream_of
from torch import Tensor

from unida.data.pixels import Pixels
from unida.methods.base import DOMAINS, DomainName, Phase, Problem

MADE = tuple((domain, recipe) for domain in DOMAINS for recipe in ("upside down", "turned"))
BOTH = Phase([], sweeps=DOMAINS, sweeps_made=MADE)
COUNTS: dict[DomainName, int] = {"source": 9, "target": 6}


def test_a_sweep_looks_at_test_views_in_the_order_of_indices(pixels: Pixels) -> None:
    stream, method = stream_of(pixels), Tiny(Problem(3)).eval()
    sweep = stream.sweep(method, BOTH)
    assert sweep.source_labels.tolist() == SOURCE_LABELS.tolist()
    for domain, count in COUNTS.items():
        views = inputs_of().test_view(stream.pixels(domain), np.arange(count))
        with torch.no_grad():
            torch.testing.assert_close(sweep(domain), method.features(views))
        assert torch.equal(sweep(domain, lambda images: images), views)
        assert torch.equal(sweep(domain, lambda images: images, limit=4), views[:4])
        assert len(sweep(domain, lambda images: images, limit=100)) == count
        turned = sweep(domain, lambda images: images, recipe="upside down")
        assert torch.equal(turned, views.rot90(2, dims=(2, 3)))


def test_a_drawn_recipe_in_a_sweep_depends_on_the_image_alone(pixels: Pixels) -> None:
    """Not on the seed, the process or the other images: so kept features serve every run."""
    sweeps = [stream_of(pixels, seed=seed).sweep(Tiny(Problem(3)), BOTH) for seed in (4, 5)]
    whole = sweeps[0]("source", lambda images: images, recipe="turned")
    assert torch.equal(whole, sweeps[1]("source", lambda images: images, recipe="turned"))
    assert torch.equal(whole[:5], sweeps[1]("source", lambda images: images, limit=5, recipe="turned"))
    views = sweeps[0]("source", lambda images: images)
    quarters = [
        [k for k in range(4) if torch.equal(a, b.rot90(k, dims=(1, 2)))] for a, b in zip(whole, views, strict=True)
    ]
    assert all(len(found) == 1 for found in quarters) and len({found[0] for found in quarters}) > 1


def test_batches_of_made_images_are_the_same_on_all_processes(pixels: Pixels) -> None:
    def batches(rank: int, processes: int, seed: int = 4) -> list[Tensor]:
        sweep = stream_of(pixels, rank, processes, seed).sweep(Tiny(Problem(3)), BOTH)
        made = list(sweep.made("target", "mosaics", 3))
        assert all(len(batch.images) == len(batch.labels) == 6 for batch in made)
        assert all(set(batch.of.flatten().tolist()) <= set(range(6)) for batch in made)
        return [batch.images for batch in made]

    alone = batches(0, 1)
    assert not torch.equal(alone[0], alone[1])
    for rank in range(2):
        assert all(torch.equal(*pair) for pair in zip(alone, batches(rank, 2), strict=True))
    assert not torch.equal(alone[0], batches(0, 1, seed=5)[0])


def test_only_a_look_at_all_features_of_the_target_is_kept_for_an_evaluation(pixels: Pixels) -> None:
    sweep = stream_of(pixels).sweep(Tiny(Problem(3)).eval(), BOTH)
    sweep("source")
    sweep("target", lambda images: images.flatten(1))
    sweep("target", limit=3)
    sweep("target", recipe="upside down")
    assert sweep.target_features is None
    assert sweep("target") is sweep.target_features


def test_a_phase_sweeps_only_over_what_it_names(pixels: Pixels) -> None:
    """Test views of other domains may not be there, and a phase without a source must not see it."""
    stream, method = stream_of(pixels), Tiny(Problem(3)).eval()
    with pytest.raises(AssertionError, match="does not sweep over the source"):
        stream.sweep(method, Phase([], "one"))("source")
    without = stream.sweep(method, Phase([], "alone", source=None, sweeps=("source", "target")))
    with pytest.raises(AssertionError, match="'alone' has no source"):
        without("source")
    with pytest.raises(AssertionError, match="'alone' has no source"):
        _ = without.source_labels
    assert len(without("target")) == COUNTS["target"]
    with pytest.raises(AssertionError, match="turned of target is not in its phase"):
        without("target", recipe="turned")
