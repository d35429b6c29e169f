"""A finished run answers its own images as before, and new ones by their neighbours."""

import hashlib

import pytest
import torch
from made_scores import FIELDS, made_scores

from unida.answering.alone import Answers, Scored, decide
from unida.answering.later import Answered, digest_rows, first_of_each
from unida.answering.options import AnsweringOptions
from unida.answering.target import TargetAnswers

EVERY = made_scores(50)
DIGESTS = [hashlib.blake2b(bytes([i]), digest_size=16).hexdigest() for i in range(50)]


def finished(neighbours: int) -> tuple[TargetAnswers, Answered]:
    """A run on the first 40 images."""
    target = TargetAnswers(EVERY.rows(torch.arange(40)), 0.5, AnsweringOptions(neighbours=neighbours))
    return target, Answered(digest_rows(DIGESTS[:40]), target.answers, target.kept)


def slightly_off(scored: Scored) -> Scored:
    """As another batch size or machine would have it."""
    return Scored(scored.directions, scored.probabilities.roll(1, dims=1), 1 - scored.unknown)


def rows_of(answers: Answers, index: list[int]) -> list[tuple[float, ...]]:
    return [tuple(getattr(answers, field)[i].item() for field in FIELDS) for i in index]


@pytest.mark.parametrize("neighbours", [0, 4])
def test_an_old_image_has_its_answer_whatever_the_network_says_now(neighbours: int) -> None:
    target, later = finished(neighbours)
    asked = [7, 45, 0, 39, 7, 41]  # old and new ones, in any order, one of them twice
    old, new = [0, 2, 3, 4], [1, 5]
    scored = slightly_off(EVERY.rows(torch.tensor(asked)))
    found = later.answer(scored, [DIGESTS[i] for i in asked], target.rule)
    assert rows_of(found, old) == rows_of(target.answers, [asked[i] for i in old])
    scores = (scored.probabilities, scored.unknown) if target.kept is None else target.kept.join(scored)
    assert rows_of(found, new) == rows_of(decide(*scores, target.rule.threshold), new)
    assert found.prediction.dtype == found.closed.dtype == torch.int64
    assert found.probability.dtype == found.unknown_score.dtype == torch.float32


def test_new_images_have_a_threshold_like_the_old_ones() -> None:
    target, later = finished(4)
    some = list(range(40, 50))
    found = later.answer(EVERY.rows(torch.tensor(some)), [DIGESTS[i] for i in some], target.rule)
    assert torch.equal(found.prediction == 3, found.unknown_score > target.rule.threshold)
    assert 0 < int((found.prediction == 3).sum()) < 10


def test_digests_become_rows_of_bytes() -> None:
    assert digest_rows(["00ff10", "0a0b0c"]).tolist() == [[0, 255, 16], [10, 11, 12]]
    assert digest_rows(["00ff10"]).dtype == torch.uint8


def test_copies_of_a_file_are_known_by_the_first() -> None:
    assert first_of_each(["a1", "b2", "a1", "c3", "b2"]).tolist() == [0, 1, 0, 3, 1]


def test_copies_have_one_answer() -> None:
    scored = made_scores(60).rows(torch.arange(60).repeat_interleave(2)[:60])
    first = torch.arange(60) // 2 * 2
    found = TargetAnswers(scored, 0.5, AnsweringOptions(), first).answers
    for name in ("prediction", "closed", "probability", "unknown_score"):
        column = getattr(found, name)
        assert torch.equal(column[::2], column[1::2]), name
