"""Pictures of the shapes in three styles, the domains. Each is a pure function of its arguments."""

import colorsys
import hashlib
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from unida.data.glyphs.shapes import CLASSES, SHAPES, Part, Points
from unida.errors import UserError

Pixels = NDArray[np.floating]  # (S, S, 3) in 0…255, or (S, S, 1) in 0…1

DOMAINS: tuple[str, ...] = ("flat", "sketch", "photo")
DRAWING_VERSION = 1  # raise it when any picture changes: sets on disk are then drawn again
SMALLEST = 16  # pixels per side; nothing can be recognised in smaller pictures
_SUPERSAMPLE = 3  # shapes are drawn this much larger and averaged down, for smooth edges


def draw(class_name: str, domain: str, seed: int, size: int = 96, *, number: int = 0) -> Image.Image:
    """Picture `number` of a class in a domain: RGB, `size`×`size`, always the same for the same arguments."""
    if class_name not in SHAPES:
        raise UserError(f"there is no glyph class {class_name!r}: choose one of {', '.join(CLASSES)}")
    check_domain("domain", domain)
    check_least("size", size, SMALLEST)
    key = hashlib.sha256(f"{seed}/{domain}/{class_name}/{number}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(key[:16], "big"))
    parts = _place(SHAPES[class_name], rng)
    painter = {"flat": _paint_flat, "sketch": _paint_sketch, "photo": _paint_photo}[domain]
    return Image.fromarray(np.clip(painter(parts, rng, size) + 0.5, 0, 255).astype(np.uint8))


def check_domain(option: str, domain: str) -> None:
    if domain not in DOMAINS:
        raise UserError(f"{option} {domain!r} is no glyph domain: choose one of {', '.join(DOMAINS)}")


def check_least(option: str, number: int, least: int) -> None:
    if number < least:
        raise UserError(f"{option} is {number}: it must be at least {least}")


def _place(parts: Sequence[Part], rng: np.random.Generator) -> list[Part]:
    """Turn, stretch, scale and shift a shape at random; all of it stays inside the picture (−1…1)."""
    angle = np.radians(rng.uniform(-18, 18))
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    change = np.diag(rng.uniform(0.88, 1.0, 2)) @ turn
    edges = np.concatenate([p.points @ change + side * p.width / 2 for p in parts for side in (-1, 1)])
    low, high = edges.min(axis=0), edges.max(axis=0)
    reach = rng.uniform(0.58, 0.84)  # half the longer side of the whole shape
    room = 0.92 - reach  # the rest up to 1 is for the shadow and the shaky hand
    scale = 2 * reach / (high - low).max()
    shift = rng.uniform(-room, room, 2) - scale * (low + high) / 2
    return [Part(p.points @ change * scale + shift, p.width * scale, p.hole) for p in parts]


def _mask(parts: Sequence[Part], size: int) -> Pixels:
    """The area a shape covers: (S, S, 1) in 0…1."""
    big = size * _SUPERSAMPLE
    canvas = Image.new("L", (big, big))
    pen = ImageDraw.Draw(canvas)
    for part in parts:
        ink = 0 if part.hole else 255
        points = (part.points + 1) * (big / 2)
        if part.width:
            _stroke(pen, points, part.width * big / 2, ink)
        else:
            pen.polygon(points.ravel().tolist(), fill=ink)
    return np.asarray(canvas.reduce(_SUPERSAMPLE), dtype=np.float32)[..., None] / 255


def _stroke(pen: ImageDraw.ImageDraw, points: Points, width: float, ink: int) -> None:
    """A line through (N, 2) points, in pixels, with round ends."""
    pen.line(points.ravel().tolist(), fill=ink, width=max(1, round(width)), joint="curve")
    for x, y in (points[0], points[-1]):
        pen.ellipse([x - width / 2, y - width / 2, x + width / 2, y + width / 2], fill=ink)


def _colour(hue: float, saturation: float, value: float) -> Pixels:
    """An RGB colour (3,) in 0…255."""
    return np.array(colorsys.hsv_to_rgb(hue % 1.0, saturation, min(value, 1.0)), dtype=np.float32) * 255


def _rgb(colour: Pixels) -> tuple[int, int, int]:
    """A colour as Pillow expects it."""
    return int(colour[0]), int(colour[1]), int(colour[2])


def _clouds(rng: np.random.Generator, cells: int, size: int) -> Pixels:
    """Smooth noise in 0…1 with about `cells` bumps a side: (S, S, 1)."""
    coarse = Image.fromarray(rng.integers(0, 256, (cells, cells), dtype=np.uint8))
    smooth = coarse.resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(smooth, dtype=np.float32)[..., None] / 255


def _paint_flat(parts: Sequence[Part], rng: np.random.Generator, size: int) -> Pixels:
    """A clean shape of one strong colour on a plain pastel ground."""
    hue = rng.random()
    ground = _colour(hue + rng.uniform(0.25, 0.75), rng.uniform(0.08, 0.25), rng.uniform(0.92, 1.0))
    ink = _colour(hue, rng.uniform(0.65, 0.95), rng.uniform(0.5, 0.85))
    mask = _mask(parts, size)
    return ground * (1 - mask) + ink * mask


def _paint_sketch(parts: Sequence[Part], rng: np.random.Generator, size: int) -> Pixels:
    """Thin pencil lines, drawn twice by an unsteady hand, and light hatching, on grained paper."""
    width = rng.uniform(0.035, 0.06)
    areas = [part for part in parts if not part.width]  # a stroke is a single line, there is nothing to hatch
    lines = [Part(_shaky(part, rng), width * rng.uniform(0.7, 1.1)) for part in parts for _ in range(2)]
    hatching = _waves(size, rng.uniform(0.6, 1.0), rng.uniform(9, 14)) * _mask(areas, size)
    lead = np.maximum(_mask(lines, size), rng.uniform(0.2, 0.8) * hatching)
    lead *= 0.7 + 0.3 * _clouds(rng, size // 3, size)
    paper = _colour(rng.uniform(0.08, 0.16), rng.uniform(0.02, 0.12), rng.uniform(0.9, 0.99))
    grain = 1 - 0.04 * _clouds(rng, 5, size) - 0.03 * _clouds(rng, size // 2, size)
    pencil = _colour(rng.uniform(0.55, 0.7), rng.uniform(0.0, 0.3), rng.uniform(0.1, 0.3))
    return paper * grain * (1 - lead) + pencil * lead


def _shaky(part: Part, rng: np.random.Generator) -> Points:
    """The outline of a part as a hand would follow it: small slow wobbles, ends that do not quite meet."""
    corners = part.points if part.width else np.concatenate([part.points, part.points[:1]])
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(corners, axis=0).T))])
    steps = max(2, int(along[-1] / 0.05))
    stops = np.linspace(0, along[-1] * rng.uniform(0.97, 1.0), steps)
    knots = np.linspace(0, along[-1], max(3, int(along[-1] / 0.25)))
    wobble = rng.normal(0, 0.014, (2, len(knots)))
    offset = rng.normal(0, 0.01, 2)
    axes = [np.interp(stops, along, corners[:, i]) + np.interp(stops, knots, wobble[i]) + offset[i] for i in (0, 1)]
    return np.stack(axes, axis=1)


