"""The frame: features of any network at one length, centred for each domain, with a constant beside them."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from unida.answering.target import Rule
from unida.config import complete, config_from_options
from unida.methods import METHODS
from unida.methods.base import Problem
from unida.methods.build import build_method
from unida.models.backbone import POOLED, create_backbone
from unida.models.frame import CONSTANT, LENGTH, PRIOR_IMAGES, Frame, needs_frame
from unida.runs.modelfile import load_model, save_model

SIZE = 6


def drawn(count: int, seed: int, shift: float = 0.0) -> Tensor:
    """(N, d) features with signs and lengths of their own."""
    draw = torch.Generator().manual_seed(seed)
    lengths = 1 + 20 * torch.rand(count, 1, generator=draw)
    return lengths * (torch.randn(count, SIZE, generator=draw) + shift)


def measured(source: Tensor, target: Tensor) -> Frame:
    frame = Frame(SIZE, is_on=True)
    frame.measure(source, target)
    return frame


def slow_directions(features: Tensor) -> list[np.ndarray]:
    return [row / math.sqrt(sum(x * x for x in row)) for row in features.double().numpy()]


def slow_means(source: Tensor, target: Tensor) -> dict[str, np.ndarray]:
    """30 images with the source's mean count among the target's."""
    own = sum(slow_directions(source)) / len(source)
    return {"source": own, "target": (sum(slow_directions(target)) + 30 * own) / (len(target) + 30)}


def slow_frame(features: Tensor, mean: np.ndarray) -> np.ndarray:
    rows = []
    for direction in slow_directions(features):
        z = direction - mean
        z = z / math.sqrt(sum(x * x for x in z))
        rows.append([*(10 * math.sqrt(0.75) * x for x in z), 5.0])
    return np.array(rows)


@pytest.mark.parametrize("domain", ["source", "target"])
def test_it_is_what_the_formula_says(domain: Any) -> None:
    source, target, new = drawn(40, seed=0, shift=0.5), drawn(25, seed=1, shift=-0.3), drawn(7, seed=2)
    framed = measured(source, target)(new, domain)
    assert framed.shape == (7, SIZE + 1) and framed.dtype == torch.float32
    assert framed.numpy() == pytest.approx(slow_frame(new, slow_means(source, target)[domain]), abs=1e-4)


def test_every_feature_has_one_length_and_the_constant_is_half_of_it() -> None:
    framed = measured(drawn(40, seed=0), drawn(40, seed=1))(drawn(9, seed=2), "target")
    assert framed.norm(dim=1).numpy() == pytest.approx(LENGTH, rel=1e-5)
    assert framed[:, -1].numpy() == pytest.approx(CONSTANT * LENGTH)


def test_each_domain_has_a_mean_of_its_own() -> None:
    """What all images of a place have in common goes; what is left of both domains has about the same centre."""
    source, target = drawn(2000, seed=0, shift=2.0), drawn(2000, seed=1, shift=-2.0)
    frame = measured(source, target)
    for features, domain in ((source, "source"), (target, "target")):
        centre = frame(features, domain)[:, :-1].mean(dim=0).norm()  # type: ignore[arg-type]
        assert centre < 0.15 * LENGTH
    assert frame(target, "source")[:, :-1].mean(dim=0).norm() > 0.8 * LENGTH


def test_a_feature_times_a_number_is_the_same_feature() -> None:
    frame, features = measured(drawn(40, seed=0), drawn(40, seed=1)), drawn(5, seed=2)
    torch.testing.assert_close(frame(7 * features, "source"), frame(features, "source"), atol=1e-4, rtol=1e-4)


def test_few_target_images_hardly_move_the_mean() -> None:
    """One target image minus its own mean would be nothing, whatever it shows."""
    source, target = drawn(200, seed=0, shift=1.0), drawn(1, seed=1, shift=-1.0)
    frame = measured(source, target)
    own = torch.nn.functional.normalize(target, dim=1)[0]
    assert (frame.target_mean - frame.source_mean).norm() < 0.1
    share = (frame.target_mean - frame.source_mean).norm() / (own - frame.source_mean).norm()
    assert share.item() == pytest.approx(1 / (1 + PRIOR_IMAGES), rel=1e-4)
    framed = frame(target, "target")
    assert framed.isfinite().all()
    assert framed[0, :-1].norm().item() == pytest.approx(LENGTH * math.sqrt(0.75), rel=1e-5)
    aligned = framed[0, :-1] @ (own - frame.source_mean)  # its own direction, seen from the source
    assert aligned.item() == pytest.approx(float(LENGTH * math.sqrt(0.75) * (own - frame.source_mean).norm()), rel=1e-3)


def test_many_target_images_outweigh_the_prior() -> None:
    source, target = drawn(100, seed=0, shift=1.0), drawn(3000, seed=1, shift=-1.0)
    frame = measured(source, target)
    expected = torch.nn.functional.normalize(target, dim=1).mean(dim=0)
    assert (frame.target_mean - expected).norm() < 0.02


def test_off_it_gives_back_the_very_same_tensor() -> None:
    frame, features = Frame(SIZE, is_on=False), drawn(3, seed=0).half()
    frame.measure(features, features)
    assert frame(features, "source") is features and frame(features, "target") is features
    assert frame.size == SIZE
    assert not frame.state_dict(), "a model without a frame has no tensors of it"


def test_gradients_pass_through_it_but_not_into_the_means() -> None:
    frame, features = measured(drawn(40, seed=0), drawn(40, seed=1)), drawn(4, seed=2).requires_grad_()
    frame(features, "source")[:, 0].sum().backward()
    assert features.grad is not None and features.grad.abs().sum() > 0
    assert not list(frame.parameters())


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_features_with_signs_need_it_and_those_of_a_relu_do_not(scale: float) -> None:
    draw = torch.Generator().manual_seed(0)
    signed = scale * torch.randn(64, 128, generator=draw)
    assert needs_frame(signed)
    assert not needs_frame(signed.relu())  # the mean of half-normal numbers: 0.8 of their length
    assert not needs_frame(signed + scale)
    assert needs_frame(signed + 0.4 * scale)  # a mean of 0.37
    assert not needs_frame(signed + 0.7 * scale)  # 0.57


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("frame", ["on", "off"])
def test_the_model_file_keeps_it(name: str, frame: str, tmp_path: Path) -> None:
    given = {"method": name, "backbone": "test_resnet", "weights": "none", "train": "head", "crop": 32}
    config = complete(config_from_options({**given, "frame": frame}), has_gpu=False)
    torch.manual_seed(0)
    backbone = create_backbone("test_resnet", "none")
    backbone.freeze(POOLED, torch.float16)
    problem = Problem(3, num_source=8, num_target=8, framed=frame == "on")
    made = build_method(name, backbone, problem, config.method, None).eval()
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        made.frame.measure(made.backbone(images[:4]), made.backbone(images[4:] + 1))
    save_model(tmp_path / "model.safetensors", made, config, ("a", "b", "c"), Rule(0, 0.5, "method"))
    loaded, info = load_model(tmp_path / "model.safetensors")
    assert info.framed is (frame == "on") and loaded.frame.is_on is (frame == "on")
    with torch.no_grad():
        ours, theirs = (method.score(method.features(images)) for method in (made, loaded))
        if frame == "on":
            assert loaded.frame.target_mean.abs().sum() > 0
            loaded.frame.target_mean.zero_()
            without = loaded.score(loaded.features(images))
            assert not torch.equal(without.logits, ours.logits), "or the test would hold of anything"
    assert torch.equal(ours.logits, theirs.logits) and torch.equal(ours.unknown, theirs.unknown)


def test_domains_can_be_measured_one_after_the_other() -> None:
    draw = torch.Generator().manual_seed(0)
    source, target = torch.randn(40, 6, generator=draw) + 1, torch.randn(50, 6, generator=draw) - 1
    at_once, in_turn, off = Frame(6, is_on=True), Frame(6, is_on=True), Frame(6, is_on=False)
    at_once.measure(source, target)
    in_turn.measure_source(source)
    assert torch.equal(in_turn.source_mean, at_once.source_mean)
    assert torch.equal(in_turn.target_mean, in_turn.source_mean)  # the best that is known of the target by then
    in_turn.measure_target(target)
    assert torch.equal(in_turn.target_mean, at_once.target_mean)
    off.measure_source(source)
    off.measure_target(target)
    assert torch.equal(off(source, "source"), source)
