"""Words and histograms against slow arithmetic, and where their gradients go."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from unida.losses.entropy import entropy
from unida.models import words as words_module
from unida.models.words import Similarity, Words, histogram, prototype_alignment_score, usage_gap, word_entropy

every_similarity = pytest.mark.parametrize("similarity", get_args(Similarity))


@pytest.fixture
def features() -> Tensor:
    """(B, D, H, W) = (3, 7, 2, 4), not square: rows and columns must not change places."""
    return torch.randn(3, 7, 2, 4, generator=torch.Generator().manual_seed(0))


def make_words(similarity: Similarity = "dot", temperature: float = 1.0, count: int = 5) -> Words:
    torch.manual_seed(1)
    return Words(7, count, similarity, temperature)


def slow_log_words(features: Tensor, words: Words) -> np.ndarray:
    """(B, H·W, K) in float64, location by location, row by row."""
    prototypes = words.prototypes.detach().double().numpy()
    found = []
    for image in features.double().numpy():
        for row in range(image.shape[1]):
            for column in range(image.shape[2]):
                h = image[:, row, column]
                if words.similarity == "dot":
                    likeness = [v @ h for v in prototypes]
                else:
                    likeness = [v @ h / np.linalg.norm(v) / np.linalg.norm(h) for v in prototypes]
                logits = np.array(likeness) / words.temperature
                found.append(logits - np.log(np.exp(logits).sum()))
    return np.array(found).reshape(len(features), -1, len(prototypes))


@every_similarity
@pytest.mark.parametrize("temperature", [1.0, 0.05, 3.0])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_words_are_a_softmax_over_prototypes_at_every_location(
    features: Tensor, similarity: Similarity, temperature: float, layout: torch.memory_format
) -> None:
    words = make_words(similarity, temperature)
    found = words(features.contiguous(memory_format=layout))
    assert found.shape == (3, 8, 5)
    np.testing.assert_allclose(found.detach().numpy(), slow_log_words(features, words), rtol=1e-4, atol=1e-4)


@every_similarity
def test_a_histogram_is_the_mean_over_locations_and_sums_to_one(features: Tensor, similarity: Similarity) -> None:
    words = make_words(similarity)
    shares = histogram(words(features))
    assert shares.shape == (3, 5)
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(3))
    np.testing.assert_allclose(shares.detach(), np.exp(slow_log_words(features, words)).mean(axis=1), rtol=1e-4)


def test_gradients_of_cosines_are_those_of_finite_differences() -> None:
    draw = torch.Generator().manual_seed(0)
    locations, directions = (torch.randn(shape, generator=draw).double() for shape in ((2, 3, 7), (5, 7)))
    both = (locations.requires_grad_(), torch.nn.functional.normalize(directions, dim=1).requires_grad_())
    assert torch.autograd.gradcheck(words_module._Cosines.apply, both)


def test_gradients_of_16_bit_maps_are_those_of_plain_arithmetic(features: Tensor) -> None:
    words = make_words("cosine", 0.5)
    found = []
    for kind in (torch.bfloat16, torch.float32):
        maps = features.to(torch.bfloat16).to(kind).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=kind is torch.bfloat16):
            logs = words(maps)
        (gradient,) = torch.autograd.grad(word_entropy(logs), maps)
        assert logs.dtype == torch.float32 and gradient.dtype == kind
        found.append(gradient.float())
    torch.testing.assert_close(*found, rtol=0.05, atol=2e-3)


@every_similarity
def test_equal_prototypes_give_the_highest_entropy(features: Tensor, similarity: Similarity) -> None:
    words = make_words(similarity)
    with torch.no_grad():
        words.prototypes[:] = words.prototypes[0]
    assert word_entropy(words(features)).item() == pytest.approx(math.log(5), rel=1e-6)


def test_one_certain_word_gives_none(features: Tensor) -> None:
    words = make_words()
    with torch.no_grad():
        words.prototypes.zero_()
        words.prototypes[2, 0] = 1e4
    features[:, 0] = 1.0
    assert word_entropy(words(features)).item() == pytest.approx(0, abs=1e-6)
    assert histogram(words(features)).argmax(dim=1).tolist() == [2, 2, 2]


def test_word_entropy_is_of_locations_not_of_the_histogram(features: Tensor) -> None:
    """Sure of another word at every location: no entropy in the loss, all of it in the histogram."""
    certain = torch.full((1, 5, 5), -1e4) + 1e4 * torch.eye(5)
    assert word_entropy(certain).item() == 0
    assert entropy(histogram(certain)).item() == pytest.approx(math.log(5))
    log_words = make_words()(features)
    logs = log_words.detach().double().numpy()
    slow = np.mean([-(np.exp(row) * row).sum() for image in logs for row in image])
    assert word_entropy(log_words).item() == pytest.approx(float(slow), rel=1e-5)


def test_entropy_of_probabilities() -> None:
    rows = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    expected = [math.log(2), 0.0, -(0.2 * math.log(0.2) + 0.3 * math.log(0.3) + 0.5 * math.log(0.5))]
    assert entropy(rows).tolist() == pytest.approx(expected)


@every_similarity
def test_gradients_are_kept_from_the_words_and_still_reach_the_features(
    features: Tensor, similarity: Similarity
) -> None:
    gradients = []
    for updating in (True, False):
        words = make_words(similarity)
        seen = features.clone().requires_grad_(True)
        histogram(words(seen, updating=updating))[:, 0].sum().backward()
        assert (words.prototypes.grad is not None) == updating
        assert seen.grad is not None and seen.grad.abs().sum() > 0
        gradients.append(seen.grad)
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(make_words()(features, updating=True), make_words()(features, updating=False))


@every_similarity
def test_words_are_float32_under_autocast(features: Tensor, similarity: Similarity) -> None:
    words = make_words(similarity)
    with torch.autocast("cpu", torch.bfloat16):
        log_words = words(features.bfloat16())
        numbers = (log_words, histogram(log_words), word_entropy(log_words), entropy(histogram(log_words)))
        assert {number.dtype for number in numbers} == {torch.float32}
        # products have 8 bits, the softmax over them 24
        torch.testing.assert_close(histogram(log_words).sum(dim=1), torch.ones(3), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(log_words.detach(), slow_log_words(features, words), atol=0.05)


def test_words_start_as_a_convolution_without_bias_does() -> None:
    torch.manual_seed(2)
    convolution = torch.nn.Conv2d(7, 5, 1, bias=False)
    torch.manual_seed(2)
    assert torch.equal(Words(7, 5).prototypes, convolution.weight[:, :, 0, 0])


def test_a_large_vocabulary_starts_near_the_highest_entropy() -> None:
    """The paper's size: 1024 words on features of about unit length."""
    torch.manual_seed(3)
    features = torch.randn(2, 2048, 7, 7) / math.sqrt(2048)
    log_words = Words(2048, 1024)(features)
    assert word_entropy(log_words).item() == pytest.approx(math.log(1024), abs=0.01)


