"""What a run reports about itself: every number where it belongs, and "–" where there is none."""

import csv
import dataclasses
import json
import logging
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from unida.answering.alone import Scored
from unida.answering.options import AnsweringOptions
from unida.answering.target import Rule, TargetAnswers
from unida.config import Config, config_from_options
from unida.data.domains import Source, Target
from unida.data.folders import Skipped
from unida.evaluation.metrics import OpenSetResult, open_set_metrics
from unida.evaluation.names import METRIC_NOTES
from unida.methods import METHODS
from unida.methods.listing import method_lines
from unida.runs.summary import (
    class_lines,
    describe_end,
    describe_start,
    metric_lines,
    oracle_best,
    percent,
    result_json,
    summary_line,
    write_metrics,
    write_skipped,
)
from unida.training.logging import logging_to

COST = {"steps": 40, "images_per_second": 123.4, "peak_memory_bytes": 3 * 2**29, "seconds": 75.0}


@pytest.fixture
def result() -> OpenSetResult:
    """Two source classes and two private ones; known 3/4, unknown 1/2, so HOS 0.6."""
    return open_set_metrics(
        truth=torch.tensor([0, 0, 1, 1, 2, 3]),
        prediction=torch.tensor([0, 2, 1, 1, 2, 0]),
        closed=torch.tensor([0, 1, 1, 1, 1, 0]),
        unknown_score=torch.tensor([0.1, 0.6, 0.2, 0.3, 0.9, 0.4]),
        n_source_classes=2,
        class_names=("cup", "lamp", "sofa", "television set"),
    )


@pytest.fixture
def closed_result() -> OpenSetResult:
    """No unknown image: there is no HOS."""
    truth = torch.tensor([0, 1])
    return open_set_metrics(truth, truth, truth, torch.tensor([0.1, 0.2]), 2, ("cup", "lamp"))


def made_up(**options: Any) -> Config:
    return config_from_options({"steps": 40, "out": "run", **options})


def evaluated(folder: Path, *hos: tuple[int, float | None]) -> None:
    """A metrics.jsonl of evaluations before the last step, with lines of training between."""
    lines = []
    for step, value in hos:
        lines.append({"step": step, "kind": "train", "closed": 0.5, "total": 0.5})
        lines.append({"step": step, "kind": "evaluation", **dict.fromkeys(METRIC_NOTES, 0.5), "hos": value})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.0, "0.0"), (0.6, "60.0"), (0.71849, "71.8"), (1.0, "100.0")]
)
def test_fractions_are_shown_in_per_cent(value: float | None, text: str) -> None:
    assert percent(value) == text


def test_the_line_of_an_evaluation(result: OpenSetResult, closed_result: OpenSetResult) -> None:
    assert summary_line(result) == "HOS 60.0  known 75.0  unknown 50.0"
    assert summary_line(closed_result) == "HOS –  known 100.0  unknown –"


def test_every_metric_has_a_line_with_its_value_and_its_meaning(result: OpenSetResult) -> None:
    lines = metric_lines(result.scalars())
    assert len(lines) == len(METRIC_NOTES)
    for line, (name, note) in zip(lines, METRIC_NOTES.items(), strict=True):
        first, value, *_ = line.split()
        assert (first, value) == (name, percent(getattr(result, name)))
        assert line.endswith("  " + note)
    assert len({line.index(note) for line, note in zip(lines, METRIC_NOTES.values(), strict=True)}) == 1  # aligned


def test_the_table_by_class(result: OpenSetResult) -> None:
    header, *rows = class_lines(result)
    assert header.split() == ["class", "images", "recall", "precision"]
    assert [row.split() for row in rows] == [
        ["cup", "2", "50.0", "50.0"],
        ["lamp", "2", "100.0", "100.0"],
        ["unknown", "2", "50.0", "50.0"],
        ["sofa", "1", "100.0", "–"],
        ["television", "set", "1", "0.0", "–"],
    ]
    assert len({len(line) for line in (header, *rows)}) == 1  # aligned, the longest name included


def test_a_class_that_nobody_has_and_nobody_names_has_no_row() -> None:
    truth = torch.tensor([0, 0])
    result = open_set_metrics(truth, truth, truth, torch.tensor([0.1, 0.2]), 3, ("cup", "lamp", "sofa"))
    assert [line.split()[0] for line in class_lines(result)] == ["class", "cup"]


