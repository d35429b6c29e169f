"""Randomness as a function of (seed, purpose, position): nothing here has state."""

import hashlib

import numpy as np


def generator(seed: int, purpose: str, *position: int) -> np.random.Generator:
    """A random generator that depends only on the run's seed, what it is for, and where in the run it is used.

    Each purpose has its own stream: an additional draw somewhere never shifts the draws elsewhere.
    """
    key = hashlib.blake2b(f"{purpose}:{position}".encode(), digest_size=8).digest()
    return np.random.Generator(np.random.PCG64([seed, int.from_bytes(key, "little")]))


def torch_seed(seed: int, purpose: str, *position: int) -> int:
    """A seed for torch's own generators (head initialisation, dropout), from the same key as `generator`."""
    return int(generator(seed, purpose, *position).integers(2**63))
