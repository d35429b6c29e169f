"""Messages of the command line, and its exit codes."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from unida.errors import UserError


def exit_with(message: str, code: int) -> None:
    if _speaks_for_all():
        print(message, file=sys.stderr)
    sys.exit(code)


def _speaks_for_all() -> bool:
    """Only process 0 prints. torchrun numbers processes in RANK, SLURM in SLURM_PROCID, Fabric in LOCAL_RANK."""
    ranks = ("RANK",) if "RANK" in os.environ else ("SLURM_PROCID", "LOCAL_RANK")
    return all(os.environ.get(name, "0") == "0" for name in ranks)


@contextlib.contextmanager
def saying_how_to_continue(command: str, folder: Path) -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM end with a line on how to continue.

    Args:
        folder: of the run. The run may not have begun yet.
    """
    from unida.support.signals import Interrupted, interruptible

    try:
        with interruptible():
            yield
    except (Interrupted, KeyboardInterrupt) as stop:
        if (folder / "config.yaml").exists():
            exit_with(f"{str(stop) or 'interrupted'}. Continue with: {command}", 130)
        exit_with("stopped before the run began: start it again", 130)


@contextlib.contextmanager
def writing(option: str, file: Path) -> Iterator[None]:
    """If the file cannot be written, the error names the option."""
    try:
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        yield
    except OSError as error:
        raise UserError(f"{option} {file} cannot be written ({error.strerror}): choose another file") from error


def check_writable(option: str, file: Path) -> None:
    """Raise the error of `writing` before the long work, not after it. Writes nothing."""
    with writing(option, file):
        folder = next(path for path in file.absolute().parents if os.path.exists(path))
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def forget_output() -> None:
    """Drop what is left: Python flushes both streams when it ends, and would report the closed pipe again."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
