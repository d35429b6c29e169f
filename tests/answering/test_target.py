"""Each option of answering does what it says, and nothing else."""

import json
from typing import Any

import pytest
import torch
from made_scores import FIELDS, made_scores

from unida.answering.alone import Answers, decide
from unida.answering.options import AnsweringOptions
from unida.answering.target import Rule, TargetAnswers
from unida.answering.threshold import find_threshold
from unida.answering.together import PUBLISHED, spread_scores
from unida.config import config_from_options
from unida.errors import UserError

COUNT, CLASSES, OWN = 60, 3, 0.3  # OWN: the method's threshold; once scores are spread, it lies at PUBLISHED
SCORED = made_scores(COUNT, classes=CLASSES)


def answered(**options: Any) -> TargetAnswers:
    return TargetAnswers(SCORED, OWN, AnsweringOptions(**options))


def assert_same(found: Answers, expected: Answers) -> None:
    for field in FIELDS:
        assert torch.equal(getattr(found, field), getattr(expected, field)), field


def unknown_count(found: TargetAnswers) -> int:
    return int((found.answers.prediction == CLASSES).sum())


def test_by_default_images_answer_together_with_a_threshold_that_is_found() -> None:
    found, spread = answered(), spread_scores(SCORED, 6, OWN)
    expected = find_threshold(spread.unknown, PUBLISHED, alike=4.0)  # six neighbours: four images have one voice
    assert found.rule == Rule(6, expected.threshold, "auto", expected)
    assert_same(found.answers, decide(spread.probabilities, spread.unknown, expected.threshold))
    assert found.kept is not None and torch.equal(found.kept.spread, spread.kept().spread)


@pytest.mark.parametrize(("given", "used"), [(1, 1), (17, 17), (59, 59), (60, 59), (1000, 59)])
def test_a_number_of_neighbours_is_used_if_there_are_so_many(given: int, used: int) -> None:
    found, spread = answered(neighbours=given, threshold="method"), spread_scores(SCORED, used, OWN)
    assert found.rule == Rule(used, PUBLISHED, "method")
    assert_same(found.answers, decide(spread.probabilities, spread.unknown, PUBLISHED))


def test_no_neighbours_are_the_published_way() -> None:
    found = answered(neighbours=0, threshold="method")
    assert found.rule == Rule(0, OWN, "method")
    assert found.together is None and found.kept is None
    assert_same(found.answers, decide(SCORED.probabilities, SCORED.unknown, OWN))


def test_a_threshold_can_be_found_for_images_that_answer_alone() -> None:
    found, expected = answered(neighbours=0), find_threshold(SCORED.unknown, OWN)
    assert found.rule == Rule(0, expected.threshold, "auto", expected)
    assert_same(found.answers, decide(SCORED.probabilities, SCORED.unknown, expected.threshold))


@pytest.mark.parametrize("neighbours", [0, 5])
@pytest.mark.parametrize("threshold", [0.0, 0.45, 1.0])
def test_a_given_threshold_is_for_the_score_that_is_reported(neighbours: int, threshold: float) -> None:
    found = answered(neighbours=neighbours, threshold=threshold)
    assert found.rule == Rule(neighbours, threshold, "user")
    assert torch.equal(found.answers.prediction == CLASSES, found.answers.unknown_score > threshold)


@pytest.mark.parametrize("neighbours", [0, 5])
@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.1, 6), (0.5, 30), (0.99, 59), (1.0, 60)])
def test_a_known_share_is_called_unknown(neighbours: int, share: float, count: int) -> None:
    found = answered(neighbours=neighbours, unknown_share=share)
    assert (found.rule.chosen, found.rule.found) == ("share", None)
    assert unknown_count(found) == count
    is_unknown, scores = found.answers.prediction == CLASSES, found.answers.unknown_score
    if 0 < count < COUNT:
        assert scores[is_unknown].min() > scores[~is_unknown].max()  # those with the highest scores


