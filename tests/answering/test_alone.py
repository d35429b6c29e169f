"""Answers for all images equal those for each image alone, however they are batched and shared out."""

import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from PIL import Image
from torch import Tensor

from unida.answering.alone import Answering, Answers, decide, score_pixels
from unida.data.augment import Preprocess
from unida.data.folders import scan
from unida.data.pixels import Pixels, decode_in_memory
from unida.errors import UserError
from unida.methods.base import Method, Problem, Scores
from unida.methods.source_only import SourceOnly
from unida.methods.source_only_options import SourceOnlyOptions
from unida.models.backbone import create_backbone

COUNT = 13
FIELDS = ("prediction", "closed", "probability", "unknown_score")


@pytest.fixture(scope="module")
def method() -> Method:
    """Random weights, with batch statistics of its own and a threshold that cuts its answers in two."""
    torch.manual_seed(0)
    backbone = create_backbone("test_resnet.r160_in1k", "none")
    method = SourceOnly(backbone, Problem(num_classes=4), SourceOnlyOptions(rejection_threshold=0.9))
    with torch.no_grad():
        method.features(torch.randn(16, 3, 32, 32))
        method.closed.weight.mul_(20)
    return method.eval()


@pytest.fixture(scope="module")
def pixels(tmp_path_factory: pytest.TempPathFactory) -> Pixels:
    folder: Path = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for i in range(COUNT):
        colour = rng.integers(0, 256, 3)
        noise = rng.integers(-20, 20, (40, 40, 3))
        Image.fromarray((colour + noise).clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
    return decode_in_memory(scan(folder)[0], "squash", 36)


@pytest.fixture(scope="module")
def inputs() -> Preprocess:
    return Preprocess(32, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2), torch.device("cpu"))


@pytest.fixture(scope="module")
def one_by_one(method: Method, pixels: Pixels, inputs: Preprocess) -> Answers:
    """The same, written out: each image alone through the network."""
    rows = []
    for i in range(len(pixels)):
        with torch.no_grad():
            scores = method.score(method.features(inputs.test_view(pixels, np.array([i]))))
        p = scores.logits.softmax(dim=1)
        prediction = torch.tensor([4]) if scores.unknown.item() > method.unknown_threshold else p.argmax(dim=1)
        rows.append((prediction, p.argmax(dim=1), p.amax(dim=1), scores.unknown))
    answers = Answers(*(torch.cat(column) for column in zip(*rows, strict=True)))
    assert len(answers.prediction.unique()) > 2 and (answers.prediction == 4).any()  # there is something to mix up
    return answers


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def answered(method: Method, pixels: Pixels, inputs: Preprocess, fabric: Any) -> Answers:
    scored = score_pixels(method, pixels, inputs, fabric, visible=False)
    return decide(scored.probabilities, scored.unknown, method.unknown_threshold)


def assert_same(found: Answers, expected: Answers, count: int = COUNT) -> None:
    for field in FIELDS:
        torch.testing.assert_close(getattr(found, field), getattr(expected, field)[:count], rtol=1e-4, atol=1e-5)


class Together:
    """One of several processes of a group, played by threads: just what `score_pixels` asks of Fabric."""

    def __init__(self, rank: int, processes: int) -> None:
        self.global_rank, self.world_size, self.device = rank, processes, torch.device("cpu")
        self.is_global_zero = rank == 0

    def autocast(self) -> Any:
        return nullcontext()


class Gathering:
    """torch.distributed.all_gather among threads named by their rank."""

    def __init__(self, processes: int) -> None:
        self.sent: list[Tensor | None] = [None] * processes
        self.barrier = threading.Barrier(processes)

    def all_gather(self, received: list[Tensor], mine: Tensor) -> None:
        self.sent[int(threading.current_thread().name)] = mine
        self.barrier.wait(timeout=600)
        for to, tensor in zip(received, self.sent, strict=True):
            assert tensor is not None and to.shape == tensor.shape  # the real one needs it
            to.copy_(tensor)
        self.barrier.wait(timeout=600)


