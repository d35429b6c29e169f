"""Measures of a method while it trains: of which images, of which features, and against which words."""

from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric

from unida.analysis import tracking
from unida.analysis.measures import domain_invariance_score, negative_transfer_risk
from unida.analysis.tracking import Tracking, tracked_note
from unida.config import Config, complete, config_from_options
from unida.data.domains import Source, Target, open_domains
from unida.data.glyphs import write_glyphs
from unida.errors import UserError
from unida.evaluation.truth import Truth, read_truth
from unida.features.inputs import PixelInputs
from unida.methods.base import Method
from unida.methods.spa.method import SPA
from unida.models.words import prototype_alignment_score
from unida.runs.modelfile import build_for_run
from unida.training import batches

CPU = torch.device("cpu")
Domains = tuple[Source, Target, Truth]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    place = tmp_path_factory.mktemp("tracking")
    write_glyphs(place, shared=3, source_private=1, target_private=2, per_class=5, size=40)
    folders = {"source": place / "source", "target": place / "target", "target_labels": True, "cache": place / "cache"}
    small: dict[str, Any] = {"backbone": "test_resnet.r160_in1k", "weights": "none", "image_size": 40, "crop": 32}
    words = {"spa": True, "spa_vocabulary": 8, "spa_tap": "layer3", "spa_init": "random"}
    return complete(config_from_options({**folders, **small, **words, "train": "all", "frame": "off"}), has_gpu=False)


@pytest.fixture(scope="module")
def domains(config: Config) -> Domains:
    source, target = open_domains(config.data, visible=False)
    truth = read_truth(config.data, target, source.classes, visible=False)
    assert truth is not None
    return source, target, truth


@pytest.fixture
def method(config: Config, domains: Domains) -> Method:
    source, target, _ = domains
    return build_for_run(config, source, target)


def inputs_of(method: Method) -> PixelInputs:
    return PixelInputs(32, method.backbone.mean, method.backbone.std, CPU)


def measure(names: tuple[str, ...], domains: Domains, method: Method) -> dict[str, float]:
    fabric = Fabric(accelerator="cpu", devices=1)
    return Tracking(names, *domains, seed=0).measure(method, inputs_of(method), fabric)


def test_the_measures_are_of_the_methods_features_and_its_words(
    domains: Domains, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "SWEEP_BATCH", 7)  # 20 and 25 images: the last batch is a part
    source, _, truth = domains
    found = measure(("dis", "pas", "ntr"), domains, method)
    assert list(found) == ["dis", "pas", "ntr"]

    assert isinstance(method, SPA)
    inputs, words = inputs_of(method), method.words
    images = [inputs.test_view(pixels, np.arange(len(pixels))) for pixels in (source.pixels, truth.pixels)]
    with torch.no_grad():
        ours, theirs = (method.eval().features(part) for part in images)
        score = prototype_alignment_score(words.map(images[1]), words.vocabulary.prototypes.detach())
    assert found["pas"] == pytest.approx(float(score.mean()), abs=1e-5)
    is_private = torch.from_numpy(np.array([truth.names[label] in ("key", "tree") for label in truth.labels]))
    labels = torch.from_numpy(source.labels)
    assert found["ntr"] == negative_transfer_risk(ours, labels, theirs, is_private, 4)
    which = [np.array([file.digest for file in pixels.files]) for pixels in (source.pixels, truth.pixels)]
    assert found["dis"] == domain_invariance_score(ours, theirs, 0, *which)
    assert 0 < is_private.sum() < len(is_private)


def test_measuring_leaves_the_method_as_it_was(domains: Domains, method: Method) -> None:
    """BatchNorm would learn from every batch that it sees in training mode."""
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    for training in (True, False):
        method.train(training)
        measure(("pas", "ntr", "dis"), domains, method)
        assert method.training is training and method.backbone.training is training
    after = method.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert all(parameter.grad is None for parameter in method.parameters())


def test_few_images_are_looked_at_and_the_same_ones_every_time(
    domains: Domains, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "IMAGES", 6)
    monkeypatch.setattr(tracking, "IMAGES_PER_CLASS", 2)
    first, again, other = (Tracking(("ntr",), *domains, seed=seed).images for seed in (0, 0, 1))
    assert (len(first.source), len(first.target)) == (8, 6)  # two a class are more than six
    assert first.source.files == again.source.files and first.target.files == again.target.files
    assert first.source.files != other.source.files
    classes = domains[0].classes
    assert [classes[label] for label in first.source_labels] == [file.path.parent.name for file in first.source.files]
    assert first.target_is_private is not None
    private = [file.path.parent.name in ("key", "tree") for file in first.target.files]
    assert first.target_is_private.tolist() == private


def test_without_truth_the_targets_images_are_looked_at(domains: Domains) -> None:
    source, target, _ = domains
    without = Tracking(("dis",), source, target, None, seed=0).images
    assert without.target_is_private is None and len(without.target) == len(target.pixels)


def test_too_few_images_for_dis_are_reported_at_the_start(domains: Domains) -> None:
    source, target, _ = domains
    few = Target(target.pixels.subset(np.arange(4)))
    with pytest.raises(UserError, match=r"--track dis: the target has 4 different images.*leave dis out"):
        Tracking(("dis",), source, few, None, seed=0)
    Tracking(("pas",), source, few, None, seed=0)


def test_a_line_for_the_log() -> None:
    assert tracked_note({"ntr": 0.5, "dis": 0.0321}) == "NTR 0.500  DIS 0.032"
    assert tracked_note({}) == ""
