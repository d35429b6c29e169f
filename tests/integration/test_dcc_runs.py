"""DCC as a user runs it: resumed, by two processes, on targets with other names, on odd data."""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_distributed import answers
from test_resume import assert_same_end
from tiny_runs import (
    adapt_arguments,
    all_weights,
    assert_same_state,
    dying_at_the_first_checkpoint,
    last_step,
    lines_of,
    model_hash,
    run_here,
    run_two,
    saved_step,
)

import unida
from unida.answering.alone import score_pixels
from unida.data.glyphs import GlyphFolders, write_glyphs
from unida.methods.base import Sweep
from unida.methods.dcc import DCC
from unida.runs import pipeline
from unida.training.loop import Training

# Several clusterings, at intervals that no checkpoint falls on.
OPTIONS = {"method": "dcc", "steps": 8, "cluster_every": 3, "checkpoint_every": 5, "bottleneck": 16}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    """Eight pictures of each class: a cluster needs more than three to be matched."""
    out = tmp_path_factory.mktemp("dcc") / "data"
    return write_glyphs(out, shared=2, source_private=1, target_private=1, per_class=8, size=40)


def arguments(folders: GlyphFolders, out: Path, **changes: Any) -> list[str]:
    place = {"source": folders.source, "target": folders.target, "cache": out.with_name(f"cache of {out.name}")}
    return adapt_arguments(out=out, **{**place, **OPTIONS, **changes})


CHOICES: dict[str, dict[str, Any]] = {
    "all": {"train": "all"},
    "as released": {"train": "head", "clustering": "published", "repeat_classes": True, "unused_logits": 2},
    "SPA": {
        "train": "tail",
        "clustering": "published",
        "spa": True,
        "spa.vocabulary": 16,
        "spa.pretext": "on",
        "spa.pool": 64,
    },
}


@pytest.fixture(scope="module")
def whole(folders: GlyphFolders) -> Callable[[str], Path]:
    """Runs that nobody disturbed, made when first asked for."""

    @functools.cache
    def of(choice: str) -> Path:
        out = folders.source.parent.parent / f"whole {choice}"
        assert run_here(arguments(folders, out, **CHOICES[choice])) == 0
        return out

    return of


