"""What the command line says, to whom, and with which exit code."""

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
    """Of several processes, one speaks. torchrun numbers all in RANK, SLURM in SLURM_PROCID, Fabric those it starts."""
    ranks = ("RANK",) if "RANK" in os.environ else ("SLURM_PROCID", "LOCAL_RANK")
    return all(os.environ.get(name, "0") == "0" for name in ranks)


@contextlib.contextmanager
def saying_how_to_continue(command: str, folder: Path) -> Iterator[None]:
    """From here on, Ctrl-C and SIGTERM end with a word on how to continue.

    Args:
        folder: of the run, which may not have begun.
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
    """Tells the user which option names the file that cannot be written."""
    try:
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        yield
    except OSError as error:
        raise UserError(f"{option} {file} cannot be written ({error.strerror}): choose another file") from error


def check_writable(option: str, file: Path) -> None:
    """The error of `writing` before the long work, not after it. Leaves nothing on the disk."""
    with writing(option, file):
        folder = next(path for path in file.absolute().parents if os.path.exists(path))
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def forget_output() -> None:
    """Python flushes the two streams when it ends, and would complain again that nobody reads."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
