"""The unknown images of a finished run, in groups that look like one class each.

Groups are found without labels. If the target has labels, the groups are compared with them after they are fixed.
"""

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unida.analysis.groups import Groups, find_groups
from unida.answering.alone import BATCH_ON_CPU
from unida.answering.later import Answered
from unida.answering.together import centred
from unida.config import Config
from unida.data.augment import Preprocess
from unida.data.folders import ImageFile, scan_listed
from unida.data.pixels import decode_in_memory
from unida.data.settings import UNKNOWN
from unida.errors import UserError
from unida.evaluation.grouping import GroupingResult, measure_groups
from unida.evaluation.predict import CHUNK
from unida.evaluation.truth import read_truth_of_run
from unida.methods.base import Method
from unida.methods.spa.method import SPA
from unida.models.words import histogram
from unida.runs.modelfile import ModelInfo
from unida.runs.summary import read_metrics
from unida.support.progress import progress

Space = Literal["features", "words", "both"]
NO_GROUP = "none"


@dataclass(frozen=True)
class GroupedImage:
    path: str
    group: str  # a group's name, or "none"
    sureness: float  # 0…1: how much more it is like its own group than like any other


@dataclass(frozen=True)
class Group:
    name: str  # group-01 is the largest
    size: int
    nearest: str  # the source class that most of its images would get if nothing were unknown
    nearest_share: float  # of its images


@dataclass(frozen=True)
class Discovery:
    """What `unida discover` finds."""

    images: tuple[GroupedImage, ...]  # by group; the surest first
    groups: tuple[Group, ...]
    measured: GroupingResult | None  # if the target has labels

    def of(self, group: str) -> list[GroupedImage]:
        return [image for image in self.images if image.group == group]


@dataclass(frozen=True)
class FinishedRun:
    """What is needed of it."""

    folder: Path
    config: Config
    method: Method
    info: ModelInfo
    answered: Answered
    preprocess: Preprocess


@dataclass(frozen=True)
class UnknownImages:
    files: list[ImageFile]
    rows: Tensor  # (N,) where each is in the run's target
    features: Tensor  # (N, d), centred


def discover(run: FinishedRun, space: Space, visible: bool) -> Discovery:
    unknown = look_at_unknown(run, space, visible)
    return describe(unknown, find_groups(unknown.features, run.config.training.seed), run, visible)


def look_at_unknown(run: FinishedRun, space: Space, visible: bool) -> UnknownImages:
    """The images that the run called unknown, and their features."""
    refuse_space(space, run.config, run.folder)
    listed = _listed_images(run.folder)
    files = _files_of([path for path, label in listed if label == UNKNOWN], run.folder)
    rows = _rows_of(files, run)
    kept = run.answered.kept
    if not files:
        return UnknownImages(files, rows, torch.empty(0, 1))
    if space == "features" and kept is not None and len(kept.directions) == len(run.answered.digests):
        return UnknownImages(files, rows, kept.directions[rows].float())  # as neighbours use them
    all_files = _files_of([path for path, _ in listed], run.folder)
    computed = _computed(run, all_files, space, visible)
    place = {str(file.path): number for number, file in enumerate(all_files)}
    return UnknownImages(files, rows, computed[[place[str(file.path)] for file in files]])


def refuse_space(space: Space, config: Config, folder: Path) -> None:
    """Only a run with SPA has words."""
    if space != "features" and not config.spa.spa:
        raise UserError(
            f"--space {space} needs SPA's words, and the run in {folder} has none: leave it out, or make the run "
            "again with --spa"
        )


# ---- which images ----------------------------------------------------------------------------------------------------


def _listed_images(folder: Path) -> list[tuple[str, str]]:
    """(path, label) of every answered image, from the run's predictions.csv."""
    path = folder / "predictions.csv"
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            return [(row["path"], row["label"]) for row in csv.DictReader(file) if row["label"]]
    except (OSError, LookupError, csv.Error) as error:
        raise UserError(f"{path} cannot be read, and it names the run's images: put the run's own file back") from error


def _files_of(paths: Sequence[str], folder: Path) -> list[ImageFile]:
    gone = [path for path in paths if not Path(path).is_file()]
    if gone:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        raise UserError(
            f"{gone[0]}{more} of the images that the run in {folder} answered are not there: put them back, or call "
            "unida from the folder where the run was made"
        )
    files, skipped = scan_listed([Path(path) for path in paths], root=Path())
    if skipped:
        raise UserError(f"{skipped[0].path}: {skipped[0].reason}; put back the image that the run answered")
    return files


