"""The run that is served: from the bytes of a picture to its answer, and to what the answer rests on."""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unida.answering.alone import BATCH, BATCH_ON_CPU, Answers, Scored, decide, score_pixels
from unida.answering.together import centred, kept_rows
from unida.config import load_config, method_name
from unida.data.augment import Preprocess, centre_views
from unida.data.folders import ImageFile
from unida.data.images import decode_rgb, resize
from unida.data.pixels import Pixels, decoded_pixels
from unida.data.settings import UNKNOWN
from unida.methods.spa.method import SPA
from unida.runs.folder import refuse_unfinished
from unida.runs.modelfile import load_model
from unida.runs.targetfile import load_target
from unida.support.processes import open_fabric_for_answers

SHOWN_WORDS = 4  # of an image, those with the largest shares


@dataclass(frozen=True)
class Picture:
    """An image that was sent, decoded and resized as the network needs it."""

    name: str
    digest: str  # of the file's bytes, as `unida.data.folders` makes it
    pixels: np.ndarray  # uint8 (H, W, 3)


@dataclass(frozen=True)
class Word:
    number: int
    share: float  # of the image
    map: list[list[float]]  # how much of it is at each place, 0…1


@dataclass(frozen=True)
class Answer:
    """The answer for one picture. What follows `is_of_target` says what it rests on."""

    label: str  # a class of the source, or "unknown"
    best_class: str  # also where the label is "unknown"
    probability: float  # of the best class
    unknown_score: float
    is_of_target: bool  # it is an image of the run's own target: this is the answer that it had there
    direction: Tensor  # (d,) for the nearest source images
    says: list[tuple[int, float]]  # target images that had a say, by their place in the target, and their weights
    words: list[Word]
    seen: tuple[float, float, float, float]  # the part that the network sees: left, top, width, height, of 1


class ServedModel:
    """A finished run, loaded once. `decode` may be called by any thread, `answer` by one at a time."""

    def __init__(self, folder: Path, alone: bool) -> None:
        refuse_unfinished(folder)
        self.folder = folder
        self.config = load_config(folder / "config.yaml")
        checkpoint = folder / "checkpoint"
        self.fabric = open_fabric_for_answers()
        method, self.info = load_model(checkpoint / "model.safetensors", self.config)
        self.method = method.to(self.fabric.device)
        self.answered = load_target(checkpoint / "target.safetensors", self.info.rule, self.config)
        self.alone = alone
        self.kept = None if alone else self.answered.kept
        self.preprocess = Preprocess(self.info.crop, self.info.mean, self.info.std, self.fabric.device)
        self.batch = BATCH_ON_CPU if self.fabric.device.type == "cpu" else BATCH
        self.name = f"{method_name(self.config)} on {self.info.backbone}"

    @property
    def threshold(self) -> float:
        """Above this unknown score, an image is unknown."""
        return self.method.unknown_threshold if self.alone else self.info.rule.threshold

    @property
    def how(self) -> str:
        """How it answers, for people."""
        return "each image alone, with the method's own threshold" if self.alone else self.info.rule.note()

    def decode(self, name: str, data: bytes, most_pixels: int) -> Picture:
        """Raises BadImage."""
        pixels = resize(decode_rgb(io.BytesIO(data), most_pixels=most_pixels), self.info.resize, self.info.image_size)
        return Picture(name, hashlib.blake2b(data, digest_size=16).hexdigest(), pixels)

    def score(self, pictures: Sequence[Picture]) -> tuple[Scored, Pixels]:
        files = [ImageFile(Path(picture.name), picture.name, 0, picture.digest) for picture in pictures]
        decoded = [(file, picture.pixels) for file, picture in zip(files, pictures, strict=True)]
        pixels = decoded_pixels(decoded, self.info.resize, self.info.image_size)
        return score_pixels(self.method, pixels, self.preprocess, self.fabric, visible=False), pixels

    @torch.inference_mode()
    def answer(self, pictures: Sequence[Picture], explain: bool) -> list[Answer]:
        """Answers in one forward pass, equal to those of `unida predict`.

        Args:
            explain: also say what each answer rests on.
        """
        words: list[list[Word]] = [[] for _ in pictures]
        if explain and isinstance(self.method, SPA):
            with self.method.words.recording() as seen:
                scored, pixels = self.score(pictures)
            shapes_and_logs = [(one.features.shape[2:], self.method.words.log_words(one.features)) for one in seen]
            words = [_words_of(logs, *shape) for shape, batch in shapes_and_logs for logs in batch]
        else:
            scored, pixels = self.score(pictures)
        digests = [picture.digest for picture in pictures]
        if self.alone:
            answers = decide(scored.probabilities, scored.unknown, self.method.unknown_threshold)
        else:
            answers = self.answered.answer(scored, digests, self.info.rule)
        says = self._who_has_a_say(scored, digests) if explain else [[] for _ in pictures]
        return self._name(answers, scored, digests, pixels, says, words)

    def _name(
        self,
        answers: Answers,
        scored: Scored,
        digests: Sequence[str],
        pixels: Pixels,
        says: list[list[tuple[int, float]]],
        words: list[list[Word]],
    ) -> list[Answer]:
        names, crop = (*self.info.classes, UNKNOWN), self.info.crop
        directions = scored.directions if self.kept is None else centred(scored.directions, self.kept.centre)
        corners = centre_views(pixels.shapes, crop)
        found = []
        for i, (height, width) in enumerate(pixels.shapes.tolist()):
            seen = (int(corners.left[i]) / width, int(corners.top[i]) / height, crop / width, crop / height)
            found.append(
                Answer(
                    label=names[int(answers.prediction[i])],
                    best_class=names[int(answers.closed[i])],
                    probability=float(answers.probability[i]),
                    unknown_score=float(answers.unknown_score[i]),
                    is_of_target=not self.alone and self.answered.place_of(digests[i]) is not None,
                    direction=directions[i].float(),
                    says=says[i],
                    words=words[i],
                    seen=seen,
                )
            )
        return found

    def _who_has_a_say(self, scored: Scored, digests: Sequence[str]) -> list[list[tuple[int, float]]]:
        """For each image, the target's images that count in its answer, the heaviest first; never the image itself."""
        if self.kept is None:
            return [[] for _ in digests]
        others, weights = self.kept.who_has_a_say(scored.directions)
        places = kept_rows(len(self.answered.digests))[others]
        found = []
        for row, weight, digest in zip(places.tolist(), weights.tolist(), digests, strict=True):
            itself = self.answered.place_of(digest)
            pairs = [(place, w) for place, w in zip(row, weight, strict=True) if w > 0 and place != itself]
            found.append(sorted(pairs, key=lambda pair: -pair[1]))
        return found

    def answer_of_target(self, place: int) -> str:
        """What the run answered for this image of its target."""
        return (*self.info.classes, UNKNOWN)[int(self.answered.answers.prediction[place])]


def _words_of(log_words: Tensor, height: int, width: int) -> list[Word]:
    """log φ (U, K) of an image → the words with the largest shares, and where they are."""
    words = log_words.exp()
    best = words.mean(dim=0).topk(min(SHOWN_WORDS, words.shape[1]))
    maps = words[:, best.indices].T.reshape(-1, height, width).cpu()
    return [
        Word(number, share, [[round(value, 3) for value in row] for row in where.tolist()])
        for number, share, where in zip(best.indices.tolist(), best.values.tolist(), maps, strict=True)
    ]