def test_the_gap_in_use_of_words_is_the_jensen_shannon_divergence() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        one, other = draw.dirichlet(np.full(9, 0.3), size=2)
        mixed = (one + other) / 2
        expected = 0.0
        for side in (one, other):
            for k, share in enumerate(side):
                expected += 0.5 * share * np.log2(share / mixed[k]) if share > 0 else 0.0
        found = usage_gap(torch.from_numpy(one), torch.from_numpy(other)).item()
        assert found == pytest.approx(expected, abs=1e-9)
        assert 0 <= found <= 1
    same, apart = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.0, 0.0, 1.0])
    assert usage_gap(same, same).item() == 0
    assert usage_gap(same, apart).item() == pytest.approx(1)


def slow_pas(features: np.ndarray, words: np.ndarray) -> list[float]:
    scores = []
    for image in features:
        best = []
        for u in range(image.shape[1]):
            h = image[:, u]
            best.append(max(h @ v / (np.linalg.norm(h) * np.linalg.norm(v)) for v in words))
        scores.append(float(np.mean(best)))
    return scores


@pytest.mark.parametrize("cosines_at_once", [1, 100, 2**24])
def test_pas_is_the_mean_of_the_best_cosines(cosines_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words_module, "COSINES_AT_ONCE", cosines_at_once)
    draw = torch.Generator().manual_seed(0)
    maps, words = torch.randn(5, 6, 3, 2, generator=draw), 3 * torch.randn(7, 6, generator=draw)
    expected = slow_pas(maps.flatten(2).numpy(), words.numpy())
    assert np.allclose(prototype_alignment_score(maps, words), expected, atol=1e-5)
    vectors = maps[:, :, 0, 0]
    assert np.allclose(prototype_alignment_score(vectors, words), slow_pas(vectors[:, :, None].numpy(), words.numpy()))


def test_a_feature_on_a_word_scores_one_and_a_feature_of_zeros_scores_zero() -> None:
    words = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    assert prototype_alignment_score(torch.tensor([[0.0, 0.1], [0.0, 0.0]]), words).tolist() == [1, 0]
