"""Runs whose target images answer together: options change answers and no weight, and answers are there to stay."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny_runs import Killed, adapt_arguments, all_weights, last_step, model_hash, run_here

from unida.data.glyphs import GlyphFolders, write_glyphs
from unida.runs import pipeline

WAYS: dict[str, dict[str, Any]] = {
    "usual": {},
    "published": {"neighbours": 0, "threshold": "method"},
    "own threshold": {"neighbours": 5, "threshold": 0.4},
    "a quarter": {"unknown_share": 0.25},
    "nothing": {"no_unknown": True, "neighbours": 3},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    out = tmp_path_factory.mktemp("together") / "data"
    return write_glyphs(out, shared=2, source_private=1, target_private=2, per_class=6, size=40)


def arguments(folders: GlyphFolders, out: Path, **changes: Any) -> list[str]:
    cache = folders.source.parent / "cache"
    return adapt_arguments(folders.source, folders.target, out, cache, steps=4, **changes)


@pytest.fixture(scope="module")
def runs(folders: GlyphFolders) -> dict[str, Path]:
    """The same training, answered in each way."""
    place = folders.source.parent / "runs"
    for name, options in WAYS.items():
        assert run_here(arguments(folders, place / name, **options)) == 0
    return {name: place / name for name in WAYS}


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def labels(run: Path) -> list[str]:
    return [row["label"] for row in rows_of(run / "predictions.csv")]


def metrics(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "metrics.json").read_text())
    return content


def test_no_weight_depends_on_how_images_are_answered(runs: dict[str, Path]) -> None:
    first = runs["usual"]
    for name, run in runs.items():
        assert model_hash(run) == model_hash(first), name
        ours, theirs = all_weights(run), all_weights(first)
        assert ours.keys() == theirs.keys()
        assert all(ours[key].equal(theirs[key]) for key in theirs), name
    assert len({(run / "predictions.csv").read_bytes() for run in runs.values()}) == len(runs)  # but answers do


def test_each_way_is_reported_as_it_was_asked_for(runs: dict[str, Path]) -> None:
    said = {name: metrics(run)["answering"] for name, run in runs.items()}
    assert {name: (rule["neighbours"], rule["chosen"]) for name, rule in said.items()} == {
        "usual": (2, "auto"),  # 24 images
        "published": (0, "method"),
        "own threshold": (5, "user"),
        "a quarter": (2, "share"),
        "nothing": (3, "no-unknown"),
    }
    assert (said["own threshold"]["threshold"], said["published"]["threshold"]) == (0.4, 0.5)
    assert [name for name, rule in said.items() if rule["found"] is not None] == ["usual"]
    assert labels(runs["a quarter"]).count("unknown") == 6
    assert "unknown" not in labels(runs["nothing"])


def test_the_ways_to_answer_are_compared(runs: dict[str, Path]) -> None:
    content = metrics(runs["usual"])
    assert list(content["alone"]) == list(content["together"]) == ["method", "auto"]
    assert content["together"]["auto"] == content["last_step"]
    assert content["alone"] == metrics(runs["published"])["alone"]
    assert content["alone"]["method"] == last_step(runs["published"])
    assert "together" not in metrics(runs["published"])
    for name, rules in content.items():
        if name in ("alone", "together"):
            assert all(rule.keys() == content["last_step"].keys() for rule in rules.values())


@pytest.mark.parametrize("way", ["usual", "published", "a quarter"])
def test_a_run_answers_and_measures_its_own_target_as_before(
    runs: dict[str, Path], folders: GlyphFolders, tmp_path: Path, cli: Any, way: str
) -> None:
    """To the last digit, also from a copy of the images in other folders and under other names."""
    run, copy = runs[way], tmp_path / "copy"
    copy.mkdir()
    originals = {}
    for i, path in enumerate(sorted(folders.target.rglob("*.png"), reverse=True)):
        originals[str(copy / f"{i:02}.png")] = str(path)
        shutil.copyfile(path, copy / f"{i:02}.png")
    assert cli(["predict", run, copy, "--csv", tmp_path / "answers.csv"]).code == 0
    found = [{**row, "path": originals[row["path"]]} for row in rows_of(tmp_path / "answers.csv")]
    assert sorted(found, key=lambda row: row["path"]) == rows_of(run / "predictions.csv")
    assert cli(["evaluate", run, "--json", tmp_path / "again.json"]).code == 0
    again = json.loads((tmp_path / "again.json").read_text())
    assert again["metrics"] == last_step(run)
    assert again["confusion"] == metrics(run)["confusion"]
    assert again["alone"] == pytest.approx(metrics(run)["alone"]["method"])


def test_alone_is_what_a_run_of_the_published_way_answers(
    runs: dict[str, Path], folders: GlyphFolders, tmp_path: Path, cli: Any
) -> None:
    answer = cli(["predict", runs["usual"], folders.target, "--csv", tmp_path / "answers.csv", "--alone"])
    assert answer.code == 0 and "neighbours" not in answer.out
    found, expected = rows_of(tmp_path / "answers.csv"), rows_of(runs["published"] / "predictions.csv")
    assert [(row["path"], row["label"]) for row in found] == [(row["path"], row["label"]) for row in expected]
    for name in ("probability", "unknown_score"):
        np.testing.assert_allclose(
            [float(row[name]) for row in found], [float(row[name]) for row in expected], atol=2e-4
        )


def test_a_new_image_joins_and_changes_no_other(
    runs: dict[str, Path], folders: GlyphFolders, tmp_path: Path, cli: Any
) -> None:
    old = next(folders.target.rglob("*.png"))
    for folder in ("both", "one"):
        (tmp_path / folder).mkdir()
        with Image.open(old) as image:  # nearly the same picture: not the same file
            Image.fromarray((np.asarray(image.convert("RGB")) // 2).astype(np.uint8)).save(
                tmp_path / folder / "new.png"
            )
    shutil.copyfile(old, tmp_path / "both" / "old.png")
    answers = {}
    for folder, *flags in (("both",), ("one",), ("one", "--alone")):
        path = tmp_path / f"{folder}{len(flags)}.csv"
        assert cli(["predict", runs["usual"], tmp_path / folder, "--csv", path, *flags]).code == 0
        answers[folder, *flags] = {Path(row.pop("path")).name: row for row in rows_of(path)}
    assert answers["both",]["new.png"] == answers["one",]["new.png"]
    assert answers["one",]["new.png"]["unknown_score"] != answers["one", "--alone"]["new.png"]["unknown_score"]
    (before,) = (row for row in rows_of(runs["usual"] / "predictions.csv") if row["path"] == str(old))
    assert answers["both",]["old.png"] == {name: value for name, value in before.items() if name != "path"}


@pytest.mark.parametrize("moment", ["save_target", "name_answers", "write_metrics"])
def test_killed_while_answering_a_run_ends_as_one_that_was_not(
    runs: dict[str, Path], folders: GlyphFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def die(*arguments: Any, **options: Any) -> None:
        raise Killed

    killed, whole = tmp_path / "killed", runs["usual"]
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, moment, die)
        with pytest.raises(Killed):
            run_here(arguments(folders, killed))
    assert not (killed / "metrics.json").exists()
    assert (killed / "checkpoint" / "target.safetensors").exists() == (moment in ("name_answers", "write_metrics"))
    assert run_here(["adapt", "--out", str(killed), "--resume"]) == 0
    for name in ("checkpoint/model.safetensors", "checkpoint/target.safetensors", "predictions.csv"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
    ours, theirs = metrics(killed), metrics(whole)
    assert ours.pop("cost").keys() == theirs.pop("cost").keys()  # times differ
    assert ours == theirs


def test_a_run_without_its_target_file_says_so(
    runs: dict[str, Path], folders: GlyphFolders, tmp_path: Path, cli: Any
) -> None:
    """Alone, it needs the model only."""
    run = Path(shutil.copytree(runs["usual"], tmp_path / "run"))
    (run / "checkpoint" / "target.safetensors").unlink()
    words = ["predict", run, folders.target, "--csv", tmp_path / "answers.csv"]
    answer = cli(words)
    assert answer.code == 2 and answer.err.count("error: ") == 1 and "Traceback" not in answer.err
    assert "target.safetensors cannot be read" in answer.err
    assert cli([*words, "--alone"]).code == 0


def test_a_finished_run_answers_again_without_training(runs: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "again"
    shutil.copytree(runs["usual"], run)
    weights, before = model_hash(run), (run / "predictions.csv").read_bytes()
    assert run_here(["adapt", "--out", str(run), "--resume", "--no-unknown"]) == 0
    assert "unknown" not in labels(run) and metrics(run)["answering"]["chosen"] == "no-unknown"
    assert run_here(["adapt", "--out", str(run), "--resume", "--unknown-share", "0.5"]) == 0  # not both at once
    assert labels(run).count("unknown") == len(labels(run)) // 2
    assert run_here(["adapt", "--out", str(run), "--resume"]) == 0  # nothing is asked for: as it is
    assert metrics(run)["answering"]["chosen"] == "share"
    assert run_here(["adapt", "--out", str(run), "--resume", "--threshold", "auto"]) == 0
    assert (run / "predictions.csv").read_bytes() == before and model_hash(run) == weights
