"""A method's card: what it is called, where it was published, its options. Reading it does not load torch."""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from unida.errors import UserError

if TYPE_CHECKING:
    from unida.methods.base import Method


@dataclass(frozen=True)
class Card:
    name: str  # what --method takes
    title: str
    paper: str
    settings: str  # CDA, PDA, OSDA, UniDA
    Options: type[Any]  # a frozen dataclass of the method's own options, each with the source of its default
    code: str  # where its class is: "module:Class"
    lr: float = 0.01  # learning rate of new layers when the user sets none (OVANet)
    steps: int = 10_000  # with a GPU, when the user sets none (OVANet)
    cpu_steps: int = 300  # without a GPU, when the user sets none
    kept_steps: int | None = None  # in the kept regime, of a method whose heads are solved: only the backbone moves
    short_lr: float | None = None  # instead of `lr`, in runs of at most a tenth of `steps`; the backbone's stays
    from_abstract: bool = False  # re-implemented from the abstract alone: tables say so
    trains: tuple[Literal["all", "tail", "head"], ...] = ("all", "tail", "head")  # what --train may be

    def rate(self, steps: int) -> float:
        """The learning rate of new layers for a run of so many steps, when the user sets none."""
        return self.short_lr if self.short_lr is not None and 10 * steps <= self.steps else self.lr

    def load(self) -> "type[Method]":
        """The method's class. This imports torch."""
        module, _, name = self.code.partition(":")
        try:
            method: type[Method] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise UserError(
                f"the card of method {self.name!r} says {self.code!r}, which is not there: {error}"
            ) from error
        return method
