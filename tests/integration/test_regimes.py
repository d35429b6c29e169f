"""Runs that keep what the pretrained network knows: heads are solved at once, and statistics stay."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from test_distributed import answers
from tiny_runs import (
    Killed,
    adapt_arguments,
    dying_at_the_first_checkpoint,
    last_step,
    lines_of,
    model_hash,
    run_here,
    run_two,
    saved_step,
)

import unida
from unida.answering.target import Rule
from unida.config import complete, config_from_options
from unida.data.domains import Source, Target
from unida.data.folders import labelled_by_folder, scan
from unida.data.glyphs import GlyphFolders, write_glyphs
from unida.data.pixels import decode_in_memory
from unida.features.kept import FeatureInputs
from unida.methods import METHODS
from unida.models import solve
from unida.models.backbone import open_backbone
from unida.models.frame import LEAST_MEAN
from unida.models.heads import OneVsAllHead
from unida.runs import pipeline
from unida.runs.modelfile import build_for_run, load_model, save_model
from unida.training.loop import Training

SOLVED = ("ovanet", "source-only")
TAIL = {"train": "tail", "steps": 6, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    out = tmp_path_factory.mktemp("regimes") / "data"
    return write_glyphs(out, shared=2, source_private=1, target_private=1, per_class=5, size=40)


def arguments(folders: GlyphFolders, out: Path, **changes: Any) -> list[str]:
    """Each run with a cache of its own: the killed one begins with nothing."""
    options = {"train": "head", **changes}
    return adapt_arguments(folders.source, folders.target, out, out.with_name(f"cache of {out.name}"), **options)


def run(folders: GlyphFolders, out: Path, **changes: Any) -> Path:
    assert run_here(arguments(folders, out, **changes)) == 0
    return out


def resume(out: Path) -> None:
    assert run_here(["adapt", "--out", str(out), "--resume"]) == 0


def tensors_of(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "checkpoint" / "model.safetensors")


def option(out: Path, group: str, name: str) -> Any:
    return yaml.safe_load((out / "config.yaml").read_text())[group][name]


def assert_same_end(out: Path, whole: Path) -> None:
    assert (out / "predictions.csv").read_bytes() == (whole / "predictions.csv").read_bytes()
    assert model_hash(out) == model_hash(whole)
    assert last_step(out) == last_step(whole)
    assert lines_of(out) == lines_of(whole)


@pytest.fixture(scope="module")
def head(folders: GlyphFolders) -> Path:
    return run(folders, folders.source.parent.parent / "head")


@pytest.fixture(scope="module")
def solved() -> list[int]:
    """How many steps `tail` had taken when its heads were solved."""
    return []


@pytest.fixture(scope="module")
def tail(folders: GlyphFolders, solved: list[int]) -> Path:
    steps, take_step, solve_head = [], Training.take_step, OneVsAllHead.solve

    def stepping(training: Training) -> None:
        steps.append(training.done)
        take_step(training)

    def solving(*given: Any) -> float:
        solved.append(len(steps))
        return solve_head(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "take_step", stepping)
        patch.setattr(OneVsAllHead, "solve", solving)
        return run(folders, folders.source.parent.parent / "tail", **TAIL)


# ---- a frozen backbone -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SOLVED)
def test_with_a_frozen_backbone_there_are_no_steps_and_it_answers_later_as_it_did(
    folders: GlyphFolders, head: Path, tmp_path: Path, method: str
) -> None:
    out = head if method == "ovanet" else run(folders, tmp_path / "run", method=method)
    assert option(out, "training", "method") == method
    assert option(out, "training", "regime") == "kept" and option(out, "model", "frame") == "on"
    assert option(out, "model", "views") == 0
    names = {path.name for path in (out / "checkpoint").iterdir()}
    assert names == {"model.safetensors", "target.safetensors"}
    assert lines_of(out) == []
    log = (out / "log.txt").read_text()
    assert "heads solved on all images, without steps" in log and "SPA's losses" not in log
    with (out / "predictions.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 15
    assert 0 <= last_step(out)["hos"] <= 1
    resume(out)  # a finished run stays as it is
    loaded = unida.load(out)
    assert loaded.evaluate().scalars() == pytest.approx(loaded.metrics, abs=1e-6)
    again = {p.path: p for p in loaded.predict(folders.target)}
    for path, (label, probability, unknown) in answers(out).items():
        assert again[path].label == label
        assert (again[path].probability, again[path].unknown_score) == pytest.approx((probability, unknown), abs=2e-3)


def test_solved_heads_know_their_source(folders: GlyphFolders, tmp_path: Path) -> None:
    """The source as target: features of 15 images separate 3 classes, even those of a random network."""
    given = {"train": "head", "duplicates": "keep"}
    copied, out = shutil.copytree(folders.source, tmp_path / "copied"), tmp_path / "run"
    assert run_here(adapt_arguments(folders.source, copied, out, tmp_path / "cache", **given)) == 0
    assert last_step(out)["closed_accuracy"] == 1


def test_the_published_regime_takes_steps_with_a_frozen_backbone_too(folders: GlyphFolders, tmp_path: Path) -> None:
    out = run(folders, tmp_path / "run", regime="published", steps=3)
    assert [line["step"] for line in lines_of(out) if line["kind"] == "train"] == [1, 2, 3]
    assert saved_step(out) == 3
    assert option(out, "model", "frame") in ("on", "off")  # it was measured


def test_dcc_takes_steps_in_every_regime(folders: GlyphFolders, tmp_path: Path) -> None:
    out = run(folders, tmp_path / "run", method="dcc", bottleneck=8, steps=3)
    assert option(out, "training", "regime") == "kept"
    assert [line["step"] for line in lines_of(out) if line["kind"] == "train"] == [1, 2, 3]
    assert saved_step(out) == 3
    assert tensors_of(out)["frame.target_mean"].abs().sum() > 0


def test_spa_on_a_frozen_backbone_finds_words_and_solves_heads(folders: GlyphFolders, tmp_path: Path) -> None:
    out = run(folders, tmp_path / "run", **{"spa": True, "spa.vocabulary": 8})
    assert "SPA's losses have nothing to change" in (out / "log.txt").read_text()
    assert lines_of(out) == []
    loaded = unida.load(out)
    assert loaded.evaluate().scalars() == pytest.approx(loaded.metrics, abs=1e-6)


@pytest.mark.parametrize(
    "name", ["test_resnet", "test_efficientnet", "test_convnext", "test_vit", "mobilenetv4_conv_small_035"]
)
def test_a_model_with_words_on_a_frozen_backbone_is_read_again(
    folders: GlyphFolders, tmp_path: Path, name: str
) -> None:
    """Features are kept at the words' tap; what follows it is frozen too, also in the model that answers."""
    given = {"backbone": name, "weights": "none", "train": "head", "crop": 32, "image_size": 40}
    config = complete(config_from_options({**given, "spa": True, "spa_vocabulary": 8}), has_gpu=False)
    files, _ = scan(folders.source)
    classes, labels = labelled_by_folder(files)
    pixels = decode_in_memory(files, "squash", 40)
    made = build_for_run(config, Source(pixels, labels, tuple(classes)), Target(pixels)).eval()
    assert not any(parameter.requires_grad for parameter in made.backbone.parameters())
    save_model(tmp_path / "model.safetensors", made, config, tuple(classes), Rule(0, 0.5, "method"))
    loaded, _ = load_model(tmp_path / "model.safetensors")
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, theirs = (method.score(method.features(images)) for method in (made, loaded))
    assert torch.equal(ours.logits, theirs.logits) and torch.equal(ours.unknown, theirs.unknown)


