"""The published benchmarks as data: classes, domains, counts and splits, read from `splits/*.json`.

In each file a row of `classes` is a class name followed by its number of images per column of `count_columns`
(`domain` or `domain/part`); the row's position is the label integer. A split gives index ranges ("0-9") into
that order, or into the ASCII order of the names if it has `"order": "ascii"`, or plain lists of names.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from unida.data.settings import LabelSets
from unida.errors import UserError
from unida.support.suggest import did_you_mean

Role = Literal["source", "target"]
Part = Literal["adapt", "evaluate"]


def spelling_key(name: str) -> str:
    """A name in lower case without spaces, '-' and '_': 'Real World' → 'realworld'."""
    return "".join(letter for letter in name.lower() if letter not in " -_")


@dataclass(frozen=True)
class Domain:
    """One domain: canonical name, short letter, other accepted spellings, published size per part."""

    name: str
    letter: str
    aliases: tuple[str, ...]
    totals: dict[str, int]


@dataclass(frozen=True)
class Split:
    """The label sets of one setting, and a line on their source and on what differs."""

    label_sets: LabelSets
    note: str


@dataclass(frozen=True)
class Protocol:
    """Which part of a domain is adapted on and which is evaluated ('all' if there are no parts)."""

    adapt: str
    evaluate: str
    note: str

    def part(self, part: Part) -> str:
        """The benchmark's own name of a part: 'train', 'test' or 'all'."""
        if part not in ("adapt", "evaluate"):
            raise UserError(f"part '{part}' is not known: use 'adapt' or 'evaluate'")
        return self.adapt if part == "adapt" else self.evaluate


@dataclass(frozen=True)
class Lists:
    """Official list files: their name, and whether a copy of the benchmark is incomplete without them."""

    file: str
    expected: bool


@dataclass(frozen=True)
class RoleCounts:
    """Images of a domain in one role: those of shared classes and those of the role's private classes."""

    shared: int
    private: int

    @property
    def total(self) -> int:
        return self.shared + self.private

    @property
    def private_fraction(self) -> float:
        """For a target, the fraction of unknown images."""
        return self.private / self.total if self.total else 0.0


def count_role(per_class: dict[str, int], label_sets: LabelSets, role: Role) -> RoleCounts:
    """Sum images per class into what a domain holds as source or as target."""
    if role not in ("source", "target"):
        raise UserError(f"role '{role}' is not known: use 'source' or 'target'")
    private = label_sets.source_private if role == "source" else label_sets.target_private
    return RoleCounts(
        shared=sum(per_class.get(name, 0) for name in label_sets.shared),
        private=sum(per_class.get(name, 0) for name in private),
    )


