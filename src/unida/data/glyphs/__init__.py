"""The embedded data: labelled pictures of simple things in three styles, drawn when needed.

A picture is a pure function of (seed, domain, class, number, size), so a set can grow without any earlier
picture changing. The domains show the same things in different styles, so that a model trained on one
of them is poor on another: `flat` (clean colours on pastel), `sketch` (thin shaky pencil on paper), `photo` (texture,
clutter, light, blur).
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unida.data.glyphs.paint import DOMAINS, DRAWING_VERSION, SMALLEST, check_domain, check_least, draw
from unida.data.glyphs.shapes import CLASSES
from unida.errors import UserError
from unida.support.files import write_text

__all__ = ["CLASSES", "DOMAINS", "GlyphFolders", "draw", "write_glyphs"]

Request = dict[str, int | str]  # the parameters a set was written with
Progress = Callable[[int, int], None]

_MARKER = "glyphs.json"


@dataclass(frozen=True)
class GlyphFolders:
    """Where a set was written, and which classes lie on which side."""

    source: Path
    target: Path
    shared: tuple[str, ...]
    source_private: tuple[str, ...]
    target_private: tuple[str, ...]


def write_glyphs(
    out: Path,
    *,
    source_domain: str = "flat",
    target_domain: str = "photo",
    shared: int,
    source_private: int,
    target_private: int,
    per_class: int,
    size: int = 96,
    seed: int = 0,
    progress: Progress | None = None,
) -> GlyphFolders:
    """Write a universal domain adaptation task as `out/source/<class>/*.png` and `out/target/<class>/*.png`.

    The classes are taken from `CLASSES` in order: the shared ones, then those of the source alone, then
    those of the target alone. A complete set with the same parameters is kept; one that was
    interrupted or has other parameters is drawn again. `progress` is called after each
    picture with (pictures done, pictures in all).
    """
    check_domain("source_domain", source_domain)
    check_domain("target_domain", target_domain)
    if source_domain == target_domain:
        raise UserError(f"source_domain and target_domain are both {source_domain!r}: choose two domains")
    check_least("per_class", per_class, 1)
    check_least("size", size, SMALLEST)
    folders = _deal_classes(out, shared, source_private, target_private)
    pictures = _pictures(folders, source_domain, target_domain, per_class)
    request: Request = {
        "drawing_version": DRAWING_VERSION,
        "source_domain": source_domain,
        "target_domain": target_domain,
        "shared": shared,
        "source_private": source_private,
        "target_private": target_private,
        "per_class": per_class,
        "size": size,
        "seed": seed,
    }
    try:
        if _read_marker(out) != request or not all(picture.path.is_file() for picture in pictures):
            _clear(out, folders)
            _write_marker(out, {})  # empty: the folders are ours, but not complete yet
            _save(pictures, seed, size, progress)
            _write_marker(out, request)
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"cannot write glyphs to {out} ({why}): choose another folder") from error
    return folders


def _deal_classes(out: Path, shared: int, source_private: int, target_private: int) -> GlyphFolders:
    """Which classes go where in `out`."""
    check_least("shared", shared, 1)
    check_least("source_private", source_private, 0)
    check_least("target_private", target_private, 0)
    total = shared + source_private + target_private
    if total > len(CLASSES):
        asked = f"shared + source_private + target_private is {total}"
        raise UserError(f"{asked}: there are {len(CLASSES)} glyph classes, ask for fewer")
    return GlyphFolders(
        source=out / "source",
        target=out / "target",
        shared=CLASSES[:shared],
        source_private=CLASSES[shared : shared + source_private],
        target_private=CLASSES[shared + source_private : total],
    )


@dataclass(frozen=True)
class _Picture:
    """One picture to be drawn, and where it goes."""

    path: Path
    class_name: str
    domain: str
    number: int


def _pictures(folders: GlyphFolders, source_domain: str, target_domain: str, count: int) -> list[_Picture]:
    """Every picture of the set, `count` for each class of each side."""
    sides = (
        (folders.source, source_domain, folders.shared + folders.source_private),
        (folders.target, target_domain, folders.shared + folders.target_private),
    )
    return [
        _Picture(folder / name / f"{number:04d}.png", name, domain, number)
        for folder, domain, names in sides
        for name in names
        for number in range(count)
    ]


def _save(pictures: Sequence[_Picture], seed: int, size: int, progress: Progress | None) -> None:
    for done, picture in enumerate(pictures, start=1):
        picture.path.parent.mkdir(parents=True, exist_ok=True)
        image = draw(picture.class_name, picture.domain, seed, size, number=picture.number)
        image.save(picture.path, compress_level=1)  # 3 % larger than by default, in half the time
        if progress is not None:
            progress(done, len(pictures))


def _read_marker(out: Path) -> Request | None:
    """The parameters of the set in `out`; empty if it is not complete, None if there is none."""
    try:
        parameters = json.loads((out / _MARKER).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return parameters if isinstance(parameters, dict) else {}


def _write_marker(out: Path, parameters: Request) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / _MARKER, json.dumps(parameters, indent=2) + "\n")


def _clear(out: Path, folders: GlyphFolders) -> None:
    """Remove an earlier set; refuse to touch anything that was not drawn here."""
    ours = _read_marker(out) is not None
    earlier = [folder for folder in (folders.source, folders.target) if folder.exists()]
    for folder in earlier:
        for path in folder.rglob("*"):
            drawn = path.parent.name in CLASSES and path.stem.isdigit() and path.suffix == ".png"
            if path.is_file() and not (ours and drawn):
                raise UserError(f"{path} was not drawn here: move it away or choose another folder than {out}")
    for folder in earlier:
        shutil.rmtree(folder)
