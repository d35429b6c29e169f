"""The memory of prototypes against its formulas, one cluster and one image at a time in float64."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unida.losses.prototype_memory import memory_loss, ramp, update_memory


def made_up(count: int = 6, d: int = 8, batch: int = 10, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Unit rows (K, d), features (B, d), clusters (B,): not every cluster is in the batch."""
    draw = torch.Generator().manual_seed(seed)
    memory = F.normalize(torch.randn(count, d, generator=draw, dtype=torch.float64), dim=1)
    features = 3 * torch.randn(batch, d, generator=draw, dtype=torch.float64)
    return memory, features, torch.randint(max(1, count - 2), (batch,), generator=draw)


def slow_update(memory: np.ndarray, features: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    updated = memory.copy()
    for k in range(len(memory)):
        members = [f / np.linalg.norm(f) for f, c in zip(features, clusters, strict=True) if c == k]
        if not members:
            continue
        mean = np.mean(members, axis=0)
        centre = mean / np.linalg.norm(mean)
        weight = float(memory[k] @ centre)
        moved = weight * memory[k] + (1 - weight) * centre
        updated[k] = moved / np.linalg.norm(moved)
    return updated


def slow_loss(memory: Tensor, features: Tensor, clusters: Tensor, temperature: float) -> Tensor:
    losses = []
    for feature, cluster in zip(features, clusters, strict=True):
        direction = feature / (feature * feature).sum().sqrt()
        powers = [torch.exp((direction * row).sum() / temperature) for row in memory]
        losses.append(-torch.log(powers[int(cluster)] / torch.stack(powers).sum()))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("count", [1, 3, 6, 40])
def test_update_is_the_slow_formula(count: int) -> None:
    memory, features, clusters = made_up(count)
    expected = torch.from_numpy(slow_update(memory.numpy(), features.numpy(), clusters.numpy()))
    updated = update_memory(memory, features, clusters)
    torch.testing.assert_close(updated, expected, rtol=0, atol=1e-12)
    single = update_memory(memory.float(), features.float(), clusters)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=1e-6)


def test_update_leaves_the_given_memory_and_absent_clusters_alone() -> None:
    memory, features, clusters = made_up()
    before = memory.clone()
    updated = update_memory(memory, features, clusters)
    present = torch.zeros(len(memory), dtype=torch.bool)
    present[clusters] = True
    assert torch.equal(memory, before)
    assert torch.equal(updated[~present], before[~present]) and bool((~present).any())
    assert bool((updated[present] != before[present]).any(dim=1).all())


def test_update_gives_unit_rows_without_gradient() -> None:
    memory, features, clusters = made_up()
    updated = update_memory(memory, features.requires_grad_(), clusters)
    torch.testing.assert_close(updated.norm(dim=1), torch.ones(len(memory), dtype=torch.float64))
    assert not updated.requires_grad


def test_a_far_batch_moves_the_prototype_further() -> None:
    memory = torch.tensor([[1.0, 0.0]])
    zero = torch.zeros(1, dtype=torch.long)

    def after(degrees: float) -> float:
        angle = math.radians(degrees)
        updated = update_memory(memory, torch.tensor([[math.cos(angle), math.sin(angle)]]), zero)
        return math.degrees(math.atan2(updated[0, 1], updated[0, 0])) / degrees

    assert after(5) < after(30) < after(60) < after(90)
    assert after(90) == pytest.approx(1)  # similarity 0: the batch replaces it


def test_features_that_cancel_out_change_nothing() -> None:
    memory = torch.tensor([[0.6, 0.8], [1.0, 0.0]])
    features = torch.tensor([[2.0, 1.0], [-2.0, -1.0], [0.0, 0.0]])
    assert torch.equal(update_memory(memory, features, torch.tensor([0, 0, 1])), memory)


def test_an_unset_prototype_takes_the_batch() -> None:
    updated = update_memory(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]), torch.tensor([0]))
    torch.testing.assert_close(updated, torch.tensor([[0.6, 0.8]]))


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("count", [1, 6, 40])
def test_loss_and_gradient_are_the_slow_formula(count: int, temperature: float) -> None:
    memory, features, clusters = made_up(count)
    features.requires_grad_()
    fast = memory_loss(memory, features, clusters, temperature)
    slow = slow_loss(memory, features, clusters, temperature)
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        torch.autograd.grad(fast, features), torch.autograd.grad(slow, features), rtol=1e-6, atol=1e-9
    )
    single = memory_loss(memory.float(), features.float(), clusters, temperature)
    assert single.dtype == torch.float32 and single.shape == ()
    assert single.item() == pytest.approx(slow.item(), rel=1e-5, abs=1e-6)


def test_the_default_temperature_is_the_papers() -> None:
    memory, features, clusters = made_up()
    assert memory_loss(memory, features, clusters) == memory_loss(memory, features, clusters, 0.1)


def test_no_gradient_flows_into_the_memory() -> None:
    memory, features, clusters = made_up()
    memory.requires_grad_()
    memory_loss(memory, features.requires_grad_(), clusters).backward()
    assert memory.grad is None and features.grad is not None


def test_length_of_a_feature_does_not_matter() -> None:
    memory, features, clusters = made_up()
    torch.testing.assert_close(memory_loss(memory, 7 * features, clusters), memory_loss(memory, features, clusters))


def test_half_precision_is_computed_in_float32() -> None:
    memory, features, clusters = made_up(d=64)
    memory, features = memory.float(), features.bfloat16()
    expected = memory_loss(memory, features.float(), clusters)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert memory_loss(memory, features, clusters) == expected
        assert torch.equal(update_memory(memory, features, clusters), update_memory(memory, features.float(), clusters))


def test_ramp_is_the_references_at_its_own_length() -> None:
    for step in (0, 1, 777, 1500, 2999, 3000):
        assert ramp(step, 3000) == pytest.approx(math.exp(-3 * (5000 - step) / 5000), rel=1e-12)


def test_ramp_is_stretched_to_other_lengths() -> None:
    assert ramp(50, 100) == pytest.approx(ramp(1500, 3000))
    assert ramp(0, 10) == pytest.approx(0.0498, abs=1e-4)
    assert ramp(10, 10) == pytest.approx(0.3012, abs=1e-4)
