"""`--track` through the command: what is written where, and that training does not notice."""

import json
from pathlib import Path
from typing import Any

import pytest
from bad_input import assert_refuses
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_runs import adapt_arguments, all_weights, last_step, lines_of, model_hash, run_here

from unida.data.glyphs import GlyphFolders

SPA = {"spa": True, "spa.vocabulary": 8, "spa.pretext": "on", "spa.pool": 16}
MEASURES = {"pas", "ntr", "dis"}


def arguments(glyphs: GlyphFolders, place: Path, name: str, **changes: Any) -> list[str]:
    folders = {"source": glyphs.source, "target": glyphs.target, "out": place / name, "cache": place / "cache"}
    return adapt_arguments(**{**folders, "steps": 3, "eval_every": 2, **changes})


def evaluations(run: Path) -> list[dict[str, Any]]:
    return [line for line in lines_of(run) if line["kind"] == "evaluation"]


def test_training_is_the_same_to_the_bit(glyphs: GlyphFolders, tmp_path: Path) -> None:
    """BatchNorm and words that are learned in turns: with and without measures between."""
    options = {"train": "all", **SPA, "spa.preset": "paper"}
    tracked, plain = tmp_path / "tracked", tmp_path / "plain"
    assert run_here(arguments(glyphs, tmp_path, "tracked", track="ntr,dis,pas", **options)) == 0
    assert run_here(arguments(glyphs, tmp_path, "plain", **options)) == 0
    assert model_hash(tracked) == model_hash(plain)
    ours, theirs = all_weights(tracked), all_weights(plain)
    assert ours.keys() == theirs.keys() and all(bool((ours[key] == theirs[key]).all()) for key in ours)
    found = lines_of(tracked)
    for line in found:
        measures = {key: line.pop(key) for key in MEASURES & line.keys() if line["kind"] == "evaluation"}
        assert measures.keys() == (MEASURES if line["kind"] == "evaluation" else set())
        assert all(-1 <= value <= 1 for value in measures.values())
    assert found == lines_of(plain)
    assert last_step(tracked) == last_step(plain)


@pytest.fixture(scope="module")
def tracked(glyphs: GlyphFolders, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tracked")
    assert run_here(arguments(glyphs, place, "run", track="ntr, dis", lr=0.1, steps=5)) == 0
    return place / "run"


def test_measures_stand_beside_the_metrics(tracked: Path) -> None:
    lines = evaluations(tracked)
    assert [line["step"] for line in lines] == [2, 4]
    for line in lines:
        assert {"hos", "ntr", "dis"} <= line.keys() and "pas" not in line
    end = json.loads((tracked / "metrics.json").read_text())
    assert end["measures"].keys() == {"ntr", "dis"}
    curves = {(line["ntr"], line["dis"]) for line in (*lines, end["measures"])}
    assert len(curves) > 1  # they follow the weights


def test_tensorboard_has_them_too(tracked: Path) -> None:
    board = EventAccumulator(str(tracked))
    board.Reload()
    for name in ("ntr", "dis"):
        shown = [(event.step, event.value) for event in board.Scalars(f"evaluation/{name}")]
        assert shown == [(line["step"], pytest.approx(line[name])) for line in evaluations(tracked)]


def test_the_log_tells_them(tracked: Path) -> None:
    said = (tracked / "log.txt").read_text().splitlines()
    for line in evaluations(tracked):
        (told,) = (text for text in said if f"step {line['step']}: HOS" in text)
        assert told.endswith(f"  NTR {line['ntr']:.3f}  DIS {line['dis']:.3f}")
    assert sum("after the last step: NTR 0." in text for text in said) == 1


def test_a_target_without_labels_is_measured_without_metrics(glyphs: GlyphFolders, tmp_path: Path) -> None:
    assert run_here(arguments(glyphs, tmp_path, "run", track="dis", target_labels=None)) == 0
    lines = evaluations(tmp_path / "run")
    assert [line.keys() for line in lines] == [{"step", "kind", "dis"}]
    said = (tmp_path / "run" / "log.txt").read_text()
    assert f"step 2: DIS {lines[0]['dis']:.3f}\n" in said
    assert json.loads((tmp_path / "run" / "metrics.json").read_text()).keys() == {
        "version",
        "cost",
        "answering",
        "measures",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"track": "dis", "eval_every": None}, "--track measures at every evaluation: set how often with --eval-every"),
        ({"track": "dis,pas"}, "--track pas needs SPA's words: add --spa"),
        ({"track": "ntr", "target_labels": None}, "--track ntr needs the target's labels: add --tar"),
        ({"track": "ntrr"}, "--track has 'ntrr' (did you mean 'ntr'?); it knows pas, ntr, dis"),
        ({"track": "ntr,"}, "--track has ''; it knows pas, ntr, dis"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    glyphs: GlyphFolders, tmp_path: Path, cli: Any, changes: dict[str, Any], message: str
) -> None:
    assert_refuses(cli, arguments(glyphs, tmp_path, "run", **changes), tmp_path, start=message)


def test_too_few_pictures_leave_no_folder_behind(glyphs: GlyphFolders, tmp_path: Path, cli: Any) -> None:
    (tmp_path / "few").mkdir()
    for picture in (glyphs.target / "star").iterdir():
        (tmp_path / "few" / picture.name).write_bytes(picture.read_bytes())
    words = arguments(glyphs, tmp_path, "run", track="dis", target=tmp_path / "few", target_labels=None)
    answer = cli(words)
    assert answer.code == 2
    assert answer.err.splitlines()[-1].startswith("error: --track dis: the target has 4 different images")
    assert not (tmp_path / "run").exists()