@pytest.mark.parametrize("choice", CHOICES)
def test_a_resumed_run_ends_as_one_that_was_not_stopped(
    folders: GlyphFolders, whole: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    """Memory, clusters, matches and the state of the search come with the checkpoint."""
    expected, killed = whole(choice), tmp_path / "killed"
    lines = lines_of(expected)
    assert all(line["clusters"] > 0 for line in lines)
    assert all("memory" in line for line in lines)
    if choice != "all":  # what an untrained backbone sees is near nothing: without the near pairs, none is left
        assert any("discrepancy" in line for line in lines)
    with dying_at_the_first_checkpoint(monkeypatch):
        run_here(arguments(folders, killed, **CHOICES[choice]))
    assert saved_step(killed) == 5  # the last clustering was after step 3
    assert run_here(["adapt", "--out", str(killed), "--resume"]) == 0
    assert_same_end(killed, expected)
    assert_same_state(killed, expected)
    assert any(name.endswith("memory") for name in all_weights(killed))


def test_clustering_and_evaluation_share_a_pass_over_the_target(
    folders: GlyphFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After step 6, where a clustering comes before the evaluation, and at the end; not after step 4."""
    shared: list[bool] = []

    def noted(*arguments: Any, features: torch.Tensor | None = None, **options: Any) -> Any:
        shared.append(features is not None)
        return score_pixels(*arguments, features=features, **options)

    monkeypatch.setattr(pipeline, "score_pixels", noted)
    assert run_here(arguments(folders, tmp_path / "run", eval_every=6)) == 0
    assert run_here(arguments(folders, tmp_path / "apart", eval_every=4)) == 0
    assert shared == [True, True, False, True]
    assert answers(tmp_path / "run") == answers(tmp_path / "apart")


def test_two_processes_agree_on_clusters_and_answers(folders: GlyphFolders, tmp_path: Path) -> None:
    """With a warm-up, in which there is nothing to be shared yet."""
    out = tmp_path / "two"
    words = arguments(folders, out, devices=2, batch_size=8, warm_up=3, eval_every=6)
    code, printed = run_two(words)
    assert code == 0, printed
    assert printed.count("clusters of the target") == 3  # after steps 3, 6 and the last; one process speaks
    lines = [line for line in lines_of(out) if line["kind"] == "train"]
    assert [line["clusters"] > 0 for line in lines] == [False] * 3 + [True] * 5
    assert all(line["clusters"] == int(line["clusters"]) for line in lines)  # the mean over both is that of each
    again = {p.path: p for p in unida.load(out).predict(folders.target)}
    for path, (label, probability, unknown_score) in answers(out).items():
        assert again[path].label == label
        assert (again[path].probability, again[path].unknown_score) == pytest.approx(
            (probability, unknown_score), abs=2e-4
        )


def test_all_processes_continue_with_what_the_main_one_found(folders: GlyphFolders, tmp_path: Path) -> None:
    """On the second process, what a round finds is spoilt; each writes what it continues with."""

    def spoil(rank: int) -> None:
        cluster, take_round = DCC.cluster, Training.take_round

        def spoilt_clustering(self: DCC, step: int, sweep: Sweep) -> None:
            cluster(self, step, sweep)
            if rank:
                self.memory.neg_()
                self.matched_class.fill_(-1)
                self.assignment = self.assignment.flip(0)

        def noted_round(self: Training) -> None:
            take_round(self)
            save_file(dict(self.method.named_buffers()), tmp_path / f"{self.done}-{rank}.safetensors")

        DCC.cluster, Training.take_round = spoilt_clustering, noted_round  # type: ignore[method-assign]

    words = arguments(folders, tmp_path / "two", devices=2, batch_size=8, steps=4)
    code, printed = run_two(words, prepare=spoil)
    assert code == 0, printed
    notes = {path.stem: load_file(path) for path in tmp_path.glob("*.safetensors")}
    assert sorted(notes) == ["0-0", "0-1", "3-0", "3-1", "4-0", "4-1"]
    for step in (0, 3, 4):
        main, other = notes[f"{step}-0"], notes[f"{step}-1"]
        assert main["memory"].any()
        assert all(torch.equal(other[name], main[name]) for name in main)


TWO = {
    "tail": {"train": "tail"},
    "SPA in turns": {
        "train": "tail",
        "clustering": "published",
        "spa": True,
        "spa.preset": "paper",
        "spa.vocabulary": 16,
        "spa.pool": 64,
    },
}


@pytest.mark.parametrize("choice", TWO)
def test_two_processes_start_as_one_does(folders: GlyphFolders, tmp_path: Path, choice: str) -> None:
    """The images that it wants are whole on each process: what is made of them does not hang on how a batch is shared.

    In the first step only: the neck's BatchNorm makes of a share of a batch something else than of the whole.
    """
    changes = {**TWO[choice], "batch_size": 8, "steps": 2, "clusters_per_class": 4, "images_per_class": 2}
    one, two = tmp_path / "one", tmp_path / "two"
    assert run_here(arguments(folders, one, **changes)) == 0
    code, printed = run_two(arguments(folders, two, devices=2, **changes))
    assert code == 0, printed
    alone, shared = lines_of(one)[0], lines_of(two)[0]
    names = ["discrepancy", "closed_matched", "memory", "clusters", "matched"]
    assert alone["clusters"] > 1 and alone["matched"] > 0
    assert [shared[name] for name in names] == pytest.approx([alone[name] for name in names], rel=1e-4)
    assert set(answers(two)) == set(answers(one))


def test_names_of_target_folders_change_no_weight(
    folders: GlyphFolders, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    first, second, target = whole("all"), tmp_path / "second", tmp_path / "renamed"
    for number, path in enumerate(sorted(folders.target.rglob("*.png"), reverse=True)):
        (target / f"class{number % 5}").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / f"class{number % 5}" / f"{number}.png")
    assert run_here(arguments(folders, second, target=target)) == 0
    assert model_hash(first) == model_hash(second)
    assert lines_of(first) == lines_of(second)
    assert last_step(first) != last_step(second)  # evaluation did read the names


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch_size": 1}, "--batch-size 1 is one image in each process, but dcc has BatchNorm, which needs two"),
        ({"warm_up": 8}, "--warm-up 8 ends after the last clustering that training uses"),
        ({"images_per_class": 1}, "--images-per-class is 1: it must be at least 2"),
    ],
)
def test_what_cannot_work_ends_with_one_line(
    folders: GlyphFolders, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    assert run_here(arguments(folders, tmp_path / "run", **changes)) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "error" in line.lower()]
    assert len(errors) == 1 and errors[0].startswith(f"error: {said}")
    assert not (tmp_path / "run").exists() and not (tmp_path / "cache of run" / "features").exists()