# ---- killed and resumed ----------------------------------------------------------------------------------------------


def die(*arguments: Any, **named: Any) -> None:
    raise Killed


def test_killed_while_features_are_computed(
    folders: GlyphFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unida.features.kept.BATCH", 5)
    whole, out, store, calls = tmp_path / "whole", tmp_path / "killed", FeatureInputs._store, []
    run(folders, whole)

    def dying(*stored: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise Killed
        store(*stored)

    with monkeypatch.context() as patch:
        patch.setattr(FeatureInputs, "_store", dying)
        with pytest.raises(Killed):
            run_here(arguments(folders, out))
    assert not (out / "checkpoint").exists()
    resume(out)
    assert_same_end(out, whole)


@pytest.mark.parametrize("place", ["heads", "answers"])
def test_killed_while_heads_are_solved_or_images_answered(
    folders: GlyphFolders, head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    out = tmp_path / "killed"
    owner: Any = OneVsAllHead if place == "heads" else pipeline
    name = "solve" if place == "heads" else "score_pixels"
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, die)
        with pytest.raises(Killed):
            run_here(arguments(folders, out))
    assert not (out / "metrics.json").exists()
    resume(out)
    assert_same_end(out, head)


def dying_at_step(step: int) -> Callable[[Training], None]:
    take_step = Training.take_step

    def dying(training: Training) -> None:
        if training.done == step:
            raise Killed
        take_step(training)

    return dying


@pytest.mark.parametrize("step", [1, 3])  # without a checkpoint, and with one
def test_a_tail_that_is_killed_at_any_step_ends_with_the_same_bits(
    folders: GlyphFolders, tail: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    out = tmp_path / "killed"
    with monkeypatch.context() as patch:
        patch.setattr(Training, "take_step", dying_at_step(step))
        with pytest.raises(Killed):
            run_here(arguments(folders, out, **TAIL))
    if step > 1:
        assert saved_step(out) == step // 2 * 2
    resume(out)
    assert_same_end(out, tail)


def test_a_tail_that_is_killed_after_its_last_step_keeps_the_heads_that_were_solved_then(
    folders: GlyphFolders, tail: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "killed"
    with dying_at_the_first_checkpoint(monkeypatch):
        run_here(arguments(folders, out, **{**TAIL, "checkpoint_every": 6}))
    assert saved_step(out) == 6
    with monkeypatch.context() as patch:
        patch.setattr(solve, "minimise", die)  # they are in the checkpoint
        resume(out)
    assert (out / "predictions.csv").read_bytes() == (tail / "predictions.csv").read_bytes()
    assert model_hash(out) == model_hash(tail)


# ---- what a tail learns ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", ["kept", "published"])
def test_statistics_of_the_backbone_stay_in_the_kept_regime_alone(
    folders: GlyphFolders, tail: Path, tmp_path: Path, regime: str
) -> None:
    out = tail if regime == "kept" else run(folders, tmp_path / "run", regime=regime, frame="off", **TAIL)
    trained, pretrained = tensors_of(out), open_backbone("test_resnet", "none", seed=0).state_dict()
    names = {name for name in pretrained if "running_" in name or "num_batches" in name}
    assert len(names) > 9
    same = {name for name in names if torch.equal(trained[f"backbone.{name}"], pretrained[name])}
    assert (same == names) == (regime == "kept")
    moved = {n for n in pretrained if n not in names and not torch.equal(trained[f"backbone.{n}"], pretrained[n])}
    assert moved and all("layer4" in name for name in moved), "weights after the tap learn, others stay"


def test_a_tail_solves_its_heads_before_the_first_step_and_after_the_last(tail: Path, solved: list[int]) -> None:
    assert solved == [0, 6]
    torch.testing.assert_close(tensors_of(tail)["one_vs_all.weight"].norm(dim=1), torch.ones(6))
    losses = [line["closed"] for line in lines_of(tail) if line["kind"] == "train"]
    assert losses[0] < 0.5 * torch.tensor(3.0).log().item(), "a solved head starts far below a random one"


def test_training_starts_without_training_views(
    folders: GlyphFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first step the test views of both domains are there; 3 steps of 4 + 4 images fill in some others."""
    kept: list[int] = []

    def count() -> int:
        return sum(path.stat().st_size // 20 for path in (tmp_path / "cache of run" / "features").glob("*/index"))

    take_step = Training.take_step

    def stepping(training: Training) -> None:
        kept.append(count())
        take_step(training)

    monkeypatch.setattr(Training, "take_step", stepping)
    run(folders, tmp_path / "run", **{**TAIL, "steps": 3}, views=2)
    assert kept[0] == 15 + 15
    assert all(0 <= later - before <= 8 for before, later in zip(kept, [*kept[1:], count()], strict=True))
    assert 15 + 15 + 8 <= count() <= 15 + 15 + 3 * 8


# ---- frames in the published regime ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("least", "frame"), [(LEAST_MEAN, "off"), (2.0, "on")])
def test_the_published_regime_measures_whether_it_needs_a_frame(
    folders: GlyphFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: float, frame: str
) -> None:
    """Features of a ReLU need none. No mean of directions is longer than 2."""
    monkeypatch.setattr("unida.models.frame.LEAST_MEAN", least)
    out = run(folders, tmp_path / "run", train="all", steps=2)
    assert option(out, "training", "regime") == "published"
    assert option(out, "model", "frame") == frame
    assert ("frame: on" in (out / "log.txt").read_text()) == (frame == "on")
    assert ("frame.target_mean" in tensors_of(out)) == (frame == "on")
    loaded = unida.load(out)
    assert loaded.evaluate().scalars() == pytest.approx(loaded.metrics, abs=1e-6)


def test_what_was_measured_is_kept_when_a_run_is_resumed(
    folders: GlyphFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unida.models.frame.LEAST_MEAN", 2.0)
    options = {"train": "all", "steps": 4, "checkpoint_every": 2}
    whole, out = run(folders, tmp_path / "whole", **options), tmp_path / "killed"
    with dying_at_the_first_checkpoint(monkeypatch):
        run_here(arguments(folders, out, **options))
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "choose_frame", die)
        resume(out)
    assert option(out, "model", "frame") == "on"
    assert_same_end(out, whole)


# ---- several processes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("train", ["head", "tail"])
def test_two_processes_do_what_one_does(
    folders: GlyphFolders, head: Path, tail: Path, tmp_path: Path, train: str
) -> None:
    """With kept statistics also on a backbone with BatchNorm, whose half batches have none of their own."""
    alone, options = (tail, TAIL) if train == "tail" else (head, {})
    code, printed = run_two(arguments(folders, tmp_path / "two", devices=2, **options))
    assert code == 0, printed
    two = tmp_path / "two"
    for ours, expected in zip(lines_of(two), lines_of(alone), strict=True):
        assert ours.pop("kind") == expected.pop("kind")
        assert ours == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert last_step(two) == pytest.approx(last_step(alone))
    ours, expected = answers(two), answers(alone)
    assert {path: label for path, (label, _, _) in ours.items()} == {p: label for p, (label, _, _) in expected.items()}
    for path, (_, probability, unknown) in ours.items():
        assert probability == pytest.approx(expected[path][1], abs=2e-3)
        # The one-vs-all loss has kinks, where the hardest other class changes: last bits decide where its solver stops.
        assert unknown == pytest.approx(expected[path][2], abs=2e-2)
    trained, theirs = tensors_of(two), tensors_of(alone)
    for name in (name for name in theirs if name.startswith("backbone.")):
        torch.testing.assert_close(trained[name], theirs[name], rtol=1e-4, atol=1e-6)


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "regime", "frame"),
    [
        ({"train": "all"}, "published", "auto"),
        ({"train": "tail"}, "kept", "on"),
        ({"train": "head"}, "kept", "on"),
        ({"train": "all", "regime": "kept"}, "kept", "on"),
        ({"train": "head", "regime": "published"}, "published", "auto"),
        ({"train": "head", "frame": "off"}, "kept", "off"),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_the_regime_follows_from_how_much_is_trained(
    method: str, given: dict[str, Any], regime: str, frame: str
) -> None:
    if given["train"] not in METHODS[method].trains:
        with pytest.raises(unida.UserError, match=f"cannot work with --train {given['train']}"):
            config_from_options({"method": method, **given})
        return
    config = complete(config_from_options({"method": method, **given}), has_gpu=False)
    assert (config.training.regime, config.model.frame) == (regime, frame)
