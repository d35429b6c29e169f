"""The folder of a grid: its spec, its runs, its results, and who is working there."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from unida.errors import UserError
from unida.grids.plan import RUNS
from unida.grids.spec import Grid, read_spec
from unida.support.files import write_text

SPEC, STATUS, LOCK, LOGS = "grid.yaml", "status.json", ".lock", "logs"
OWN = (SPEC, f"{SPEC}.tmp", LOCK, RUNS, LOGS)


def refuse_out(out: Path, grid: Grid) -> None:
    """Refuse a folder that cannot be written, holds other things, or another grid. Changes nothing."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file: choose a new folder")
    nearest = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"--out {out} cannot be written: choose another folder")
    if (out / SPEC).exists():
        _refuse_other_rows(saved_grid(out), grid, out)
    elif out.exists() and any(path.name not in OWN for path in out.iterdir()):
        raise UserError(f"--out {out} already holds other files: choose a new folder")


def _refuse_other_rows(saved: Grid, grid: Grid, out: Path) -> None:
    """A row of one name must have one meaning: finished runs are not run again."""
    for row in grid.rows.keys() & saved.rows.keys():
        before, now = ({**each.options, **each.rows[row]} for each in (saved, grid))
        for name in sorted({*before, *now}):
            if name != "cache" and before.get(name) != now.get(name):
                raise UserError(
                    f"row {row!r} has {name} {now.get(name)!r}, but --out {out} has runs of it with "
                    f"{before.get(name)!r}: give the row another name, or choose another --out"
                )
    for name in ("benchmark", "folders"):
        if getattr(saved, name) != getattr(grid, name):
            raise UserError(f"--out {out} holds a grid of other data: choose another --out")


def saved_grid(out: Path) -> Grid:
    """The grid of a folder."""
    if not (out / SPEC).exists():
        raise UserError(f"{out} is not the folder of a grid: it has no {SPEC}")
    return read_spec(out / SPEC, check_folders=False)


@contextlib.contextmanager
def claimed(out: Path, grid: Grid) -> Iterator[None]:
    """The folder is this process's alone, inside."""
    out.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UserError(f"--out {out}: {_who(out)} is working there; wait for it, or stop it first") from error
    try:
        write_text(out / SPEC, grid.to_yaml())
        write_status(out, {"driver": driver_here(), "time": time.time(), "running": []})
        yield
    finally:
        lock.release()


def _who(out: Path) -> str:
    driver = read_status(out).get("driver")
    if not driver:
        return "another process"
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(driver["since"]))
    return f"process {driver['process']} on {driver['host']}, since {since},"


def driver_here() -> dict[str, Any]:
    return {"process": os.getpid(), "host": socket.gethostname(), "since": time.time()}


def write_status(out: Path, content: dict[str, Any]) -> None:
    write_text(out / STATUS, json.dumps(content, indent=2) + "\n")


def read_status(out: Path) -> dict[str, Any]:
    """What the driver wrote last; empty if there is nothing to read."""
    try:
        content = json.loads((out / STATUS).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def is_claimed(out: Path) -> bool:
    """Whether a driver works there."""
    lock = FileLock(out / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False