def _rows_of(files: Sequence[ImageFile], run: FinishedRun) -> Tensor:
    """(N,) the row of each unknown image in the run's target."""
    row_of = {row.tobytes(): place for place, row in enumerate(run.answered.digests.numpy())}
    rows = [row_of.get(bytes.fromhex(file.digest), -1) for file in files]
    for file, row in zip(files, rows, strict=True):
        if row < 0:
            raise UserError(f"{file.path} has changed since the run in {run.folder}: put back the image it answered")
    found = torch.tensor(rows, dtype=torch.int64)
    is_unknown = run.answered.answers.prediction == len(run.info.classes)
    if len(rows) != int(is_unknown.sum()) or not bool(is_unknown[found].all()):
        raise UserError(f"{run.folder / 'predictions.csv'} was changed: put the run's own file back")
    return found


# ---- their features --------------------------------------------------------------------------------------------------


@torch.inference_mode()
def _computed(run: FinishedRun, files: Sequence[ImageFile], space: Space, visible: bool) -> Tensor:
    """(N, d) directions of all target images, the target's mean taken away, as answering together does."""
    spaces = ("features", "words") if space == "both" else (space,)
    parts: dict[str, list[Tensor]] = {name: [] for name in spaces}
    with progress("looking", len(files), visible=visible) as report:
        for start in range(0, len(files), CHUNK):
            pixels = decode_in_memory(files[start : start + CHUNK], run.info.resize, run.info.image_size)
            if pixels.skipped:
                raise UserError(f"{pixels.skipped[0].path}: {pixels.skipped[0].reason}; put back the image")
            for index in np.array_split(np.arange(len(pixels)), -(-len(pixels) // BATCH_ON_CPU)):
                images = run.preprocess.test_view(pixels, index)
                for name in spaces:
                    seen = run.method.features(images) if name == "features" else words_of(run.method, images)
                    parts[name].append(F.normalize(seen.float(), dim=1).cpu())
            report(min(start + CHUNK, len(files)))
    directions = [torch.cat(part) for part in parts.values()]
    return torch.cat([centred(some, some.mean(dim=0)) for some in directions], dim=1)


def words_of(method: Method, images: Tensor) -> Tensor:
    """(B, K) roots of the shares of words: their cosine is Bhattacharyya's likeness of two histograms."""
    assert isinstance(method, SPA)  # refuse_space made sure
    words = method.words
    return histogram(words.log_words(words.map(images))).clamp_min(0).sqrt()


# ---- what is told of the groups --------------------------------------------------------------------------------------


def describe(unknown: UnknownImages, groups: Groups, run: FinishedRun, visible: bool) -> Discovery:
    names = [f"group-{number + 1:02d}" for number in range(groups.count)]
    closed = run.answered.answers.closed[unknown.rows]
    described = []
    for number, name in enumerate(names):
        classes = Counter(closed[groups.of == number].tolist())
        nearest, count = min(classes.items(), key=lambda item: (-item[1], item[0]))
        size = classes.total()
        described.append(Group(name, size, run.info.classes[nearest], count / size))
    images = [
        GroupedImage(str(file.path), NO_GROUP if of < 0 else names[of], sureness)
        for file, of, sureness in zip(unknown.files, groups.of.tolist(), groups.sureness.tolist(), strict=True)
    ]
    place = {name: number for number, name in enumerate([*names, NO_GROUP])}
    images.sort(key=lambda image: (place[image.group], -image.sureness, image.path))
    return Discovery(tuple(images), tuple(described), _measured(unknown.files, groups, run, visible))


def _measured(files: Sequence[ImageFile], groups: Groups, run: FinishedRun, visible: bool) -> GroupingResult | None:
    """The groups beside the truth, if the target has labels. Nothing here goes back into the groups."""
    data = run.config.data
    if data.benchmark is None and not data.target_labels:
        return None
    truth = read_truth_of_run(data, run.info.classes, None, visible)
    label_of = {file.digest: int(label) for file, label in zip(truth.pixels.files, truth.labels, strict=True)}
    if missing := [file for file in files if file.digest not in label_of]:
        raise UserError(f"{missing[0].path} is no image of the target any more: put the target back as the run saw it")
    labels = torch.tensor([label_of[file.digest] for file in files], dtype=torch.int64)
    metrics = read_metrics(run.folder) or {}
    private = len(truth.names) - len(run.info.classes)
    return measure_groups(
        groups.of, labels, len(run.info.classes), private, metrics.get("known"), metrics.get("unknown")
    )
