"""The target of a run as one file: its images' directions and scores, for new images to join, and its answers.

It lies beside the model. The rows for new images are limited in number (`unida.answering.together`); answers are kept
of every image.
"""

import json
from pathlib import Path
from typing import Any

from unida.answering.alone import Answers
from unida.answering.later import Answered, digest_rows
from unida.answering.target import Rule
from unida.answering.together import Kept
from unida.config import Config, fingerprint_of
from unida.data.pixels import Pixels
from unida.errors import UserError
from unida.support.tensorfile import read_tensors, write_tensors

KEPT = ("centre", "directions", "spread", "cosines")
ANSWERS = ("prediction", "closed", "probability", "unknown_score")


def save_target(path: Path, answers: Answers, kept: Kept | None, rule: Rule, pixels: Pixels, config: Config) -> None:
    tensors = {name: getattr(answers, name) for name in ANSWERS}
    tensors["digests"] = digest_rows([file.digest for file in pixels.files])
    numbers = {}
    if kept is not None:
        tensors |= {name: getattr(kept, name) for name in KEPT}
        numbers = {"own_weight": kept.own_weight, "threshold": kept.threshold}
    write_tensors(path, tensors, {"target": json.dumps(numbers), **_names(rule, config)})


def _names(rule: Rule, config: Config) -> dict[str, str]:
    """What the file belongs to: a run, and the way it answers."""
    return {"run": fingerprint_of(config), "rule": json.dumps(rule.plain())}


def load_target(path: Path, rule: Rule, config: Config) -> Answered:
    """What `save_target` wrote, if it is of this run and of its model's rule."""
    tensors, notes = read_tensors(path)
    if {name: notes.get(name) for name in ("run", "rule")} != _names(rule, config):
        raise UserError(f"{path} belongs to another run than the config.yaml beside it: put this run's own file back")
    try:
        answers = Answers(**{name: tensors[name] for name in ANSWERS})
        numbers: dict[str, Any] = json.loads(notes["target"])
        kept = Kept(**{name: tensors[name] for name in KEPT} | numbers) if numbers else None
        return Answered(tensors["digests"], answers, kept)
    except (LookupError, ValueError, TypeError) as error:
        raise UserError(f"{path} was made by another version of unida ({error}): train again") from error
