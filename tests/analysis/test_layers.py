"""`unida analyze layers`: the features it looks at, and the command from folders to files."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from unida.analysis import figure, layers, taps
from unida.analysis.layers import LayerOptions
from unida.analysis.taps import TapFeatures, TapMeasures, features_at_taps, measure_tap
from unida.cli import main
from unida.config import DataOptions
from unida.data.augment import Preprocess
from unida.data.domains import open_domains
from unida.data.glyphs import GlyphFolders, write_glyphs
from unida.models.backbone import create_backbone

BACKBONE = "test_resnet.r160_in1k"
TAPS = ["stem", "layer1", "layer2", "layer3", "layer4"]


@pytest.fixture(autouse=True, scope="module")
def fewer_strengths() -> Iterator[None]:
    """For speed: how a strength is chosen is tested with the measures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unida.analysis.measures.L2_STRENGTHS", (1e-2, 1e-1))
        yield


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    folder = tmp_path_factory.mktemp("glyphs")
    return write_glyphs(folder, shared=3, source_private=1, target_private=2, per_class=6, size=40)


@pytest.fixture(scope="module")
def data(glyphs: GlyphFolders, tmp_path_factory: pytest.TempPathFactory) -> DataOptions:
    cache = tmp_path_factory.mktemp("cache")
    return DataOptions(glyphs.source, glyphs.target, target_labels=True, image_size=40, crop=32, cache=cache)


def command(data: DataOptions, out: Path, *more: str) -> list[str]:
    folders = ["--source", str(data.source), "--target", str(data.target), "--cache", str(data.cache)]
    sizes = ["--image-size", "40", "--crop", "32"]
    return [
        "analyze",
        "layers",
        *folders,
        *sizes,
        "--backbone",
        BACKBONE,
        "--weights",
        "none",
        "--out",
        str(out),
        *more,
    ]


# ---- features at taps ------------------------------------------------------------------------------------------------


def test_features_are_those_of_each_tap_run_on_its_own(data: DataOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taps, "BATCH", 7)  # 24 images: the last batch is a part
    pixels = open_domains(data, visible=False)[0].pixels
    backbone = create_backbone(BACKBONE, "none")
    preprocess = Preprocess(32, backbone.mean, backbone.std, torch.device("cpu"))
    found = features_at_taps(backbone, pixels, preprocess, "source", visible=False)
    assert list(found) == list(backbone.taps) == TAPS
    with torch.no_grad():
        images = preprocess.test_view(pixels, np.arange(len(pixels)))
        for tap, features in found.items():
            maps = backbone.spatial(backbone.run(images, upto=tap), tap)
            assert features.pooled.shape == (24, backbone.channels(tap))
            assert torch.allclose(features.pooled, maps.mean(dim=(2, 3)), atol=1e-5)
            rows = maps.flatten(2).transpose(1, 2)  # (N, locations, D): every one that was drawn is among the image's
            distance = torch.cdist(features.locations, rows, compute_mode="donot_use_mm_for_euclid_dist")
            assert distance.amin(dim=2).max() < 1e-4
            if rows.shape[1] > 1:
                assert (features.locations[:, 0] - features.locations[:, 1:].mean(dim=1)).abs().max() > 0


def test_locations_are_the_same_places_on_maps_of_every_size() -> None:
    places = torch.tensor([[[0.0, 0.99], [0.5, 0.25]]], dtype=torch.float64)
    maps = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert taps._at(maps, places)[0, :, 0].tolist() == [3, 9]
    assert taps._at(maps[:, :, ::2, ::2], places)[0, :, 0].tolist() == [2, 8]
    assert taps._at(maps[:, :, :1, :1], places)[0, :, 0].tolist() == [0, 0]


