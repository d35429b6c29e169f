"""The things that are drawn, as outlines: one shape per class, without size, place and style."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]  # (N, 2) x to the right, y down, the picture's subject within −1…1


@dataclass(frozen=True)
class Part:
    """One piece of a shape: a filled polygon, or a stroke along the points if it has a width."""

    points: Points
    width: float = 0.0
    hole: bool = False  # takes away from the parts before it


def _fill(*points: tuple[float, float]) -> Part:
    return Part(np.array(points))


def _line(*points: tuple[float, float], width: float = 0.26) -> Part:
    return Part(np.array(points), width)


def _arc(x: float, y: float, rx: float, ry: float, start: float = 0.0, end: float = 360.0) -> Points:
    """Points of an ellipse's arc, in degrees clockwise from the right."""
    t = np.radians(np.linspace(start, end, 48))
    return np.stack([x + rx * np.cos(t), y + ry * np.sin(t)], axis=1)


def _polygon(corners: int) -> Points:
    t = 2 * np.pi * np.arange(corners) / corners
    return np.stack([np.sin(t), -np.cos(t)], axis=1)


def _star(tips: int, inner: float) -> Points:
    radius = np.where(np.arange(2 * tips) % 2 == 0, 1.0, inner)
    return _polygon(2 * tips) * radius[:, None]


def _gear(teeth: int = 8) -> Points:
    t = 2 * np.pi * np.arange(4 * teeth) / (4 * teeth)
    radius = np.where(np.arange(4 * teeth) % 4 < 2, 1.0, 0.72)
    return np.stack([radius * np.cos(t), radius * np.sin(t)], axis=1)


def _flower(petals: int = 6) -> Points:
    t = np.linspace(0, 2 * np.pi, 97)
    radius = 0.45 + 0.55 * np.abs(np.cos(petals * t / 2))
    return np.stack([radius * np.cos(t), radius * np.sin(t)], axis=1)


def _heart() -> Points:
    t = np.linspace(0, 2 * np.pi, 64)
    x = 16 * np.sin(t) ** 3
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([x, -y - 2], axis=1) / 16


def _drop() -> Points:
    t = np.linspace(0, 2 * np.pi, 64)
    return np.stack([0.8 * np.sin(t) * np.sin(t / 2) ** 1.5, -np.cos(t)], axis=1)


def _spiral(turns: float = 2.6) -> Points:
    t = np.linspace(0, 1, 80)
    angle = 2 * np.pi * turns * t
    return np.stack([t * np.cos(angle), t * np.sin(angle)], axis=1)


def _infinity() -> Points:
    t = np.linspace(0, 2 * np.pi, 80)
    shrink = 1 + np.sin(t) ** 2
    return np.stack([np.cos(t) / shrink, 1.5 * np.sin(t) * np.cos(t) / shrink], axis=1)


def _join(*pieces: Points) -> Points:
    return np.concatenate(pieces)