def test_known_features_are_not_computed_again(
    method: Method, pixels: Pixels, inputs: Preprocess, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the scores are those of a pass of its own, to the last bit."""
    monkeypatch.setattr("unida.answering.alone.BATCH_ON_CPU", 5)
    expected = score_pixels(method, pixels, inputs, fabric, visible=False)
    with torch.no_grad():
        index = np.split(np.arange(len(pixels)), range(5, len(pixels), 5))
        features = torch.cat([method.features(inputs.test_view(pixels, part)) for part in index])
    monkeypatch.setattr(type(method), "features", None)
    found = score_pixels(method, pixels, inputs, fabric, visible=False, features=features)
    for field in ("directions", "probabilities", "unknown"):
        assert torch.equal(getattr(found, field), getattr(expected, field)), field


@pytest.mark.parametrize("batch_size", [1, 3, 13, 64])
def test_batches_do_not_matter(
    method: Method,
    pixels: Pixels,
    inputs: Preprocess,
    fabric: Fabric,
    one_by_one: Answers,
    batch_size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("unida.answering.alone.BATCH_ON_CPU", batch_size)
    found = answered(method, pixels, inputs, fabric)
    assert_same(found, one_by_one)
    assert found.prediction.dtype == found.closed.dtype == torch.int64
    assert found.probability.dtype == found.unknown_score.dtype == torch.float32


@pytest.mark.parametrize("processes", [2, 4, 5, 8])
@pytest.mark.parametrize("count", [1, 2, 7, 13])
def test_every_process_ends_up_with_all_answers_in_order(
    method: Method,
    pixels: Pixels,
    inputs: Preprocess,
    one_by_one: Answers,
    processes: int,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some, gathering = pixels.subset(range(count)), Gathering(processes)
    monkeypatch.setattr(torch.distributed, "all_gather", gathering.all_gather)
    monkeypatch.setattr("unida.answering.alone.BATCH_ON_CPU", 2)
    found: dict[int, Answers] = {}
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        together: Any = Together(rank, processes)
        try:
            found[rank] = answered(method, some, inputs, together)
        except BaseException as error:
            errors.append(error)
            gathering.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,), name=str(rank)) for rank in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(found) == list(range(processes))
    for answers in found.values():
        assert len(answers.prediction) == count
        assert_same(answers, one_by_one, count)


def test_batch_statistics_are_left_alone_and_training_goes_on(
    method: Method, pixels: Pixels, inputs: Preprocess, fabric: Fabric, one_by_one: Answers
) -> None:
    before = {name: buffer.clone() for name, buffer in method.named_buffers()}
    method.train()
    try:
        found = answered(method, pixels, inputs, fabric)
        assert method.training and all(module.training for module in method.modules())
    finally:
        method.eval()
    assert_same(found, one_by_one)  # as in evaluation mode
    assert all(torch.equal(buffer, before[name]) for name, buffer in method.named_buffers())
    assert not answered(method, pixels, inputs, fabric).prediction.requires_grad
    assert not method.training  # a method that was not training stays so


def test_the_best_class_is_given_even_of_an_unknown_image(one_by_one: Answers, method: Method) -> None:
    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, of_features = Answering(method)(images), Answering(method).of_features(method.features(images))
    assert all(torch.equal(getattr(found, field), getattr(of_features, field)) for field in FIELDS)
    for answers in (found, one_by_one):
        assert answers.closed.max() < 4
        known = answers.prediction < 4
        assert torch.equal(answers.prediction[known], answers.closed[known])
        assert (answers.probability >= 0.25).all() and (answers.probability <= 1).all()


class Given(Method):
    """Scores that a test has made up."""

    def __init__(self, scores: Scores, threshold: float) -> None:
        torch.nn.Module.__init__(self)
        self.problem, self.given, self.unknown_threshold = Problem(num_classes=3), scores, threshold

    def score(self, features: Tensor) -> Scores:
        return self.given


@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.5, 1.0])
def test_an_image_is_unknown_exactly_if_its_score_is_above_the_threshold(threshold: float) -> None:
    unknown = torch.tensor([0.0, 0.2499, 0.25, 0.2501, 0.5, 0.5001, 1.0])
    logits = torch.eye(3)[[0, 1, 2, 0, 1, 2, 0]]
    answers = Answering(Given(Scores(logits, unknown), threshold)).of_features(torch.zeros(7, 1))
    assert (answers.prediction == 3).tolist() == [score > threshold for score in unknown.tolist()]
    assert answers.closed.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert torch.equal(answers.unknown_score, unknown)


class Bad(Given):
    """Features that a test has made up; the scores are fine."""

    def __init__(self, features: Tensor) -> None:
        super().__init__(Scores(torch.zeros(len(features), 3), torch.zeros(len(features))), 0.5)
        self.bad = features

    def features(self, images: Tensor) -> Tensor:
        return self.bad


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_features_that_are_not_finite_have_no_direction(
    pixels: Pixels, inputs: Preprocess, fabric: Fabric, value: float
) -> None:
    features = torch.ones(COUNT, 2)
    features[4, 1] = value
    with pytest.raises(UserError, match=r"^1 of 13 images have a score that is not finite: .*--lr$"):
        score_pixels(Bad(features), pixels, inputs, fabric, visible=False)


def test_directions_are_features_at_unit_length(pixels: Pixels, inputs: Preprocess, fabric: Fabric) -> None:
    features = torch.from_numpy(np.random.default_rng(0).normal(size=(COUNT, 4))).float()
    features[2] *= 1e4  # a long one is no nearer to others
    features[3] = 0  # one without a direction is no error
    directions = score_pixels(Bad(features), pixels, inputs, fabric, visible=False).directions
    assert directions.dtype == torch.float16
    expected = features.numpy() / np.maximum(np.linalg.norm(features.numpy(), axis=1, keepdims=True), 1e-9)
    np.testing.assert_allclose(directions.numpy(), expected, atol=1e-3)
    assert not directions[3].any()
