"""The task of counting: its loss, its hits, and classes that are merged."""

import numpy as np
import pytest
import torch
from torch import Tensor

from unida.pretext.count import Count

WORDS = 6


def made_words(count: int = 40, locations: int = 5) -> tuple[Tensor, Tensor]:
    """(B, U, K) log φ and (B,) labels 0…3."""
    draw = torch.Generator().manual_seed(0)
    log_words = torch.randn(count, locations, WORDS, generator=draw).log_softmax(dim=2)
    return log_words, torch.arange(count) % 4


def make_task(bins: str = "none") -> Count:
    torch.manual_seed(1)
    return Count(WORDS, grid=2, bins=bins, pool=64)


@pytest.mark.parametrize(("bins", "table"), [("none", [0, 1, 2, 3]), ("1,2-3,4", [0, 1, 1, 2])])
def test_loss_and_hits_are_the_slow_formula(bins: str, table: list[int]) -> None:
    task, (log_words, labels) = make_task(bins), made_words()
    found = task(log_words, labels)
    weight, bias = (p.detach().double().numpy() for p in task.head.parameters())
    losses, hits = [], []
    for phi, label in zip(log_words.exp().double().numpy(), labels.tolist(), strict=True):
        logits = weight @ (WORDS * phi.mean(axis=0)) + bias
        losses.append(np.log(np.exp(logits).sum()) - logits[table[label]])
        hits.append(int(logits.argmax()) == table[label])
    assert found.loss.item() == pytest.approx(float(np.mean(losses)), rel=1e-5)
    assert found.measure.tolist() == hits and 0 < sum(hits) < len(hits)
    assert not found.measure.requires_grad


def test_mosaics_have_as_many_cells_as_there_are_classes() -> None:
    task = Count(WORDS, grid=3, bins="none", pool=128)
    assert task.head.out_features == len(task.bins) == task.recipe.cells == 9
    assert task.recipe.pool == 128


def test_numbers_whose_histograms_look_alike_are_merged() -> None:
    """Mosaics of 1 show one word, of 2 two words; those of 3 and 4 show three."""
    task, draw = make_task("auto"), np.random.default_rng(0)
    log_words, labels = [], []
    for label, shown in enumerate((1, 2, 3, 3)):
        for _ in range(400):
            shares = np.full(WORDS, 1e-4)
            shares[:shown] += draw.uniform(0.9, 1.1, shown)
            log_words.append(np.log(shares / shares.sum()))
            labels.append(label)
    phi = torch.tensor(np.array(log_words))[:, None, :]
    merged = task.merge_bins([(phi, torch.tensor(labels))])
    assert merged == (0, 1, 2, 2) and task.bins.tolist() == [0, 1, 2, 2]
    assert torch.equal(task.state_dict()["bins"], task.bins)  # a resumed run has them too
