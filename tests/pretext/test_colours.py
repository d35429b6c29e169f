"""Colours as classes: the bins, soft encoding and weights, each beside a slow version."""

import numpy as np
import pytest
import torch

from unida.pretext.colorization import Colorization
from unida.pretext.colours import bins_in_gamut, rebalanced, soft_table
from unida.recipes.base import Made
from unida.recipes.lab import srgb_to_lab

# Zhang et al.'s 313 bins: for each a, the first and the last b.
PUBLISHED = {
    **{-90: (50, 90), -80: (20, 90), -70: (0, 90), -60: (-20, 90), -50: (-30, 100), -40: (-40, 100), -30: (-50, 100)},
    **{-20: (-50, 100), -10: (-60, 100), 0: (-70, 100), 10: (-80, 90), 20: (-80, 90), 30: (-90, 90), 40: (-100, 90)},
    **{50: (-100, 80), 60: (-110, 80), 70: (-110, 80), 80: (-110, 70), 90: (-110, 70), 100: (-90, 0)},
}


def test_the_bins_are_the_published_ones() -> None:
    published = [[a, b] for a, (first, last) in PUBLISHED.items() for b in range(first, last + 1, 10)]
    assert len(published) == 313
    assert bins_in_gamut().tolist() == published


def test_every_colour_of_a_screen_lies_between_four_bins() -> None:
    pixels = torch.rand(1, 3, 100, 100, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    colours = srgb_to_lab(pixels)[0, 1:].flatten(1).T.numpy()
    bins = {tuple(pair) for pair in bins_in_gamut().tolist()}
    for a, b in np.floor(colours / 10).astype(int) * 10:
        assert {(a, b), (a + 10, b), (a, b + 10), (a + 10, b + 10)} <= bins


def test_soft_encoding_is_the_slow_one() -> None:
    draw, bins = np.random.default_rng(0), bins_in_gamut()
    nearest, shares = soft_table()
    for a, b in [(0, 0), (5, 5), (-86, 83), *draw.integers(-60, 60, size=(40, 2)).tolist()]:
        squares = [(a - p) ** 2 + (b - q) ** 2 for p, q in bins.tolist()]
        order = sorted(range(313), key=lambda i: (squares[i], i))[:5]
        weights = np.array([np.exp(-squares[i] / (2 * 5**2)) for i in order])
        row = 256 * (a + 128) + b + 128
        assert nearest[row].tolist() == order
        np.testing.assert_allclose(shares[row].numpy(), weights / weights.sum(), rtol=1e-4)


def test_rare_colours_weigh_more_and_the_mean_weight_is_one() -> None:
    share = torch.tensor([0.7, 0.2, 0.1, 0.0], dtype=torch.float64)
    weights = rebalanced(share)
    slow = [1 / (0.5 * p + 0.5 / 4) for p in share.tolist()]
    mean = sum(p * w for p, w in zip(share.tolist(), slow, strict=True))
    assert weights.tolist() == pytest.approx([w / mean for w in slow])
    assert (share * weights).sum().item() == pytest.approx(1)
    assert weights.argsort(descending=True).tolist() == [3, 2, 1, 0]


def test_pictures_of_one_colour_have_weights_too() -> None:
    weights = rebalanced(torch.nn.functional.one_hot(torch.tensor(3), 313).double())
    assert weights.isfinite().all() and weights[3].item() == pytest.approx(1) and (weights >= 1 - 1e-9).all()


def test_loss_measure_and_weights_are_the_slow_formula() -> None:
    torch.manual_seed(0)
    task = Colorization(4, (0.5,) * 3, (0.2,) * 3)
    labels = torch.randint(-40, 40, (2, 2, 3, 3)).to(torch.int8)
    batches = [Made(torch.empty(0), labels, torch.empty(0)), Made(torch.empty(0), labels[:1], torch.empty(0))]
    task.look(batches, lambda images: images)
    nearest, shares = soft_table()
    rows = [(256 * (a + 128) + b + 128) for image in labels.int() for a, b in image.flatten(1).T.tolist()]
    counts = np.zeros(313)
    for row in [*rows, *rows[:9]]:
        counts[nearest[row].numpy()] += shares[row].numpy()
    expected = rebalanced(torch.from_numpy(counts / counts.sum()))
    torch.testing.assert_close(task.weights, expected.float(), rtol=1e-4, atol=0)
    assert torch.equal(task.state_dict()["weights"], task.weights)  # a resumed run has them too
    log_words = torch.randn(2, 2, 2, 4).log_softmax(dim=3)
    result = task(log_words, labels)
    logits = task.head(log_words, (3, 3)).detach().flatten(2).transpose(1, 2).flatten(0, 1).double().numpy()
    losses, hits = [], []
    for row, values in zip(rows, logits, strict=True):
        logs = values - np.log(np.exp(values).sum())
        wanted = np.zeros(313)
        wanted[nearest[row].numpy()] = shares[row].numpy()
        losses.append(-expected[int(wanted.argmax())].item() * (wanted * logs).sum())
        hits.append(values.argmax() == wanted.argmax())
    assert result.loss.item() == pytest.approx(np.mean(losses), rel=1e-4)
    assert result.measure.tolist() == pytest.approx(np.mean(np.reshape(hits, (2, 9)), axis=1))
