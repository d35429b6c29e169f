"""A tiny study from the command line: what it leaves, and that kills change nothing."""

import csv
import importlib.util
import json
import shutil
import statistics
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
import torch
from conftest import Cli
from tiny_runs import Killed, dying_at_the_first_checkpoint, run_here

from unida.data.glyphs import GlyphFolders
from unida.grids import start
from unida.grids.engine import Ended, Event, Started
from unida.grids.plan import Task
from unida.grids.worker import carry_out
from unida.studies import base
from unida.studies.private_probe import private_images

HAS_FIGURES = importlib.util.find_spec("matplotlib") is not None


class Here:
    """An engine that carries runs out in this process, one after another."""

    workers = 1

    def run(self, tasks: Sequence[Task]) -> Generator[Event, None, None]:
        for task in tasks:
            yield Started(task, "here")
            yield Ended(task, carry_out(task, None))


@pytest.fixture(scope="module")
def words(glyphs: GlyphFolders, tiny: dict[str, str]) -> list[str]:
    own = {name: value for name, value in tiny.items() if name != "--train"} | {"--checkpoint-every": "2"}
    options = [f"{name.removeprefix('--')}={value}" for name, value in own.items()]
    folders = ["--source", str(glyphs.source), "--target", str(glyphs.target), "--target-labels"]
    return ["study", "seeds", *folders, "--seeds", "0", "1", "--no-estimate", "--set", *options, "--out"]


@pytest.fixture(scope="module")
def calm(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study, undisturbed. Not to be changed."""
    out = tmp_path_factory.mktemp("study") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "_engine", lambda *given: Here())
        assert run_here([*words, str(out)]) == 0
    return out


def test_the_table_says_what_the_runs_say(calm: Path) -> None:
    with (calm / "results.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["row"], line["seed"]) for line in lines] == [
        ("ovanet", "0"),
        ("ovanet+spa", "0"),
        ("ovanet", "1"),
        ("ovanet+spa", "1"),
    ]
    alone = []
    for line in lines:
        content = json.loads(
            (calm / "grid" / "runs" / f"folders-{line['row']}-{line['seed']}/metrics.json").read_text()
        )
        assert float(line["os"]) == pytest.approx(content["last_step"]["os"], abs=1e-5)
        assert float(line["alone_os"]) == pytest.approx(content["alone"]["method"]["os"], abs=1e-5)
        alone += [100 * content["alone"]["method"]["os"]] if line["row"] == "ovanet" else []
    page = (calm / "study.md").read_text()
    assert f"| ovanet | folders | {statistics.fmean(alone):.1f} ± {statistics.stdev(alone):.1f} |" in page
    assert "unida study seeds" in page and "RTN" in page and "seconds of a run" in page
    if HAS_FIGURES:
        assert (calm / "figure.png").read_bytes()[:4] == b"\x89PNG" and "<svg" in (calm / "figure.svg").read_text()


def test_killed_twice_it_ends_with_the_same_table(
    calm: Path, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time in its last run, the second time after its table and before its page."""
    out = Path(shutil.copytree(calm, tmp_path / "out", ignore=shutil.ignore_patterns("figure.*", "study.md")))
    (out / "results.csv").unlink()
    shutil.rmtree(out / "grid" / "runs" / "folders-ovanet+spa-1")
    again = [*words, str(out)]
    monkeypatch.setattr(start, "_engine", lambda *given: Here())
    with dying_at_the_first_checkpoint(monkeypatch):
        run_here(again)
    assert not (out / "results.csv").exists()

    def die(*given: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(base, "page", die)
        with pytest.raises(Killed):
            run_here(again)
    assert not (out / "study.md").exists()
    assert run_here(again) == 0
    for name in ("results.csv", *(["figure.svg"] if HAS_FIGURES else [])):
        assert (out / name).read_bytes() == (calm / name).read_bytes()
    assert (out / "study.md").exists()


def test_a_study_takes_over_the_runs_that_it_shares_with_another(
    calm: Path, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Asked:
        workers = 1

        def run(self, tasks: Sequence[Task]) -> Generator[Event, None, None]:
            asked.extend(task.name for task in tasks)
            yield from ()

    monkeypatch.setattr(start, "_engine", lambda *given: Asked())
    out = tmp_path / "out"
    assert run_here(["study", "ablation", *words[2:], str(out), "--reuse", str(calm)]) == 0
    same = {"ovanet": "ovanet", "ovanet+words+entropy": "ovanet+spa"}  # the preset has words and entropy
    assert len(asked) == 2 * (5 - len(same)) and "folders-ovanet-0" not in asked and "folders-ovanet+words-1" in asked
    for row, other in same.items():
        ours, theirs = (f"grid/runs/folders-{name}-1/metrics.json" for name in (row, other))
        assert (out / ours).read_bytes() == (calm / theirs).read_bytes()
    assert len(list((out / "grid" / "runs").iterdir())) == 2 * len(same)

    asked.clear()
    other = [*words[2:-1], "eval_every=3", "--out", str(tmp_path / "other")]
    assert run_here(["study", "ablation", *other, "--reuse", str(calm / "grid")]) == 2  # no run has finished
    assert len(asked) == 2 * 5


def test_another_study_in_the_same_folder_is_refused(calm: Path, words: list[str], cli: Cli) -> None:
    answer = cli(["study", "ablation", *words[2:], calm])
    assert answer.code == 2 and "holds the study seeds" in answer.err


def test_private_images_of_a_run(calm: Path, glyphs: GlyphFolders) -> None:
    spaces, labels = private_images(calm / "grid" / "runs" / "folders-ovanet+spa-0")
    assert sorted(labels.tolist()) == [4] * 4 + [5] * 4  # key and tree, four pictures each; four source classes
    assert set(spaces) == {"feature", "words"} and len(spaces["feature"]) == 8
    assert torch.allclose(spaces["words"].sum(dim=1), torch.ones(8), atol=1e-4)