@dataclass(frozen=True)
class Benchmark:
    """A published benchmark. `counts[domain, part]` are images per class; absent if not published."""

    name: str
    title: str
    paper: str
    folder_names: tuple[str, ...]
    classes: tuple[str, ...]
    class_order: str
    domains: tuple[Domain, ...]
    splits: dict[str, Split]
    protocol: Protocol
    lists: Lists | None
    counts: dict[tuple[str, str], dict[str, int]]

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings that exist: 'unida', 'osda', … and other papers' own splits such as 'osda:ros'."""
        return tuple(self.splits)

    def split(self, setting: str) -> Split:
        """The split of a setting, with the note on its source."""
        split = self.splits.get(setting.strip().lower())
        if split is None:
            raise UserError(f"{self.title} has no setting '{setting}': it has {', '.join(self.settings)}")
        return split

    def label_sets(self, setting: str) -> LabelSets:
        """The classes shared and private in a setting: 'cda', 'pda', 'osda', 'unida', or e.g. 'osda:ros'."""
        return self.split(setting).label_sets

    def find_domain(self, name: str) -> Domain:
        """The domain for a name, an accepted spelling or a short letter."""
        for domain in self.domains:
            if spelling_key(name) in map(spelling_key, (domain.name, domain.letter, *domain.aliases)):
                return domain
        known = ", ".join(f"{domain.name} ({domain.letter})" for domain in self.domains)
        spellings = {text: d.name for d in self.domains for text in (d.name, *d.aliases)}
        raise UserError(f"{self.title} has no domain {name!r}{did_you_mean(name, spellings)}; it has {known}")

    def domain(self, name: str) -> str:
        """The canonical name of a domain from any accepted spelling or short letter."""
        return self.find_domain(name).name

    def parse_pair(self, text: str) -> tuple[str, str]:
        """'amazon:dslr' or 'A:D' → (source, target), canonical names."""
        names = [name.strip() for name in text.split(":")]
        if len(names) != 2 or not all(names):
            first, second = self.domains[0].name, self.domains[1].name
            raise UserError(f"'{text}' is not a pair of domains: write source:target, e.g. '{first}:{second}'")
        source, target = self.domain(names[0]), self.domain(names[1])
        if source == target:
            others = ", ".join(domain.name for domain in self.domains if domain.name != source)
            raise UserError(f"'{text}' has {source} on both sides: choose another domain ({others}) for one of them")
        return source, target

    def published(self, domain: str, part: str) -> dict[str, int] | None:
        """Images per class of one part ('all' is the sum of the parts); None if not published."""
        name = self.domain(domain)
        if part == "all" and self.protocol.adapt != "all":
            parts = [self.counts.get((name, own)) for own in (self.protocol.adapt, self.protocol.evaluate)]
            known = [counts for counts in parts if counts is not None]
            if len(known) < len(parts):
                return None
            return {label: sum(counts[label] for counts in known) for label in self.classes}
        return self.counts.get((name, part))

    def published_total(self, domain: str, part: str) -> int:
        """The published number of images of one part ('all' is the sum of the parts)."""
        totals = self.find_domain(domain).totals
        return sum(totals.values()) if part == "all" else totals[part]

    def expected_counts(
        self, domain: str, label_sets: LabelSets, role: Role, part: Part = "adapt"
    ) -> RoleCounts | None:
        """Published numbers of images of a domain as source or target; None if not published per class."""
        per_class = self.published(domain, self.protocol.part(part))
        return None if per_class is None else count_role(per_class, label_sets, role)


def available() -> list[str]:
    """Names of the known benchmarks."""
    return sorted(_definitions())


def load_benchmark(name: str) -> Benchmark:
    """A benchmark by its name or a usual spelling of it ('Office-31', 'officehome', 'visda')."""
    spellings = {text: key for key, definition in _definitions().items() for text in (key, *definition["aliases"])}
    for text, key in spellings.items():
        if spelling_key(text) == spelling_key(name):
            return _build(key)
    raise UserError(f"no benchmark {name!r}{did_you_mean(name, spellings)}; there are {', '.join(available())}")


@cache
def _definitions() -> dict[str, dict[str, Any]]:
    """Every json file of `splits/`, by benchmark name."""
    folder = files("unida.data.benchmarks") / "splits"
    return {
        entry.name.removesuffix(".json"): json.loads(entry.read_text(encoding="utf-8"))
        for entry in folder.iterdir()
        if entry.name.endswith(".json")
    }


@cache
def _build(name: str) -> Benchmark:
    raw = _definitions()[name]
    classes = tuple(row[0] for row in raw["classes"])
    counts = {}
    for column, title in enumerate(raw["count_columns"], start=1):
        domain, _, part = title.partition("/")
        counts[domain, part or "all"] = {row[0]: row[column] for row in raw["classes"]}
    return Benchmark(
        name=name,
        title=raw["title"],
        paper=raw["paper"],
        folder_names=(name, *raw["aliases"], *raw["folders"]),
        classes=classes,
        class_order=raw["order"],
        domains=tuple(Domain(d["name"], d["letter"], tuple(d["aliases"]), dict(d["totals"])) for d in raw["domains"]),
        splits={setting: _split(split, classes) for setting, split in raw["splits"].items()},
        protocol=Protocol(**raw["protocol"]),
        lists=Lists(**raw["lists"]) if raw["lists"] else None,
        counts=counts,
    )


def _split(raw: dict[str, Any], classes: tuple[str, ...]) -> Split:
    order = sorted(classes) if raw.get("order") == "ascii" else list(classes)
    sets = (_class_names(raw[key], order) for key in ("shared", "source_private", "target_private"))
    return Split(LabelSets(*sets), raw["note"])


def _class_names(given: str | Iterable[str], order: list[str]) -> tuple[str, ...]:
    """'3-5' → the classes at these positions, both ends included; '' → none; a list of names stays."""
    if not isinstance(given, str):
        return tuple(given)
    if not given:
        return ()
    first, last = map(int, given.split("-"))
    return tuple(order[first : last + 1])
