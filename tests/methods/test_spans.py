"""Which steps belong to which phase."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unida.methods.base import Phase, spans


def phases(*shares: float) -> list[Phase]:
    return [Phase(turns=(), share=share) for share in shares]


@pytest.mark.parametrize(
    ("shares", "steps", "expected"),
    [
        ((1.0,), 10, [(0, 10)]),
        ((0.3, 0.7), 10, [(0, 3), (3, 10)]),
        ((1.0, 1.0), 10, [(0, 5), (5, 10)]),  # shares count against each other: they need not add up to 1
        ((3.0, 1.0), 100, [(0, 75), (75, 100)]),
        ((0.1, 0.1), 10, [(0, 5), (5, 10)]),
        ((0.0, 1.0), 10, [(0, 0), (0, 10)]),  # a phase without a share only starts
        ((0.5, 0.0, 0.5), 10, [(0, 5), (5, 5), (5, 10)]),
        ((1.0, 0.0), 10, [(0, 10), (10, 10)]),
        ((1.0, 1.0, 1.0), 2, [(0, 1), (1, 1), (1, 2)]),  # fewer steps than phases: some have none
        ((0.5, 0.5), 1, [(0, 0), (0, 1)]),
        ((0.9, 0.1), 1, [(0, 1), (1, 1)]),
    ],
)
def test_steps_are_divided_by_the_shares(
    shares: tuple[float, ...], steps: int, expected: list[tuple[int, int]]
) -> None:
    assert [(span.start, span.stop) for span in spans(phases(*shares), steps)] == expected


@given(
    shares=st.lists(st.floats(0, 10), min_size=1, max_size=6).filter(lambda shares: sum(shares) > 0.01),
    steps=st.integers(1, 20_000),
)
def test_every_step_belongs_to_one_phase_and_no_phase_is_off_by_more_than_a_step(
    shares: list[float], steps: int
) -> None:
    found = spans(phases(*shares), steps)
    assert [step for span in found for step in span] == list(range(steps))
    for share, span in zip(shares, found, strict=True):
        assert abs(len(span) - steps * share / sum(shares)) <= 1 + 1e-6
        assert share > 0 or not len(span)
