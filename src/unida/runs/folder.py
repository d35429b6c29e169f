"""The folder of a run: a new one, or that of a run to resume. Files of another run are never touched."""

import contextlib
import itertools
import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from unida.config import Config, complete, flat_options, load_config, save_config
from unida.data.options import DataOptions
from unida.data.pairs import benchmark_pair
from unida.errors import UserError
from unida.models.options import AUTO
from unida.support.options import flag

LOCK = ".lock"
BEFORE_A_RUN = (LOCK, "config.yaml.tmp")  # files that a folder may hold before a run begins


@dataclass(frozen=True)
class Claim:
    """A folder that this run owns."""

    config: Config  # complete: nothing is left to be chosen by the machine
    folder: Path
    is_new: bool
    made: tuple[Path, ...] = ()  # folders that were not there before, the innermost first
    lock: FileLock | None = None  # held by the main process while it works here

    def release(self) -> None:
        """Remove all files of a run that could not start."""
        self.unlock()
        if self.is_new:
            for name in ("config.yaml", "config.yaml.tmp", "log.txt"):
                (self.folder / name).unlink(missing_ok=True)
            _remove_empty(self.made)

    def unlock(self) -> None:
        if self.lock is not None:
            self.lock.release()
            Path(self.lock.lock_file).unlink(missing_ok=True)


def is_finished(folder: Path) -> bool:
    """Whether the run is finished: metrics.json is written last."""
    return (folder / "metrics.json").exists()


def refuse_unfinished(folder: Path) -> None:
    """Refuse a folder that is not the one of a finished run."""
    if not (folder / "config.yaml").exists():
        raise UserError(f"{folder} is not the folder of a run: it has no config.yaml")
    if not is_finished(folder):
        command = shlex.join(["unida", "adapt", "--out", str(folder), "--resume"])
        raise UserError(f"the run in {folder} is not finished: continue with {command}")


def refuse_link(folder: Path) -> None:
    """Refuse a folder that holds something: files of the user must not be mixed with links."""
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--link {folder} already holds other files: choose a new folder")


def find_runs(places: Iterable[Path]) -> list[Path]:
    """The finished runs in these folders, each once. A folder is a run itself, or holds runs one or two levels below.

    In a folder of runs, those that are not finished are left out.
    """
    found: dict[Path, Path] = {}
    for place in places:
        if (place / "config.yaml").exists():
            refuse_unfinished(place)
            runs = [place]
        else:
            below = (path.parent for depth in ("*", "*/*") for path in place.glob(f"{depth}/config.yaml"))
            runs = sorted(folder for folder in below if is_finished(folder))
        if not runs:
            raise UserError(f"{place} holds no finished run: give the folder of a run, or a folder that holds runs")
        for run in runs:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def refuse_folder(config: Config) -> None:
    """Refuse a wrong --out or wrong options of the data before torch is loaded. Changes nothing."""
    with _telling_of_disk(config.output.out):
        _find(config)


def refuse_changes(config: Config, of_places: bool = True) -> None:
    """As `refuse_folder`; also refuse options that differ from those of the run that is to be resumed.

    Args:
        of_places: also refuse data and weights that lie elsewhere.
    """
    with _telling_of_disk(config.output.out):
        found = _find(config)
        if found is not None:
            _resumed(config, found[1], () if of_places else ("source", "target", "root", "weights"))


def claim_folder(config: Config, has_gpu: bool) -> Claim:
    """Make the run's folder, or find the run to resume. Never touches another run's files."""
    with _telling_of_disk(config.output.out):
        found = _find(config)
        if found is not None:
            place, saved = found
            resumed = _resumed(config, saved)  # may refuse: so this comes before the lock
            claim = Claim(resumed, place, is_new=False, lock=_lock(place))
            if resumed.answering != saved.answering:  # the same weights answer again
                (place / "metrics.json").unlink(missing_ok=True)  # first: killed here, the run is not taken as finished
                keep_config(claim)
            return claim
        folder = config.output.out
        assert folder is not None  # or _find would have raised
        completed = complete(config, has_gpu)
        made = tuple(itertools.takewhile(lambda path: not path.exists(), (folder, *folder.parents)))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            claim = Claim(completed, folder, is_new=True, made=made, lock=_lock(folder))
        except OSError:
            _remove_empty(made)
            raise
        try:
            _refuse_other_files(folder)  # again: before it was locked, another process may have begun a run there
            save_config(completed, folder / "config.yaml")
        except UserError:
            claim.unlock()
            raise
        except OSError:
            claim.release()
            raise
        return claim


