"""What a run writes down: log.txt for people, metrics.jsonl and TensorBoard events for programs."""

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from unida.support.files import write_text

log = logging.getLogger("unida")


class MetricsLog:
    """Numbers by step, as JSON lines and as TensorBoard events.

    After an interruption, lines of steps after the checkpoint are dropped: they will be written again.
    """

    def __init__(self, folder: Path, resume_step: int = 0) -> None:
        self.path = folder / "metrics.jsonl"
        kept = [json.dumps(line) for line in read_lines(self.path) if line["step"] <= resume_step]
        write_text(self.path, "".join(line + "\n" for line in kept))
        self.file = self.path.open("a", encoding="utf-8")
        self.board = SummaryWriter(str(folder), purge_step=resume_step + 1 if resume_step else None)

    def write(self, step: int, kind: str, numbers: Mapping[str, float | str | None]) -> None:
        self.file.write(json.dumps({"step": step, "kind": kind, **numbers}) + "\n")
        self.file.flush()
        for name, number in numbers.items():
            if isinstance(number, int | float):
                self.board.add_scalar(f"{kind}/{name}", number, step)

    def close(self) -> None:
        self.file.close()
        self.board.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl. A last line that a kill cut off is left out; damaged lines too, with a warning."""
    if not path.exists():
        return []
    lines, damaged = [], 0
    texts = path.read_bytes().splitlines()
    for number, text in enumerate(texts, start=1):
        record = _record(text)
        if record is not None:
            lines.append(record)
        elif number < len(texts):
            damaged += 1
    if damaged:
        log.warning("%s: %d damaged line(s) are left out", path, damaged)
    return lines


def _record(text: bytes) -> dict[str, Any] | None:
    """What a line says, or None if it is no record."""
    try:
        record = json.loads(text)
    except ValueError:  # no JSON, or no UTF-8
        return None
    is_record = isinstance(record, dict) and isinstance(record.get("step"), int) and isinstance(record.get("kind"), str)
    return record if is_record else None


@contextmanager
def logging_to(folder: Path | None, visible: bool = True) -> Iterator[None]:
    """Messages go to the terminal and, given a folder, to its log.txt; nowhere if not visible."""
    log.setLevel(logging.INFO if visible else logging.CRITICAL)
    handlers: list[logging.Handler] = []
    if not log.hasHandlers():
        terminal = logging.StreamHandler(sys.stderr)
        terminal.setFormatter(logging.Formatter("%(message)s"))
        handlers.append(terminal)
    if folder is not None:
        file = logging.FileHandler(folder / "log.txt", encoding="utf-8", errors="surrogateescape")  # names are bytes
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        handlers.append(file)
    for handler in handlers:
        log.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()
