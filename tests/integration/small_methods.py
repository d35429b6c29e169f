"""Small methods, each written to use one part of the contract: phases, memories, recipes, turns.

`python small_methods.py adapt …` is the command line with these methods beside the others.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.losses.entropy import entropy_of_logs
from unida.methods import METHODS, Card
from unida.methods.base import (
    DOMAINS,
    Losses,
    Method,
    Phase,
    Problem,
    Round,
    Scores,
    SourceBatch,
    Sweep,
    TargetBatch,
    Turn,
    Want,
)
from unida.models.backbone import Backbone
from unida.recipes.rotation import Rotation
from unida.support.processes import gather


@dataclass(frozen=True)
class NoOptions:
    pass


def card_of(name: str, code: str) -> Card:
    return Card(name, f"a small method: {name}", "none", "UniDA", NoOptions, f"small_methods:{code}")


class Small(Method):
    """A linear classifier; unknown by entropy."""

    def __init__(self, backbone: Backbone, problem: Problem, options: NoOptions) -> None:
        super().__init__(backbone, problem, options)
        self.head = nn.Linear(backbone.num_features, problem.num_classes)

    def closed(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        return {"closed": F.cross_entropy(self.head(self.features(source.images)), source.labels)}

    def entropy(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        features = F.dropout(self.features(target.images), training=self.training)  # draws from torch's generator
        return {"entropy": entropy_of_logs(F.log_softmax(self.head(features), dim=1)).mean()}

    def score(self, features: Tensor) -> Scores:
        logits = self.head(features)
        return Scores(logits, (entropy_of_logs(F.log_softmax(logits, dim=1)) / 5).clamp(0, 1))


class ThreePhases(Small):
    """SGD on the source; Adam on both; then the target alone, with a second head that begins as a copy of the first."""

    card = card_of("three-phases", "ThreePhases")
    run_only = ("teacher",)

    def __init__(self, backbone: Backbone, problem: Problem, options: NoOptions) -> None:
        super().__init__(backbone, problem, options)
        self.teacher = nn.Linear(backbone.num_features, problem.num_classes)
        self.register_buffer("prior", torch.zeros(problem.num_classes))

    def phases(self) -> list[Phase]:
        groups = self.groups()
        return [
            Phase([Turn(self.closed, groups)], "source", share=0.4, target=False),
            Phase([], "look", share=0.0, start=self.look),
            Phase([Turn(self.both, groups, optimiser="adam", decay=0.0)], "both", share=0.3),
            Phase([Turn(self.alone, groups[:1])], "target alone", share=0.3, start=self.copy_head, source=None),
        ]

    def look(self, sweep: Sweep) -> None:
        self.prior.copy_(F.softmax(self.head(sweep("target")), dim=1).mean(dim=0))

    def copy_head(self, sweep: Sweep) -> None:
        self.teacher.load_state_dict(self.head.state_dict())

    def both(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        return {**self.closed(source, target, step), **self.entropy(source, target, step)}

    def alone(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        assert not len(source.images) and not len(source.labels) and not source.extra
        features = self.features(target.images)
        log_p = F.log_softmax(self.teacher(features.detach()) + self.prior, dim=1)
        ours = F.log_softmax(self.head(features), dim=1)
        return {"teacher": F.kl_div(ours, log_p, log_target=True, reduction="batchmean")}


class Memory(Small):
    """A row for every target image: the last feature that training saw of it."""

    card = card_of("memory", "Memory")
    run_only = ("memory",)

    memory: Tensor

    def __init__(self, backbone: Backbone, problem: Problem, options: NoOptions) -> None:
        super().__init__(backbone, problem, options)
        self.register_buffer("memory", torch.zeros(problem.num_target, backbone.num_features))

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        features = F.normalize(self.features(target.images), dim=1)
        similarity = F.log_softmax(features @ self.memory.clone().T / 0.5, dim=1)  # it is written to below
        self.memory[gather(target.indices)] = gather(features)
        return {**self.closed(source, target, step), "neighbours": 0.1 * entropy_of_logs(similarity).mean()}


class Rotating(Small):
    """Which way is up? Asked of the batches, of images by name, and, for a mean, of all images."""

    card = card_of("rotating", "Rotating")
    run_only = ("upside_down", "seen")

    upside_down: Tensor
    seen: Tensor

    def __init__(self, backbone: Backbone, problem: Problem, options: NoOptions) -> None:
        super().__init__(backbone, problem, options)
        self.recipes = {"rotated": Rotation(), "upside down": Rotation(2)}
        self.direction = nn.Linear(backbone.num_features, 4)
        self.register_buffer("upside_down", torch.zeros(backbone.num_features))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def phases(self) -> list[Phase]:
        looks = Round(self.look, every=4, at_end=True)
        made = tuple((domain, "upside down") for domain in DOMAINS)
        return [Phase([Turn(self.training_step, self.groups())], round=looks, sweeps=DOMAINS, sweeps_made=made)]

    def look(self, step: int, sweep: Sweep) -> None:
        turned = [sweep(domain, recipe="upside down") for domain in ("source", "target")]
        self.upside_down.copy_(torch.cat(turned).mean(dim=0))

    def wants(self, step: int) -> Sequence[Want]:
        some = (torch.arange(5) * 3 + step).numpy() % self.problem.num_target
        return [
            Want("turned", "source", recipe="rotated"),
            Want("turned", "target", recipe="rotated"),
            Want("named", "target", some, recipe="rotated"),
        ]

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        losses = self.closed(source, target, step)
        for name, made in (("s", source.extra["turned"]), ("t", target.extra["turned"]), ("n", target.extra["named"])):
            self.seen += len(gather(made.labels)) if name != "n" else len(made.labels)
            losses[f"turned_{name}"] = F.cross_entropy(self.direction(self.features(made.images)), made.labels)
        assert torch.equal(source.extra["turned"].of[:, 0], source.indices)
        assert torch.equal(target.extra["turned"].of[:, 0], target.indices)
        losses["far"] = 1e-3 * (self.features(target.images) - self.upside_down).square().mean()
        return losses


class TwoTurns(Small):
    """An update on the source at every second step, and one on the target at every third; at some steps none."""

    card = card_of("two-turns", "TwoTurns")

    def phases(self) -> list[Phase]:
        backbone, new = self.groups()
        return [
            Phase(
                [
                    Turn(self.closed, [backbone, new._replace(scale=5.0)], due=lambda step: step % 2 == 0),
                    Turn(self.entropy, [backbone], "adapt", optimiser="adam", due=lambda step: step % 3 == 0),
                ]
            )
        ]


SMALL = (ThreePhases, Memory, Rotating, TwoTurns)


def register() -> None:
    METHODS.update({method.card.name: method.card for method in SMALL})


if __name__ == "__main__":
    from unida.cli import main

    register()
    main(sys.argv[1:])
