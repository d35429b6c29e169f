"""`unida grid status DIR`: how far a grid is, from another terminal."""

import json
import shlex
import time
from pathlib import Path

from unida.grids.folder import is_claimed, read_status, saved_grid
from unida.grids.plan import plan
from unida.grids.results import collect
from unida.support.progress import duration


def status_lines(out: Path) -> list[str]:
    tasks = plan(saved_grid(out), out)
    records = collect(tasks, out)
    failed = {name: record for name, record in records.items() if record["status"] == "failed"}
    done = len(records) - len(failed)
    lines = [f"{done} of {len(tasks)} runs done" + (f", {len(failed)} failed" if failed else "")]
    lines += [f"  failed: {name}: {record['reason']}" for name, record in failed.items()]
    status = read_status(out)
    driver = status.get("driver")
    if done == len(tasks):
        return [*lines, f"finished; draw the table with: unida table {shlex.quote(str(out))}"]
    if not driver or not is_claimed(out):
        return [*lines, f"nobody is working there: give the command again for the other {len(tasks) - done}"]
    lines += [f"  running: {_running(run)}" for run in status.get("running", [])]
    left = status.get("seconds_left")
    ago = duration(max(0.0, time.time() - status["time"]))
    lines.append(f"process {driver['process']} on {driver['host']} works there; it wrote this {ago} ago")
    if left is not None:
        lines.append(f"time left: about {duration(max(0.0, left - (time.time() - status['time'])))}")
    return lines


def _running(run: dict[str, object]) -> str:
    taken = duration(time.time() - float(str(run["since"])))
    step = _last_step(Path(str(run["folder"])) / "metrics.jsonl")
    return f"{run['name']}, {taken}{'' if step is None else f', step {step}'} ({run['where']})"


def _last_step(path: Path) -> int | None:
    """Of the last whole line: the run is writing the file."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        return None
    for line in reversed(lines):
        if line.endswith(b"\n"):
            try:
                return int(json.loads(line)["step"])
            except (ValueError, LookupError, TypeError):
                continue
    return None