def test_metrics_json_of_a_labelled_target(tmp_path: Path, result: OpenSetResult) -> None:
    write_metrics(tmp_path, result, COST, made_up())
    content = json.loads((tmp_path / "metrics.json").read_text())
    assert content["cost"] == COST
    assert content["last_step"] == result.scalars()
    assert content["per_class"][0] == {
        "kind": "source", "id": 0, "name": "cup", "n": 2, "recall": 0.5, "precision": 0.5,
    }  # fmt: skip
    assert content["confusion"] == result.confusion.tolist()
    assert "oracle_best" not in content  # only when asked for
    alone = result._replace(hos=0.25)
    assert json.loads(result_json(result, alone)) == {
        "metrics": content["last_step"],
        "alone": {**content["last_step"], "hos": 0.25},
        "per_class": content["per_class"],
        "confusion": content["confusion"],
    }


def test_metrics_json_of_an_unlabelled_target_holds_no_metric(tmp_path: Path) -> None:
    write_metrics(tmp_path, None, COST, made_up())
    assert json.loads((tmp_path / "metrics.json").read_text()) == {"version": version("unida"), "cost": COST}


def test_metrics_json_says_how_images_were_answered_and_compares_the_ways(
    tmp_path: Path, result: OpenSetResult
) -> None:
    worse = result._replace(hos=0.25)
    compared = {"alone": {"method": worse, "auto": result}, "together": {"method": result, "auto": worse}}
    rule = Rule(3, 0.4, "user")
    write_metrics(tmp_path, result, COST, made_up(), compared=compared, rule=rule)
    content = json.loads((tmp_path / "metrics.json").read_text())
    assert content["answering"] == {"neighbours": 3, "threshold": 0.4, "chosen": "user", "found": None}
    assert content["alone"] == {"method": worse.scalars(), "auto": result.scalars()}
    assert content["together"] == {"method": result.scalars(), "auto": worse.scalars()}


def test_what_does_not_exist_is_null_in_json(tmp_path: Path, closed_result: OpenSetResult) -> None:
    write_metrics(tmp_path, closed_result, COST, made_up())
    text = (tmp_path / "metrics.json").read_text()
    assert json.loads(text)["last_step"]["hos"] is None
    assert "NaN" not in text


def test_the_oracle_stands_apart_from_the_last_step(tmp_path: Path, result: OpenSetResult) -> None:
    evaluated(tmp_path, (10, 0.2), (20, 0.9), (30, None))
    write_metrics(tmp_path, result, COST, made_up(oracle_best=True, eval_every=10))
    content = json.loads((tmp_path / "metrics.json").read_text())
    assert content["last_step"]["hos"] == pytest.approx(0.6)
    assert (content["oracle_best"]["step"], content["oracle_best"]["hos"]) == (20, 0.9)
    assert "target labels" in content["oracle_best"]["note"]


def test_the_last_step_can_be_the_oracles_choice(tmp_path: Path, result: OpenSetResult) -> None:
    evaluated(tmp_path, (10, 0.2), (20, 0.59), (30, None))
    best = oracle_best(tmp_path, result, made_up())
    assert best["step"] == 40 and best["hos"] == pytest.approx(0.6)


def test_an_oracle_without_any_hos_does_not_fail(tmp_path: Path, closed_result: OpenSetResult) -> None:
    evaluated(tmp_path, (10, None))
    assert oracle_best(tmp_path, closed_result, made_up())["hos"] is None


def test_skipped_files_are_listed_by_path(tmp_path: Path) -> None:
    path = tmp_path / "skipped.csv"
    odd = os.fsdecode(b"caf\xe9.png")
    write_skipped(
        path, [Skipped("z.png", "empty file"), Skipped('a,"b".txt', "not an image file: .txt"), Skipped(odd, "x")]
    )
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        assert list(csv.reader(file)) == [
            ["path", "reason"],
            ['a,"b".txt', "not an image file: .txt"],
            [odd, "x"],
            ["z.png", "empty file"],
        ]
    write_skipped(path, [])
    assert path.read_text().split() == ["path,reason"]
    assert os.listdir(tmp_path) == ["skipped.csv"]


def test_a_name_in_any_bytes_is_logged_as_it_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Kept from pytest's own log: such a name in a test's report cannot travel between pytest's processes.
    monkeypatch.setattr(logging.getLogger("unida"), "propagate", False)
    with logging_to(tmp_path):
        logging.getLogger("unida").warning("  %s: empty file", os.fsdecode(b"caf\xe9.png"))
    assert b"  caf\xe9.png: empty file\n" in (tmp_path / "log.txt").read_bytes()
    assert "Traceback" not in capfd.readouterr().err


