"""Pretext classes that hold several numbers of images."""

import numpy as np
import pytest

from unida.cli import main
from unida.errors import UserError
from unida.pretext.bins import MERGED_OVERLAP, merge_overlapping, overlap, parse_bins


@pytest.mark.parametrize(
    ("text", "cells", "table"),
    [
        ("none", 4, (0, 1, 2, 3)),
        ("auto", 4, (0, 1, 2, 3)),
        ("1,2,3,4", 4, (0, 1, 2, 3)),
        ("1,2-3,4", 4, (0, 1, 1, 2)),
        ("1-2,3-4", 4, (0, 0, 1, 1)),
        ("1,2-4", 4, (0, 1, 1, 1)),
        ("1, 2-3, 4-4", 4, (0, 1, 1, 2)),
        ("1-8,9", 9, (0,) * 8 + (1,)),
    ],
)
def test_a_list_gives_every_number_its_class(text: str, cells: int, table: tuple[int, ...]) -> None:
    assert parse_bins(text, cells) == table


BAD = {
    "": "nothing",
    "1": "not all",
    "1,2,3": "not all",
    "1-4": "one class",
    "1,2,4": "a gap",
    "1,2-3,3-4": "an overlap",
    "2,1,3,4": "another order",
    "1,2,3,4,5": "too many",
    "1,3-2,4": "backwards",
    "1,2-": "an open end",
    "1,2-999999999999": "too far",
    "0,1,2,3,4": "from 0",
    "a,b": "words",
    "1;2-4": "another sign",
}


@pytest.mark.parametrize("text", BAD, ids=BAD.values())
def test_a_bad_list_is_refused_by_the_command_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is read: neither data nor a run's folder is named."""
    with pytest.raises(UserError):
        parse_bins(text, 4)
    with pytest.raises(SystemExit) as stop:
        main(["adapt", "--spa", f"--spa.bins={text}"])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --spa.bins {text!r} must list 1 to 4 in order")
    assert error.count("\n") == 1
    assert "such as 1,2-4; or be auto or none" in error


def test_the_list_must_fit_the_grid(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["adapt", "--spa", "--spa.grid", "3", "--spa.bins", "1,2-3,4"])
    assert stop.value.code == 2
    assert "must list 1 to 9 in order" in capsys.readouterr().err


def mosaics(means: list[float], each: int = 200, spread: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Made-up entropies: normal around a mean for each number of images."""
    draw = np.random.default_rng(0)
    entropies = np.concatenate([draw.normal(mean, spread, each) for mean in means])
    return entropies, np.repeat(np.arange(1, len(means) + 1), each)


def test_numbers_that_are_told_apart_stay_apart() -> None:
    assert merge_overlapping(*mosaics([1.0, 1.3, 1.6, 1.9]), 4) == (0, 1, 2, 3)


def test_two_that_are_alike_become_one() -> None:
    assert merge_overlapping(*mosaics([1.0, 1.5, 2.0, 2.0]), 4) == (0, 1, 2, 2)
    assert merge_overlapping(*mosaics([1.0, 1.0, 1.5, 2.0]), 4) == (0, 0, 1, 2)


def test_neighbours_only_are_merged() -> None:
    """1 and 3 are alike, but a class must be a range of numbers."""
    assert merge_overlapping(*mosaics([1.0, 2.0, 1.0, 3.0]), 4) == (0, 1, 2, 3)


def test_if_all_are_alike_two_classes_are_left() -> None:
    for cells in (4, 9):
        merged = merge_overlapping(*mosaics([1.0] * cells), cells)
        assert len(merged) == cells
        assert sorted(merged) == list(merged) and set(merged) == {0, 1}


def test_a_number_that_never_occurred_has_no_class_of_its_own() -> None:
    entropies, instances = mosaics([1.0, 1.5, 2.0, 2.5])
    there = instances != 3
    merged = merge_overlapping(entropies[there], instances[there], 4)
    assert len(set(merged)) == 3
    assert merged[2] in (merged[1], merged[3])
    assert len(set(merge_overlapping(np.empty(0), np.empty(0, dtype=int), 4))) == 2


def test_the_worst_pair_is_merged_first() -> None:
    """2 and 3 are nearly the same. Joined, they are far enough from 4 to stay apart from it, where 3 alone is not."""
    entropies, instances = mosaics([0.0, 1.0, 1.01, 1.05], each=4000)
    one, other = entropies[instances == 3], entropies[instances == 4]
    assert overlap(one, other) > MERGED_OVERLAP
    joined = entropies[np.isin(instances, (2, 3))]
    assert overlap(joined, other) > MERGED_OVERLAP  # so these are merged in the end, but 1 never is
    assert merge_overlapping(entropies, instances, 4) == (0, 1, 1, 1)
    apart = mosaics([0.0, 1.0, 1.0, 1.06], each=4000)
    assert merge_overlapping(*apart, 4) == (0, 1, 1, 2)


@pytest.mark.parametrize(("sizes", "shift"), [((30, 30), 0.0), ((5, 80), 0.5), ((40, 3), 1.0), ((1, 1), 0.0)])
def test_overlap_is_one_less_the_largest_gap_of_the_distributions(sizes: tuple[int, int], shift: float) -> None:
    draw = np.random.default_rng(1)
    one = draw.normal(0, 1, sizes[0]).round(1)  # rounded: ties matter
    other = draw.normal(shift, 1, sizes[1]).round(1)
    gaps = [abs(np.mean(one <= value) - np.mean(other <= value)) for value in [*one, *other]]
    assert overlap(one, other) == pytest.approx(1 - max(gaps))
    assert overlap(one, other) == pytest.approx(overlap(other, one))


def test_overlap_at_its_ends() -> None:
    assert overlap(np.array([1.0, 2.0]), np.array([1.0, 2.0])) == 1
    assert overlap(np.array([1.0, 2.0]), np.array([3.0, 4.0])) == 0
    assert overlap(np.empty(0), np.array([3.0])) == 1
