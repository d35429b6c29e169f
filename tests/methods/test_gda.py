"""GDA against its published algorithm: the order of its parts, its votes, and its losses on a toy."""

import functools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from few_steps import Batches, decided, phases_of, take_steps
from torch import Tensor, nn

from unida.losses.pseudo_labels import NO_LABEL
from unida.methods import METHODS
from unida.methods.base import Problem
from unida.methods.gda import GDA
from unida.methods.gda_options import GDAOptions
from unida.models.discriminator import Discriminator

C, IMAGES, STEPS = 4, 10, 20  # labels begin at step 2 and change from step 4 on
UNKNOWN = C


def made_up(backbone: nn.Module, steps: int = STEPS, **options: Any) -> GDA:
    torch.manual_seed(2)
    problem = Problem(C, num_source=12, num_target=IMAGES, steps=steps)
    return GDA(backbone, problem, GDAOptions(bottleneck=6, **options))  # type: ignore[arg-type]


@pytest.fixture
def method(toy_backbone: nn.Module) -> GDA:
    return made_up(toy_backbone).train()


@pytest.fixture(autouse=True)
def small_discriminator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unida.methods.gda.Discriminator", functools.partial(Discriminator, hidden=8, dropout=0.0))


def softmax(row: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(row) / np.exp(row).sum())


def seen(method: GDA, batches: Batches) -> list[np.ndarray]:
    """Logits of both domains, and the discriminator's: one pass for each domain."""
    with torch.no_grad():
        z = method.source_features(batches[0].images), method.features(batches[1].images)
        found = [*map(method.classifier, z), *map(method.discriminator, z)]
    return [tensor.double().numpy() for tensor in found]