def test_the_start_says_what_is_trained_on_what(caplog: pytest.LogCaptureFixture) -> None:
    class Images:
        def __init__(self, count: int) -> None:
            self.count = count

        def __len__(self) -> int:
            return self.count

    source: Any = dataclasses.replace(
        Source(None, None, ("cup", "lamp"), (Skipped("source/torn.jpg", "empty file"),)),  # type: ignore[arg-type]
        pixels=Images(30),  # type: ignore[arg-type]
    )
    target: Any = Target(Images(50))  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO, logger="unida"):
        describe_start(
            made_up(backbone="resnet18", train="all", regime="published", batch_size=8, seed=3),
            source,
            target,
            "cpu",
            40,
        )
    assert caplog.messages == [
        "source: 30 images of 2 classes; target: 50 images",
        "skipped 1 file(s) of the source:",
        "  source/torn.jpg: empty file",
        "ovanet on resnet18 (--train all, published regime), 40 steps of 8 + 8 images, seed 3, on cpu",
    ]
    with caplog.at_level(logging.INFO, logger="unida"):
        describe_start(made_up(backbone="resnet18", train="head", regime="kept", spa=True), source, target, "cpu", 0)
    told = (
        "ovanet+spa on resnet18 (--train head, kept regime), heads solved on all images, without steps, seed 0, on cpu"
    )
    assert caplog.messages[-1] == told


@pytest.mark.parametrize("labelled", [True, False])
def test_the_end_says_what_came_of_it(caplog: pytest.LogCaptureFixture, result: OpenSetResult, labelled: bool) -> None:
    best, unknown = torch.tensor([0, 0, 1, 1, 0, 0]), torch.tensor([0.1, 0.9, 0.1, 0.1, 0.8, 0.5])
    scored = Scored(torch.zeros(6, 2, dtype=torch.float16), torch.eye(2)[best], unknown)
    answered = TargetAnswers(scored, 0.5, AnsweringOptions(neighbours=0, threshold="method"))
    worse = result._replace(hos=0.25)
    compared = {"alone": {"method": worse, "auto": result}} if labelled else {}
    with caplog.at_level(logging.INFO, logger="unida"):
        describe_end(Path("runs/a"), result if labelled else None, answered, compared, COST)
    assert caplog.messages[0] == "answered each image alone; unknown above 0.500 (the method's own)"
    assert caplog.messages[1] == "2 of 6 target images are unknown"
    assert caplog.messages[-1] == "123 images/s, peak memory 1.50 GiB, 1 min 15 s; results are in runs/a"
    assert len(caplog.messages) == (5 if labelled else 3)
    if labelled:
        assert "hos " in caplog.messages[2]
        ways = "alone with threshold method 25.0, alone with threshold auto 60.0"
        assert caplog.messages[3] == f"HOS by way of answering: {ways} (compare the first with papers)"
    with caplog.at_level(logging.INFO, logger="unida"):
        describe_end(Path("runs/a"), None, answered, {}, {**COST, "steps": 0, "images_per_second": 0.0})
    assert caplog.messages[-1] == "peak memory 1.50 GiB, 1 min 15 s; results are in runs/a"


@pytest.mark.parametrize(("count", "best", "broke_down"), [(20, [0], True), (19, [0], False), (20, [0, 1], False)])
def test_a_model_that_sees_one_class_everywhere_is_warned_of(
    caplog: pytest.LogCaptureFixture, count: int, best: list[int], broke_down: bool
) -> None:
    likely = torch.tensor([0] * (count - len(best)) + best)
    scored = Scored(torch.zeros(count, 2, dtype=torch.float16), torch.eye(2)[likely], torch.zeros(count))
    answered = TargetAnswers(scored, 0.5, AnsweringOptions(neighbours=0, threshold="method"))
    describe_end(Path("runs/a"), None, answered, {}, COST)
    assert ["training broke down" in text for text in caplog.messages].count(True) == broke_down


def test_every_method_is_described_with_its_options() -> None:
    text = "\n".join(method_lines())
    for method in METHODS.values():
        assert f"\n{method.name}\n  {method.title}\n  paper:    {method.paper}\n" in "\n" + text
    schedule = "--lr 0.01, --steps 300, with a GPU 10000, with --regime kept 100"
    assert f"  options:  --rejection entropy, --rejection-threshold 0.5; {schedule}\n" in text
    assert f"  options:  --entropy-weight 0.1; {schedule}\n" in text
    assert "--repeat-classes (off), --unused-logits 0, --warm-up 0; --lr 0.001, --steps 300, with a GPU 3000\n" in text
