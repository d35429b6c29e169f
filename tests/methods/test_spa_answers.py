"""SPA's features and answers, what is watched, and what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from few_steps import Batches, losses_of, phases_of, prepare, take_steps
from tiny_spa import CLASSES, FROZEN, SIZE, WORDS, build, every_method, every_preset, make_backbone, make_batches

from unida.answering.alone import Answering
from unida.errors import UserError
from unida.methods import METHODS
from unida.methods.base import Problem
from unida.methods.build import build_method
from unida.methods.spa.backbone import WordBackbone
from unida.methods.spa.method import PRETEXT, SPA
from unida.methods.spa.options import SPAOptions, resolve
from unida.models.backbone import open_backbone
from unida.models.words import histogram
from unida.runs.discover import words_of


@pytest.fixture(scope="module")
def batches() -> Batches:
    return make_batches()


# ---- features and answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["raw", "count", "unit", "batchnorm"])
def test_scales_of_the_histogram(scale: str, batches: Batches) -> None:
    method = build(scale=scale)
    shares = histogram(method.words.log_words(method.words.map(batches[0].images))).detach()
    feature = method.words.scaled(shares)
    if scale in ("raw", "count"):
        expected = {"raw": 1.0, "count": WORDS}[scale]
        torch.testing.assert_close(feature.sum(dim=1), torch.full((8,), float(expected)))
    elif scale == "unit":
        torch.testing.assert_close(feature.norm(dim=1), torch.full((8,), 20.0))
        torch.testing.assert_close(F.normalize(feature, dim=1), F.normalize(shares, dim=1))
    else:
        assert feature.min() == 0 and 0.2 < feature.mean() < 0.6  # of a standard normal's positive part: 0.4


@pytest.mark.parametrize(
    ("words", "place", "size"), [("on", "instead", WORDS), ("on", "beside", WORDS + 96), ("off", "beside", 96)]
)
@pytest.mark.parametrize("tap", [None, "layer2"])
def test_the_feature_is_or_ends_with_the_histogram(
    words: str, place: str, size: int, tap: str | None, batches: Batches
) -> None:
    method = build(words=words, place=place, tap=tap, scale="raw").eval()
    backbone, images = method.backbone, batches[0].images
    assert backbone.num_features == 96
    with torch.no_grad():
        features = method.features(images)
        assert features.shape == (8, size) == (8, method.words.num_features)
        pooled = backbone(images)
        at = tap or "layer4"
        shares = histogram(method.words.vocabulary(backbone.spatial(backbone.run(images, upto=at), at)))
    if place == "beside":
        torch.testing.assert_close(features[:, :96], pooled)
    if words == "on":
        torch.testing.assert_close(features[:, -WORDS:], shares)


@pytest.mark.parametrize(
    ("name", "preset"), [*((name, "best") for name in METHODS if name not in FROZEN), ("ovanet", "paper")]
)
def test_answers_do_not_depend_on_the_pretext_task(name: str, preset: str, batches: Batches) -> None:
    method = prepare(build(name, preset), batches).eval()
    images = batches[1].images
    with torch.no_grad():
        before = method.score(method.features(images))
        for parameter in method.task.parameters():
            parameter.add_(torch.randn(parameter.shape) + 7)
        method.task.bins.zero_()
        after = method.score(method.features(images))
        ours, theirs = Answering(method)(images), Answering(method.method)(images)
    assert torch.equal(before.logits, after.logits) and torch.equal(before.unknown, after.unknown)
    assert torch.equal(ours.prediction, theirs.prediction)
    assert method.unknown_threshold == method.method.unknown_threshold


def test_the_threshold_is_the_methods_own() -> None:
    under = METHODS["source-only"]
    options = under.Options(rejection_threshold=0.8)
    spa = resolve(SPAOptions(spa=True, spa_vocabulary=WORDS))
    method = build_method("source-only", make_backbone(), Problem(CLASSES), options, spa)
    assert isinstance(method, SPA) and method.unknown_threshold == 0.8


@every_method
def test_heads_start_as_they_would_without_spa(name: str) -> None:
    """Where the feature has the same size: runs with and without SPA differ by SPA alone."""
    options, problem = METHODS[name].Options(), Problem(CLASSES, seed=5)

    def made(spa: SPAOptions | None) -> dict[str, torch.Tensor]:
        backbone = open_backbone("test_resnet.r160_in1k", "none", seed=5)
        method = build_method(name, backbone, problem, options, spa)
        return (method.method if isinstance(method, SPA) else method).state_dict()

    bare, with_spa = made(None), made(resolve(SPAOptions(spa=True, spa_vocabulary=WORDS, spa_words="off")))
    for key, tensor in bare.items():
        assert torch.equal(with_spa[key.replace("backbone.", "backbone.backbone.", 1)], tensor)


# ---- what is watched -------------------------------------------------------------------------------------------------


@every_preset
def test_watched_numbers_are_what_they_say(preset: str, batches: Batches) -> None:
    method = prepare(build(preset=preset), batches).eval()
    with torch.no_grad():
        for turn in phases_of(method)[0].turns:
            losses_of(method, batches, turn.name)
        watched_batches = batches if preset == "paper" else batches[1:]  # what the entropy loss is of
        at = method.words.map(torch.cat([batch.images for batch in watched_batches]))
        log_words = method.words.log_words(at)
        V = F.normalize(method.prototypes, dim=1).double().numpy()
    locations = at.flatten(2).transpose(1, 2).flatten(0, 1).double().numpy()
    cosines = [max(V @ h) / np.linalg.norm(h) if h.any() else 0.0 for h in locations]
    usage = log_words.exp().mean(dim=(0, 1))
    watched = {name: number().item() for name, number in method.watched.items()}
    assert watched["pas"] == pytest.approx(float(np.mean(cosines)), rel=1e-4)
    assert watched["word_entropy"] == pytest.approx(-(log_words.exp() * log_words).sum(dim=2).mean().item(), rel=1e-4)
    assert watched["usage_entropy"] == pytest.approx(-(usage * usage.log()).sum().item(), rel=1e-4)
    assert watched["words_in_use"] == pytest.approx(math.exp(watched["usage_entropy"]), rel=1e-4)
    for domain, batch in zip(("source", "target"), batches, strict=True):
        mosaics = batch.extra[PRETEXT]
        with torch.no_grad():
            shares = histogram(method.words.log_words(method.words.map(mosaics.images)))
            chosen = method.task.head(WORDS * shares).argmax(dim=1)
        right = (chosen == mosaics.labels).float().mean().item()
        assert watched[f"count_accuracy_{domain}"] == pytest.approx(right)
    assert watched["words_in_use"] <= WORDS + 1e-3
    assert not any(number().requires_grad for number in method.watched.values())


# ---- options that cannot work ----------------------------------------------------------------------------------------


def test_taps_that_cannot_hold_words_are_refused() -> None:
    with pytest.raises(UserError, match=r"backbone 'test_resnet\.r160_in1k' has no tap 'layer5'"):
        build(tap="layer5")
    with pytest.raises(UserError, match=r"--spa\.tap layer2 is not after --tap layer3"):
        build(train="tail", tap="layer2")
    with pytest.raises(UserError, match=r"--spa\.tap layer2 is not after --tap layer4"):
        build(train="head", tap="layer2")  # no run asks for this: its features are kept at --spa.tap
    assert build(train="tail", tap="layer4").words.tap == "layer4"
    assert build(train="head", tap="layer4").words.tap == "layer4"


@pytest.mark.parametrize("name", ["test_vit.r160_in1k", "test_convnext.r160_in1k", "regnetx_002"])
def test_words_on_other_backbones(name: str, batches: Batches) -> None:
    method = prepare(build(preset="best", backbone=make_backbone(name=name), pretext="off"), batches)
    losses = take_steps(method, batches)[0]
    assert "words" in losses and all(map(math.isfinite, losses.values()))
    tap = method.words.tap
    with torch.no_grad():
        at = method.backbone.spatial(method.backbone.state(batches[0].images, upto=tap), tap)
    assert at.shape[1] == method.prototypes.shape[1]


@pytest.mark.parametrize(("choices", "share"), [({}, 0.5), ({"share": 0.75}, 0.75)])
def test_the_root_of_the_histogram_is_half_as_long_as_the_pooled_feature(
    choices: dict[str, float], share: float, batches: Batches
) -> None:
    """Beside the pooled vector, so that heads without bias and normalisation use both."""
    method = prepare(build(preset="best", **choices), batches).eval()
    with torch.no_grad():
        pooled = [method.backbone(batch.images).norm(dim=1) for batch in batches]
        feature = method.features(batches[0].images)
    length = torch.cat(pooled).mean().item()
    root = feature[:, -WORDS:]
    assert root.norm(dim=1).numpy() == pytest.approx(share * length, rel=1e-3)
    shares = histogram(method.words.vocabulary(method.words.map(batches[0].images)))
    assert (root / root.norm(dim=1, keepdim=True)).square().numpy() == pytest.approx(shares.detach().numpy(), abs=1e-5)


def test_a_model_that_is_older_than_the_share_has_the_share_of_its_time(batches: Batches) -> None:
    """Its config says nothing of it."""
    old = replace(resolve(SPAOptions(spa=True, spa_vocabulary=WORDS)), spa_share=None)
    assert WordBackbone(make_backbone(), old).share == 0.25


def test_the_share_is_of_the_root_alone() -> None:
    with pytest.raises(UserError, match=r"--spa\.share has no effect with --spa\.scale count"):
        resolve(SPAOptions(spa=True, spa_preset="paper", spa_share=0.3))
    complete = resolve(SPAOptions(spa=True, spa_preset="paper"))
    assert resolve(complete) == complete  # as a saved config is read


def test_the_words_that_unknown_images_are_grouped_by_are_roots_of_shares() -> None:
    method = build().eval()
    images = torch.randn(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        words = words_of(method, images)
        shares = method.words.vocabulary(method.words.map(images)).exp().mean(dim=1)
    assert words.shape == (3, WORDS)
    torch.testing.assert_close(words.square(), shares)
    torch.testing.assert_close(words.norm(dim=1), torch.ones(3))
