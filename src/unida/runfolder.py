"""The folder that a run owns: made anew, or found again to be resumed. Never another run's."""

import contextlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from unida.config import AUTO, Config, check, flat_options, load_config, save_config
from unida.data.domains import benchmark_pair
from unida.errors import UserError
from unida.methods import METHODS
from unida.methods.spa_options import flag, resolve
from unida.models.weights import NO_WEIGHTS, default_backbone

LOCK = ".lock"


@dataclass(frozen=True)
class Claim:
    """A folder that this run owns."""

    config: Config  # complete: nothing is left to be chosen by the machine
    folder: Path
    is_new: bool
    made: tuple[Path, ...] = ()  # folders that were not there before, the innermost first
    lock: FileLock | None = None  # held by the main process while it works here

    def release(self) -> None:
        """Leave no trace of a run that could not start."""
        self.unlock()
        if self.is_new:
            for name in ("config.yaml", "log.txt"):
                (self.folder / name).unlink(missing_ok=True)
            _remove_empty(self.made)

    def unlock(self) -> None:
        if self.lock is not None:
            self.lock.release()
            Path(self.lock.lock_file).unlink(missing_ok=True)


def is_finished(folder: Path) -> bool:
    """metrics.json is written last."""
    return (folder / "metrics.json").exists()


def claim_folder(config: Config, has_gpu: bool) -> Claim:
    """Make the run's folder, or find the run that is to be resumed. Never touches another run's files."""
    folder, resume = config.output.out, config.output.resume
    if folder is None:
        raise UserError("--out DIR is missing: the folder for the run's results")
    saved = folder / "config.yaml"
    if saved.exists():
        if not resume:
            raise UserError(
                f"--out {folder} already holds a run: pass --resume to go on with it, or choose another folder"
            )
        resumed = _resumed(config, load_config(saved))
        return Claim(resumed, folder, is_new=False, lock=_lock(folder))
    if resume and config.data.source is None and config.data.benchmark is None:
        raise UserError(f"--out {folder} holds no run to resume: mend the path, or name the data to start one there")
    _refuse_other_files(folder)
    completed = complete(config, has_gpu)
    benchmark_pair(completed.data)  # the cheapest check of all: are the options there?
    made = tuple(itertools.takewhile(lambda path: not path.exists(), (folder, *folder.parents)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        claim = Claim(completed, folder, is_new=True, made=made, lock=_lock(folder))
    except OSError as error:
        _remove_empty(made)
        raise _cannot_write(folder, error) from error
    try:
        _refuse_other_files(folder)  # again: before it was locked, another process may have begun a run there
        save_config(completed, saved)
    except UserError:
        claim.unlock()
        raise
    except OSError as error:
        claim.release()
        raise _cannot_write(folder, error) from error
    return claim


def _refuse_other_files(folder: Path) -> None:
    """A lock is no file of a run: whoever holds it has just come, or was killed before the run began."""
    if folder.exists() and (not folder.is_dir() or any(path.name != LOCK for path in folder.iterdir())):
        raise UserError(f"--out {folder} already holds other files: choose a new folder")


def _cannot_write(folder: Path, error: OSError) -> UserError:
    return UserError(f"--out {folder} cannot be written ({error.strerror}): choose another folder")


def keep_config(claim: Claim) -> None:
    """Write the claim's config in place of what the folder holds: it knows more by now."""
    config = replace(claim.config, output=replace(claim.config.output, resume=False))
    save_config(config, claim.folder / "config.yaml")


def _lock(folder: Path) -> FileLock:
    """Two processes that write the same checkpoint would ruin it."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UserError(f"--out {folder}: another process is at work there; wait for it, or stop it first") from error
    return lock


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders in this order until one holds something, or is not there."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def complete(config: Config, has_gpu: bool) -> Config:
    """Fill in what the machine decides, so that a resumed run decides nothing anew; make paths absolute."""
    data, model, training, output = config.data, config.model, config.training, config.output
    paths: dict[str, Any] = {
        name: Path(path).absolute()
        for name in ("source", "target", "root", "cache")
        if (path := getattr(data, name)) is not None
    }
    method = METHODS[training.method]
    lr = training.lr if training.lr is not None else method.default_lr
    weights = model.weights
    if weights is not None and weights != NO_WEIGHTS:
        weights = str(Path(weights).absolute())
    completed = replace(
        config,
        data=replace(data, **paths),
        model=replace(
            model,
            backbone=default_backbone(has_gpu) if model.backbone == "auto" else model.backbone,
            weights=weights,
            train=model.train if model.train != "auto" else "all" if has_gpu else "tail",
        ),
        training=replace(
            training,
            steps=training.steps or (method.default_steps if has_gpu else 300),
            lr=lr,
            backbone_lr=training.backbone_lr if training.backbone_lr is not None else 0.1 * lr,
        ),
        spa=resolve(config.spa) if config.spa.spa else config.spa,
        output=replace(output, checkpoint_every=output.checkpoint_every or (500 if has_gpu else 50), resume=False),
    )
    return check(completed)  # what the machine decides may not go with what was said


def _resumed(asked: Config, saved: Config) -> Config:
    """The saved config, on the machine asked for. Nothing else may differ from it: that would be another run."""
    machine = ("accelerator", "devices", "num_nodes")
    saved = complete(saved, has_gpu=False)  # an option that is newer than the run is not in its file
    before, now = flat_options(saved), flat_options(complete(asked, has_gpu=False))
    # A run that was told to choose its taps has done so: told again, it keeps them.
    chosen = [name for name in ("tap", "spa_tap") if now[name] == AUTO and before.get(name) is not None]
    free = {*machine, *chosen, "out", "resume", "cache"}
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
        output=replace(saved.output, resume=True),
    )
