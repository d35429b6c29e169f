"""Picture files into folders by their answers. Nothing is ever overwritten."""

import filecmp
import itertools
import os
import secrets
import shutil
from pathlib import Path

from unida.errors import UserError


def sort_file(file: Path, label: str, folder: Path, move: bool) -> Path:
    """Move or copy a file to folder/label/name. If another file has that name, the new one gets a number.

    A copy that is there already is not made again, and a move that was cut off is completed: after a kill, the same
    call can be made again.
    """
    if Path(label).name != label:
        raise UserError(f"class {label!r} cannot be the name of a folder: sort by the csv file instead")
    place = folder / label
    place.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        target = place / (file.name if number == 1 else f"{file.stem} ({number}){file.suffix}")
        if _is_there(file, target, move):
            break
        try:
            _link(file, target) if move else _copy(file, target)
            break
        except FileExistsError:
            continue
    if move:
        file.unlink()
    return target


def _is_there(file: Path, target: Path, move: bool) -> bool:
    if not target.is_file():
        return False
    if move:
        return not file.is_symlink() and os.path.samefile(file, target)
    return filecmp.cmp(file, target, shallow=False)


def _link(file: Path, target: Path) -> None:
    """The same file under a second name, if the disk can do that; else a copy. FileExistsError if the name is taken."""
    try:
        if file.is_symlink():  # a relative link would point elsewhere from there
            raise OSError
        os.link(file, target)
    except FileExistsError:
        raise
    except OSError:  # another disk, or one without links
        _copy(file, target)


def _copy(file: Path, target: Path) -> None:
    aside = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        shutil.copy2(file, aside)
        try:
            os.link(aside, target)  # unlike a rename, never replaces a file
        except FileExistsError:
            raise
        except OSError:
            if os.path.lexists(target):
                raise FileExistsError from None
            os.rename(aside, target)
    finally:
        aside.unlink(missing_ok=True)