@pytest.mark.parametrize("neighbours", [0, 5])
def test_nothing_is_unknown_if_so_told(neighbours: int) -> None:
    certain = made_scores(20, classes=CLASSES)
    certain = type(certain)(certain.directions, certain.probabilities, torch.ones(20))
    found = TargetAnswers(certain, OWN, AnsweringOptions(neighbours=neighbours, no_unknown=True))
    assert found.rule == Rule(neighbours, 1.0, "no-unknown")
    assert torch.equal(found.answers.prediction, found.answers.closed)


def test_all_ways_are_compared_whatever_was_asked_for() -> None:
    found = answered(neighbours=5, threshold=0.9).variants()
    assert [(name, list(rules)) for name, rules in found.items()] == [
        ("alone", ["method", "auto"]),
        ("together", ["method", "auto"]),
    ]
    for name, neighbours in {"alone": 0, "together": 5}.items():
        for threshold, answers in found[name].items():
            assert_same(answers, answered(neighbours=neighbours, threshold=threshold).answers)
    assert list(answered(neighbours=0).variants()) == ["alone"]


RULES = {
    "auto": answered().rule,
    "method": Rule(0, 0.5, "method"),
    "user": Rule(3, 0.123456789, "user"),
    "share": Rule(0, -1.0, "share"),
    "no-unknown": Rule(4, 1.0, "no-unknown"),
}


@pytest.mark.parametrize("chosen", RULES)
def test_a_rule_comes_back_from_a_file(chosen: str) -> None:
    rule = RULES[chosen]
    assert Rule.from_plain(json.loads(json.dumps(rule.plain()))) == rule


def test_a_rule_is_told_in_a_line() -> None:
    assert RULES["method"].note() == "answered each image alone; unknown above 0.500 (the method's own)"
    assert RULES["user"].note() == "answered together, 3 neighbours; unknown above 0.123 (as set)"
    assert RULES["share"].note().endswith("(by --unknown-share)")
    assert RULES["no-unknown"].note().endswith("(by --no-unknown, nothing is unknown)")
    auto = RULES["auto"]
    assert auto.found is not None
    start = f"answered together, 6 neighbours; unknown above {auto.threshold:.3f} (found on the target); "
    assert auto.note() == start + auto.found.note()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"neighbours": -1}, "--neighbours is -1: it must be at least 0 and at most 1,000"),
    ({"neighbours": 1001}, "--neighbours is 1001: it must be at least 0 and at most 1,000"),
    ({"unknown_share": -0.1}, "--unknown-share is -0.1: it must be at least 0 and at most 1"),
    ({"unknown_share": 10}, "--unknown-share is 10.0: it must be at least 0 and at most 1"),  # meant as per cent
    ({"unknown_share": float("nan")}, "--unknown-share is nan: it must be finite and at least 0 and at most 1"),
    ({"threshold": 1.01}, "--threshold is 1.01: it must be auto, method, or a number from 0 to 1"),
    ({"threshold": float("nan")}, "--threshold is nan: it must be auto, method, or a number from 0 to 1"),
    ({"threshold": "often"}, "option 'threshold' is 'often': it must be float or 'auto' or 'method'"),
    ({"no_unknown": True, "unknown_share": 0.1}, "--no-unknown and --unknown-share exclude each other: leave one out"),
    ({"no_unknown": True, "threshold": 0.4}, "--no-unknown has no effect with --threshold 0.4: leave one out"),
    (
        {"unknown_share": 0.0, "threshold": "method"},
        "--unknown-share has no effect with --threshold method: leave one out",
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_options_that_cannot_work_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        config_from_options(options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "options", [{}, {"neighbours": 0}, {"neighbours": 1000}, {"threshold": 0}, {"threshold": 1.0}, {"unknown_share": 1}]
)
def test_options_at_their_limits_are_taken(options: dict[str, Any]) -> None:
    config = config_from_options(options)
    assert {name: getattr(config.answering, name) for name in options} == options
