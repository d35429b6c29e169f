"""Which pictures a report shows: for every answer, of the worst mistakes, and of groups of unknown images."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unida.reports.pictures import Thumbnail, thumbnails
from unida.reports.rundata import NOT_KNOWN, RunData

MOST_PICTURES = 640  # for all answers
MOST_FOR_AN_ANSWER = 8  # surest ones; and as many that are least sure
MOST_MISTAKES = 24
MOST_GROUPS, MOST_IN_GROUP = 20, 8


@dataclass(frozen=True)
class Shown:
    """A picture with what is known about it."""

    path: str
    thumbnail: Thumbnail
    caption: str
    is_wrong: bool = False


@dataclass(frozen=True)
class Shelf:
    """Pictures under a heading: the surest ones, and the least sure."""

    name: str
    count: int
    first: list[Shown]
    second: list[Shown]


@dataclass(frozen=True)
class Gallery:
    answers: list[Shelf]
    mistakes: list[Shown]
    groups: list[Shelf]


def choose_pictures(data: RunData) -> Gallery:
    """All pictures of a report, with their thumbnails."""
    answers, mistakes, groups = _for_answers(data), _worst_mistakes(data), _of_groups(data)
    wanted = [row for _, _, *both in (*answers, *groups) for rows in both for row in rows] + mistakes
    thumbs = thumbnails(data.paths[row] for row in wanted)

    def shelves(chosen: Sequence[_Chosen]) -> list[Shelf]:
        return [
            Shelf(name, count, _shown(first, data, thumbs), _shown(second, data, thumbs))
            for name, count, first, second in chosen
        ]

    return Gallery(shelves(answers), _shown(mistakes, data, thumbs), shelves(groups))


_Chosen = tuple[str, int, list[int], list[int]]  # heading, number of images, rows, other rows


def _sureness(data: RunData) -> np.ndarray:
    """(N,) how far an image's unknown score is from the threshold; among equals, the probability decides."""
    is_unknown = data.answers == len(data.classes)
    return np.abs(data.unknown_score - data.threshold) + 1e-6 * np.where(
        is_unknown, 1 - data.probability, data.probability
    )


def _for_answers(data: RunData) -> list[_Chosen]:
    """For every answer, "unknown" first: the surest images, and the least sure of the others."""
    sureness = _sureness(data)
    given = sorted(set(data.answers.tolist()), key=lambda answer: (answer != len(data.classes), answer))
    most = max(1, min(MOST_FOR_AN_ANSWER, MOST_PICTURES // (2 * len(given))))
    chosen = []
    for answer in given:
        rows = np.flatnonzero(data.answers == answer)
        rows = rows[np.argsort(-sureness[rows], kind="stable")].tolist()
        first = rows[:most]
        chosen.append((data.answer_name(answer), len(rows), first, rows[len(first) :][::-1][:most]))
    return chosen


def _worst_mistakes(data: RunData) -> list[int]:
    """Wrong answers, the surest first."""
    wrong = np.flatnonzero((data.truths != NOT_KNOWN) & ~data.is_right)
    worst: list[int] = wrong[np.argsort(-_sureness(data)[wrong], kind="stable")][:MOST_MISTAKES].tolist()
    return worst


def _of_groups(data: RunData) -> list[_Chosen]:
    """The largest groups of unknown images: those that surely belong there first."""
    members: dict[int, list[tuple[float, int]]] = {}
    for row, path in enumerate(data.paths):
        if path in data.groups:
            group, sureness = data.groups[path]
            members.setdefault(group, []).append((-sureness, row))
    largest = sorted(members.items(), key=lambda item: (-len(item[1]), item[0]))[:MOST_GROUPS]
    return [
        (f"group {group}", len(rows), [row for _, row in sorted(rows)[:MOST_IN_GROUP]], []) for group, rows in largest
    ]


def _shown(rows: Sequence[int], data: RunData, thumbs: dict[str, Thumbnail]) -> list[Shown]:
    shown = []
    for row in rows:
        answer = f"{data.answer_name(data.answers[row])}, probability {data.probability[row]:.2f}"
        caption = f"answer: {answer}, unknown score {data.unknown_score[row]:.2f}"
        is_known = data.truths[row] != NOT_KNOWN
        if is_known:
            caption += f"; true class: {data.truth_names[data.truths[row]]}"
        path = data.paths[row]
        shown.append(Shown(path, thumbs[path], caption, bool(is_known and not data.is_right[row])))
    return shown