def _find(config: Config) -> tuple[Path, Config] | None:
    """The run to resume and its config, or None if a new one can begin."""
    folder, resume = config.output.out, config.output.resume
    if folder is None:
        raise UserError("--out DIR is missing: the folder for the run's results")
    if (folder / "config.yaml").exists():
        if not resume:
            raise UserError(
                f"--out {folder} already holds a run: pass --resume to continue it, or choose another folder"
            )
        return folder, load_config(folder / "config.yaml")
    if resume and config.data.source is None and config.data.benchmark is None:
        raise UserError(f"--out {folder} holds no run to resume: correct the path, or give the data to start one there")
    _refuse_other_files(folder)
    benchmark_pair(config.data)
    refuse_inside_data("--out", folder, config.data)
    return None


def refuse_inside_data(option: str, folder: Path, data: DataOptions) -> None:
    """Refuse a folder to write to that lies in the source or the target: pictures there would be taken for data."""
    for place in (data.source, data.target):  # of a benchmark, only pictures right inside class folders are read
        if place is not None and folder.resolve().is_relative_to(place.resolve()):
            raise UserError(f"{option} {folder} lies inside {place}, which is read: choose a folder outside it")


def _refuse_other_files(folder: Path) -> None:
    """A lock or half a config is allowed: its process has just started, or was killed before the run began."""
    if folder.exists() and (not folder.is_dir() or any(path.name not in BEFORE_A_RUN for path in folder.iterdir())):
        raise UserError(f"--out {folder} already holds other files: choose a new folder")


@contextlib.contextmanager
def _telling_of_disk(folder: Path | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        assert folder is not None
        raise _cannot_write(folder, error) from error


def _cannot_write(folder: Path, error: OSError) -> UserError:
    name = str(folder) if len(str(folder)) < 200 else f"{str(folder)[:200]}…"
    return UserError(f"--out {name} cannot be written ({error.strerror}): choose another folder")


def keep_config(claim: Claim) -> None:
    """Replace the folder's config by the claim's, in which more is decided."""
    config = replace(claim.config, output=replace(claim.config.output, resume=False))
    save_config(config, claim.folder / "config.yaml")


def _lock(folder: Path) -> FileLock:
    """Two processes that write the same checkpoint would destroy it."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UserError(f"--out {folder}: another process is working there; wait for it, or stop it first") from error
    return lock


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders in this order until one holds something, or is not there."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _resumed(asked: Config, saved: Config, free_too: Iterable[str] = ()) -> Config:
    """The saved config, with the options of machine and answers as given now. If others differ, it is another run."""
    machine = ("accelerator", "devices", "num_nodes")
    saved = complete(saved, has_gpu=False)  # an option that is newer than the run is not in its file
    before, now = flat_options(saved), flat_options(complete(asked, has_gpu=False))
    # What was left open is chosen by now, by the machine or by a measure: left open again, it keeps its choice.
    open_now = flat_options(asked)
    chosen = [name for name, value in open_now.items() if value in (None, AUTO) and before.get(name) is not None]
    free = {*machine, *chosen, *vars(saved.answering), "out", "resume", "cache", *free_too}
    changed = (name for name in now if name not in free and now[name] != before.get(name))
    for name in sorted(changed, key=lambda name: name != "method"):  # another method brings other options
        raise UserError(
            f"{flag(name)} is {now[name]}, but the run in {asked.output.out} was started with "
            f"{before.get(name)}: leave it out to resume, or start a new run in another --out"
        )
    return replace(
        saved,
        data=replace(saved.data, cache=now["cache"]),
        training=replace(saved.training, **{name: now[name] for name in machine}),
        answering=asked.answering,
        output=replace(saved.output, resume=True),
    )
