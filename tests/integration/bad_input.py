"""What it means that a command refuses, and what makes it, for the integration tests."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Options = dict[str, Any]  # an option's value; None leaves it out, True makes it a flag
AdaptWords = Callable[[Options], list[str]]


def words_of(options: Options) -> list[str]:
    given = {name: value for name, value in options.items() if value is not None}
    return [word for name, value in given.items() for word in ((name,) if value is True else (name, str(value)))]


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder with its bytes, and every folder; links are not followed."""
    found: dict[str, bytes | None] = {}
    for path in sorted(folder.rglob("*")):
        is_file = path.is_file() and not path.is_symlink()
        found[str(path.relative_to(folder))] = path.read_bytes() if is_file else None
    return found


def assert_refuses(
    command: Callable[[list[str]], Any], words: list[str], folder: Path, parts: tuple[str, ...] = (), start: str = ""
) -> None:
    """Exit code 2, one line on stderr that names the culprit and the way out, and nothing in the folder is touched."""
    before = contents(folder)
    answer = command(words)
    assert answer.code == 2, answer
    lines = answer.err.splitlines(keepends=True)
    assert len(lines) == 1 and lines[0].startswith(f"error: {start}") and lines[0].endswith("\n"), answer.err
    assert "Traceback" not in answer.err
    missing = [part for part in parts if part not in answer.err]
    assert not missing, (missing, answer.err)
    assert answer.out == "", answer.out
    touched = dict(before.items() ^ contents(folder).items())
    assert not touched, sorted(touched)


def picture(path: Path, seed: int) -> Path:
    """Noise, so that no two seeds give the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    return path


def copies_in_a_class(work: Path) -> Options:
    shutil.copy(picture(work / "source" / "star" / "one.png", 1), work / "source" / "star" / "two.png")
    return {}


def copies_in_two_classes(work: Path) -> Options:
    shutil.copy(picture(work / "source" / "star" / "one.png", 1), work / "source" / "house" / "two.png")
    return {}


def copies_in_both_folders(work: Path) -> Options:
    shutil.copy(picture(work / "source" / "star" / "one.png", 1), work / "target" / "star" / "two.png")
    return {}
