"""SPA through the command line and the Python API: options, runs, and what a run leaves behind."""

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tiny_runs import adapt_arguments, all_weights, lines_of, run_here

import unida
from unida.answering.target import Rule
from unida.config import Config, complete, config_from_options, config_from_yaml, config_to_yaml
from unida.data.glyphs import GlyphFolders, write_glyphs
from unida.methods import METHODS
from unida.methods.base import Method, Problem
from unida.methods.build import build_method
from unida.methods.spa.method import SPA
from unida.methods.spa.options import PRESETS, SPAOptions, resolve
from unida.models.backbone import create_backbone
from unida.runs.modelfile import load_model, save_model
from unida.runs.pipeline import refuse_single_images
from unida.support.options import flag

SMALL = {"spa": True, "spa.vocabulary": 16, "spa.pretext": "on", "spa.pool": 64}
# One case for each method, the presets and what is trained in turns: no option of SPA is a matter of one method.
METHOD_AND_PRESET = [(method, tuple(PRESETS)[i % 2]) for i, method in enumerate(METHODS)]
METHOD_AND_TRAIN = [(method, ("all", "tail")[i % 2]) for i, method in enumerate(METHODS)]
WATCHED = {"pas", "word_entropy", "usage_entropy", "words_in_use", "count_accuracy_source", "count_accuracy_target"}
NO_EFFECT = "SPA's losses have nothing to change"  # told if heads alone are solved: see test_regimes.py


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    out = tmp_path_factory.mktemp("spa") / "data"
    return write_glyphs(out, shared=2, source_private=1, target_private=1, per_class=4, size=40)


def run(folders: GlyphFolders, out: Path, **changes: Any) -> Path:
    """One cache for all: seeds and methods share what it holds."""
    cache = folders.source.parent.parent / "cache"
    assert run_here(adapt_arguments(folders.source, folders.target, out, cache, **changes)) == 0
    return out


def built(config: Config) -> Method:
    """The configured method for three classes, on a small backbone."""
    backbone = create_backbone("test_resnet", "none")
    return build_method(config.training.method, backbone, Problem(3), config.method, config.spa)


# ---- options ---------------------------------------------------------------------------------------------------------


def test_the_help_shows_every_option_of_spa(cli: Any) -> None:
    shown = cli(["adapt", "--help"]).out
    for field in fields(SPAOptions):
        assert re.search(rf"^\W*{re.escape(flag(field.name))}\b", shown, re.MULTILINE), field.name
    assert "--spa.preset best|paper" in shown


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (("--spa.pretext", "off"), "spa_pretext", "off"),
        (("--spa.vocabulary", "64"), "spa_vocabulary", 64),
        (("--spa.tap", "layer3"), "spa_tap", "layer3"),
        (("--spa.goal-words=on",), "spa_goal_words", "on"),
        (("--spa.entropy-weight", "0.5"), "spa_entropy_weight", 0.5),
    ],
)
def test_the_command_line_and_python_say_the_same(
    words: tuple[str, ...], name: str, value: object, monkeypatch: pytest.MonkeyPatch, cli: Any, tmp_path: Path
) -> None:
    parsed: list[Any] = []
    monkeypatch.setattr("unida.runs.pipeline.execute", parsed.append)
    places = {"source": tmp_path / "source", "target": tmp_path / "target", "out": tmp_path / "run"}
    where = [word for option, path in places.items() for word in (f"--{option}", path)]
    assert cli(["adapt", *where, "--spa", *words]).code == 0
    assert parsed == [config_from_options({**places, "spa": True, name: value})]
    assert getattr(parsed[0].spa, name) == value


