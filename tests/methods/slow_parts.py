"""UAN's family in NumPy, float64, one image at a time: what the tests of uan, iuan and cmu compare with."""

import math
from collections.abc import Callable

import numpy as np
from torch import Tensor, nn

from unida.models.discriminator import Discriminator


def numbers(tensor: Tensor) -> np.ndarray:
    found: np.ndarray = tensor.detach().double().numpy()
    return found


def linear(layer: nn.Linear, row: np.ndarray) -> np.ndarray:
    found: np.ndarray = numbers(layer.weight) @ row + numbers(layer.bias)
    return found


def softmax(row: np.ndarray) -> np.ndarray:
    powers: np.ndarray = np.exp(row - row.max())
    return powers / powers.sum()


def entropy(p: np.ndarray) -> float:
    """As a share of log C."""
    return sum(-x * math.log(x + 1e-10) for x in p) / math.log(len(p))


def margin(p: np.ndarray) -> float:
    second, first = np.sort(p)[-2:]
    return float(first - second)


def cross_entropy(rows: list[np.ndarray], labels: list[int]) -> float:
    """The mean over images."""
    return float(np.mean([-math.log(softmax(row)[label]) for row, label in zip(rows, labels, strict=True)]))


def is_source(made: Discriminator, row: np.ndarray) -> float:
    """The discriminator's sigmoid, without dropout. Layers with BatchNorm are not for this."""
    first, second, last = (layer for layer in made.layers if isinstance(layer, nn.Linear))
    row = np.maximum(linear(first, row), 0)
    row = np.maximum(linear(second, row), 0)
    return float(1 / (1 + np.exp(-linear(last, row)[0])))


def domain_loss(of_source: list[float], of_target: list[float], w_s: list[float], w_t: list[float]) -> float:
    source = np.mean([-w * math.log(d) for w, d in zip(w_s, of_source, strict=True)])
    return float(source + np.mean([-w * math.log(1 - d) for w, d in zip(w_t, of_target, strict=True)]))


def scaled(values: list[float], epsilon: float = 0.0) -> list[float]:
    """Min-max over the batch, then over the mean."""
    low, high = min(values), max(values)
    between = [(value - low) / (high - low + epsilon) for value in values]
    mean = sum(between) / len(between) + epsilon
    return [value / mean for value in between]


def slow_gradient(function: Callable[[np.ndarray], float], at: np.ndarray, h: float = 1e-5) -> np.ndarray:
    """By central differences."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[place] = h
        found[place] = (function(at + step) - function(at - step)) / (2 * h)
    return found
