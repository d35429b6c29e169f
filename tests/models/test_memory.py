"""The memory of target images: what a batch writes, row by row."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unida.models.memory import FeatureMemory


def unit(rows: int, seed: int) -> Tensor:
    return F.normalize(torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed)), dim=1)


def test_it_starts_with_zeros() -> None:
    memory = FeatureMemory(6, 4)
    assert {name: tuple(buffer.shape) for name, buffer in memory.named_buffers()} == {"rows": (6, 4)}
    assert not memory.rows.any() and not list(memory.parameters())


@pytest.mark.parametrize("momentum", [0.0, 0.001, 0.7])
def test_rows_are_the_slow_formula(momentum: float) -> None:
    memory, expected = FeatureMemory(6, 4, momentum), np.zeros((6, 4))
    for seed, indices in enumerate(([4, 0], [0, 5, 2], [2, 4])):
        features = unit(len(indices), seed)
        memory.write(torch.tensor(indices), features)
        for n, feature in zip(indices, features.double().numpy(), strict=True):
            mixed = momentum * expected[n] + (1 - momentum) * feature
            expected[n] = mixed / np.linalg.norm(mixed)
    np.testing.assert_allclose(memory.rows.numpy(), expected, atol=1e-6)
    assert memory.rows.any(dim=1).tolist() == [True, False, True, False, True, True]


def test_of_an_image_that_comes_twice_the_last_view_stays() -> None:
    memory, features = FeatureMemory(3, 4), unit(5, seed=0)
    memory.write(torch.tensor([1, 2, 1, 1, 2]), features)
    torch.testing.assert_close(memory.rows, torch.stack([torch.zeros(4), features[3], features[4]]))


def test_writing_keeps_no_gradient_and_a_zero_feature_is_no_nan() -> None:
    memory = FeatureMemory(2, 4)
    memory.write(torch.tensor([0, 1]), torch.stack([torch.zeros(4), torch.ones(4) / 2]).requires_grad_())
    assert not memory.rows.requires_grad and memory.rows.isfinite().all()