def test_pas_is_measured_on_images_that_gave_no_word() -> None:
    """Noise in many directions: with a word on every location that made one, only others can be far from all."""
    source, target = (torch.randn(20, 2, 64, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert taps._pas_of_new_images(source, target, words=1000, seed=0) < 0.6


def test_without_target_labels_there_is_no_ntr_and_with_two_classes_none_of_the_source() -> None:
    random = torch.Generator().manual_seed(0)
    source, target = (TapFeatures(torch.randn(20, 3, generator=random), torch.randn(20, 1, 3)) for _ in range(2))
    images = (np.arange(20), np.arange(20, 40))
    row = measure_tap("stem", source, torch.arange(20) % 2, target, images, None, words=4)
    assert row.ntr is None and row.source_ntr is None
    is_private = torch.arange(20) < 5
    row = measure_tap("stem", source, torch.arange(20) % 4, target, images, is_private, words=4)
    assert row.ntr is not None and row.source_ntr is not None
    other = measure_tap("stem", source, torch.arange(20) % 4, target, images, ~is_private, words=4)
    assert other.ntr == pytest.approx(1 - row.ntr)  # the target's labels matter to it, and to no other measure
    assert dataclasses.replace(other, ntr=row.ntr) == row


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def study(data: DataOptions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command writes; and beside it, in shown.txt, what it shows."""
    out = tmp_path_factory.mktemp("study") / "new"
    with out.with_name("shown.txt").open("w") as shown, contextlib.redirect_stdout(shown):
        main(command(data, out, "--target-labels", "--words", "8"))
    return out


def test_the_command_writes_all_measures_and_a_picture(study: Path) -> None:
    assert {path.name for path in study.iterdir()} == {"layers.json", "layers.png"}
    content = json.loads((study / "layers.json").read_text())
    assert [row["tap"] for row in content["taps"]] == TAPS
    assert [row["channels"] for row in content["taps"]] == [32, 32, 48, 192, 96]
    for row in content["taps"]:
        assert all(0 <= row[name] <= 1 for name in ("ntr", "source_ntr", "dis", "pas"))
    assert content["chosen"] in TAPS and content["chosen_without_labels"] in TAPS
    assert (content["source_images"], content["target_images"], content["words"]) == (24, 30, 8)
    with Image.open(study / "layers.png") as picture:
        assert min(picture.size) > 200
        colours = np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)
    assert len(colours) > 20  # not a blank sheet


def test_the_command_shows_what_it_writes(study: Path) -> None:
    content = json.loads((study / "layers.json").read_text())
    lines = study.with_name("shown.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line.split() and line.split()[0] in TAPS]
    assert len(rows) == len(TAPS)
    for shown, row in zip(rows, content["taps"], strict=True):
        numbers = [f"{row[name]:.3f}" for name in ("ntr", "source_ntr", "dis", "pas")]
        assert shown == [row["tap"], str(row["channels"]), *numbers]
    assert f"Definition 1 picks {content['chosen']} (by NTR, which uses target labels)" in lines


def study_of(target: Path, data: DataOptions, out: Path, *labels: str) -> dict[str, Any]:
    """What the command of `study` writes for another target."""
    arguments = command(data, out, *labels, "--words", "8")
    arguments[arguments.index("--target") + 1] = str(target)
    main(arguments)
    content: dict[str, Any] = json.loads((out / "layers.json").read_text())
    return content


def test_other_names_of_private_folders_give_the_same_study(study: Path, data: DataOptions, tmp_path: Path) -> None:
    """To the bit: a study depends on nothing but its images, and on which of them are private."""
    assert data.source is not None and data.target is not None
    for folder in data.target.iterdir():
        is_shared = (data.source / folder.name).exists()
        shutil.copytree(folder, tmp_path / "renamed" / (folder.name if is_shared else f"zz {folder.name}"))
    found = study_of(tmp_path / "renamed", data, tmp_path / "out", "--target-labels")
    assert found == json.loads((study / "layers.json").read_text())


def test_without_target_folders_there_is_no_ntr_and_all_else_is_the_same(
    study: Path, data: DataOptions, tmp_path: Path
) -> None:
    """Everything that a training run might use."""
    assert data.target is not None
    (tmp_path / "flat").mkdir()
    for number, file in enumerate(sorted(data.target.rglob("*.png"))):
        shutil.copyfile(file, tmp_path / "flat" / f"{number}.png")
    found = study_of(tmp_path / "flat", data, tmp_path / "out")
    assert found["chosen"] is None and [row["ntr"] for row in found["taps"]] == [None] * len(TAPS)
    expected = json.loads((study / "layers.json").read_text())
    for content in (found, expected):
        del content["chosen"]
        for row in content["taps"]:
            del row["ntr"]
    assert found == expected


def test_private_are_the_target_images_in_folders_that_the_source_lacks(data: DataOptions, tmp_path: Path) -> None:
    assert data.source is not None
    classes = {folder.name for folder in data.source.iterdir()}
    for limit in (3000, 20):
        images = layers._open(data, LayerOptions(data, tmp_path, max_images=limit), visible=False)
        assert images.target_is_private is not None
        expected = [file.path.parent.name not in classes for file in images.target.files]
        assert images.target_is_private.tolist() == expected and 0 < sum(expected) < len(expected)


def test_max_images_bounds_what_is_looked_at_and_without_matplotlib_the_numbers_are_still_written(
    data: DataOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(layers, "can_draw", lambda: False)
    monkeypatch.setattr(layers, "measure_tap", lambda tap, *arguments: TapMeasures(tap, 4, None, None, 0.3, 0.9))
    main(command(data, tmp_path / "out", "--max-images", "10"))
    content = json.loads((tmp_path / "out" / "layers.json").read_text())
    assert (content["source_images"], content["target_images"], len(content["taps"])) == (10, 10, len(TAPS))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["layers.json"]
    assert "unida[plot]" in caplog.text


def test_a_figure_can_be_drawn_of_every_kind_of_study(tmp_path: Path) -> None:
    for number, (ntr, chosen) in enumerate([(0.5, "b"), (None, "a"), (None, None)]):
        rows = [taps.TapMeasures(tap, 4, ntr, None, 0.3, 0.9) for tap in ("a", "b")]
        figure.draw_curves(rows, chosen, tmp_path / f"{number}.png")
    pictures = [(tmp_path / f"{number}.png").read_bytes() for number in range(3)]
    assert len(set(pictures)) == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda words: [*words, "--words", "1"], "--words is 1"),
        (lambda words: [*words, "--max-images", "0"], "--max-images is 0"),
        (lambda words: [*words, "--max-images", "4"], "the source has 4 different images"),
        (lambda words: [*words, "--crop", "64"], "--crop 64 is larger than --image-size 40"),
        (lambda words: [*words, "--backbone", "vit_tiny_patch16_224", "--crop", "20"], "--crop 20"),
        (lambda words: [*words[:2], *words[4:]], "--source DIR is missing"),
    ],
)
def test_wrong_options_are_one_line_and_leave_nothing(
    change: Callable[[list[str]], list[str]],
    named: str,
    data: DataOptions,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(change(command(data, tmp_path / "out")))
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert said.startswith("error: ") and said.count("\n") == 1 and named in said
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_way_is_told_before_the_work(
    data: DataOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unida.analysis.layers.study_layers", lambda options: pytest.fail("the work began"))
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(SystemExit) as stop:
        main(command(data, tmp_path / "out"))
    assert stop.value.code == 2
    assert f"--out {tmp_path / 'out' / 'layers.json'} cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["analyze"], ["analyze", "--help"]])
def test_help_names_both_studies(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(words)
    shown = capsys.readouterr().out
    assert "unida analyze layers" in shown and "unida analyze complexity" in shown
