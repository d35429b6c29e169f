"""The list of methods for people."""

from dataclasses import Field, fields
from typing import Any

from unida.methods import METHODS
from unida.methods.card import Card
from unida.support.options import flag


def method_lines() -> list[str]:
    """Every method: its paper, the settings it is for, and its own options with their defaults."""
    lines: list[str] = []
    for card in METHODS.values():
        options = ", ".join(map(_with_default, fields(card.Options)))
        kept = "" if card.kept_steps is None else f", with --regime kept {card.kept_steps}"
        steps = f"--steps {card.cpu_steps}, with a GPU {card.steps}{kept}"
        schedule = f"--lr {card.lr}{_in_short_runs(card)}, {steps}"
        lines += [
            f"{card.name}",
            f"  {card.title}",
            f"  paper:    {card.paper}",
            f"  settings: {card.settings}",
            f"  options:  {options}; {schedule}",
            "",
        ]
    return [*lines, "What an option means: unida adapt --method NAME --help"]


def _in_short_runs(card: Card) -> str:
    return "" if card.short_lr is None else f" ({card.short_lr} up to --steps {card.steps // 10})"


def _with_default(option: "Field[Any]") -> str:
    name = flag(option.name)
    return f"{name} (off)" if option.default is False else f"{name} {option.default}"