# The first classes are always a varied set: similar ones (ring and circle, plus and cross) are far from each other.
SHAPES: dict[str, tuple[Part, ...]] = {
    "star": (Part(_star(5, 0.42)),),
    "house": (
        _fill((-1, -0.05), (0, -1), (1, -0.05)),
        _fill((-0.75, -0.15), (0.75, -0.15), (0.75, 0.9), (-0.75, 0.9)),
        Part(np.array([(-0.2, 0.9), (-0.2, 0.3), (0.2, 0.3), (0.2, 0.9)]), hole=True),
    ),
    "heart": (Part(_heart()),),
    "arrow": (_fill((-1, -0.25), (0.1, -0.25), (0.1, -0.7), (1, 0), (0.1, 0.7), (0.1, 0.25), (-1, 0.25)),),
    "key": (
        Part(_arc(-0.55, 0, 0.36, 0.36), 0.22),
        _line((-0.2, 0), (0.95, 0), width=0.22),
        _line((0.88, 0), (0.88, 0.38), width=0.2),
        _line((0.52, 0), (0.52, 0.32), width=0.2),
    ),
    "tree": (
        _fill((-0.16, 0.5), (0.16, 0.5), (0.16, 1), (-0.16, 1)),
        _fill((0, -1), (0.5, -0.3), (-0.5, -0.3)),
        _fill((0, -0.7), (0.65, 0.15), (-0.65, 0.15)),
        _fill((0, -0.3), (0.8, 0.6), (-0.8, 0.6)),
    ),
    "crescent": (Part(_join(_arc(0, 0, 1, 1, 60, 300), _arc(0.55, 0, 0.867, 0.867, 266.7, 93.3))),),
    "fish": (
        Part(_arc(-0.2, 0, 0.75, 0.48)),
        _fill((0.4, 0), (1, -0.5), (0.85, 0), (1, 0.5)),
        Part(_arc(-0.6, -0.1, 0.09, 0.09), hole=True),
    ),
    "ring": (Part(_arc(0, 0, 0.8, 0.8), 0.34),),
    "bolt": (_fill((0.15, -1), (-0.6, 0.15), (-0.08, 0.15), (-0.3, 1), (0.6, -0.3), (0.08, -0.3), (0.5, -1)),),
    "cup": (
        Part(_arc(0.5, -0.05, 0.4, 0.36, -100, 100), 0.17),
        _fill((-0.8, -0.7), (0.6, -0.7), (0.42, 0.75), (-0.62, 0.75)),
    ),
    "triangle": (_fill((0, -0.9), (1, 0.8), (-1, 0.8)),),
    "spiral": (Part(_spiral(), 0.19),),
    "flower": (Part(_flower()), Part(_arc(0, 0, 0.2, 0.2), hole=True)),
    "anchor": (
        Part(_arc(0, -0.78, 0.17, 0.17), 0.13),
        _line((0, -0.6), (0, 0.85), width=0.2),
        _line((-0.45, -0.33), (0.45, -0.33), width=0.18),
        Part(_arc(0, 0.1, 0.8, 0.78, 10, 170), 0.2),
        _fill((0.55, 0.25), (0.95, -0.1), (1, 0.4)),
        _fill((-0.55, 0.25), (-0.95, -0.1), (-1, 0.4)),
    ),
    "plus": (_line((-0.85, 0), (0.85, 0), width=0.5), _line((0, -0.85), (0, 0.85), width=0.5)),
    "umbrella": (
        Part(
            _join(
                _arc(0, 0, 1, 0.95, 180, 360),
                _arc(0.67, 0, 0.33, 0.17, 0, -180),
                _arc(0, 0, 0.33, 0.17, 0, -180),
                _arc(-0.67, 0, 0.33, 0.17, 0, -180),
            )
        ),
        Part(_join(np.array([(0.0, -0.2)]), _arc(-0.18, 0.75, 0.18, 0.2, 0, 180)), 0.13),
    ),
    "letter_a": (
        _line((-0.75, 0.9), (0, -0.9), (0.75, 0.9)),
        _line((-0.45, 0.3), (0.45, 0.3)),
    ),
    "ladder": (
        _line((-0.5, -1), (-0.5, 1), width=0.16),
        _line((0.5, -1), (0.5, 1), width=0.16),
        *(_line((-0.5, y), (0.5, y), width=0.14) for y in (-0.72, -0.24, 0.24, 0.72)),
    ),
    "gear": (Part(_gear()), Part(_arc(0, 0, 0.33, 0.33), hole=True)),
    "hourglass": (
        _fill((-0.62, -0.85), (0.62, -0.85), (0.06, 0), (0.62, 0.85), (-0.62, 0.85), (-0.06, 0)),
        _line((-0.75, -0.9), (0.75, -0.9), width=0.18),
        _line((-0.75, 0.9), (0.75, 0.9), width=0.18),
    ),
    "drop": (Part(_drop()),),
    "glasses": (
        Part(_arc(-0.58, 0, 0.36, 0.36), 0.14),
        Part(_arc(0.58, 0, 0.36, 0.36), 0.14),
        Part(_arc(0, 0, 0.22, 0.2, 190, 350), 0.14),
        _line((-0.94, 0), (-1, -0.4), width=0.13),
        _line((0.94, 0), (1, -0.4), width=0.13),
    ),
    "square": (_fill((-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)),),
    "mushroom": (
        _fill((-0.26, -0.1), (0.26, -0.1), (0.36, 0.9), (-0.36, 0.9)),
        Part(_arc(0, 0.1, 1, 1, 180, 360)),
        Part(_arc(-0.4, -0.3, 0.16, 0.15), hole=True),
        Part(_arc(0.3, -0.45, 0.2, 0.18), hole=True),
    ),
    "letter_s": (Part(_join(_arc(0, -0.45, 0.55, 0.45, -25, -270), _arc(0, 0.45, 0.55, 0.45, -90, 155)), 0.27),),
    "infinity": (Part(_infinity(), 0.22),),
    "crown": (_fill((-0.8, 0.7), (-1, -0.5), (-0.45, 0.05), (0, -0.8), (0.45, 0.05), (1, -0.5), (0.8, 0.7)),),
    "zigzag": (_line((-1, 0.4), (-0.6, -0.4), (-0.2, 0.4), (0.2, -0.4), (0.6, 0.4), (1, -0.4), width=0.24),),
    "sailboat": (
        _fill((-0.95, 0.5), (0.95, 0.5), (0.6, 0.95), (-0.6, 0.95)),
        _fill((0.05, -1), (0.85, 0.32), (0.05, 0.32)),
        _fill((-0.1, -0.7), (-0.1, 0.32), (-0.75, 0.32)),
        _line((-0.02, -0.9), (-0.02, 0.55), width=0.08),
    ),
    "cross": (_line((-0.75, -0.75), (0.75, 0.75), width=0.4), _line((-0.75, 0.75), (0.75, -0.75), width=0.4)),
    "letter_k": (
        _line((-0.5, -0.9), (-0.5, 0.9)),
        _line((0.6, -0.9), (-0.45, 0.1)),
        _line((-0.1, -0.2), (0.65, 0.9)),
    ),
    "note": (
        Part(_arc(-0.35, 0.65, 0.36, 0.27)),
        _line((-0.05, 0.6), (-0.05, -0.9), width=0.14),
        _fill((-0.1, -0.95), (0.6, -0.45), (0.55, 0.05), (0.4, -0.25), (-0.05, -0.5)),
    ),
    "hexagon": (Part(_polygon(6)),),
    "lock": (
        Part(_join(np.array([(-0.42, 0)]), _arc(0, -0.4, 0.42, 0.48, 180, 360), np.array([(0.42, 0)])), 0.2),
        _fill((-0.75, -0.1), (0.75, -0.1), (0.75, 0.95), (-0.75, 0.95)),
        Part(_arc(0, 0.3, 0.14, 0.14), hole=True),
        Part(np.array([(0.0, 0.3), (0.0, 0.65)]), 0.12, hole=True),
    ),
    "chevron": (_fill((-0.6, -0.9), (-0.05, -0.9), (0.7, 0), (-0.05, 0.9), (-0.6, 0.9), (0.15, 0)),),
    "circle": (Part(_arc(0, 0, 0.9, 0.9)),),
    "letter_e": (_line((0.5, -0.85), (-0.5, -0.85), (-0.5, 0.85), (0.5, 0.85)), _line((-0.5, 0), (0.35, 0))),
    "starburst": (Part(_star(8, 0.5)),),
    "flag": (
        _line((-0.7, -1), (-0.7, 1), width=0.14),
        Part(
            _join(
                _arc(-0.3, -0.85, 0.4, 0.14, 180, 360),
                _arc(0.5, -0.85, 0.4, 0.14, 180, 0),
                _arc(0.5, 0.05, 0.4, 0.14, 0, 180),
                _arc(-0.3, 0.05, 0.4, 0.14, 0, -180),
            )
        ),
    ),
}
CLASSES: tuple[str, ...] = tuple(SHAPES)
