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
    """How the help shows an option: its placeholder, what to say instead of "default: None", another name."""
    if name is None:
        return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint)
    return tyro.conf.arg(name=name, metavar=metavar, help_behavior_hint=hint)


def check_numbers(
    options: object,
    *names: str,
    above: float | None = None,
    least: float | None = None,
    most: float = math.inf,
) -> None:
    """Refuse a number outside its range, by the option's name. None passes: it means a default."""
    for name in names:
        number = getattr(options, name)
        if number is None:
            continue
        large_enough = number >= least if least is not None else number > above if above is not None else True
        if large_enough and number <= most and abs(number) != math.inf:  # a NaN is never large enough
            continue
        bounds = [f"at least {_plain(least)}"] if least is not None else []
        bounds += [f"above {_plain(above)}"] if above is not None and least is None else []
        bounds += [f"at most {_plain(most)}"] if most < math.inf else []
        finite = ["finite"] if isinstance(number, float) and most == math.inf else []
        raise UserError(f"{flag(name)} is {number}: it must be {' and '.join([*finite, *bounds])}")


def _plain(number: float | None) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"
