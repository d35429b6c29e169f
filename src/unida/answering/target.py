"""Answers for a run's target, as the options ask for, and what is kept of them for later."""

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from unida.answering.alone import Answers, Scored, decide
from unida.answering.options import AUTO, METHOD, AnsweringOptions
from unida.answering.threshold import Found, find_threshold, threshold_of_share
from unida.answering.together import PUBLISHED, Kept, Together, default_neighbours, spread_scores


@dataclass(frozen=True)
class Rule:
    """How a run answers. The model file keeps it.

    Attributes:
        neighbours: k; 0 if each image answers alone.
        threshold: above this unknown score an image is unknown.
        chosen: who chose it.
    """

    neighbours: int
    threshold: float
    chosen: Literal["auto", "method", "user", "share", "no-unknown"]
    found: Found | None = None  # with "auto"

    def note(self) -> str:
        """A line for people."""
        how = f"together, {self.neighbours} neighbours" if self.neighbours else "each image alone"
        why = {
            "auto": "found on the target",
            "method": "the method's own",
            "user": "as set",
            "share": "by --unknown-share",
            "no-unknown": "by --no-unknown, nothing is unknown",
        }[self.chosen]
        what = f"unknown above {self.threshold:.3f}" if self.threshold >= 0 else "everything is unknown"
        line = f"answered {how}; {what} ({why})"
        return line if self.found is None else f"{line}; {self.found.note()}"

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> "Rule":
        found = plain["found"]
        return Rule(**{**plain, "found": None if found is None else Found(**found)})


class TargetAnswers:
    """Answers for all images of a target: alone or together, with any threshold.

    Args:
        scored: of every image.
        published: the method's own threshold.
        first: (N,) for each image, the first one of the same content: copies get one answer.
    """

    def __init__(
        self, scored: Scored, published: float, options: AnsweringOptions, first: Tensor | None = None
    ) -> None:
        self.scored, self.published, self.options = scored, published, options
        most = max(len(scored) - 1, 0)
        k = default_neighbours(len(scored)) if options.neighbours is None else min(options.neighbours, most)
        self.together: Together | None = spread_scores(scored, k, published) if k else None
        if self.together is not None and first is not None:
            same = {name: getattr(self.together, name)[first] for name in ("probabilities", "unknown")}
            self.together = replace(self.together, **same)
        self.neighbours = k
        self.rule = self._rule()
        self.answers = self._decided(self.together is not None, self.rule.threshold)

    @cached_property
    def kept(self) -> Kept | None:
        return None if self.together is None else self.together.kept()

    def variants(self) -> dict[str, dict[str, Answers]]:
        """Alone and together, each with the published threshold and with the one that is found: to compare them."""
        by_name = {"alone": False, "together": True} if self.together is not None else {"alone": False}
        return {
            name: {
                METHOD: self._decided(is_together, PUBLISHED if is_together else self.published),
                AUTO: self._decided(is_together, self._found(is_together).threshold),
            }
            for name, is_together in by_name.items()
        }

    def _decided(self, is_together: bool, threshold: float) -> Answers:
        scores = self.together if is_together else None
        if scores is None:
            return decide(self.scored.probabilities, self.scored.unknown, threshold)
        return decide(scores.probabilities, scores.unknown, threshold)

    def _found(self, is_together: bool) -> Found:
        if is_together and self.together is not None:
            return find_threshold(self.together.unknown, PUBLISHED, alike=1 + self.neighbours / 2)
        return find_threshold(self.scored.unknown, self.published)

    def _rule(self) -> Rule:
        options, k = self.options, self.neighbours
        if options.no_unknown:
            return Rule(k, 1.0, "no-unknown")  # no score is above 1
        if options.unknown_share is not None:
            scores = self.scored if self.together is None else self.together
            return Rule(k, threshold_of_share(scores.unknown, options.unknown_share), "share")
        if options.threshold == AUTO:
            found = self._found(k > 0)
            return Rule(k, found.threshold, "auto", found)
        if options.threshold == METHOD:
            return Rule(k, PUBLISHED if k else self.published, "method")
        return Rule(k, options.threshold, "user")
