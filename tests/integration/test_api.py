"""The three-line API gives what the command line gives."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import unida
from unida.config import config_class, config_from_options
from unida.data.glyphs import GlyphFolders
from unida.methods import METHODS
from unida.support.options import flag


def api_options(tiny: dict[str, str]) -> dict[str, Any]:
    """The command line's tiny options as Python values."""
    return {
        name.removeprefix("--").replace("-", "_"): int(value) if value.isdecimal() else value
        for name, value in tiny.items()
    }


def test_adapt_gives_the_same_weights_answers_and_metrics(
    glyphs: GlyphFolders, tiny: dict[str, str], finished: Path, tmp_path: Path
) -> None:
    options = {**api_options(tiny), "target_labels": True, "eval_every": 2}
    run = unida.adapt(source=glyphs.source, target=str(glyphs.target), out=tmp_path / "run", **options)
    mine, theirs = (load_file(folder / "checkpoint/model.safetensors") for folder in (run.folder, finished))
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name
    assert (run.folder / "predictions.csv").read_bytes() == (finished / "predictions.csv").read_bytes()
    assert run.metrics == json.loads((finished / "metrics.json").read_text())["last_step"]


def test_another_seed_gives_other_weights(
    glyphs: GlyphFolders, tiny: dict[str, str], finished: Path, tmp_path: Path
) -> None:
    """Or the test above would hold of anything."""
    run = unida.adapt(glyphs.source, glyphs.target, tmp_path / "run", **api_options(tiny), seed=1)
    mine, theirs = (load_file(folder / "checkpoint/model.safetensors") for folder in (run.folder, finished))
    assert not torch.equal(mine["closed.weight"], theirs["closed.weight"])


def test_load_answers_as_the_run_did(finished: Path, glyphs: GlyphFolders) -> None:
    run = unida.load(finished)
    assert run.classes == ("arrow", "heart", "house", "star")
    paths = sorted(glyphs.target.rglob("*.png"))
    predictions = run.predict(paths)
    with (finished / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(p.path, p.label) for p in predictions] == [(row["path"], row["label"]) for row in rows]
    for prediction, row in zip(predictions, rows, strict=True):
        # The table has four digits.
        assert prediction.probability == pytest.approx(float(row["probability"]), abs=1e-4)
        assert prediction.unknown_score == pytest.approx(float(row["unknown_score"]), abs=1e-4)
    assert predictions == run.predict(glyphs.target)


def test_load_evaluates_as_the_run_did(finished: Path) -> None:
    content = json.loads((finished / "metrics.json").read_text())
    result = unida.load(str(finished)).evaluate()
    assert result.scalars() == pytest.approx(content["last_step"])
    assert result.confusion.tolist() == content["confusion"]


def test_predict_lists_what_it_skips(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"")
    predictions = unida.load(finished).predict([tmp_path / "bad.jpg", tmp_path / "gone.png"])
    assert predictions == []
    assert [Path(item.path).name for item in predictions.skipped] == ["bad.jpg", "gone.png"]


def test_errors_are_one_exception(tmp_path: Path) -> None:
    with pytest.raises(unida.UserError, match=r"is not the folder of a run: it has no config\.yaml"):
        unida.load(tmp_path)
    with pytest.raises(unida.UserError, match=r"no option 'stpes' \(did you mean 'steps'\?\)"):
        unida.adapt("a", "b", tmp_path / "run", stpes=3)
    with pytest.raises(unida.UserError, match="--crop 300 is larger than --image-size 256"):
        unida.adapt("a", "b", tmp_path / "run", crop=300)
    with pytest.raises(unida.UserError, match="a: no such folder"):
        unida.adapt(Path("a"), "b", tmp_path / "deep" / "run")
    assert list(tmp_path.iterdir()) == []


def test_resume_refuses_another_option_and_repeats_the_same(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(unida.UserError, match=r"--batch-size is 36, but the run in .* was started with 4"):
        unida.adapt(out=finished, resume=True, batch_size=36)
    with pytest.raises(unida.UserError, match="already holds a run"):
        unida.adapt("a", "b", out=finished)
    same = config_from_options({"out": finished, "resume": True, "batch_size": 4})
    assert same.training.steps == 3


@pytest.mark.parametrize("method", METHODS)
def test_command_line_and_api_have_the_same_options(method: str, cli: Any) -> None:
    answer = cli(["adapt", "--method", method, "--help"])
    shown = set(re.findall(r"^\W*(--[a-z][a-z.-]*)", answer.out, re.MULTILINE)) - {"--help"}
    config = config_from_options({"method": method})
    groups = {field: vars(getattr(config, field)) for field in vars(config)}
    names = {name for options in groups.values() for name in options}
    assert shown == {flag(name) for name in names}
    for options in groups.values():
        for name, value in options.items():
            again = config_from_options({"method": method, name: value})
            assert again == config, name
    assert type(config).__name__ == config_class(method).__name__
