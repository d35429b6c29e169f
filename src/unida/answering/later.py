"""Answers of a finished run, for the images of its own target and for new ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from unida.answering.alone import Answers, Scored, decide
from unida.answering.target import Rule
from unida.answering.together import Kept


@dataclass(frozen=True)
class Answered:
    """The answers that a run gave, and what a new image needs to join.

    Attributes:
        digests: of the files, a row per image of the target.
        answers: the run's own, in the same order.
        kept: None if each image answers alone.
    """

    digests: Tensor  # (N, D) uint8
    answers: Answers
    kept: Kept | None

    @cached_property
    def _places(self) -> dict[bytes, int]:
        return {row.tobytes(): place for place, row in enumerate(self.digests.numpy())}

    def place_of(self, digest: str) -> int | None:
        """Where the run's own target has an image of this digest."""
        return self._places.get(bytes.fromhex(digest))

    def answer(self, scored: Scored, digests: Sequence[str], rule: Rule) -> Answers:
        """An image of the run's own target has the answer it had. A new one joins by its neighbours, or is alone."""
        fresh = self.answer_new(scored, rule)
        found = torch.tensor([self._places.get(bytes.fromhex(digest), -1) for digest in digests])
        is_old, at = found >= 0, found.clamp(min=0)

        def merged(name: str) -> Tensor:
            return torch.where(is_old, getattr(self.answers, name)[at], getattr(fresh, name))

        return Answers(merged("prediction"), merged("closed"), merged("probability"), merged("unknown_score"))

    def answer_new(self, scored: Scored, rule: Rule) -> Answers:
        """As `answer`, for images that are not of the run's own target, or are taken as new."""
        scores = (scored.probabilities, scored.unknown) if self.kept is None else self.kept.join(scored)
        return decide(*scores, rule.threshold)


def first_of_each(digests: Sequence[str]) -> Tensor:
    """(N,) for each digest, the place where it comes first."""
    places: dict[str, int] = {}
    return torch.tensor([places.setdefault(digest, place) for place, digest in enumerate(digests)])


def digest_rows(digests: Sequence[str]) -> Tensor:
    """Hexadecimal digests → (N, D) uint8."""
    return torch.tensor([list(bytes.fromhex(digest)) for digest in digests], dtype=torch.uint8)
