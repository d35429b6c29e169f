"""Label sets: which classes the two domains share, and which only one of them has."""

from collections.abc import Collection
from dataclasses import dataclass

from unida.errors import UserError
from unida.support.suggest import did_you_mean

UNKNOWN = "unknown"  # the answer for what is no class of the source


@dataclass(frozen=True)
class LabelSets:
    """Three disjoint tuples of class names.

    They are sets: class ids follow the benchmark's order (`unida.data.domains`). Answers name a source class 0…C−1,
    or `unknown` = C.
    """

    shared: tuple[str, ...]
    source_private: tuple[str, ...] = ()
    target_private: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.source_classes:
            raise UserError("the source has no class: give a source folder with one sub-folder per class")
        seen: set[str] = set()
        for name in (*self.shared, *self.source_private, *self.target_private):
            if name in seen:
                raise UserError(f"class '{name}' is listed twice: a class is shared, source-private or target-private")
            seen.add(name)

    @property
    def source_classes(self) -> tuple[str, ...]:
        """Shared, then source-private."""
        return self.shared + self.source_private

    @property
    def target_classes(self) -> tuple[str, ...]:
        """Shared, then target-private."""
        return self.shared + self.target_private

    @property
    def unknown(self) -> int:
        """The id of the answer "unknown": C, the number of source classes."""
        return len(self.source_classes)

    @property
    def setting(self) -> str:
        """The literature's name for these sets: closed `cda`, partial `pda`, open `osda`, both `unida`."""
        if self.source_private and self.target_private:
            return "unida"
        if self.target_private:
            return "osda"
        return "pda" if self.source_private else "cda"

    def without(self, of_source: Collection[str], of_target: Collection[str]) -> "LabelSets":
        """The sets when these classes are left out of a domain. What the source loses is the target's alone then."""
        source = [name for name in self.source_classes if name not in of_source]
        target = [name for name in self.target_classes if name not in of_target]
        return LabelSets(
            shared=tuple(name for name in source if name in target),
            source_private=tuple(name for name in source if name not in target),
            target_private=tuple(name for name in target if name not in source),
        )


def names_left_out(text: str | None, there: Collection[str], option: str, place: str) -> tuple[str, ...]:
    """The names in --source-without or --target-without, which must all be there.

    A slash stands between names: no folder has one in its name.
    """
    names = tuple(filter(None, (text or "").split("/")))
    for name in names:
        if name not in there:
            hint = did_you_mean(name, there)
            raise UserError(f"{option} has {name!r}, which is no class of {place}{hint}; put / between names")
    return names