class Slow:
    """The published algorithm from the logits on. Votes are lists, the newest last."""

    def __init__(self) -> None:
        self.votes: dict[int, list[int]] = {n: [] for n in range(IMAGES)}
        self.first: dict[int, int] = {}
        self.counted = 20

    def label(self, n: int) -> int:
        last = self.votes[n][-self.counted :]
        counts = Counter(last)
        return next((v for v in reversed(last) if counts[v] == max(counts.values())), NO_LABEL)

    def losses(self, method: GDA, batches: Batches, step: int) -> dict[str, float]:
        source, target, d_s, d_t = seen(method, batches)
        labels, indices = batches[0].labels.tolist(), batches[1].indices.tolist()
        domain = [np.log1p(np.exp(-d_s)), np.log1p(np.exp(d_t))]
        right = [-np.log(softmax(row)[y]) for row, y in zip(source, labels, strict=True)]
        if step < 2:
            entropies = [-(softmax(r[:C]) * np.log(softmax(r[:C]) + 1e-6)).sum() for r in target]
            threshold = sorted(entropies, reverse=True)[len(target) // 2]
            new = [UNKNOWN if h > threshold else int(r.argmax()) for h, r in zip(entropies, target, strict=True)]
            found = {"closed": np.mean(right), "domain": domain[0].mean() + domain[1].mean()}
        else:
            if step == 2:
                self.counted = math.ceil(np.mean([len(votes) for votes in self.votes.values()]))
                self.first = {n: self.label(n) for n in self.votes}
            ours = [self.first[n] if step < 4 else self.label(n) for n in indices]
            right += [-np.log(softmax(row)[y]) for row, y in zip(target, ours, strict=True) if y != NO_LABEL]
            mean = np.mean([softmax(row) for row in (*source, *target)], axis=0)
            prior = np.array([0.67 / C] * C + [0.33])
            count = len(source) + len(target)
            new = [int(row.argmax()) for row in target]
            found = {
                "closed": sum(right) / count,
                "domain": (domain[0].mean() + domain[1].mean()) / 2,
                "prior": -(prior * np.log(mean)).sum(),
            }
        for n, vote in zip(indices, new, strict=True):
            self.votes[n].append(vote)
        return {name: float(loss) for name, loss in found.items()}


SHOWN = [(0, 1, 2, 3, 4, 5), (4, 5, 6, 7, 0, 1), (2, 3, 9, 8, 0, 1), (6, 7, 8, 9, 0, 1), (0, 1, 2, 3, 9, 8)]


def test_several_steps_are_the_slow_ones(method: GDA, batches: Batches) -> None:
    """Images 8 and 9 have not voted when labels begin: they have none until they do."""
    slow, optimiser = Slow(), torch.optim.SGD(method.parameters(), lr=0.3)
    for step, shown in enumerate((*SHOWN, *SHOWN)):
        given = batches[0], batches[1]._replace(images=batches[1].images[list(shown)], indices=torch.tensor(shown))
        expected = slow.losses(method, given, step)
        losses = method.training_step(*given, step)
        assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(expected, rel=1e-4), step
        for n, votes in slow.votes.items():
            assert method.votes[n, : len(votes)].tolist() == votes[::-1]
        sum(losses.values()).backward()  # type: ignore[union-attr]
        optimiser.step()
        optimiser.zero_grad()
    assert method.counted == slow.counted == 2
    assert method.first_labels.tolist() == [slow.first[n] for n in range(IMAGES)]
    assert slow.first[8] == slow.first[9] == NO_LABEL and UNKNOWN in slow.first.values()


@pytest.mark.parametrize(
    ("steps", "options", "begin", "change"),
    [
        (36_000, {}, 3600, 7200),
        (300, {}, 30, 60),
        (1, {}, 0, 0),
        (100, {"first_share": 0.5, "hold_share": 0.5}, 50, 100),
    ],
)
def test_its_parts_are_shares_of_the_run(
    toy_backbone: nn.Module, steps: int, options: dict[str, Any], begin: int, change: int
) -> None:
    method = made_up(toy_backbone, steps, **options)
    assert (method.labels_begin, method.labels_change) == (begin, change)


def test_a_long_run_counts_twenty_votes(method: GDA, batches: Batches) -> None:
    method.votes.fill_(1)
    method.votes[:, :9] = 3  # nine of twenty
    method.training_step(*batches, step=method.labels_begin)
    assert method.counted == 20 and method.first_labels.tolist() == [1] * IMAGES


def test_features_learn_against_the_discriminator_more_and_more(method: GDA, batches: Batches) -> None:
    def gradient(step: int) -> Tensor:
        method.zero_grad()
        method.training_step(*batches, step)["domain"].backward()
        found = method.bottleneck.weight.grad
        assert found is not None
        return found.clone()

    assert not gradient(0).any()
    ramp = [2 / (1 + math.exp(-10 * step / STEPS)) - 1 for step in (1, 9)]
    torch.testing.assert_close(gradient(9), gradient(1) * ramp[1] / ramp[0] / 2)  # ½: a mean over both domains


def test_an_image_is_unknown_if_the_last_output_is_the_largest(method: GDA) -> None:
    z = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        nn.init.orthogonal_(method.classifier.weight)
        answers = method.classifier(z)
        assert torch.equal(decided(method, method.score(z)), answers.argmax(dim=1))
        assert 10 < (answers.argmax(dim=1) == UNKNOWN).sum() < 190
        method.classifier.weight.zero_()
        method.classifier.bias.zero_()
        assert not (decided(method, method.score(z)) == UNKNOWN).any()  # a tie is the first one's, as with argmax


def test_an_image_that_comes_twice_votes_once(method: GDA, batches: Batches) -> None:
    twice = batches[1]._replace(indices=torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 4, 4]))
    losses = take_steps(method, (batches[0], twice), steps=6)
    assert (method.votes[:5] != NO_LABEL).sum(dim=1).tolist() == [6] * 5
    assert all(math.isfinite(value) for step in losses for value in step.values())


def test_its_settings_are_the_published_ones(method: GDA) -> None:
    (phase,), card = phases_of(method), METHODS["gda"]
    (turn,) = phase.turns
    assert (phase.source, turn.optimiser, turn.decay) == ("shuffled", "sgd", 0.0)
    assert (card.lr, card.steps) == (1e-3, 36_000)
    assert method.classifier.weight.abs().max() <= 0.1 * math.sqrt(6 / (6 + C + 1))
    assert not method.classifier.bias.any()
    shares = method.prior(torch.zeros(()))
    assert shares.tolist() == pytest.approx([0.67 / C] * C + [0.33])
