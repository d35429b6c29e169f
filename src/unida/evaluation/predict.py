"""Answers for images that were not part of the run."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch

from unida.answering.alone import Answers, Scored, score_pixels
from unida.data.augment import Preprocess
from unida.data.folders import ImageFile, Skipped
from unida.data.images import ResizeMode
from unida.data.pixels import Pixels, decode_in_memory
from unida.data.settings import UNKNOWN
from unida.methods.base import Method
from unida.support.fabric import Fabric
from unida.support.files import csv_text, write_text
from unida.support.progress import progress

COLUMNS = ("path", "label", "probability", "unknown_score", "skipped")
MOVED_TO = "moved_to"  # a column more, if files are moved
CHUNK = 256  # images decoded at a time: memory use does not grow with their number


class Prediction(NamedTuple):
    path: str
    label: str  # a class of the source, or "unknown"
    probability: float  # of the best class, unknown or not
    unknown_score: float  # 0…1, higher is more unknown


class Predictions(list[Prediction]):
    """One per readable image; `skipped` lists the files that gave no picture, with reasons."""

    def __init__(self, predictions: Iterable[Prediction] = (), skipped: Iterable[Skipped] = ()) -> None:
        super().__init__(predictions)
        self.skipped = list(skipped)

    def of(self, paths: Iterable[str]) -> "Predictions":
        """Predictions and skipped files of these paths, in this order and with these names; a path may come twice."""
        answers = {prediction.path: prediction for prediction in self}
        reasons = {skipped.path: skipped.reason for skipped in self.skipped}
        plain = [(path, str(Path(path))) for path in paths]  # "./a.png" is "a.png"
        return Predictions(
            (answers[name]._replace(path=path) for path, name in plain if name in answers),
            (Skipped(path, reasons[name]) for path, name in plain if name in reasons),
        )

    def rows(self) -> list[tuple[str, ...]]:
        """A row per file, sorted by path; a skipped file has a reason instead of a label."""
        rows: list[tuple[str, ...]] = [
            (p.path, p.label, f"{p.probability:.4f}", f"{p.unknown_score:.4f}", "") for p in self
        ]
        return sorted([*rows, *((s.path, "", "", "", s.reason) for s in self.skipped)])

    def as_csv(self, moved: Mapping[str, str] | None = None) -> str:
        """The rows, under a header.

        Args:
            moved: where files went, by path. It becomes a column, which is empty for files that stayed.
        """
        if moved is None:
            return csv_text([COLUMNS, *self.rows()])
        return csv_text([(*COLUMNS, MOVED_TO), *((*row, moved.get(row[0], "")) for row in self.rows())])

    def write_csv(self, path: Path, moved: Mapping[str, str] | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, self.as_csv(moved))

    def as_json(self, moved: Mapping[str, str] | None = None) -> str:
        """The same for programs: "answers" and "skipped", each sorted by path."""
        answers: list[dict[str, object]] = [
            {**p._asdict(), "probability": round(p.probability, 6), "unknown_score": round(p.unknown_score, 6)}
            for p in sorted(self)
        ]
        if moved is not None:
            answers = [{**answer, MOVED_TO: moved.get(str(answer["path"]))} for answer in answers]
        skipped = [asdict(item) for item in sorted(self.skipped, key=lambda item: item.path)]
        return json.dumps({"answers": answers, "skipped": skipped}, indent=2) + "\n"


def name_answers(answers: Answers, pixels: Pixels, classes: Sequence[str]) -> list[Prediction]:
    """Ids to names, in the order of the images."""
    names = (*classes, UNKNOWN)
    rows = zip(
        pixels.files,
        answers.prediction.tolist(),
        answers.probability.tolist(),
        answers.unknown_score.tolist(),
        strict=True,
    )
    return [Prediction(str(file.path), names[label], p, u) for file, label, p, u in rows]


@torch.inference_mode()
def predict_files(
    method: Method,
    classes: Sequence[str],
    files: Sequence[ImageFile],
    resize: ResizeMode,
    size: int,
    preprocess: Preprocess,
    fabric: Fabric,
    answer: Callable[[Scored, Sequence[str]], Answers],
    visible: bool = True,
) -> Predictions:
    """Decode, answer and forget, a chunk at a time.

    Args:
        answer: from the scores of some images and the digests of their files to their answers.
    """
    predictions = Predictions()
    with progress("predicting", len(files), visible=visible) as report:
        for start in range(0, len(files), CHUNK):
            pixels = decode_in_memory(files[start : start + CHUNK], resize, size)
            predictions.skipped += pixels.skipped
            if len(pixels):
                scored = score_pixels(method, pixels, preprocess, fabric, visible=False)
                answers = answer(scored, [file.digest for file in pixels.files])
                predictions += name_answers(answers, pixels, classes)
            report(min(start + CHUNK, len(files)), "")
    return predictions
