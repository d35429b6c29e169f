"""How options are written, and what is said of a number that is out of range."""

import math
from dataclasses import dataclass

import pytest

from unida.errors import UserError
from unida.support.options import LARGEST_INTEGER, check_numbers, flag


@dataclass(frozen=True)
class Some:
    batch_size: float | None = None
    spa_pool: float | None = None


def message_of(number: float, **range_: float) -> str:
    with pytest.raises(UserError) as caught:
        check_numbers(Some(batch_size=number), "batch_size", **range_)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("steps", "--steps"),
        ("batch_size", "--batch-size"),
        ("min_images_per_class", "--min-images-per-class"),
        ("spa", "--spa"),
        ("spa_tap", "--spa.tap"),
        ("spa_goal_words", "--spa.goal-words"),
    ],
)
def test_an_option_has_the_command_lines_name(name: str, written: str) -> None:
    assert flag(name) == written


@pytest.mark.parametrize(
    ("number", "range_", "message"),
    [
        (0, {"least": 1}, "--batch-size is 0: it must be at least 1"),
        (-3, {"least": 1, "most": 100}, "--batch-size is -3: it must be at least 1 and at most 100"),
        (101, {"least": 1, "most": 100}, "--batch-size is 101: it must be at least 1 and at most 100"),
        (1_000_001, {"most": 1_000_000}, "--batch-size is 1000001: it must be at most 1,000,000"),
        (0.0, {"above": 0}, "--batch-size is 0.0: it must be above 0"),
        (1.0, {"least": 0, "below": 1}, "--batch-size is 1.0: it must be at least 0 and below 1"),
        (-0.5, {"least": 0, "below": 1}, "--batch-size is -0.5: it must be at least 0 and below 1"),
        (1.5, {"least": 0.5, "most": 1.25}, "--batch-size is 1.5: it must be at least 0.5 and at most 1.25"),
        (math.nan, {"above": 0}, "--batch-size is nan: it must be finite and above 0"),
        (math.inf, {"above": 0}, "--batch-size is inf: it must be finite and above 0"),
        (-math.inf, {"least": 0, "most": 1}, "--batch-size is -inf: it must be finite and at least 0 and at most 1"),
    ],
)  # fmt: skip
def test_a_number_out_of_range_is_named_with_the_range(number: float, range_: dict[str, float], message: str) -> None:
    assert message_of(number, **range_) == message


def test_the_largest_integer_is_named_only_to_whoever_exceeds_it() -> None:
    """To anybody else it is no news."""
    range_ = {"least": 1, "most": LARGEST_INTEGER}
    assert message_of(0, **range_) == "--batch-size is 0: it must be at least 1"
    assert message_of(2**63, **range_) == f"--batch-size is {2**63}: it must be at least 1 and at most {2**63 - 1:,}"


def test_an_integer_beyond_all_floats_is_refused_too() -> None:
    assert message_of(10**400, least=1, most=100).endswith("it must be at least 1 and at most 100")


@pytest.mark.parametrize(
    ("number", "range_"),
    [
        (1, {"least": 1}),
        (100, {"least": 1, "most": 100}),
        (1e-300, {"above": 0}),
        (0.0, {"least": 0, "below": 1}),
        (0.999, {"least": 0, "below": 1}),
        (LARGEST_INTEGER, {"least": 1, "most": LARGEST_INTEGER}),
        (-5, {}),
        (None, {"least": 1}),
    ],
)
def test_a_number_in_range_passes_and_so_does_none(number: float | None, range_: dict[str, float]) -> None:
    check_numbers(Some(batch_size=number), "batch_size", **range_)


def test_of_several_options_the_one_that_is_wrong_is_named() -> None:
    with pytest.raises(UserError, match=r"^--spa\.pool is 0: it must be at least 1$"):
        check_numbers(Some(batch_size=1, spa_pool=0), "batch_size", "spa_pool", least=1)