def _paint_photo(parts: Sequence[Part], rng: np.random.Generator, size: int) -> Pixels:
    """A textured thing before a cluttered ground, with a shadow, uneven light, blur and sensor noise."""
    hue, bright = rng.random(), rng.random() < 0.3
    scene = _clutter(rng, hue + rng.uniform(0.3, 0.7), 0.4 if bright else 0.9, size)
    mask = _mask(parts, size)
    shadow = np.roll(mask, (round(0.03 * size), round(0.02 * size)), axis=(0, 1))  # shapes do not touch the edge
    scene *= 1 - 0.3 * shadow
    value = rng.uniform(0.85, 1.0) if bright else rng.uniform(0.3, 0.5)
    first = _colour(hue, rng.uniform(0.4, 0.9), value)
    second = _colour(hue + rng.uniform(-0.08, 0.08), rng.uniform(0.4, 0.9), value * rng.uniform(0.75, 0.95))
    weave = _texture(rng, size)
    scene = scene * (1 - mask) + (first * weave + second * (1 - weave)) * mask
    x, y = _grid(size)
    angle = rng.uniform(0, 2 * np.pi)
    scene *= 1 + rng.uniform(0.1, 0.3) * (np.cos(angle) * x + np.sin(angle) * y)
    lit = Image.fromarray(np.clip(scene, 0, 255).astype(np.uint8))
    blurred = lit.filter(ImageFilter.GaussianBlur(rng.uniform(0.002, 0.006) * size))
    noise = rng.standard_normal((size, size, 1), dtype=np.float32) * rng.uniform(1, 5)
    return np.asarray(blurred, dtype=np.float32) + noise


def _clutter(rng: np.random.Generator, hue: float, value: float, size: int) -> Pixels:
    """A ground of uneven brightness with blobs and bars of similar colours: (S, S, 3)."""
    canvas = Image.new("RGB", (size * 2, size * 2), _rgb(_colour(hue, 0.35, value)))
    pen = ImageDraw.Draw(canvas)
    for _ in range(rng.integers(5, 10)):
        x, y = rng.uniform(0, 2 * size, 2)
        rx, ry = rng.uniform(0.1, 0.6, 2) * size
        shade = _colour(hue + rng.normal(0, 0.08), rng.uniform(0.15, 0.5), value * rng.uniform(0.8, 1.15))
        if rng.random() < 0.7:
            pen.ellipse([x - rx, y - ry, x + rx, y + ry], fill=_rgb(shade))
        else:
            ends = rng.normal(0, 0.6 * size, 2)
            pen.line([x, y, x + ends[0], y + ends[1]], fill=_rgb(shade), width=int(0.3 * min(rx, ry)) + 2)
    ground = np.asarray(canvas.reduce(2), dtype=np.float32)
    return ground * (0.8 + 0.25 * _clouds(rng, 5, size) + 0.08 * _clouds(rng, size // 3, size))


def _texture(rng: np.random.Generator, size: int) -> Pixels:
    """How much of the first of two colours: clouds, stripes or checks, (S, S, 1) in 0…1."""
    kind = rng.integers(3)
    if kind == 0:
        return _clouds(rng, int(rng.integers(8, 24)), size)
    angle, count = rng.uniform(0, np.pi), rng.uniform(3, 8)
    stripes = _waves(size, angle, count)
    if kind == 1:
        return stripes
    return np.abs(stripes - _waves(size, angle + np.pi / 2, count))


def _waves(size: int, angle: float, count: float) -> Pixels:
    """Soft-edged parallel stripes, `count` of them across half the picture: (S, S, 1) in 0…1."""
    x, y = _grid(size)
    waves = np.sin((2 * np.pi * count) * (np.float32(np.cos(angle)) * x + np.float32(np.sin(angle)) * y))
    return np.asarray(0.5 + 0.5 * np.clip(3 * waves, -1, 1), dtype=np.float32)


@cache
def _grid(size: int) -> tuple[Pixels, Pixels]:
    """The x and the y of every pixel in −1…1, each (S, S, 1)."""
    steps = np.linspace(-1, 1, size, dtype=np.float32)
    x, y = np.meshgrid(steps, steps)
    return x[..., None], y[..., None]