BAD: list[tuple[Sequence[str], str]] = [
    (["--spa.tap", "layer3"], r"--spa\.tap has no effect without --spa"),
    (["--spa.pretext", "off"], r"--spa\.pretext has no effect without --spa"),
    (["--spa.preset", "paper"], r"--spa\.preset has no effect without --spa"),
    (["--spa", "--spa.grid", "7"], r"--spa\.grid is 7: it must be at least 2 and at most 6"),
    (["--spa", "--spa.vocabulary", "0"], r"--spa\.vocabulary is 0: it must be at least 1"),
    (["--spa", "--spa.temperature", "0"], r"--spa\.temperature is 0\.0: it must be above 0"),
    (["--spa", "--spa.pool", "-1"], r"--spa\.pool is -1: it must be at least 1"),
    (["--spa", "--spa.entropy-weight", "-1"], r"--spa\.entropy-weight is -1\.0: it must be at least 0"),
    (["--spa", "--spa.pretext-weight", "nan"], r"--spa\.pretext-weight is nan: it must be finite and at least 0"),
    (["--spa", "--spa.words", "maybe"], r"'maybe' for argument '--spa\.words'\. Expected one of off, on;"),
    (
        ["--spa", "--spa.task", "count-it"],
        "Expected one of colorization, count, inpainting, jigsaw, patch-location, rotation; see: unida adapt --help",
    ),
    (["--spa", "--spa.vocabulry", "64"], r"no option '--spa\.vocabulry' \(did you mean '--spa\.vocabulary'\?\)"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_what_cannot_work_is_refused_in_one_line(words: Sequence[str], message: str, cli: Any) -> None:
    answer = cli(["adapt", *words])
    assert answer.code == 2
    assert re.match(f"error: .*{message}", answer.err), answer.err
    assert answer.err.count("\n") == 1


def test_a_tap_that_is_not_there_leaves_no_run(folders: GlyphFolders, tmp_path: Path, cli: Any) -> None:
    out = tmp_path / "run"
    words = adapt_arguments(folders.source, folders.target, out, tmp_path / "cache", **SMALL, **{"spa.tap": "layer9"})
    answer = cli(words)
    assert answer.code == 2 and "has no tap 'layer9' (did you mean 'layer" in answer.err
    assert "Traceback" not in answer.err
    assert not out.exists()


@pytest.mark.parametrize(("method", "preset"), METHOD_AND_PRESET)
def test_choices_survive_the_saved_config(method: str, preset: str) -> None:
    config = config_from_options({"method": method, "spa": True, "spa_preset": preset, "spa_grid": 3})
    assert config_from_yaml(config_to_yaml(config)) == config
    resolved = replace(config, spa=resolve(config.spa))
    again = config_from_yaml(config_to_yaml(resolved))
    assert again == resolved
    assert resolve(again.spa) == again.spa  # nothing is left open
    assert {name: getattr(again.spa, name) for name in PRESETS[preset]} == {**PRESETS[preset], "spa_grid": 3}


def test_presets_decide_everything_but_the_tap() -> None:
    decided = {field.name for field in fields(SPAOptions)} - {"spa", "spa_preset", "spa_tap"}
    assert all(set(preset) == decided and None not in preset.values() for preset in PRESETS.values())


@pytest.mark.parametrize("devices", [1, 2])
def test_a_batch_that_words_cannot_be_normalised_over_is_refused(devices: int) -> None:
    given = {"spa": True, "batch_size": devices, "devices": devices}
    scaled = complete(config_from_options({**given, "spa_scale": "batchnorm"}), has_gpu=False)
    told = rf"--batch-size {devices} is one image .* has BatchNorm, which needs two: choose {2 * devices} or more"
    with pytest.raises(unida.UserError, match=told):
        refuse_single_images(built(scaled), scaled, devices)
    for changes in ({"spa_scale": "batchnorm", "batch_size": 2 * devices}, {"spa_scale": "count"}):
        config = complete(config_from_options({**given, **changes}), has_gpu=False)
        refuse_single_images(built(config), config, devices)


# ---- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("train", "preset"), [("all", "best"), ("tail", "paper"), ("head", "best")])
def test_a_run_logs_what_is_watched_and_answers_from_its_folder(
    folders: GlyphFolders, tmp_path: Path, preset: str, train: str
) -> None:
    given = {"train": train, "regime": "published", "steps": 3, **SMALL, "spa.preset": preset, "spa.learn": "on"}
    out = run(folders, tmp_path / "run", **given)
    lines = [line for line in lines_of(out) if line["kind"] == "train"]
    assert len(lines) == 3
    for line in lines:
        assert line.keys() > WATCHED
        losses = {"closed", "one_vs_all", "entropy", "words", "count"}
        assert line["total"] == pytest.approx(sum(line[name] for name in losses))
        assert 0 <= line["count_accuracy_source"] <= 1 and 0 <= line["count_accuracy_target"] <= 1
        assert -1 <= line["pas"] <= 1 and 1 <= line["words_in_use"] <= 16.001
    assert NO_EFFECT not in (out / "log.txt").read_text()
    saved = yaml.safe_load((out / "config.yaml").read_text())["spa"]
    assert saved["spa_vocabulary"] == 16
    assert saved["spa_updates"] == PRESETS[preset]["spa_updates"]  # what the preset chose is written out
    loaded = unida.load(out)
    evaluated = loaded.evaluate().scalars()
    assert evaluated == pytest.approx(loaded.metrics, abs=1e-6)


def test_python_gives_what_the_command_line_gives(folders: GlyphFolders, tmp_path: Path) -> None:
    out = run(folders, tmp_path / "cli", steps=3, **SMALL, **{"spa.words": "on", "log_every": 1})
    same = {"backbone": "test_resnet", "weights": "none", "train": "all", "image_size": 40, "crop": 32}
    again = unida.adapt(
        folders.source,
        folders.target,
        tmp_path / "python",
        cache=folders.source.parent.parent / "cache",
        spa=True,
        spa_vocabulary=16,
        spa_pretext="on",
        spa_words="on",
        steps=3,
        batch_size=4,
        accelerator="cpu",
        target_labels=True,
        **same,
    )
    ours, theirs = (load_file(folder / "checkpoint" / "model.safetensors") for folder in (again.folder, out))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    with pytest.raises(unida.UserError, match=r"--spa\.words has no effect without --spa"):
        unida.adapt(folders.source, folders.target, tmp_path / "none", spa_words="on")


OF_ALL_KINDS = ("source-only", "dcc", "ros", "usfda")  # solved, in rounds, in two stages, without the source


@pytest.mark.parametrize(("method", "train"), [pair for pair in METHOD_AND_TRAIN if pair[0] in OF_ALL_KINDS])
def test_with_everything_off_the_method_is_as_it_was(
    folders: GlyphFolders, tmp_path: Path, method: str, train: str
) -> None:
    """The null control: bit by bit the same losses, weights and answers as without SPA."""
    options = {"method": method, "train": train, "steps": 4, "eval_every": 2}
    bare = run(folders, tmp_path / "bare", **options)
    off = {"spa.pretext": "off", "spa.entropy": "off", "spa.words": "off"}
    null = run(folders, tmp_path / "null", **options, **{**SMALL, **off})
    assert lines_of(null) == lines_of(bare)
    ours, theirs = (load_file(folder / "checkpoint" / "model.safetensors") for folder in (null, bare))
    for name, tensor in theirs.items():
        inner = name.replace("backbone.", "backbone.backbone.", 1) if name.startswith("backbone.") else name
        assert torch.equal(ours[f"method.{inner}"], tensor), name
    assert (null / "predictions.csv").read_bytes() == (bare / "predictions.csv").read_bytes()
    if method == "source-only":
        real = run(folders, tmp_path / "real", **options, **SMALL)
        assert lines_of(real) != lines_of(bare)  # or the test would hold of anything


def test_a_pool_of_mosaics_serves_every_seed_and_method(
    folders: GlyphFolders, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache, weights = tmp_path / "cache", tmp_path / "weights.safetensors"
    save_file(create_backbone("test_resnet", "none").model.state_dict(), weights)  # random ones are drawn by the seed
    words = {"train": "tail", "steps": 2, "weights": weights, **SMALL}
    for name, changes in {"first": {}, "second": {"seed": 7, "method": "source-only"}}.items():
        caplog.clear()
        given = {**words, **changes}
        assert run_here(adapt_arguments(folders.source, folders.target, tmp_path / name, cache, **given)) == 0
        made = [record.message for record in caplog.records if record.message.startswith("mosaics:")]
        assert len(made) == (2 if name == "first" else 0), made
        assert NO_EFFECT not in (tmp_path / name / "log.txt").read_text()


def assert_left_out(method: str, model: set[str], saved: set[str]) -> None:
    """The pretext classifier, and what the method below does not answer with."""
    assert model < saved
    of_task = {"task.head.weight", "task.head.bias", "task.bins", "gap"}
    prefixes = tuple(f"method.{name}" for name in METHODS[method].load().run_only)
    below = {name for name in saved if prefixes and name.startswith(prefixes)}
    assert bool(below) == bool(prefixes)
    assert saved - model == of_task | below


@pytest.mark.parametrize(("method", "preset"), METHOD_AND_PRESET)
def test_a_model_file_gives_the_same_scores_without_what_only_training_needs(
    method: str, preset: str, tmp_path: Path
) -> None:
    given = {"method": method, "backbone": "test_resnet", "weights": "none", "crop": 32}
    config = config_from_options(
        {
            **given,
            "train": METHODS[method].trains[0],
            "spa": True,
            "spa_preset": preset,
            "spa_pretext": "on",
            "spa_vocabulary": 16,
        }
    )
    config = replace(config, spa=resolve(config.spa))
    made = built(config).eval()
    assert isinstance(made, SPA)
    with torch.no_grad():
        for tensor in (*made.parameters(), *made.buffers()):
            if tensor.is_floating_point():
                tensor.add_(0.05 * torch.rand(tensor.shape))
    save_model(tmp_path / "model.safetensors", made, config, ("a", "b", "c"), Rule(0, 0.5, "method"))
    assert_left_out(method, set(load_file(tmp_path / "model.safetensors")), set(made.state_dict()))
    before = torch.random.get_rng_state()
    loaded, info = load_model(tmp_path / "model.safetensors")
    assert torch.equal(torch.random.get_rng_state(), before)  # whoever loads a model has draws of his own
    assert isinstance(loaded, SPA)
    assert info.spa is not None and info.spa["spa_preset"] == preset
    images = torch.rand(4, 3, 32, 32)
    with torch.no_grad():
        ours, theirs = (m.score(m.features(images)) for m in (made, loaded))
    assert torch.equal(ours.logits, theirs.logits) and torch.equal(ours.unknown, theirs.unknown)


def test_a_run_keeps_to_resume_what_its_model_leaves_out(folders: GlyphFolders, tmp_path: Path) -> None:
    out = run(folders, tmp_path / "run", method="uan", train="tail", steps=2, **SMALL)
    saved = {name.removeprefix("method/") for name in all_weights(out) if name.startswith("method/")}
    assert_left_out("uan", set(load_file(out / "checkpoint" / "model.safetensors")), saved)
