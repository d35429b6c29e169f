"""What all option groups share: how an option is written, how the help shows it, and which numbers it takes."""

import math
from typing import Any

import tyro

from unida.errors import UserError

LARGEST_INTEGER = 2**63 - 1  # torch and numpy count in 64 bits


def flag(name: str) -> str:
    """The command line's name of an option: batch_size → --batch-size, spa_goal_words → --spa.goal-words."""
    dotted = "spa." + name.removeprefix("spa_") if name.startswith("spa_") else name
    return f"--{dotted.replace('_', '-')}"


def shown(metavar: str, hint: str = "", name: str | None = None) -> Any:
    """How the help shows an option: its placeholder, what to show instead of "default: None", another name."""
    if name is None:
        return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint)
    return tyro.conf.arg(name=name, metavar=metavar, help_behavior_hint=hint)


def check_numbers(
    options: object,
    *names: str,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> None:
    """Refuse a number outside its range; the error names the option. None is allowed: it means a default."""
    for name in names:
        number = getattr(options, name)
        if number is None or (_is_finite(number) and least <= number <= most and above < number < below):
            continue
        finite = "" if _is_finite(number) else "finite and "
        limits = [("at least", least), ("above", above), ("at most", most), ("below", below)]
        shown = [f"{word} {_plain(limit)}" for word, limit in limits if _is_worth_telling(limit, number)]
        raise UserError(f"{flag(name)} is {number}: it must be {finite}{' and '.join(shown)}")


def _is_finite(number: float) -> bool:
    return isinstance(number, int) or math.isfinite(number)  # an integer may be too large for a float


def _is_worth_telling(limit: float, number: float) -> bool:
    return math.isfinite(limit) and (limit != LARGEST_INTEGER or number > limit)


def _plain(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"
